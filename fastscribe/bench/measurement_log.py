"""Where measurements go as they are made: one JSON line each, on disk at once, a failed one with its error.

So a crash, a hang or a time limit costs the measurement under way and none before it. A measurement that raises becomes a
row with `error`, and the next is tried; only a GPU that has stopped working for good ends the lot.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from fastscribe.cuda.device import recover

Row = dict[str, Any]
T = TypeVar("T")
_MAX_ERROR = 600  # characters
_DIGITS = 5  # significant


class MeasurementLog:
    def __init__(self, path: Path, seconds: float) -> None:
        """Rows go to `path`; what is not begun within `seconds` is skipped, and its row says so."""
        self.path = path
        self._end = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def write(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(_rounded(dict(row)), ensure_ascii=False), file=file)

    def measure(
        self, key: Mapping[str, Any], call: Callable[[], Mapping[str, Any]], needs_s: float = 0.0
    ) -> Row | None:
        """Writes `key` with what `call` returns, or with its error; the row is returned unless there is an error.

        `needs_s` seconds must be left. Raises what `call` raised when no later one can succeed.
        """
        if self.seconds_left < needs_s or self.seconds_left <= 0:
            self.write({**key, "error": "skipped: out of time"})
            return None
        try:
            row = {**key, **call()}
        except Exception as error:  # whatever can go wrong on an unknown machine is a result too
            self.write({**key, "error": describe(error)})
            gc.collect()
            if recover(_device()) is not None:
                raise
            return None
        self.write(row)
        return row

    def make(self, key: Mapping[str, Any], call: Callable[[], T], needs_s: float = 0.0) -> T | None:
        """What `call` returns, with a row of how long it took; None where it failed, which is a row too."""
        made: list[T] = []

        def timed() -> Row:
            start = time.monotonic()
            made.append(call())
            return {"made_in_s": time.monotonic() - start}

        self.measure(key, timed, needs_s)
        return made[0] if made else None


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_ERROR]


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _rounded(value: Any) -> Any:
    """Floats to a few significant digits: more would be noise, and the document is to be read and stored."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
