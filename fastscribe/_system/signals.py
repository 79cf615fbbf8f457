"""The end of a process from outside: Ctrl-C and SIGTERM end a command in order, at any point, with exit code 130 or 143, and a
process that another one started ends with it, however that ended.

Python raises a signal as an exception in the main thread, and some code loses exceptions. Native code that imports a module
takes any exception for a missing module and goes on without it, for example torch without numpy. The interpreter remembers
an exception that leaves an exec() of text and at exit kills itself with SIGINT, whatever the exit code. Finalisers and
callbacks of native code print what they cannot raise. In these places the signal is raised again a moment later. After a
second without success, which torch's import may take, the process exits at once. Other native code turns any exception
into an error of its own, for example safetensors into an unreadable file.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NoReturn

INTERRUPTED, TERMINATED = 130, 143  # exit codes
# Ctrl-C, and Ctrl-Break, which only Windows has and which cannot be turned off there.
_INTERRUPTS = [getattr(signal, name) for name in ("SIGINT", "SIGBREAK") if hasattr(signal, name)]
ENDINGS = {INTERRUPTED: "interrupted", TERMINATED: "terminated"}
_RETRY_S, _MAX_RETRY_S = 0.05, 1.0
_HAS_TIMER = sys.platform != "win32"
# Called with the exit code before the process ends at once, in the signal's handler, so they may not wait for threads.
HARD_EXIT_HOOKS: list[Callable[[int], object]] = []
# Set once native threads run that take Python's lock and that nothing can stop: see exit_without_finalisation().
HAS_NATIVE_THREADS = Event()
_IMPORTS, _EXECUTED_TEXT = "<frozen importlib", "<string>"  # file names of code objects
_PARENT_S = 1.0  # between two looks at the parent
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Terminated(BaseException):
    """SIGTERM as an exception, like KeyboardInterrupt for SIGINT."""


_EXCEPTIONS: dict[int, type[BaseException]] = {signal.SIGTERM: Terminated}


class SignalHandler:
    """The first signal raises KeyboardInterrupt or Terminated in the calls of `caller`; the next ends the process at once.

    Finished results are safe in either case. `exit_code` is the command's once a signal has come, whatever becomes of the
    exception.
    """

    def __init__(self, caller: Callable[..., object]) -> None:
        self.exit_code: int | None = None
        self._caller = caller.__code__
        self._signalled_at = math.inf
        self._show_unraisable = sys.unraisablehook

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        for each in _INTERRUPTS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, self._on_signal)
        sys.unraisablehook = self._unraisable
        print_threads_on_request()

    def restore(self) -> None:
        """Cancel the retries when the command has ended."""
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = self._show_unraisable

    def matches(self, error: BaseException) -> bool:
        """Return True if this error replaced the signal's exception. An exception raised at the end is in its context."""
        if self.exit_code is None:
            return False
        known: BaseException | None = error
        while known is not None and not isinstance(known, (KeyboardInterrupt, Terminated)):
            known = known.__context__
        return known is None

    def _on_signal(self, signal_number: int, frame: FrameType | None) -> None:
        self.exit_code, self._signalled_at = _exit_code(signal_number), monotonic()
        for each in (signal.SIGTERM, *_INTERRUPTS):
            if signal.getsignal(each) == self._on_signal:
                signal.signal(each, _exit_now)
        self._raise_or_exit(signal_number, frame)

    def _raise_or_exit(self, signal_number: int, frame: FrameType | None) -> None:
        if not (_HAS_TIMER and _may_be_swallowed(frame, self._caller)):
            raise _EXCEPTIONS.get(signal_number, KeyboardInterrupt)
        if monotonic() > self._signalled_at + _MAX_RETRY_S:
            _report_and_exit(signal_number, frame)
        self._raise_later(signal_number)

    def _raise_later(self, signal_number: int) -> None:
        if sys.platform != "win32":
            signal.signal(signal.SIGALRM, lambda _, frame: self._raise_or_exit(signal_number, frame))
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)

    def _unraisable(self, lost: Any) -> None:
        numbers = {kind: number for number, kind in _EXCEPTIONS.items()} | {KeyboardInterrupt: signal.SIGINT}
        if _HAS_TIMER and lost.exc_type in numbers:
            self._raise_later(numbers[lost.exc_type])
        else:
            self._show_unraisable(lost)


