"""Training speed is measured for every requested case, and the printed result equals the stored one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from fastscribe.errors import FastscribeError
from fastscribe.training.model_recipe import ModelRecipe
from scripts.benchmarks import train as command
from scripts.benchmarks import training_speed as train
from tests.conftest import MODELS

MODEL = MODELS / "tdt_demo" / "model.nemo"


@pytest.mark.filterwarnings("error::UserWarning")
def test_two_ranks_beside_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "_TIMED_S", 0.0)
    monkeypatch.setenv("PYTHONWARNINGS", "error::UserWarning")  # of the ranks' processes
    arguments = ("-m", MODEL, "--batch-sizes", "2", "--dtype", "fp32", "--ranks", "2,1", "--sequence-s", "1")
    command.app([*map(str, arguments), "--json", str(tmp_path / "train.json")], standalone_mode=False)
    out, said = capfd.readouterr()
    found = json.loads(out.splitlines()[-1])
    assert found == json.loads((tmp_path / "train.json").read_text())
    assert [(row["ranks"], row["batch_size"]) for row in found["rows"]] == [(1, 2), (2, 2)]
    alone, both = found["rows"]
    for row in (alone, both):
        per_s = 1000 * row["batch_size"] * row["ranks"] / row["step_ms"]
        assert row["sequences_per_s"] == pytest.approx(per_s, rel=0.01)
        assert row["scaling_efficiency"] == pytest.approx(alone["step_ms"] / row["step_ms"], rel=0.01)
    assert found["machine"]["cpu_cores"] >= 1
    assert "warning" not in said.lower()


def test_ranks_are_compared_with_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference has the same batch size and dtype; cases with the fewest ranks come first, in any order of options."""
    config = ModelRecipe(num_layers=1, d_model=16, num_mels=16, subsampling_channels=4).config(9)

    def measured(config: object, device: object, case: train.Case) -> train.Speed:
        return train.Speed(case, 10.0 * case.batch_size + case.ranks + (case.dtype == "fp32"), None)

    monkeypatch.setattr(train, "_measured", measured)
    found = list(train.measure(config, torch.device("cpu"), [1, 2], ["bf16", "fp32"], [2, 1], 1.0))
    assert [(speed.case.ranks, speed.case.dtype, speed.case.batch_size) for speed in found] == [
        (ranks, dtype, size) for ranks in (1, 2) for dtype in ("bf16", "fp32") for size in (1, 2)
    ]
    assert [speed.efficiency for speed in found] == [1.0] * 4 + [11 / 12, 21 / 22, 12 / 13, 22 / 23]


def test_out_of_memory_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelRecipe(num_layers=1, d_model=16, num_mels=16, subsampling_channels=4).config(9)

    def step(config: object, device: object, case: train.Case) -> object:
        if case.batch_size == 2:
            raise torch.OutOfMemoryError("no room")
        return lambda: None

    monkeypatch.setattr(train, "_step", step)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    first, second = train.measure(config, torch.device("cpu"), [1, 2], ["fp32"], [1], 1.0)
    assert first.sequences_per_s is not None and first.efficiency == 1
    assert second.sequences_per_s is None and second.row()["sequences_per_s"] is None


def test_out_of_memory_is_a_failed_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(config: object, device: object, case: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(train, "_step", step)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    given = ["--shape", "tiny", "--batch-sizes", "1", "--dtype", "fp32", "--device", "cpu"]
    done = CliRunner().invoke(command.app, given)
    [row] = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert done.exit_code == 1 and row["error"] == "out of memory" and row["batch_size"] == 1


def test_attention_decoder() -> None:
    given = ["--shape", "tiny-canary", "--batch-sizes", "2", "--dtype", "fp32", "--device", "cpu", "--sequence-s", "1"]
    done = CliRunner().invoke(command.app, given)
    [row] = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert done.exit_code == 0 and row["step_ms"] > 0


def test_unavailable_choices() -> None:
    twice = ("-m", MODEL, "--shape", "parakeet-tdt-0.6b")
    for arguments in (
        twice,
        ("--shape", "nothing"),
        ("-m", MODEL, "--batch-sizes", "0"),
        ("-m", "nowhere.nemo"),
        ("--shape", "tiny-jasper"),
        ("-m", MODEL, "--sequence-s", "inf"),
    ):
        with pytest.raises((FastscribeError, typer.BadParameter)):
            command.app([*map(str, arguments), "--device", "cpu"], standalone_mode=False)
