"""The command line in forks of a process that has a model loaded; code that runs first can change the program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.kill_runs import Attempt
from tests.helpers.warm_process import WARM


class Runs:
    """The command line, in forks of a process that has everything loaded, and these modules of others."""

    def __init__(self, folder: Path, modules: Sequence[str] = ()) -> None:
        self.log = folder / "log"
        self._server = WARM.serve("tests.helpers.kill_runs")
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
