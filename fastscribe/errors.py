"""Everything fastscribe raises on purpose.

    FastscribeError (ValueError)    what the user can put right; the message says what, where and what to do
    ├── UsageError                  an option, or a combination, that cannot be had
    ├── CheckpointError             a model that cannot be used: missing, unsafe, unsupported, or not matching its config
    │   ├── UnsupportedCheckpoint   names the key and the value that this code does not handle
    │   └── WeightsMismatch         lists missing and unexpected weight names
    ├── AudioError                  one recording that cannot be read; the run turns it into a Failure and goes on
    ├── ManifestError               one manifest row that cannot be used; likewise
    └── OutputError                 a result that cannot be written (disk full ..); the run stops, what is written stays

A wrong state of our own is an assert, not an exception from here.
"""

from __future__ import annotations

from collections.abc import Iterable


class FastscribeError(ValueError):
    """Base of everything raised on purpose; str() is one line fit for stderr."""


class UsageError(FastscribeError):
    """The user asked for something that cannot be had."""


class CheckpointError(FastscribeError):
    def __init__(self, where: object, problem: str) -> None:
        super().__init__(f"{where}: {problem}")


class UnsupportedCheckpoint(CheckpointError):
    def __init__(self, where: object, key: str, value: object, supported: str) -> None:
        super().__init__(where, f"unsupported {key}: {value!r} (supported: {supported})")
        self.key = key


class WeightsMismatch(CheckpointError):
    def __init__(
        self, where: object, missing: Iterable[str] = (), unexpected: Iterable[str] = (), shapes: Iterable[str] = ()
    ) -> None:
        parts = [
            f"{what}: {', '.join(sorted(names))}"
            for what, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", shapes))
            if names
        ]
        super().__init__(where, "weights do not match the config; " + "; ".join(parts))


class AudioError(FastscribeError):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.problem = problem


class ManifestError(FastscribeError):
    def __init__(self, path: str, line_number: int, problem: str) -> None:
        super().__init__(f"{path}: line {line_number}: {problem}")


class OutputError(FastscribeError):
    def __init__(self, path: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(f"{path}: its result cannot be written: {reason}; the run stops, what is written is kept")
