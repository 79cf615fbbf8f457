"""The command line in forks of a process that has a model loaded; code that runs first can change the program."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from tests.conftest import MODEL
from tests.helpers.warm_process import WARM, settle

LOADED = "the model is loaded"  # a fork says so


@dataclass(frozen=True)
class Attempt:
    """A command line, and code that runs before it."""

    arguments: list[str]
    code: str
    log: Path
    environment: dict[str, str]


class Runs:
    """The command line, in forks of a process that has everything loaded, and these modules of others."""

    def __init__(self, folder: Path, modules: Sequence[str] = ()) -> None:
        self.log = folder / "log"
        self._server = WARM.serve(__name__)
        self._server.send(modules)

    def __call__(self, given: list[str], code: str = "") -> int:
        """Run `code`, then the command; return its exit code. `self.log` has its output."""
        self.log.unlink(missing_ok=True)
        self._server.send(Attempt(given, code, self.log, dict(os.environ)))
        exit_code: int = self._server.recv()
        assert "Traceback" not in self.said()
        return exit_code

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def close(self) -> None:
        self._server.close()


# In a fork of the warm process


def serve(connection: Connection) -> None:
    """Import the modules that come first, run each attempt in a fork of this process, and answer its exit code."""
    for module in connection.recv():
        importlib.import_module(module)
    _load_for_forks()
    settle()
    while True:
        try:
            attempt: Attempt = connection.recv()
        except EOFError:
            return
        if (process := os.fork()) == 0:
            connection.close()
            _run(attempt)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def _load_for_forks() -> None:
    """Load the model before the fork. One thread, because OpenMP's threads do not survive a fork."""
    import torch

    from fastscribe.config import Options
    from fastscribe.transcriber import Transcriber

    torch.set_num_threads(1)
    options = Options(batch_size=2, threads=2)
    loaded = Transcriber.load(MODEL, "cpu", "fp32", options)

    def load(model: Path, device: str, dtype: str, requested: Options, say: object, devices: str | None) -> Transcriber:
        assert (Path(model), dtype, requested.batch_size, requested.threads) == (MODEL, "fp32", 2, 2)
        print(LOADED, flush=True)
        loaded._options = requested
        return loaded

    Transcriber.load = load  # type: ignore[method-assign, assignment]


def _run(attempt: Attempt) -> NoReturn:
    """Run the command line in the fork."""
    try:
        atexit._clear()  # what the parent wants done at its own end: its temporary folders are removed then
        descriptor = os.open(attempt.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.clear()
        os.environ.update(attempt.environment)
        sys.argv = ["fastscribe", *attempt.arguments]
        # The name of this code differs from that of exec()'s text, which loses signals.
        exec(compile(attempt.code, "injected", "exec"), {})
        from fastscribe.cli import main

        main()
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(99)
