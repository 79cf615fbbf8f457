"""Whole runs: they learn, go on exactly where they stopped, and what they write transcribes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe import Options, Transcriber
from fastscribe.checkpoint import read_checkpoint
from fastscribe.errors import UsageError
from fastscribe.training.recipe import Recipe, parse_recipe
from fastscribe.training.state import RunFolder
from fastscribe.training.trainer import Trainer, prepare
from tests.conftest import DATA, MODELS

ROOT = Path(__file__).parents[1]
MANIFEST = DATA / "manifest.jsonl"
SECTIONS: dict[str, Any] = {
    "model": {
        "vocab_size": 64,
        "num_layers": 2,
        "d_model": 32,
        "num_mels": 16,
        "subsampling_channels": 8,
        "predictor_hidden": 16,
        "joint_hidden": 16,
    },
    "batch": {"seconds": 12, "buckets": 3, "token_buckets": 1},
    "optimiser": {"warmup_steps": 4, "learning_rate": 3e-3},
    "run": {"epochs": 3},
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight clips to learn, two of them to validate with."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [json.loads(line) for line in MANIFEST.read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "audio_filepath": str(DATA / row["audio_filepath"])} for row in rows if row.get("text")][:8]
    for name, part in (("train", rows), ("validation", rows[:2])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return folder / "train.jsonl"


def recipe_of(manifest: Path, **sections: Any) -> Recipe:
    data = {"train": str(manifest), "validation": str(manifest.with_name("validation.jsonl")), "threads": 2}
    merged = {name: {**SECTIONS.get(name, {}), **sections.get(name, {})} for name in {**SECTIONS, **sections}}
    return parse_recipe({"data": data, **merged}, manifest)


def trainer_of(recipe: Recipe, folder: Path, dtype: torch.dtype = torch.float32) -> Trainer:
    folder.mkdir(exist_ok=True)
    said: list[str] = []
    return Trainer(recipe, prepare(recipe, None), RunFolder(folder), torch.device("cpu"), dtype, said.append)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(read_checkpoint(folder).weights)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    rows = RunFolder(folder).rows()
    for row in rows:
        row.pop("audio_s_per_s", None)
    return rows


def test_stopped_and_gone_on_is_as_never_stopped(manifest: Path, tmp_path: Path) -> None:
    recipe = recipe_of(manifest, batch={"accumulate": 2})
    assert trainer_of(recipe, tmp_path / "whole").run()
    stopped = trainer_of(recipe, tmp_path / "parts")

    def stop_in_the_second_epoch() -> None:
        stopped.stop = stopped.progress.epoch == 1

    assert not stopped.run(stop_in_the_second_epoch)
    assert stopped.progress.batches_done % 2 == 0
    assert trainer_of(recipe, tmp_path / "parts").run()
    whole, parts = weights_of(tmp_path / "whole" / "last"), weights_of(tmp_path / "parts" / "last")
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    assert [row for row in steps_of(tmp_path / "parts") if "validation" in row] == [
        row for row in steps_of(tmp_path / "whole") if "validation" in row
    ]


def test_steps_after_the_saved_state_come_again_alike(manifest: Path, tmp_path: Path) -> None:
    """As after kill -9: the state is older than the log."""
    recipe = recipe_of(manifest)
    assert trainer_of(recipe, tmp_path / "a").run()
    whole = steps_of(tmp_path / "a")
    interrupted = trainer_of(replace(recipe, run=replace(recipe.run, epochs=3)), tmp_path / "b")

    class Killed(BaseException):
        pass

    def die() -> None:
        if interrupted.progress.epoch == 2 and interrupted.progress.batches_done == 2:
            interrupted._log([{"loss": torch.tensor(9.0)}], [1.0], 1.0, 1.0)
            raise Killed

    with pytest.raises(Killed):
        interrupted.run(die)
    assert trainer_of(recipe, tmp_path / "b").run()
    assert steps_of(tmp_path / "b") == whole


def test_another_recipe_needs_another_folder(manifest: Path, tmp_path: Path) -> None:
    recipe = recipe_of(manifest, run={"epochs": 1})
    trainer_of(recipe, tmp_path / "run").save()
    with pytest.raises(UsageError, match=r"another recipe; use another folder, or --overwrite"):
        trainer_of(recipe_of(manifest, run={"epochs": 1}, optimiser={"dropout": 0.3}), tmp_path / "run")
    trainer_of(recipe_of(manifest, run={"epochs": 1, "save_minutes": 3}), tmp_path / "run")
    (tmp_path / "run" / "state.pt").write_bytes(b"PK damaged")
    with pytest.raises(UsageError, match=r"state\.pt: cannot be read"):
        trainer_of(recipe, tmp_path / "run")


@pytest.mark.parametrize("kind", [{"ctc": False}, {"durations": [], "ctc": False}, {"transducer": False}, {}])
def test_each_family_trains_and_transcribes(manifest: Path, tmp_path: Path, kind: dict[str, Any]) -> None:
    recipe = recipe_of(manifest, model=kind, run={"epochs": 1})
    trainer = trainer_of(recipe, tmp_path / "run", torch.bfloat16)
    assert trainer.run()
    assert trainer.progress.losses["loss"] > 0
    transcriber = Transcriber.load(tmp_path / "run" / "best", "cpu", "fp32", Options(threads=2))
    assert len(list(transcriber.transcribe(str(manifest)))) == 8


def test_a_checkpoint_is_tuned_and_keeps_its_vocabulary(manifest: Path, tmp_path: Path) -> None:
    """The demo model knows these clips: after a few steps it still does."""
    known = read_checkpoint(MODELS / "tdt_demo" / "model.nemo")
    recipe = recipe_of(manifest, optimiser={"learning_rate": 1e-5}, run={"epochs": 1}, augment={"speeds": [1.0]})
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    trainer = Trainer(recipe, prepare(recipe, known), folder, torch.device("cpu"), torch.float32, print)
    assert trainer.run()
    tuned = read_checkpoint(folder.best)
    assert tuned.tokenizer.pieces == known.tokenizer.pieces and tuned.config == known.config
    assert trainer.progress.best_wer == 0.0
    assert any(not torch.equal(tensor, known.weights[name].float()) for name, tensor in tuned.weights.items())


# --- the command -----------------------------------------------------------------------------------------------------


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fastscribe", "train", *map(str, arguments)]


@pytest.fixture
def recipe_file(manifest: Path, tmp_path: Path) -> Path:
    data = {"train": str(manifest), "validation": str(manifest.with_name("validation.jsonl"))}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"data": data, **SECTIONS}))  # JSON is YAML
    return path


def test_ctrl_c_and_the_same_command_again(recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = command(recipe_file, "-o", out, "--epochs", 400, "--dtype", "fp32")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    deadline = time.monotonic() + 100
    while not (out / "train.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "the same command goes on from there" in said.splitlines()[-1]
    again = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert again.stderr is not None
    lines = [again.stderr.readline() for _ in range(3)]
    again.kill()
    again.communicate()
    assert "going on after step" in lines[2]


@pytest.mark.parametrize("ctc_weight", [0.3, 1.0])
def test_two_processes_train_one_model(recipe_file: Path, tmp_path: Path, ctc_weight: float) -> None:
    """Data-parallel through torchrun, on the CPU; also where a head has nothing to learn."""
    sections = {**json.loads(recipe_file.read_text()), "loss": {"ctc_weight": ctc_weight}}
    recipe_file.write_text(json.dumps(sections))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["-m", "fastscribe", "train", recipe_file, "-o", tmp_path / "run", "--epochs", 2, "--dtype", "fp32"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, *map(str, arguments)], capture_output=True, text=True, timeout=200, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert [row["epoch"] for row in steps_of(tmp_path / "run") if "validation" in row] == [1, 2]


def test_what_is_wrong_is_one_line(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("data: {train: nowhere.jsonl}")
    for arguments, said in (
        ((tmp_path / "bad.yaml", "-o", tmp_path / "x"), "no such file"),
        ((tmp_path / "none.yaml", "-o", tmp_path / "x"), "cannot be read"),
    ):
        done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=100, cwd=ROOT)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr, done.stderr


def test_the_log_as_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from fastscribe.training.plot import plot_log

    rates = {"wer": 0.5, "exact_wer": 0.6, "cer": 0.1}
    rows = [{"step": 10, "loss": 2.0, "ctc": 3.0}, {"step": 20, "loss": 1.0}, {"step": 20, "validation": rates}]
    for number in range(len(rows) + 1):
        plot_log(rows[:number], tmp_path / "train.png")
        assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")
