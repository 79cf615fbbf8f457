"""The command line: parse, call, print. Exit codes: 0 all done, 1 some files failed (for a benchmark: nothing could be
measured), or a full disk, a store out of reach or another run stopped it, 2 wrong usage or unusable model, 130 interrupted, 143
terminated, 141 stdout closed.

One file per command, which is imported when the command line names it (commands.py).
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer

from fastscribe._system.process_settings import limit_openmp_spin
from fastscribe._system.signals import (
    ENDINGS,
    INTERRUPTED,
    TERMINATED,
    SignalHandler,
    Terminated,
)
from fastscribe.cli.app import WHEN_STOPPED, StdoutClosed, Stopped, app, described
from fastscribe.cli.commands import ProgramGroup
from fastscribe.cli.terminal import discard_unwritable_output, log, say, show_table
from fastscribe.errors import DeviceFailed, FastscribeError, OutputError, PlaceInUse, RemoteError, first_line
from fastscribe.version import __version__

__all__ = ["app", "exit_code", "main"]

_ClickException: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.ETIMEDOUT, errno.EHOSTUNREACH)


def main() -> NoReturn:
    """Run a command line from Python.

    Raises:
        SystemExit: Always, with the documented code: the caller's `finally` blocks run, and Python ends as usual.
    """
    sys.exit(exit_code())


def exit_code() -> int:
    """Run a command line, print every expected error as one line on stderr, and return the documented code."""
    code = _run()
    discard_unwritable_output()
    return code


def _run() -> int:
    limit_openmp_spin()
    WHEN_STOPPED.clear()
    stop = SignalHandler(_run)
    stop.install()
    try:
        code = int(app(standalone_mode=False) or 0)
        if sys.stdout is not None:  # here, and not as Python ends, which says nothing of a reader that is gone
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except Stopped as stopped:
        return stopped.code
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer makes 1 of it
            return _report_error(end.__context__)
        raise
    except Exception as error:
        if not stop.matches(error):
            return _report_error(error)
        code = stop.exit_code or INTERRUPTED
    finally:
        stop.restore()
    if code in ENDINGS:  # some versions of typer turn Ctrl-C into this code themselves
        say("; ".join([ENDINGS[code], *(hint() for hint in WHEN_STOPPED)]))
    return code


def _report_error(error: Exception) -> int:
    """Print an expected error and return its exit code; re-raise any other."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands by itself
        show_table(error.format_message())  # type: ignore[attr-defined]
        return 2
    code, line = ending_of(error)
    if line is None:
        log("".join(traceback.format_exception(error)).rstrip())
        raise error
    if line:
        say(line)
    return code


def ending_of(error: BaseException) -> tuple[int, str | None]:
    """Return the exit code of a command that an error ends, and the line about it; None: the error was not expected."""
    if isinstance(error, (KeyboardInterrupt, Terminated)):
        code = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
        return code, ENDINGS[code]
    if isinstance(error, _ClickException):
        is_plain = isinstance(error, typer.BadParameter) and error.param is None  # typer would add "Invalid value:"
        message = error.message if is_plain else error.format_message()
        return int(error.exit_code), f"{message} (try --help)".replace("\n", " ")
    if isinstance(error, (OutputError, DeviceFailed)):
        return 1, str(error)
    if isinstance(error, FastscribeError):
        return 1 if isinstance(error, PlaceInUse) or _may_pass(error) else 2, " ".join(str(error).split())
    if isinstance(error, ImportError) and not (error.name or "").startswith("fastscribe"):
        problem = f"the installation is incomplete: {first_line(error)}"
        return 2, f"{problem}; `fastscribe doctor` shows what is missing"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return 1, f"stdout: {os.strerror(errno.ENOSPC)}"
    if _is_out_of_memory(error):
        problem = f"the system refuses more memory or threads ({first_line(error)})"
        return 1, f"{problem}: raise the limits of this process, or use a smaller model or --dtype int8"
    return (141, "") if isinstance(error, (StdoutClosed, BrokenPipeError)) else (1, None)


def _may_pass(error: BaseException | None) -> bool:
    """Return True if a store out of reach or a full disk caused the error: the same command may succeed later."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and (error.errno in _PASSING or (isinstance(error, RemoteError) and error.may_pass))


def _is_out_of_memory(error: BaseException) -> bool:
    """Return True if the machine, or a limit of the user's, refused memory or the addresses of a thread's stack."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and str(error) == "can't start new thread")
    )


def _version(value: bool) -> None:
    if value:
        print(f"fastscribe {__version__}")
        raise typer.Exit


FIRST_WORDS = """\
fastscribe turns recordings into text with times, on a GPU or a CPU.

  fastscribe transcribe talk.mp3 -f txt       print the text of a recording
  fastscribe transcribe talk.mp4 -f srt       print subtitles of a video
  fastscribe transcribe recordings/ -o out    transcribe a folder; again, and it goes on

A small English model comes with it. For other languages and fewer errors:
  fastscribe transcribe talk.mp3 --model nvidia/parakeet-tdt-0.6b-v3

fastscribe transcribe --help    options of a transcription
fastscribe models               models that load, with their languages
fastscribe doctor               what works on this machine
fastscribe --help               all commands: evaluate, train, bench ..."""


@app.callback(cls=ProgramGroup, invoke_without_command=True)
@described
def fastscribe(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Transcribe audio with FastConformer (RNN-T, TDT, CTC), Canary, Citrinet, ContextNet, QuartzNet and Jasper models.

    On a GPU or a CPU.
    """
    if context.invoked_subcommand is None:
        show_table(FIRST_WORDS)
        raise typer.Exit(2)
