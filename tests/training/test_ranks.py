"""Two processes learn what one learns from the recordings of both: gradients, statistics and weights."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fastscribe.training import learner
from fastscribe.training import trainer as trainer_module
from fastscribe.training.data import prepare
from fastscribe.training.dataloader import AudioBatch
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.learner import targets_of
from fastscribe.training.planner import EpochPlan
from fastscribe.training.recipe import Recipe, RunRecipe, parse_recipe
from fastscribe.training.state import RunFolder
from fastscribe.training.trainer import Trainer
from fastscribe.types import Features
from tests.conftest import DATA, MODELS, ROOT, checkpoint
from tests.helpers.ranks import ready, torchrun
from tests.helpers.warm_process import WARM
from tests.training.conftest import SECTIONS

pytestmark = pytest.mark.posix

BATCHES = {
    0: [[0], [1, 2], [3]],
    1: [[4, 5], [], [6]],
}  # of each rank; two an optimiser step, then one. [] cannot be read
KINDS = ("plain", "checkpointed", "adapters")
MODEL = {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_mels": 16, "subsampling_channels": 8, "vocab_size": 40}
HEADS = {"predictor_hidden": 16, "joint_hidden": 16, "durations": [0, 1, 2]}


def recipe_of(folder: Path, kind: str) -> Recipe:
    """Recordings of two seconds each, so that the ranks' batches have equally many frames; dropout draws differ by rank."""
    if not (manifest := folder / "train.jsonl").exists():
        rows = map(json.loads, (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines())
        kept = [row for row in rows if row.get("text") and row["duration"] > 2][:7]
        cut = [{**row, "audio_filepath": str(DATA / row["audio_filepath"]), "duration": 2.0} for row in kept]
        manifest.write_text("".join(json.dumps(row) + "\n" for row in cut))
    data = {"train": "train.jsonl", "validation": "train.jsonl", "max_tokens_per_s": 1000}
    lora = {"rank": 2} if kind == "adapters" else None
    optimiser = {"dropout": 0.0, "learning_rate": 0.01, "ema": 0.0, "lora": lora}
    batch = {"accumulate": 2, "gradient_checkpointing": kind != "plain"}
    values = {"data": data, "model": {**MODEL, **HEADS}, "optimiser": optimiser, "batch": batch}
    return parse_recipe({**values, "augment": {"speeds": [1.0]}, "run": {"epochs": 1}}, folder / "recipe.yaml")


def trainer_of(folder: Path, distributed: DistributedContext, kind: str) -> Trainer:
    recipe, init = recipe_of(folder, kind), checkpoint(MODELS / "tdt_demo") if kind == "adapters" else None
    run = RunFolder(folder / f"run{distributed.rank}")
    run.path.mkdir()
    return Trainer(recipe, prepare(recipe, init), run, torch.device("cpu"), torch.float32, print, distributed)


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The summed gradients and BatchNorm's statistics. Not the weights: Adam makes steps of the smallest gradients too."""
    gradients = {name: master.grad for name, master in trainer.weights.masters.items() if master.grad is not None}
    buffers = {name: buffer for name, buffer in trainer.model.named_buffers() if "running" in name}
    return {name: tensor.clone() for name, tensor in (*gradients.items(), *buffers.items())}


def be_a_rank(number: str, where: str) -> None:
    """Train each kind in turn: the start of a process takes longer than its training."""
    rank, folder = int(number), Path(where)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for kind in KINDS:
        with pytest.MonkeyPatch.context() as patch:
            train_as_rank(rank, folder / kind, kind, patch)
    dist.destroy_process_group()
    os._exit(0)  # as the command ends: threads of torch's process group may abort Python's own end


def train_as_rank(rank: int, folder: Path, kind: str, patch: pytest.MonkeyPatch) -> None:
    """Train on this rank's batches; keep the features that it saw and the weights after each step."""
    made = trainer_module.new_model
    # The first rank's weights count.
    patch.setattr(trainer_module, "new_model", lambda config, seed: made(config, seed + rank))
    chosen = trainer_module.choose_trained
    patch.setattr(
        trainer_module,
        "choose_trained",
        lambda model, recipe, heads: chosen(model, replace(recipe, run=RunRecipe(seed=rank)), heads),
    )
    trainer = trainer_of(folder, DistributedContext(rank, 2), kind)
    seen: list[Any] = []
    augmented, read = learner.augmented_features, trainer.loader.batches

    def keep(*arguments: Any) -> Features:
        features = augmented(*arguments)
        seen.append((features.mel_BMT.clone(), features.lengths_B.clone()))
        return features

    def batches(indices: Any, drawn: Any, backgrounds: Any) -> Any:
        for wanted, rows in zip(BATCHES[rank], read([np.array(batch or [0]) for batch in BATCHES[rank]]), strict=True):
            yield rows if wanted else AudioBatch(rows.examples[:0], rows.samples_BS[:0], rows.lengths_B[:0])

    patch.setattr(learner, "augmented_features", keep)
    trainer.loader.batches = batches  # type: ignore[method-assign]
    trainer.check_recordings = lambda: None  # type: ignore[method-assign]  # it reads batches of its own
    plan = EpochPlan([np.array(batch) for batch in BATCHES[rank]], np.ones(7), np.arange(7))
    trainer.planner.plan = lambda epoch: plan  # type: ignore[method-assign]
    trainer.run_validation = lambda: None  # type: ignore[method-assign]
    states: list[dict[str, torch.Tensor]] = []
    step = trainer.weights.step

    def keep_state(*given: Any) -> float:
        states.append(state_of(trainer))
        return step(*given)

    trainer.weights.step = keep_state  # type: ignore[method-assign]
    assert trainer.run()
    torch.save((seen, states), folder / f"rank{rank}.pt")


def run_all(where: str) -> None:
    """Run the ranks of all tests of this file, one run after the other: what they import is imported once."""
    folder = Path(where)
    trained = ready()
    for number, rank in enumerate(trained):
        rank.begin(["tests.training.test_ranks", str(number), where], {})
    codes = {"trained": [rank.wait(240) for rank in trained], "stopped": stopped(folder / "stopped")}
    print(json.dumps(codes), flush=True)
    os.chdir(folder / "torchrun")
    init = MODELS / "tdt_demo" / "model.nemo"
    sys.argv = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "fastscribe", "train", "recipe.yaml"]
    sys.argv += ["-o", "run", "--epochs", "1", "--dtype", "fp32", "--init", str(init)]
    torchrun()


