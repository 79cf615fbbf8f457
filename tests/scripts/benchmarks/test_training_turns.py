"""Steps in turns: with gradient checkpointing the loss is the same, less is kept, and the stored result is the printed one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastscribe.errors import UsageError
from scripts.benchmarks.training_turns import app


def test_gradient_checkpointing_beside_none(tmp_path: Path) -> None:
    shape = ["--shape", "tiny", "--layers", "2", "--batch-size", "2", "--sequence-s", "1", "--turns", "2"]
    done = CliRunner().invoke(app, [*shape, "--gradient-checkpointing", "--json", str(tmp_path / "turns.json")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads((tmp_path / "turns.json").read_text())
    plain, checkpointed = found["rows"]
    assert plain["whose"] == "fastscribe" and checkpointed["whose"] == "fastscribe, gradient checkpointing"
    assert plain["first_loss"] == checkpointed["first_loss"] > 0
    assert 0 < checkpointed["saved_bytes"] < plain["saved_bytes"] / 2
    assert all(row["step_cpu_ms"] > 0 and row["step_ms"] > 0 for row in found["rows"])


@pytest.mark.parametrize(("library", "said"), [("espnet", "only nemo"), ("nemo", "its TDT loss needs a GPU")])
def test_what_cannot_be_compared(library: str, said: str) -> None:
    done = CliRunner().invoke(app, ["--shape", "tiny", "--against", library])
    assert isinstance(done.exception, UsageError) and said in str(done.exception)
