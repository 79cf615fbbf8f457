"""The exceptions that fastscribe raises on purpose.

    FastscribeError (ValueError)    something that the user can put right; the message says what, where and what to do
    ├── UsageError                  an option, or a combination of options, that is not possible
    │   ├── OptionError             one value of a setting, which the command line prints with the option's name
    │   ├── DeviceUnusable          the device cannot be used here
    │   ├── ModelClosed             the model was closed, before a run or during it
    │   └── MissingExtra            a package of an extra is not installed
    ├── CheckpointError             an unusable model: missing, unsafe, unsupported, or not matching its config
    │   ├── UnsupportedCheckpoint   names the key and the value that this code does not handle
    │   ├── WeightsMismatch         lists missing and unexpected weight names
    │   └── HubUnreachable          the Hugging Face hub does not answer; a copy in the cache will do
    ├── AudioError                  an unreadable recording; the run turns it into a Failure and goes on
    ├── ManifestError               an unusable manifest row; likewise
    ├── ModelOutputError            model output for one utterance that is no transcript; likewise
    ├── RecordingKilledProcess      likewise, of a recording that ends each process which decodes it (--devices)
    ├── DeviceFailed                the GPU can do nothing more in this process; the run stops and keeps its results
    └── OutputError                 a result that cannot be written (disk full ..); the run stops and keeps its results

Our own mistakes are asserts, not exceptions from here.
"""

from __future__ import annotations

import errno
import re
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from fastscribe._system.text_layout import escaped

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, 120, 120
_OUT_OF_MEMORY = (  # patterns
    "out of memory",
    "allocate memory",
    "alloc_failed",
    "bad_alloc",
    # oneDNN has no memory for the code that it makes. That it has no descriptor of one means that it cannot do it at all.
    "could not create a primitive(?! descriptor)",
    "failed to map segment",  # of a library
)
_MAX_NAMES = 10  # weights named in a message
_MAX_PROBLEM = 2000  # characters
_MAX_SHOWN = 300  # characters of a value from a file


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, or the exception's type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error of any device or library.

    torch reports one on a CPU as a plain RuntimeError, and oneDNN and cuBLAS have their own messages, so messages are matched.
    torch's own class is known by its name, because nothing here imports torch.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, (RuntimeError, ImportError)) and any(
        re.search(words, str(error).lower()) for words in _OUT_OF_MEMORY
    )


class FastscribeError(ValueError):
    """Base of the exceptions raised on purpose; str() is one line fit for stderr."""

    spoken: ClassVar[Callable[[str], str]] = str  # how a message names settings; python_names.in_python for programs

    def __str__(self) -> str:
        return FastscribeError.spoken(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message: the leaves make it of other arguments, and a process pool breaks on what it cannot unpickle."""
        return _unpickled, (type(self), *self.args), self.__dict__


def _unpickled(kind: type[FastscribeError], *arguments: object) -> FastscribeError:
    return kind.__new__(kind, *arguments)  # sets `args`, without __init__


class UsageError(FastscribeError):
    """An option, or a combination of options, that is not possible."""


class OptionError(UsageError):
    """The value of a setting. The command line prints it with the option's name (on_command_line)."""

    def __init__(self, name: str, value: object, problem: str, *, names_options: bool = True) -> None:
        super().__init__(f"{name} {' '.join(repr(value).split()):.200}: {problem}")
        self.name, self.value, self.problem, self._names_options = name, value, problem, names_options

    @property
    def on_command_line(self) -> str:
        """The message with `--max-cue-s` for `max_cue_s`, in the problem too if it `names_options`."""
        problem = self.problem
        if self._names_options:
            problem = re.sub("[a-z]+(?:_[a-z]+)+", lambda name: "--" + name[0].replace("_", "-"), problem)
        return f"--{self.name.replace('_', '-')} {self.value}: {problem}"


class DeviceUnusable(UsageError):
    """A device that cannot be used here.

    Attributes:
        problem: The message without the option that named the device.
    """

    def __init__(self, named_by: str, problem: str) -> None:
        super().__init__(f"{named_by}: {problem}")
        self.problem = problem


class ModelClosed(UsageError):
    """The model was closed, before a run or during it."""

    def __init__(self) -> None:
        super().__init__("this model is closed: load it again")


class MissingExtra(UsageError):
    """A package of one of fastscribe's extras is not installed."""

    def __init__(self, what: str, packages: str, extra: str) -> None:
        clone = f"in a clone: pip install '.[{extra}]'"
        super().__init__(f"{what} needs {packages}: install fastscribe with its extra {extra} ({clone})")


class PlaceInUse(UsageError):
    """Another run writes into the output folder or the store: the same command may succeed later."""


class CheckpointError(FastscribeError):
    """An unusable model: missing, unsafe, unsupported, or not matching its config."""

    def __init__(self, where: object, problem: str) -> None:
        # Names in a file may hold line breaks and terminal escape sequences.
        super().__init__(escaped(f"{where}: {' '.join(problem.split())[:_MAX_PROBLEM]}"))


class UnsupportedCheckpoint(CheckpointError):
    def __init__(self, where: object, key: str, value: object, supported: str) -> None:
        shown = _REPR.repr(value)  # a vocabulary or nested YAML aliases may be megabytes long
        shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "..."
        super().__init__(where, f"unsupported {key[:100]}: {shown} (supported: {supported})")
        self.key = key


class SideModelGiven(CheckpointError):
    """A model that a room runs beside the run's own is where that belongs.

    Attributes:
        option: The field of Options that names such models.
    """

    def __init__(self, where: object, option: str, what: str) -> None:
        super().__init__(where, f"{what} and writes no words; give it to --{option}, beside a --model")
        self.option = option


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
    """An unusable recording.

    Attributes:
        problem: The message without the recording's path.
        may_pass: As that of a Failure.
    """

    def __init__(self, path: str, problem: str, may_pass: bool = False) -> None:
        super().__init__(f"{path}: {problem}")
        self.problem, self.may_pass = problem, may_pass


class ManifestError(FastscribeError):
    def __init__(self, path: str, line_number: int, problem: str) -> None:
        super().__init__(f"{path}: line {line_number}: {problem}")
        self.path, self.line_number, self.problem = path, line_number, problem


class ModelOutputError(FastscribeError):
    """NaN or infinite numbers, or more tokens than any speech has."""


class RecordingKilledProcess(FastscribeError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"decoding it ended a process each time, also by itself; the last one {reason}")


class DeviceFailed(FastscribeError):
    """The device can do nothing more.

    Attributes:
        problem: The message without what becomes of the run.
    """

    def __init__(self, device: str, error: BaseException) -> None:
        self.problem = f"{device} failed: {first_line(error)}"
        super().__init__(f"{self.problem}; the run stops, what is written is kept")


class OutputError(FastscribeError):
    def __init__(self, path: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(f"{path}: its result cannot be written: {reason}; the run stops, what is written is kept")


class RemoteError(OSError):
    """A request that failed for good. str() is one line: what failed and what to do. It does not repeat the URL.

    Attributes:
        may_pass: The same request may succeed later, because the store or the network failed and not the request.
    """

    may_pass: ClassVar[bool] = False

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.strerror = problem  # what messages about any OSError show

    def __str__(self) -> str:
        return self.problem