def stopped(folder: Path) -> list[int]:
    """Run the command as two ranks, and stop one of them once it trains; return their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = ready()
    for number, rank in enumerate(ranks):
        arguments = ("fastscribe", "train", str(folder / "recipe.yaml"), "-o", str(folder / "run"), "--dtype", "fp32")
        rank.begin(
            arguments, {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}, str(folder / f"said.{number}")
        )
    deadline = time.monotonic() + 80
    while not (folder / "run" / "train.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(2):
        os.kill(ranks[1].pid, signal.SIGTERM)
    return [rank.wait() for rank in ranks]


@pytest.fixture(scope="module")
def done(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What the runs of the ranks said, and their folder: one for each kind, `stopped` and `torchrun`."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in (*KINDS, "stopped", "torchrun"):
        (folder / name).mkdir()
    for kind in KINDS:
        recipe_of(folder / kind, kind)  # before two ranks read its manifest, of which one would write it
    data: dict[str, Any] = {"train": str(manifest), "validation": str(manifest.with_name("validation.jsonl"))}
    endless = {"data": data, **SECTIONS, "run": {"epochs": 1000, "validate_epochs": 1000}}
    (folder / "stopped" / "recipe.yaml").write_text(json.dumps(endless))
    changes = {"model": {"vocab_size": 64, "ctc": True}, "loss": {"ctc_weight": 1.0}}
    mixed = {**data, "train": [data["train"], {"path": data["validation"], "share": 0.6}]}
    (folder / "torchrun" / "recipe.yaml").write_text(json.dumps({"data": mixed, **SECTIONS, **changes}))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    program = "import sys; from tests.training.test_ranks import run_all; run_all(*sys.argv[1:])"
    ran = WARM.python(program, folder, env=environment, timeout_s=280)
    return SimpleNamespace(ran=ran, codes=json.loads(ran.stdout.split("\n")[0]), folder=folder)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_equal_one_process(done: SimpleNamespace, kind: str) -> None:
    """With batch statistics, augmentation, accumulation, and a batch of one rank that cannot be read."""
    assert done.codes["trained"] == [0, 0], done.ran
    folder = done.folder / kind
    (seen, states), (seen_by_other, states_of_other) = (torch.load(folder / f"rank{rank}.pt") for rank in range(2))
    (folder / "alone").mkdir()
    trainer = trainer_of(folder / "alone", DistributedContext(), "plain" if kind == "checkpointed" else kind)
    trainer.learner.network.train()
    expected, pending = [], 0
    for batch in range(3):
        other = seen_by_other.pop(0) if BATCHES[1][batch] else None
        parts = [seen[batch], *([other] if other is not None else [])]
        tokens = [trainer.examples[index].tokens for rank in range(2) for index in BATCHES[rank][batch]]
        features = Features(torch.cat([mel for mel, _ in parts]), torch.cat([lengths for _, lengths in parts]))
        draw = learner.BatchIndex(0, batch, 0).omega_draw(0)
        losses = trainer.learner.network(features, targets_of(tokens, torch.device("cpu")), draw)
        count = sum(map(len, tokens))
        (count * losses["loss"]).backward()
        trainer.weights.accumulate_gradients()
        pending += count
        if batch:
            expected.append(state_of(trainer))
            trainer.weights.step([0, 2 / 3, 1.0][batch], pending)
            pending = 0
    assert len(states) == len(states_of_other) == len(expected) == 2
    for mine, others, right in zip(states, states_of_other, expected, strict=True):
        assert mine.keys() == others.keys() == right.keys() and any("running_var" in name for name in right)
        for name, tensor in right.items():
            assert torch.equal(mine[name], others[name]), name
            scale = 0.0 if "running" in name else float(tensor.abs().max())
            torch.testing.assert_close(
                mine[name], tensor, rtol=1e-5 if "running" in name else 1e-3, atol=1e-3 * scale + 1e-6
            )


def test_ranks_stop_together(done: SimpleNamespace) -> None:
    folder = done.folder / "stopped"
    said = [(folder / f"said.{rank}").read_text(encoding="utf-8") for rank in range(2)]
    assert done.codes["stopped"] == [143, 143], (done.ran, said)
    assert said[0].splitlines()[-1].startswith("fastscribe: stopped after step") and "stopped" not in said[1]
    assert (folder / "run" / "state.pt").exists()


def test_the_command_by_torchrun(done: SimpleNamespace) -> None:
    """Data-parallel on the CPU, from a model with a new vocabulary, CTC head and an idle transducer. It draws its log."""
    assert done.ran.returncode == 0, done.ran.stderr
    run = done.folder / "torchrun" / "run"
    assert [row["epoch"] for row in RunFolder(run).rows() if "validation" in row] == [1]
    assert (run / "train.png").read_bytes().startswith(b"\x89PNG")
    assert "10 examples" in done.ran.stderr and " h per epoch" in done.ran.stderr


if __name__ == "__main__":
    be_a_rank(*sys.argv[1:])
