"""Stand-ins for schedulers: recipes start programs of these names, and the runs are those of forked_runs.py.

Each program of a recipe is a script that asks the test and ends as the test says: with an exit code, or by a signal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.helpers.forked_runs import Runs
from tests.helpers.kill_runs import MODEL

PATIENCE_S = 100.0
# As tests/helpers/kill_runs.py loads it.
SETTINGS = {
    "FASTSCRIBE_MODEL": str(MODEL),
    "FASTSCRIBE_DTYPE": "fp32",
    "FASTSCRIBE_BATCH_SIZE": "2",
    "FASTSCRIBE_THREADS": "2",
}
_PROGRAM = """#!{python} -IS
import json, os, sys, time
place = {folder!r} + f"/{{os.getpid()}}"
with open(place + ".new", "w") as file:
    json.dump({{"arguments": sys.argv, "environment": dict(os.environ)}}, file)
os.rename(place + ".new", place + ".request")
parent, end = os.getppid(), time.monotonic() + {patience_s}
while not os.path.exists(place + ".answer"):
    if os.getppid() != parent or time.monotonic() > end:
        sys.exit("the test has ended")
    time.sleep(0.01)
with open(place + ".answer") as file:
    code = int(file.read())
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
_SHELL_PROGRAMS = {
    "srun": 'exec "$@"',
    "timeout": 'shift 3; code=0; "$@" || code=$?; [ $code -ne 143 ] || code=124; exit $code',  # each SIGTERM is its own
}


class StandIn:
    """Runs a recipe's command as a scheduler does, and counts what it calls.

    Attributes:
        calls: The commands that the recipes have called, except fastscribe.
    """

    def __init__(self, folder: Path, runs: Runs) -> None:
        self.calls: list[list[str]] = []
        self._runs, self._requests, self._bin = runs, folder / "requests", folder / "bin"
        self._requests.mkdir()
        self._bin.mkdir()
        for name in ("fastscribe", "scontrol"):
            path = self._bin / name
            path.write_text(_PROGRAM.format(python=sys.executable, folder=str(self._requests), patience_s=PATIENCE_S))
            path.chmod(0o700)
        for name, script in _SHELL_PROGRAMS.items():
            (self._bin / name).write_text(f"#!/bin/sh\n{script}\n")
            (self._bin / name).chmod(0o700)

    def run(self, command: Sequence[object], variables: Mapping[str, str], code: str = "") -> int:
        """Run a command with these environment variables; a transcription runs `code` first. Return the exit code."""
        environment = {**os.environ, **SETTINGS, **variables, "PATH": f"{self._bin}:{os.environ['PATH']}"}
        end = time.monotonic() + PATIENCE_S
        with subprocess.Popen(list(map(str, command)), env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                while process.poll() is None:
                    assert time.monotonic() < end
                    for request in self._requests.glob("*.request"):
                        self._answer(request, code)
                    time.sleep(0.01)
            finally:
                process.kill()
        return process.returncode

    def _answer(self, request: Path, code: str) -> None:
        asked = json.loads(request.read_text())
        request.unlink()
        name, *arguments = asked["arguments"]
        done = 0
        if Path(name).name == "fastscribe":
            setting = f"import os\nos.environ.clear()\nos.environ.update({asked['environment']!r})\n"
            done = self._runs(arguments, setting + code)
        else:
            self.calls.append([Path(name).name, *arguments])
        answer = request.with_suffix(".part")
        answer.write_text(str(done))
        answer.rename(request.with_suffix(".answer"))
