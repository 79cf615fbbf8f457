"""The command line: parse, call, print. Exit codes: 0 all done, 1 some files failed (of a benchmark: nothing could be
measured), 2 wrong usage or unusable model, 130 interrupted, 143 terminated, 141 stdout closed.

A file a command; nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from fastscribe._system.openmp import limit_openmp_spin
from fastscribe._system.signals import ENDINGS, INTERRUPTED, TERMINATED, SignalHandler, Terminated, exit_without_cleanup
from fastscribe.cli import bench, evaluate, merge, models, train, transcribe
from fastscribe.cli.app import StdoutClosed, app
from fastscribe.cli.terminal import discard_unwritable_stderr, say
from fastscribe.errors import DeviceFailed, FastscribeError, OutputError
from fastscribe.version import __version__

__all__ = ["app", "bench", "evaluate", "main", "merge", "models", "train", "transcribe"]

_ClickException: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_RESUME_HINTS = {"transcribe": "; what was finished is kept, and with --output-dir the same command goes on from there"}


def main() -> None:
    """Run the command line and exit with the documented code; print every expected error as one line on stderr."""
    code = _run()
    discard_unwritable_stderr()
    if code in ENDINGS:
        exit_without_cleanup(code)
    sys.exit(code)


def _run() -> int:
    limit_openmp_spin()
    stop = SignalHandler(_run)
    stop.install()
    try:
        code = int(app(standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    except train.TrainingStopped as stopped:
        return stopped.code
    except Exception as error:
        if not stop.matches(error):
            return _report_error(error)
        code = stop.exit_code or INTERRUPTED
    finally:
        stop.restore()
    if code in ENDINGS:  # some versions of typer turn Ctrl-C into this code themselves
        say(f"{ENDINGS[code]}{_resume_hint()}")
    return code


def _report_error(error: Exception) -> int:
    """Print an expected error and return its exit code; re-raise any other."""
    if isinstance(error, _ClickException):
        say(f"{error.format_message()} (try --help)".replace("\n", " "))
        return int(error.exit_code)
    if isinstance(error, (OutputError, DeviceFailed)):
        say(str(error))
        return 1
    if isinstance(error, FastscribeError):
        say(" ".join(str(error).split()))
        return 2
    if isinstance(error, (StdoutClosed, BrokenPipeError)):
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
        return 141
    raise error


def _resume_hint() -> str:
    """Return how to resume the interrupted command, for commands that do not print it themselves."""
    return _RESUME_HINTS.get(next(iter(sys.argv[1:]), ""), "")


def _version(value: bool) -> None:
    if value:
        print(f"fastscribe {__version__}")
        raise typer.Exit


@app.callback()
def fastscribe(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Audio into text, fast: FastConformer RNN-T, TDT and CTC checkpoints on a GPU or a CPU."""
