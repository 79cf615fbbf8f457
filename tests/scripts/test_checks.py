"""scripts/test with stand-ins for the programs that it starts: each check that fails makes it fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.posix

# $FAILS names the program that fails. python stands for the environment's, for the one that makes it, and for its pip.
PROGRAM = """#!/bin/sh
case "$(basename "$0") $*" in
  "c++ "*) exit 0 ;;
  *"import meeteval"*) [ -e installed ]; exit ;;
  *"-m venv "*) mkdir -p .venv-test/build/bin && cp "$0" .venv-test/build/bin/python; exit ;;
  *" wheel "*) name=wheel ;;
  *" install "*) touch installed; name=install ;;
  *" pytest "*) sleep 0.2; name=pytest ;;
  *"scripts/door") name=door ;;
  "environment "*) name=environment ;;
  *) name=$(basename "$0")${1:+-$1} ;;
esac
echo "$name ran"
[ "$name" != "$FAILS" ] || exit 3
"""


def run(folder: Path, fails: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = [
        "bin/c++",
        "bin/python3",
        "scripts/environment",
        *(f".venv-test/bin/{name}" for name in ("python", "ruff", "mypy")),
    ]
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(PROGRAM)
        (folder / place).chmod(0o755)
    for name in ("scripts/test", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FAILS": fails}
    return subprocess.run(
        [folder / "scripts" / "test", *arguments], env=env, capture_output=True, text=True, timeout=60
    )


def test_all_checks_run_and_the_last_line_is_that_of_pytest(tmp_path: Path) -> None:
    done = run(tmp_path, "")
    assert done.returncode == 0, done.stderr
    names = [line.removesuffix(" ran") for line in done.stdout.splitlines()]
    assert sorted(names[:3]) == ["environment", "install", "wheel"] and names[2] == "install"
    assert names[3:] == ["environment", "ruff-check", "ruff-format", "pytest"]
    assert done.stderr == "door ran\nmypy ran\n"
    assert "door ran" not in run(tmp_path, "", "-k", "one").stderr  # which takes minutes, beside a few tests


@pytest.mark.parametrize(
    "program", ["wheel", "install", "environment", "ruff-check", "ruff-format", "mypy", "pytest", "door"]
)
def test_a_failing_check_fails_the_whole(tmp_path: Path, program: str) -> None:
    done = run(tmp_path, program)
    assert done.returncode == {"mypy": 1, "door": 1}.get(program, 3)
    assert ("pytest ran" in done.stdout) == (program in ("mypy", "pytest", "door"))