def print_threads_on_request() -> None:
    """Let SIGUSR1 print where each thread of this process stands. Windows has no such signal."""
    with suppress(AttributeError, RuntimeError, OSError, ValueError):  # Windows; stderr that is closed or no file
        faulthandler.register(signal.SIGUSR1)


def exit_on_sigint() -> None:
    """Exit at once on Ctrl-C during the command's imports, where Python would print a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in the background of some shells
        signal.signal(signal.SIGINT, _report_and_exit)


def end_process(exit_code: int) -> NoReturn:
    """End the command's process with its exit code: what a caller wants to do afterwards, in `finally` too, is not done."""
    if exit_code == 0 and not HAS_NATIVE_THREADS.is_set():  # an early end leaves threads that read recordings
        if is_watched() or not (hasattr(threading, "_shutdown") and hasattr(atexit, "_run_exitfuncs")):
            sys.exit(0)
        end_threads()
    exit_without_finalisation(exit_code)


def end_threads() -> None:
    """Wait for threads and call the functions that libraries have registered, as Python does before its finalisation.

    A signal ends the process at once, with its exit code: Python prints an exception in a registered function and goes on,
    and since 3.13 also one in the wait for threads.
    """
    for each in (signal.SIGTERM, *_INTERRUPTS):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _exit_now)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def is_watched() -> bool:
    """Return True under a debugger or a profiler, which has something to do when the program has ended."""
    monitoring = getattr(sys, "monitoring", None)
    tools = map(monitoring.get_tool, range(6)) if monitoring else ()
    return any((sys.gettrace(), sys.getprofile(), *tools))


def exit_without_finalisation(exit_code: int) -> NoReturn:
    """End the process without Python's finalisation.

    Finalisation ends threads that still read a recording, and in the native code of some libraries that aborts the process
    ("terminate called without an active exception"). So it is with the threads of torch's process groups: they may live on
    after destroy_process_group(), and take Python's lock to free a tensor. It also looks through all of torch's objects and
    frees each tensor of the model, 0.2 s of every run; triton's library prints what it still holds then as leaked.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()
    os._exit(exit_code)


def _exit_code(signal_number: int) -> int:
    return TERMINATED if signal_number == signal.SIGTERM else INTERRUPTED


def _may_be_swallowed(frame: FrameType | None, caller: CodeType) -> bool:
    """True if an exception raised here may not reach `caller`."""
    while frame is not None and frame.f_code is not caller:
        code = frame.f_code
        if code.co_filename.startswith(_IMPORTS) or code.co_filename == _EXECUTED_TEXT:
            return True
        frame = frame.f_back
    return False


def _exit_now(signal_number: int, frame: FrameType | None) -> NoReturn:
    _end_at_once(_exit_code(signal_number), "\n" if os.isatty(2) else "")  # a terminal shows ^C before the next prompt


def _report_and_exit(signal_number: int, frame: FrameType | None) -> NoReturn:
    _end_at_once(_exit_code(signal_number), f"fastscribe: {ENDINGS[_exit_code(signal_number)]}\n")


def _end_at_once(exit_code: int, last_words: str) -> NoReturn:
    while HARD_EXIT_HOOKS:
        with suppress(OSError):
            HARD_EXIT_HOOKS.pop(0)(exit_code)
    with suppress(OSError):
        os.write(2, last_words.encode())
    os._exit(exit_code)


def end_with_parent() -> None:
    """End this process when its parent ends. Call this first; stdin is a pipe of the parent.

    Linux ends it even in a call that keeps Python's lock. It does so when the thread ends that started this process.
    """
    if os.name == "nt":  # the end of the pipe has to do
        return
    parent = os.getppid()
    if not _is_ended_by_kernel():
        Thread(target=_watch_parent, args=(parent,), name="parent", daemon=True).start()
    pipe = select.poll()
    pipe.register(0, 0)
    if pipe.poll(0):  # its other end is closed: the parent has ended before the kernel knew
        os._exit(0)


def _is_ended_by_kernel() -> bool:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library without it
            return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    return False


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os._exit(0)
