"""Everything fastscribe raises on purpose.

    FastscribeError (ValueError)    what the user can put right; the message says what, where and what to do
    ├── UsageError                  an option, or a combination, that cannot be had
    ├── CheckpointError             a model that cannot be used: missing, unsafe, unsupported, or not matching its config
    │   ├── UnsupportedCheckpoint   names the key and the value that this code does not handle
    │   ├── WeightsMismatch         lists missing and unexpected weight names
    │   └── HubUnreachable          the Hugging Face hub cannot be asked; a copy in the cache will do
    ├── AudioError                  one recording that cannot be read; the run turns it into a Failure and goes on
    ├── ManifestError               one manifest row that cannot be used; likewise
    ├── ModelOutputError            what the model made of one stretch of audio is no transcript; likewise
    ├── DeviceFailed                the GPU can do nothing more in this process; the run stops, what is written stays
    ├── SideFailed                  one side of a comparison gave up (in bench/against/process.py)
    └── OutputError                 a result that cannot be written (disk full ..); the run stops, what is written stays

A wrong state of our own is an assert, not an exception from here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from fastscribe._system.text_layout import escaped

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 120, 120
_MAX_NAMES = 10  # of weights in a message
_MAX_PROBLEM = 2000  # characters of a message
_MAX_SHOWN = 300  # characters of a foreign value in a message


def first_line(error: BaseException) -> str:
    """What a library's exception says, fit for one line; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class FastscribeError(ValueError):
    """Base of everything raised on purpose; str() is one line fit for stderr."""


class UsageError(FastscribeError):
    """The user asked for something that cannot be had."""


class CheckpointError(FastscribeError):
    def __init__(self, where: object, problem: str) -> None:
        # Names in a file may hold line breaks, and what a terminal obeys.
        super().__init__(escaped(f"{where}: {' '.join(problem.split())[:_MAX_PROBLEM]}"))


class UnsupportedCheckpoint(CheckpointError):
    def __init__(self, where: object, key: str, value: object, supported: str) -> None:
        shown = _REPR.repr(value)  # a whole vocabulary, or nested YAML aliases, would make a message of megabytes
        shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "..."
        super().__init__(where, f"unsupported {key[:100]}: {shown} (supported: {supported})")
        self.key = key


class WeightsMismatch(CheckpointError):
    def __init__(
        self, where: object, missing: Iterable[str] = (), unexpected: Iterable[str] = (), shapes: Iterable[str] = ()
    ) -> None:
        parts = [
            f"{what}: {_first_names(sorted(names))}"
            for what, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", shapes))
            if names
        ]
        super().__init__(where, "weights do not match the config; " + "; ".join(parts))


class HubUnreachable(CheckpointError):
    def __init__(self, where: object, reason: str, cure: str) -> None:
        super().__init__(where, f"{reason}: {cure}")
        self.reason = reason


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(name[:120] for name in names[:_MAX_NAMES]) + more


class AudioError(FastscribeError):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.problem = problem


class ManifestError(FastscribeError):
    def __init__(self, path: str, line_number: int, problem: str) -> None:
        super().__init__(f"{path}: line {line_number}: {problem}")


class ModelOutputError(FastscribeError):
    """NaN or infinite numbers, or more tokens than any speech has."""


class DeviceFailed(FastscribeError):
    def __init__(self, device: str, error: BaseException) -> None:
        super().__init__(f"{device} failed: {first_line(error)}; the run stops, what is written is kept")


class OutputError(FastscribeError):
    def __init__(self, path: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(f"{path}: its result cannot be written: {reason}; the run stops, what is written is kept")
