"""A command in the warm process ends and prints as one that starts from nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli import FIRST, MODEL
from tests.helpers import warm_process
from tests.helpers.processes import command
from tests.helpers.warm_process import Limits, WarmProcess

pytestmark = pytest.mark.linux


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmProcess]:
    warm = WarmProcess()
    yield warm
    assert warm.close() == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["transcribe", "-", "gone.wav", "--model", MODEL, "--quiet", "--tokens"], 1),
        (["transcribe", "--help"], 0),
        (["transcribe", FIRST, "--no-such-option"], 2),
    ],
    ids=str,
)
def test_equals_fresh_process(warm: WarmProcess, tmp_path: Path, arguments: list, code: int) -> None:
    environment = os.environ | {"FASTSCRIBE_FORMAT": "txt", "COLUMNS": "70"}
    cold = subprocess.run(
        command(*arguments), input=f"{FIRST}\n", capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    done = warm.run(*arguments, stdin=f"{FIRST}\n", cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert done.returncode == code
    assert done.stdout or done.stderr


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(7)", "sys.exit('it ends')"])
def test_program_equals_fresh_process(warm: WarmProcess, end: str) -> None:
    program = f"import sys; print(sys.argv[1:]); {end}"
    cold = subprocess.run([sys.executable, "-c", program, "given"], capture_output=True, text=True)
    done = warm.python(program, "given")
    assert (done.returncode, done.stdout, done.stderr) == (cold.returncode, cold.stdout, cold.stderr)


def test_commands_are_isolated(warm: WarmProcess, tmp_path: Path) -> None:
    given = ("transcribe", "-", "--model", MODEL, "--quiet")
    assert warm.run(*given, env=os.environ | {"FASTSCRIBE_FORMAT": "txt"}, cwd=tmp_path).returncode == 2
    done = warm.run(*given, stdin=f"{FIRST}\n")
    assert done.returncode == 0 and done.stdout.startswith("{")


def test_long_stdin(warm: WarmProcess) -> None:
    """More than a pipe holds, while as much comes out."""
    names = "".join(f"{'missing' * 20}{number}.wav\n" for number in range(1000))
    done = warm.run("transcribe", "-", "--model", MODEL, stdin=names)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1000
    assert sum("missing" in line for line in done.stderr.splitlines()) == 1000


def test_limits(warm: WarmProcess, tmp_path: Path) -> None:
    limits = Limits(growth_bytes=2 << 30, file_bytes=0, seconds=60)
    done = warm.run("convert", MODEL, tmp_path / "out", limits=limits)
    assert done.returncode != 0 and not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]
    assert warm.run("convert", MODEL, tmp_path / "other").returncode == 0


def test_hanging_command(warm: WarmProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It waits for a named pipe that has no writer."""
    os.mkfifo(tmp_path / "results.jsonl")
    assert warm.run("--version").returncode == 0
    monkeypatch.setattr(warm_process, "TIMEOUT_S", 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run("evaluate", tmp_path / "results.jsonl")
    monkeypatch.undo()
    assert warm.run("--version").returncode == 0


def test_start_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="No module named 'encodings'"):
        WarmProcess().run("--version")
