"""What Ctrl-C and SIGTERM do to a command: it ends in order, wherever it is, with exit code 130 or 143.

Python makes an exception of a signal, wherever the main thread is; and in some places exceptions get lost. Native code that
imports a module takes any of them for a module that cannot be had, and goes on without it: torch without numpy, for one.
What leaves an exec() of text is remembered by the interpreter, which then kills itself with SIGINT in the end, whatever the
exit code was to be. Finalisers and callbacks of native code print what they cannot raise. There, the signal comes again a
moment later; where that is no better for a second, as torch's own import may last, the process ends at once. Other native
code makes errors of its own of whatever comes: safetensors, that a file cannot be read.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NoReturn

INTERRUPTED, TERMINATED = 130, 143  # exit codes
ENDINGS = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}
_RETRY_S, _MAX_RETRY_S = 0.05, 1.0
_HAS_TIMER = hasattr(signal, "setitimer")  # not on Windows
_IMPORTS, _EXECUTED_TEXT = "<frozen importlib", "<string>"  # files of code


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is SIGINT."""


class SignalHandler:
    """The first signal raises KeyboardInterrupt or Terminated somewhere in what `caller` calls, the next ends the process at
    once, which costs nothing that is finished.

    `exit_code` is the command's once a signal has come, whatever becomes of the exception.
    """

    def __init__(self, caller: Callable[..., object]) -> None:
        self.exit_code: int | None = None
        self._caller = caller.__code__
        self._signalled_at = math.inf
        self._show_unraisable = sys.unraisablehook

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_signal)
        sys.unraisablehook = self._unraisable

    def restore(self) -> None:
        """The command has ended: what was to come later comes no more."""
        if _HAS_TIMER:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = self._show_unraisable

    def matches(self, error: BaseException) -> bool:
        """Whether this error stands for the exception. One that came while the command ended has it as its context."""
        if self.exit_code is None:
            return False
        known: BaseException | None = error
        while known is not None and not isinstance(known, (KeyboardInterrupt, Terminated)):
            known = known.__context__
        return known is None

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self.exit_code, self._signalled_at = _exit_code(signal_number), monotonic()
        for each in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(each) == self._on_signal:
                signal.signal(each, _exit_now)
        self._raise_or_exit(signal_number, frame)

    def _raise_or_exit(self, signal_number: int, frame: FrameType | None) -> None:
        if not (_HAS_TIMER and _may_be_swallowed(frame, self._caller)):
            raise Terminated if signal_number == signal.SIGTERM else KeyboardInterrupt
        if monotonic() > self._signalled_at + _MAX_RETRY_S:
            _report_and_exit(signal_number, frame)
        self._raise_later(signal_number)

    def _raise_later(self, signal_number: int) -> None:
        signal.signal(signal.SIGALRM, lambda _, frame: self._raise_or_exit(signal_number, frame))
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)

    def _unraisable(self, lost: Any) -> None:
        if _HAS_TIMER and lost.exc_type in (KeyboardInterrupt, Terminated):
            self._raise_later(signal.SIGINT if lost.exc_type is KeyboardInterrupt else signal.SIGTERM)
        else:
            self._show_unraisable(lost)


def exit_on_sigint() -> None:
    """While a command's own modules are imported: of a Ctrl-C then, Python would show where it was."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in the background of some shells
        signal.signal(signal.SIGINT, _report_and_exit)


def exit_without_cleanup(exit_code: int) -> NoReturn:
    """Ends the process without Python's own end, in which threads that are still reading a recording are ended wherever they
    are: in native code of some libraries, that aborts the process, whatever its exit code was to be.
    """
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
    os._exit(exit_code)


def _exit_code(signal_number: int) -> int:
    return TERMINATED if signal_number == signal.SIGTERM else INTERRUPTED


def _may_be_swallowed(frame: FrameType | None, caller: CodeType) -> bool:
    """Whether an exception raised here may not reach `caller`."""
    while frame is not None and frame.f_code is not caller:
        code = frame.f_code
        if code.co_filename.startswith(_IMPORTS) or code.co_filename == _EXECUTED_TEXT:
            return True
        frame = frame.f_back
    return False


def _exit_now(signal_number: int, frame: FrameType | None) -> NoReturn:
    os._exit(_exit_code(signal_number))


def _report_and_exit(signal_number: int, frame: FrameType | None) -> NoReturn:
    with suppress(OSError):
        os.write(2, f"fastscribe: {ENDINGS[_exit_code(signal_number)]}\n".encode())
    _exit_now(signal_number, frame)
