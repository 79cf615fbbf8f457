"""The command line in forks of a process that has a model loaded; code that runs first can change the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


class Runs:
    """The command line, in forks of a process that has everything loaded."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        command = [sys.executable, "-m", "tests.helpers.kill_runs", "--serve"]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def __call__(self, given: list[str], code: str = "") -> int:
        """Run `code`, then the command; return its exit code. `self.log` has its output."""
        self.log.unlink(missing_ok=True)
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps({"arguments": given, "code": code, "log": str(self.log)}) + "\n")
        self.server.stdin.flush()
        exit_code = int(self.server.stdout.readline())
        assert "Traceback" not in self.said()
        return exit_code

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def close(self) -> None:
        self.server.communicate(timeout=30)
