"""Training's speed is measured for every case asked for, and what is printed last is what is stored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastscribe.bench import train
from fastscribe.training.recipe import ModelRecipe
from tests.conftest import MODELS, ROOT
from tests.helpers.processes import fastscribe

MODEL = MODELS / "tdt_demo" / "model.nemo"


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::UserWarning", "-m", "fastscribe", "bench", "train", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)


def test_two_ranks_beside_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = ("-m", MODEL, "--batch-sizes", "2", "--dtype", "fp32", "--ranks", "2,1", "--sequence-s", "1")
    done = bench(*asked, "--json", tmp_path / "train.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads((tmp_path / "train.json").read_text())
    assert [(row["ranks"], row["batch_size"]) for row in found["rows"]] == [(1, 2), (2, 2)]
    alone, both = found["rows"]
    for row in (alone, both):
        per_s = 1000 * row["batch_size"] * row["ranks"] / row["step_ms"]
        assert row["sequences_per_s"] == pytest.approx(per_s, rel=0.01)
        assert row["scaling_efficiency"] == pytest.approx(alone["step_ms"] / row["step_ms"], rel=0.01)
    assert found["machine"]["cpu_cores"] >= 1
    assert "warning" not in done.stderr.lower()


def test_ranks_are_compared_with_one_that_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batch size and dtype, and fewest ranks come first, in whatever order they are asked for."""
    config = ModelRecipe(num_layers=1, d_model=16, num_mels=16, subsampling_channels=4).config(9)

    def measured(config: object, device: object, case: train.Case) -> train.Speed:
        return train.Speed(case, 10.0 * case.batch_size + case.ranks + (case.dtype == "fp32"), None)

    monkeypatch.setattr(train, "_measured", measured)
    found = list(train.measure(config, torch.device("cpu"), [1, 2], ["bf16", "fp32"], [2, 1], 1.0))
    assert [(speed.case.ranks, speed.case.dtype, speed.case.batch_size) for speed in found] == [
        (ranks, dtype, size) for ranks in (1, 2) for dtype in ("bf16", "fp32") for size in (1, 2)
    ]
    assert [speed.efficiency for speed in found] == [1.0] * 4 + [11 / 12, 21 / 22, 12 / 13, 22 / 23]


def test_a_batch_without_room_is_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_cannot_be_had() -> None:
    twice = ("-m", MODEL, "--random", "parakeet-tdt-0.6b")
    for arguments in (
        twice,
        ("--random", "nothing"),
        ("-m", MODEL, "--batch-sizes", "0"),
        ("-m", "nowhere.nemo"),
        ("--random", "tiny-canary"),
        ("--random", "tiny-jasper"),
        ("-m", MODEL, "--sequence-s", "inf"),
    ):
        done = fastscribe("bench", "train", *arguments)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
