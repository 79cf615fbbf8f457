"""Log of measurements: one JSON line each, written to disk at once, with the error of a failed one.

A crash, a hang or a time limit costs only the measurement in progress. A measurement that raises becomes a row with `error`,
and the next one runs; only a lost GPU ends the series.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from fastscribe.bench.result import describe_error
from fastscribe.cuda.device import recover

Row = dict[str, Any]
T = TypeVar("T")
_DIGITS = 5  # significant


class MeasurementLog:
    def __init__(self, path: Path, seconds: float, known: Sequence[Row] = ()) -> None:
        """Write rows to `path`. Measurements that have not started within `seconds` are skipped, with a row.

        Measurements of which `known` has a row are left out.
        """
        self.path, self._known = path, known
        self._end = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def write(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(_rounded(dict(row)), ensure_ascii=False), file=file)

    def known(self, key: Mapping[str, Any]) -> Row | None:
        """Return the row of a measurement that need not be repeated, so nothing must be prepared for it; None: measure it."""
        wanted = _rounded(key)
        found = (
            row for row in self._known if all(name in row and row[name] == value for name, value in wanted.items())
        )
        return next(found, None)

    def measure(
        self, key: Mapping[str, Any], call: Callable[[], Mapping[str, Any]], needs_s: float = 0.0
    ) -> Row | None:
        """Write `key` with the result of `call`, or its error, and `spent_s`. Return the row, or None after an error.

        A measurement that is known is not repeated: its row is returned, and not written.

        Args:
            key: The fields that name the measurement.
            call: Measures.
            needs_s: Seconds that must be left; otherwise the measurement is skipped.

        Raises the error of `call` if the device is lost, because no later measurement can succeed.
        """
        row = self.known(key)
        return self._measured(key, call, needs_s) if row is None else row

    def _measured(self, key: Mapping[str, Any], call: Callable[[], Mapping[str, Any]], needs_s: float) -> Row | None:
        if self.seconds_left < needs_s or self.seconds_left <= 0:
            self.write({**key, "error": "skipped: out of time"})
            return None
        start = time.monotonic()
        try:
            row = {**key, **call(), "spent_s": time.monotonic() - start}
        except Exception as error:  # whatever can go wrong on an unknown machine is a result too
            self.write({**key, "error": describe_error(error), "spent_s": time.monotonic() - start})
            gc.collect()
            if recover(_device()) is not None:
                raise
            return None
        self.write(row)
        return row

    def make(self, key: Mapping[str, Any], call: Callable[[], T], needs_s: float = 0.0) -> T | None:
        """Return the result of `call` and write a row with its duration; None if it failed, with a row too."""
        made: list[T] = []

        def prepare() -> Row:
            made.append(call())
            return {"is_preparation": True}

        self._measured(key, prepare, needs_s)  # also if it is known: it is made again
        return made[0] if made else None


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _rounded(value: Any) -> Any:
    """Round floats to a few significant digits; more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
