"""Whole runs: they learn, resume exactly, and write models that transcribe."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import torch
import torch.distributed as dist

from fastscribe import Options, Transcriber
from fastscribe._system.text_layout import count_of
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.errors import FastscribeError, UsageError
from fastscribe.training import trainer as trainer_module
from fastscribe.training.corpus import ManifestPart
from fastscribe.training.data import prepare, trained_utterance_s
from fastscribe.training.dataloader import AudioBatch, is_cut_short
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.manifest import ExampleLimits, read_manifests
from fastscribe.training.planner import EpochPlan, EpochPlanner
from fastscribe.training.recipe import Recipe, parse_recipe
from fastscribe.training.scoring import Scoring
from fastscribe.training.state import RunFolder, even_means
from fastscribe.training.trainer import Trainer
from fastscribe.training.validation import ValidationResult
from tests.conftest import MODELS, checkpoint
from tests.helpers.archives import packed
from tests.training.conftest import SECTIONS

STILL: dict[str, Any] = {  # no random augmentation
    "augment": {
        "speeds": [1.0],
        "noise_chance": 0.0,
        "gain_db": [0.0, 0.0],
        "freq_masks": 0,
        "time_masks": 0,
    },
    "optimiser": {"dropout": 0.0, "clip_norm": None},
    "model": {"subsampling_factor": 4},
    "loss": {"omega": 0.0},
}


def recipe_of(manifest: Path, **sections: Any) -> Recipe:
    data = {"train": str(manifest), "validation": str(manifest.with_name("validation.jsonl")), "threads": 2}
    merged = {name: {**SECTIONS.get(name, {}), **sections.get(name, {})} for name in {**SECTIONS, **sections}}
    return parse_recipe({"data": data, **merged}, manifest)


def trainer_of(
    recipe: Recipe,
    folder: Path,
    dtype: torch.dtype = torch.float32,
    init: Checkpoint | None = None,
    say: Callable[[str], object] = lambda line: None,
    ranks: DistributedContext | None = None,
) -> Trainer:
    folder.mkdir(exist_ok=True)
    ranks = ranks or DistributedContext()
    return Trainer(recipe, prepare(recipe, init), RunFolder(folder), torch.device("cpu"), dtype, say, ranks)


def plan_of(batches: list[list[int]], num_examples: int, speed: float = 1.0) -> EpochPlan:
    """An epoch of all examples, each once."""
    return EpochPlan([np.array(batch) for batch in batches], np.full(num_examples, speed), np.arange(num_examples))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(read_checkpoint(folder).weights)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    rows = RunFolder(folder).rows()
    for row in rows:
        row.pop("audio_s_per_s", None)
    return rows


def test_small_run(manifest: Path, tmp_path: Path) -> None:
    """A resumed run has the same rates."""
    recipe = recipe_of(
        manifest,
        batch={"seconds": "auto", "buckets": 16, "token_buckets": 2, "accumulate": 2},
        optimiser={"warmup_steps": 1000},
        run={"epochs": 40},
    )
    trainer = trainer_of(recipe, tmp_path / "run")
    assert [len(trainer.planner.plan(epoch).batches) for epoch in (0, 1)] == [1, 1]
    trainer.weights.num_steps = 20
    trainer.save()
    again = trainer_of(recipe, tmp_path / "run")
    assert trainer.weights.warmup_steps == again.weights.warmup_steps == 4 and again.weights.num_steps == 20
    assert again.weights.learning_rate(0.1) == trainer.weights.learning_rate(0.1) == pytest.approx(3e-3)


class Killed(BaseException):
    """Simulates kill -9: nothing is saved."""


def recipe_of_other_examples(manifest: Path, folder: Path) -> Recipe:
    """Each epoch has other examples, and recorded noise and rooms."""
    random, held_out = np.random.default_rng(0), str(manifest.with_name("validation.jsonl"))
    (folder / "noise").mkdir()
    soundfile.write(folder / "noise" / "a.wav", random.normal(0, 0.03, 9000), 16_000)
    soundfile.write(folder / "rooms.wav", random.normal(0, 0.03, 900) * np.exp(-np.arange(900) / 90), 16_000)
    row = {"audio_filepath": "rooms.wav", "duration": 900 / 16_000, "text": "-"}
    (folder / "rooms.jsonl").write_text(json.dumps(row) + "\n")
    sections: dict[str, Any] = {
        "data": {"train": [str(manifest), {"path": held_out, "repeat": 0.5}], "validation": held_out, "threads": 2},
        "augment": {
            "noise_manifest": "noise",
            "room_manifest": "rooms.jsonl",
            "noise_chance": 1.0,
            "reverb_chance": 0.8,
        },
        "batch": {**SECTIONS["batch"], "accumulate": 2},
    }
    return parse_recipe({**SECTIONS, **sections}, folder / "recipe.yaml")


def test_a_run_that_stops_and_dies_equals_one_that_does_not(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops with an epoch and within one, and dies in a validation and after steps that its state does not have."""
    recipe, folder = recipe_of_other_examples(manifest, tmp_path), tmp_path / "parts"
    (tmp_path / "whole").mkdir()
    killed_before_its_first_state = '{"step": 10, "loss": 1}\n{"step": 2'
    (tmp_path / "whole" / "train.jsonl").write_text(killed_before_its_first_state)
    whole = trainer_of(recipe, tmp_path / "whole")
    assert whole.planner.plan(0).drawn.tolist() != whole.planner.plan(1).drawn.tolist()
    assert whole.run()
    trainer = trainer_of(recipe, folder)

    def stop_with_the_epoch() -> None:
        if trainer.progress.batches_done == trainer.progress.batches:
            trainer.requested_signal = signal.SIGINT

    assert not trainer.run(stop_with_the_epoch)
    assert trainer.progress.epoch == 1 and not trainer.folder.last.exists()

    trainer = trainer_of(recipe, folder)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_plot", lambda: 1 / 0)  # the last step of a validation; its line is already in the log
        patch.setattr(trainer, "_train_epoch", lambda update: pytest.fail("not yet"))
        with pytest.raises(ZeroDivisionError):
            trainer.run()
    assert "validation" in steps_of(folder)[-1]

    trainer = trainer_of(recipe, folder)

    def stop_in_the_second_epoch() -> None:
        if trainer.progress.epoch == 1 and trainer.progress.batches_done == 1:
            trainer.requested_signal = signal.SIGTERM

    assert not trainer.run(stop_in_the_second_epoch)
    assert trainer.stop_signal == signal.SIGTERM and trainer.progress.batches_done == 2 < trainer.progress.batches

    trainer = trainer_of(recipe, folder)

    def die_in_the_third_epoch() -> None:
        if trainer.progress.epoch == 2 and trainer.progress.batches_done == 2:
            trainer.folder.append({"step": trainer.progress.step, "loss": 9.0})
            raise Killed

    with pytest.raises(Killed):
        trainer.run(die_in_the_third_epoch)
    assert trainer_of(recipe, folder).run()
    weights = weights_of(folder / "last")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(tmp_path / "whole" / "last").items())
    assert steps_of(folder) == steps_of(tmp_path / "whole")


def of_steps(recipe: Recipe, max_steps: int | None, patience: int | None = None) -> Recipe:
    return replace(recipe, run=replace(recipe.run, max_steps=max_steps, patience=patience))


def test_a_number_of_steps(manifest: Path, tmp_path: Path) -> None:
    """It ends within an epoch, with a validation. A run that stops equals one that does not; more steps go on in the epoch."""
    recipe = of_steps(recipe_of(manifest, batch={**SECTIONS["batch"], "accumulate": 2}), 4)
    whole, folder = trainer_of(recipe, tmp_path / "whole"), tmp_path / "parts"
    assert whole.planner.num_steps(1) == 3 and whole.run() and whole.progress.epoch == 1
    rows = steps_of(tmp_path / "whole")
    assert [(row["step"], row["epoch"]) for row in rows if "validation" in row] == [(3, 1), (4, 1.4)]
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert rates[-1] == pytest.approx(recipe.optimiser.min_learning_rate)

    trainer = trainer_of(recipe, folder)

    def stop() -> None:
        trainer.requested_signal = signal.SIGINT

    assert not trainer.run(stop) and trainer.progress.step == 1
    trainer = trainer_of(recipe, folder)
    assert trainer.run() and steps_of(folder) == rows
    weights = weights_of(folder / "last")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(tmp_path / "whole" / "last").items())

    trained: list[tuple[int, int]] = []
    trainer = trainer_of(of_steps(recipe, 7), folder)
    assert not trainer.is_over and trainer.former_length == "4 steps" and trainer.num_steps == 7
    assert trainer.run(lambda: trained.append((trainer.progress.epoch, trainer.progress.batches_done)))
    assert trained[0] == (1, 3) and trainer.progress.step == 7
    with pytest.raises(UsageError, match=r"run\.max_steps 5: this run has had 7 already, of .*: give more"):
        trainer_of(of_steps(recipe, 5), folder)
    again = trainer_of(of_steps(recipe, None), folder)  # its three epochs
    assert not again.is_over and again.run() and again.progress.epoch == 3 and again.progress.step == 9


def test_the_last_step_is_validated_after_a_sudden_end(manifest: Path, tmp_path: Path) -> None:
    recipe, folder = of_steps(recipe_of(manifest), 2), tmp_path / "run"
    whole, trainer = trainer_of(recipe, tmp_path / "whole"), trainer_of(recipe, folder)

    def die() -> None:
        if trainer.progress.step == 2:
            trainer.save()
            raise Killed

    with pytest.raises(Killed):
        trainer.run(die)
    trainer = trainer_of(recipe, folder)
    assert not trainer.is_over and trainer.run() and "validation" in steps_of(folder)[-1]
    assert whole.run() and steps_of(folder) == steps_of(tmp_path / "whole")


@pytest.mark.parametrize("max_steps", [None, 5])
def test_an_epoch_ends_once(manifest: Path, tmp_path: Path, max_steps: int | None) -> None:
    """Its state is of its last batch, and the run dies after the validation that follows."""
    recipe, folder = of_steps(recipe_of(manifest, run={"epochs": 2}), max_steps), tmp_path / "run"
    whole, trainer = trainer_of(recipe, tmp_path / "whole"), trainer_of(recipe, folder)
    assert whole.planner.num_steps(1) == 5 and whole.run()

    def save_or_die() -> None:
        if trainer.progress.validated is not None:
            raise Killed
        if trainer.progress.batches_done == trainer.progress.batches:
            trainer.save()

    trainer._plot = save_or_die  # type: ignore[method-assign]  # in a validation; its line is already in the log
    with pytest.raises(Killed):
        trainer.run(save_or_die)
    trainer = trainer_of(recipe, folder)
    assert trainer.progress.epoch == 1 and trainer.run() and trainer.progress.num_stale == whole.progress.num_stale
    assert steps_of(folder) == steps_of(tmp_path / "whole")


def test_early_end(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts the validations since the best one, also over a resume. An ended run goes on with more patience."""
    rates = iter((0.5, 0.4, 0.4, 0.3, 0.6, 0.3, 0.2, 0.1))
    validated = lambda *given: ValidationResult({}, {}, next(rates), {}, {})  # noqa: E731
    monkeypatch.setattr(Trainer, "_validate", validated)
    recipe = recipe_of(manifest, run={"epochs": 8})
    trainer = trainer_of(of_steps(recipe, None, 2), tmp_path / "run")

    def stop() -> None:
        trainer.requested_signal = signal.SIGINT * (trainer.progress.epoch == 5)

    assert not trainer.run(stop) and (trainer.progress.num_stale, trainer.is_over) == (1, False)
    trainer = trainer_of(of_steps(recipe, None, 2), tmp_path / "run")
    assert trainer.run() and trainer.progress.epoch == 6 and trainer.is_stopped_early
    trainer = trainer_of(of_steps(recipe, None, 2), tmp_path / "run")
    assert trainer.is_over and trainer.is_stopped_early and trainer.progress.best_rate == 0.3
    trainer = trainer_of(of_steps(recipe, None, 3), tmp_path / "run")
    assert trainer.run() and trainer.progress.epoch == 8 and not trainer.is_stopped_early


def test_all_ranks_end_early(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank alone validates; the others have its count."""
    trainer = trainer_of(of_steps(recipe_of(manifest), None, 2), tmp_path / "run")
    trainer.distributed = DistributedContext(rank=1, world_size=2)
    monkeypatch.setattr(DistributedContext, "sums", lambda ranks, values, device: [value + 2.0 for value in values])
    trainer.progress.num_stale = 1
    trainer.run_validation()
    assert trainer.progress.num_stale == 2 and trainer.is_over


def test_when_states_are_saved(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once before the first models, then by minutes, and at the end."""
    saved: list[tuple[int, bool]] = []
    save_state = RunFolder.save_state

    def counted(folder: RunFolder, values: dict[str, Any]) -> None:
        saved.append((values["epoch"], values["is_check_due"]))
        save_state(folder, values)

    monkeypatch.setattr(RunFolder, "save_state", counted)
    assert trainer_of(recipe_of(manifest, run={"epochs": 2}), tmp_path / "minutes").run()
    assert saved == [(1, True), (2, False)]
    saved.clear()
    assert trainer_of(recipe_of(manifest, run={"epochs": 2, "save_minutes": 0}), tmp_path / "always").run()
    assert {(1, True), (1, False), (2, True)} < set(saved)


def test_resume_keeps_batch_sizes(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search at the time of the resumption might find others. Small corpora are limited by the minimum number of steps."""
    found = iter([(70,), (300,), (50,)])
    monkeypatch.setattr(trainer_module, "EpochPlanner", lambda *given: EpochPlanner(*given[:3], is_small=False))
    monkeypatch.setattr(Trainer, "_searched_batch_sizes", lambda trainer, buckets: next(found))
    recipe = recipe_of(manifest, batch={"seconds": "auto"})
    trainer = trainer_of(recipe, tmp_path / "a")
    at_most = int(120 / trainer.planner.buckets[0].max_duration_s)
    assert trainer.planner.batch_sizes == (at_most,) and at_most < 70
    assert trainer_of(recipe, tmp_path / "b").planner.batch_sizes == (at_most,)
    trainer.planner.batch_sizes = (3,)
    trainer.save()
    assert trainer_of(recipe, tmp_path / "a").planner.batch_sizes == (3,)
    assert next(found) == (50,)


def test_out_of_memory_splits_batch(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(manifest, **STILL)
    gradients, tried = [], []
    for most in (8, 3, 0):
        trainer = trainer_of(recipe, tmp_path / str(most))
        forward = trainer.learner.network.forward

        def limited(features: Any, targets: Any, omega_draw: float, most: int = most, forward: Any = forward) -> Any:
            tried.append(len(targets.lengths_B))
            losses = forward(features, targets, omega_draw)
            if tried[-1] > most:
                losses["loss"].backward()  # its gradients must not count
                raise torch.OutOfMemoryError("no room")
            return losses

        monkeypatch.setattr(trainer.learner.network, "forward", limited)
        (rows,) = trainer.loader.batches([np.arange(7)])
        trainer.learner.network.eval()  # because the halves' batch statistics differ
        if most:
            assert trainer._train_batch(rows, plan_of([], 8)) == sum(
                len(trainer.examples[index].tokens) for index in range(7)
            )
            gradients.append({name: master.grad for name, master in trainer.weights.masters.items()})
        else:
            with pytest.raises(UsageError, match=r"no memory for 1 recordings of up to \d+\.\d s; .*smaller batch"):
                trainer._train_batch(rows, plan_of([], 8))
    assert tried == [7, 7, 3, 4, 2, 2, 7, 3, 1]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["best", "last"])
def test_models_without_state(manifest: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="holds models but no state to go on from; use another folder, or --overwrite"):
        trainer_of(recipe_of(manifest), tmp_path)


def with_bad_rows(manifest: Path, folder: Path, num_good: int, num_bad: int) -> Path:
    """A manifest with unreadable recordings."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()][:num_good]
    for number in range(num_bad):
        (folder / f"bad{number}.wav").write_bytes(b"not audio")
        rows.append({"audio_filepath": str(folder / f"bad{number}.wav"), "text": "nothing", "duration": 1.0})
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "validation.jsonl").write_bytes(manifest.with_name("validation.jsonl").read_bytes())
    return path


def test_unreadable_batch(manifest: Path, tmp_path: Path) -> None:
    path = with_bad_rows(manifest, tmp_path, 3, 1)
    batch = {"seconds": 0.1, "accumulate": 1}  # one recording per batch
    recipe = recipe_of(path, batch=batch, run={"epochs": 1}, model={"vocab_size": 40})
    trainer = trainer_of(recipe, tmp_path / "run")
    assert trainer.run() and trainer.weights.num_steps == 4
    assert (trainer.loader.num_tried, trainer.loader.num_unreadable) == (4, 1)
    assert trainer.progress.validated is not None
    again = trainer_of(recipe, tmp_path / "run")  # which goes on, and finds it again
    again.check_recordings()
    assert again.loader.num_unreadable == 1
    [row] = map(json.loads, again.folder.left_out.read_text(encoding="utf-8").splitlines())
    assert row["left_out"] == "is text, not audio" and (row["manifest"], row["line"]) == (str(path), 4)
    assert row["audio_filepath"] == str(tmp_path / "bad0.wav")


def test_too_many_unreadable(manifest: Path, tmp_path: Path) -> None:
    recipe = recipe_of(manifest)
    trainer = trainer_of(recipe, tmp_path / "run")
    for num_tried, num_unreadable, is_too_much in (
        (8, 5, True),
        (8, 4, False),
        (8, 8, True),
        (200, 10, False),
        (200, 11, True),
    ):
        trainer.loader.num_tried, trainer.loader.num_unreadable = num_tried, num_unreadable
        if is_too_much:
            with pytest.raises(UsageError, match=f"{num_unreadable} of the {num_tried} recordings tried"):
                trainer._synchronize_stop()
        else:
            assert not trainer._synchronize_stop()
    path = with_bad_rows(manifest, tmp_path, 0, 3)
    other = trainer_of(recipe_of(path, model={"vocab_size": 12}), tmp_path / "other")
    with pytest.raises(UsageError, match="3 of the 3 recordings tried"):
        other.run()
    assert not other.progress.step and not other.folder.best.exists()  # known before the first step


def test_durations_that_end_before_their_recordings(manifest: Path, tmp_path: Path) -> None:
    """They are counted, unless another row may have the rest."""
    rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    short = [{**row, "duration": 0.7 * row["duration"]} for row in rows]
    rests = [{**row, "offset": row["duration"], "duration": 0.5} for row in short[:3]]  # left out: too fast
    rests += [{**row, "offset": row["duration"], "duration": 0.5, "text": "a"} for row in short[3:7]]

    def said_of(*given: dict[str, Any]) -> list[str]:
        (path := tmp_path / "train.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in given), encoding="utf-8"
        )
        (tmp_path / "validation.jsonl").write_bytes(manifest.with_name("validation.jsonl").read_bytes())
        said: list[str] = []
        trainer_of(recipe_of(path), tmp_path / "run", say=said.append).check_recordings()
        return said

    goes_on = "that were read go on long after the duration stated, and no other row has the rest: the first is"
    assert said_of(*short[:5], *rows[5:]) == [f"recordings: 5 of 8 {goes_on} {rows[0]['audio_filepath']}"]
    assert said_of(*short, *rests) == [f"recordings: 1 of 12 {goes_on} {rows[7]['audio_filepath']}"]
    assert said_of(*rows) == []
    tar = packed(
        {f"{number}.wav": Path(row["audio_filepath"]).read_bytes() for number, row in enumerate(rows)},
        tmp_path / "audio_0.tar",
    )
    packed_rows = [{**row, "audio_filepath": f"{number}.wav", "shard_id": 0} for number, row in enumerate(short[:2])]
    assert said_of(*packed_rows, *rows[2:]) == [f"recordings: 2 of 8 {goes_on} {tar} at byte 512"]


def test_a_recording_that_is_gone_is_not_cut_short(tmp_path: Path) -> None:
    """All ranks leave it out later. An error in the first one alone would leave the others waiting."""
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000, np.int16), 8000)
    (tmp_path / "list.jsonl").write_text('{"audio_filepath": "a.wav", "duration": 1.0, "text": "one"}\n')
    [example] = read_manifests([ManifestPart(str(tmp_path / "list.jsonl"))], ExampleLimits()).examples
    assert is_cut_short(example)
    (tmp_path / "a.wav").unlink()
    assert not is_cut_short(example)


def test_shortest_recording(manifest: Path, tmp_path: Path) -> None:
    """Also at the highest speed. BatchNorm refuses a single frame."""
    trainer = trainer_of(recipe_of(manifest, augment={"speeds": [1.5]}), tmp_path / "run")
    trainer.learner.network.train()

    def batch_of(seconds: float) -> int:
        num_samples = math.ceil(16_000 * seconds)
        rows = AudioBatch(np.array([0]), torch.ones(1, num_samples, dtype=torch.int16), torch.tensor([num_samples]))
        return trainer._train_batch(rows, plan_of([], 8, speed=1.5))

    assert batch_of(trainer._min_duration_s()) == len(trainer.examples[0].tokens)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_of(0.5 * trainer._min_duration_s())


@pytest.mark.parametrize(
    ("num_recordings", "share", "expected"),
    [(8, 1e-9, 1), (50, 0.02, 5), (99, 0.02, 9), (150, 0.02, 10), (400, 0.02, 10), (400, 0.2, 80), (2000, 0.02, 40)],
)
def test_validation_share_of_few(tmp_path: Path, num_recordings: int, share: float, expected: int) -> None:
    said: list[str] = []
    texts = [f"sentence number {number} is here" for number in range(num_recordings)]
    training_data = prepare(
        parse_recipe(recipe_for(tmp_path, texts, share), tmp_path / "recipe.yaml"), None, said.append
    )
    said = [
        line for line in said if not line.startswith(("validation: ", "texts to validate with", "to train on: rows"))
    ]
    num_taken = len(training_data.validation)
    assert num_taken + len(training_data.corpus.examples) == num_recordings
    if expected > 10:
        assert abs(num_taken - expected) <= 20 and not said
        return
    assert num_taken == expected and said[0].endswith(f" of {num_recordings} recordings: {expected} instead")
    few = (
        [f"{count_of(expected, 'recording')} to validate with: the word error rate is a rough estimate"]
        if expected < 10
        else []
    )
    assert said[1:] == few


@pytest.mark.parametrize(
    ("before_s", "weights", "expected"), [(None, {}, 2.0), (None, {"a": 1}, None), (9.5, {"a": 1}, 9.5)]
)
def test_models_state_how_long_their_examples_were(before_s, weights, expected) -> None:
    """99 % of them; a model of which it is not known may have heard longer ones before."""
    init = checkpoint(MODELS / "tdt_demo")
    init = replace(init, weights=weights, config=replace(init.config, trained_utterance_s=before_s))
    assert trained_utterance_s(init, np.array([30.0, *[1.0] * 98, 1.93])) == expected


def recipe_for(folder: Path, texts: Iterable[str], share: float) -> dict[str, Any]:
    """Examples of two seconds, which are never opened."""
    (folder / "a.wav").touch()
    rows = [{"audio_filepath": str(folder / "a.wav"), "text": text, "duration": 2.0} for text in texts]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {"train": str(folder / "few.jsonl"), "validation_share": share, "max_tokens_per_s": 99}
    return {"data": data, "model": {"vocab_size": 32}}


def test_validation_rows_left_out(manifest: Path, tmp_path: Path) -> None:
    validation = manifest.with_name("validation.jsonl")
    rows = [json.loads(line) for line in validation.read_text(encoding="utf-8").splitlines()]
    (tmp_path / "short.jsonl").write_text(json.dumps({**rows[0], "duration": 0.1}) + "\n" + json.dumps(rows[1]))
    (tmp_path / "none.jsonl").write_text(json.dumps({**rows[0], "duration": 0.1}))

    def prepared(name: str) -> list[str]:
        said: list[str] = []
        data = {"train": str(manifest), "validation": str(tmp_path / name)}
        prepare(parse_recipe({**SECTIONS, "data": data}, tmp_path / "a.yaml"), None, said.append)
        return said

    assert prepared("short.jsonl")[0].startswith("to validate with: 1 examples, ")
    assert "left out: 1 shorter than 0.3 s" in prepared("short.jsonl")[0]
    with pytest.raises(UsageError, match=r"^nothing to validate with: .*1 shorter than 0\.3 s"):
        prepared("none.jsonl")


def test_one_sentence(tmp_path: Path) -> None:
    for texts, said in ((["one"], "^1 recording of one sentence: too few"), (["one", "One."], "^2 recordings of one")):
        with pytest.raises(UsageError, match=said):
            prepare(parse_recipe(recipe_for(tmp_path, texts, 0.02), tmp_path / "a.yaml"), None)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"sample_rate": 100}, r"^a/recipe\.yaml: model: .*sample_rate"),
        ({"vocab_size": 9999}, r"^a/recipe\.yaml: model\.vocab_size: no bpe vocabulary of 9999 .* most: set "),
    ],
)
def test_impossible_model(manifest: Path, model: dict[str, Any], said: str) -> None:
    with pytest.raises(FastscribeError, match=said):
        prepare(recipe_of(manifest, model=model), None, where="a/recipe.yaml")


def test_naive_padding_has_the_speeds(manifest: Path, tmp_path: Path) -> None:
    shares = []
    for name, speeds in (("one", [1.0]), ("two", [0.5, 2.0])):
        recipe = recipe_of(manifest, batch={"seconds": 100}, augment={"speeds": speeds})
        planner = trainer_of(recipe, tmp_path / name).planner
        planner._durations = np.full(8, 2.0)
        shares.append(planner.naive_padding().frames)
    assert shares[0] == 0 < shares[1]


def test_plot_failure(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    trainer = trainer_of(recipe_of(manifest), tmp_path, say=said.append)
    for error in (OSError("disk full"), ValueError("odd")):
        monkeypatch.setattr(trainer_module, "plot_log", Mock(side_effect=error))
        trainer._plot()
    assert said == [f"{tmp_path / 'train.png'}: not drawn: disk full"]


# --- several ranks, one of which is this process ---------------------------------------------------------------------


def test_ranks_with_different_states(
    manifest: Path, tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(recipe_of(manifest), tmp_path, ranks=DistributedContext(0, 2))

    digests = [0]

    def another_has_the_digest_before(ends: torch.Tensor, operation: Any) -> None:
        digests.append(int(ends[0]))
        ends.copy_(torch.maximum(ends, torch.tensor([digests[-2], -digests[-2]])))

    monkeypatch.setattr(dist, "all_reduce", another_has_the_digest_before)
    trainer.save()
    state = trainer.folder.load_state()
    assert state is not None
    for different in (None, state, {**state, "weights": {"num_steps": 1}}, {**state, "epoch": 1}):
        with pytest.raises(UsageError, match="ranks do not find the same state"):
            trainer._check_same_on_all_ranks(different)
    trainer._check_same_on_all_ranks({**state, "epoch": 1})


def test_fewer_examples_than_ranks(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="8 examples are too few for 9 ranks"):
        trainer_of(recipe_of(manifest), tmp_path, ranks=DistributedContext(0, 9))


def test_a_state_is_taken_with_other_free_settings_and_whole(manifest: Path, tmp_path: Path) -> None:
    recipe = recipe_of(manifest, run={"epochs": 1})
    trainer_of(recipe, tmp_path / "run").save()
    trainer_of(recipe_of(manifest, run={"epochs": 1, "save_minutes": 3}), tmp_path / "run")
    (tmp_path / "run" / "state.pt").write_bytes(b"PK damaged")
    with pytest.raises(UsageError, match=r"state\.pt: cannot be read"):
        trainer_of(recipe, tmp_path / "run")


@pytest.mark.parametrize("kind", [{"durations": [], "ctc": False}, {"transducer": False}])
def test_each_family(manifest: Path, tmp_path: Path, kind: dict[str, Any]) -> None:
    recipe = recipe_of(manifest, model=kind, run={"epochs": 1})
    trainer = trainer_of(recipe, tmp_path / "run", torch.bfloat16)
    assert trainer.run()
    assert trainer.progress.losses["loss"] > 0
    transcriber = Transcriber.load(tmp_path / "run" / "best", "cpu", "fp32", Options(threads=2))
    assert len(list(transcriber.transcribe(str(manifest)))) == 8


def test_frozen_parts(manifest: Path, tmp_path: Path) -> None:
    """They are the same after training, BatchNorm's statistics included; the rest moves by its part's rate."""
    known = read_checkpoint(MODELS / "tdt_demo" / "model.nemo")
    before = {name: tensor.clone() for name, tensor in known.weights.items()}
    section = {"freeze": ["predictor", "batch_norm"], "part_rates": {"joint": 1e-6}}
    optimiser = {**section, "learning_rate": 1e-3, "weight_decay": 0.0}
    recipe = recipe_of(manifest, optimiser=optimiser, run={"epochs": 1}, augment={"speeds": [1.0]})
    trainer = trainer_of(recipe, tmp_path / "run", init=known)
    assert trainer.run()
    written = read_checkpoint(trainer.folder.last)
    tuned = written.weights
    assert written.tokenizer.pieces == known.tokenizer.pieces and written.config == known.config
    assert all(torch.equal(tensor, before[name]) for name, tensor in known.weights.items())
    moved = {name: float((tuned[name] - known.weights[name].float()).abs().max()) for name in tuned}
    norms = [change for name, change in moved.items() if ".conv.norm." in name]
    encoder, predictor, joint = (
        [change for name, change in moved.items() if name.startswith(prefix)]
        for prefix in ("encoder.", "transducer.predictor.", "transducer.joint.")
    )
    assert norms and predictor and not any((*norms, *predictor))
    assert 0 < max(joint) < 1e-6 and max(encoder) > 1e-5


@pytest.mark.parametrize("frozen", [["encoder", "ctc"], ["encoder", "predictor", "joint", "ctc"]], ids=str)
def test_nothing_left_to_train(manifest: Path, tmp_path: Path, frozen: list[str]) -> None:
    """An idle head is not enough."""
    recipe = recipe_of(manifest, optimiser={"freeze": frozen}, loss={"ctc_weight": 1.0})
    with pytest.raises(UsageError, match=f"nothing that the loss depends on is left to train: {', '.join(frozen)}"):
        trainer_of(recipe, tmp_path / "run")


def test_rates_of_another_scoring_are_forgotten(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trainer_of(recipe_of(manifest), tmp_path / "run")
    first.progress.best_rate = 0.25
    first.save()
    assert trainer_of(recipe_of(manifest), tmp_path / "run").progress.best_rate == 0.25
    monkeypatch.setattr("fastscribe.training.data.choose_scoring", lambda *_: Scoring("unicode", "cer"))
    assert trainer_of(recipe_of(manifest), tmp_path / "run").progress.best_rate is None


# --- the command -----------------------------------------------------------------------------------------------------


def test_several_manifests_without_validation(manifest: Path, tmp_path: Path) -> None:
    """Examples of the second one are split off to validate with."""
    rows = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(rows[::2]), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(rows[1::2]), encoding="utf-8")
    values = {"data": {"train": ["a.jsonl", "b.jsonl"], "validation_share": 0.5}, **SECTIONS, "run": {"epochs": 1}}
    recipe = parse_recipe(values, tmp_path / "recipe.yaml")
    trainer = trainer_of(recipe, tmp_path / "run")
    assert {example.part for example in trainer.training_data.validation} == {0, 1}
    assert trainer.run() and trainer_of(recipe, tmp_path / "run").is_over


def test_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No legend covers a line, and steps are whole. The best step and the learning rate are there."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    from fastscribe.training.state import plot_log

    figures: list[Any] = []
    made = agg.FigureCanvasAgg.__init__
    monkeypatch.setattr(
        agg.FigureCanvasAgg, "__init__", lambda self, figure: (figures.append(figure), made(self, figure))[1]
    )
    rates = {"wer": 0.5, "exact_wer": 0.6, "cer": 7.4}  # of a model that has learnt nothing
    rows = [
        {"step": 2, "loss": 2.0, "ctc": 3.0, "learning_rate": 1e-3},
        {"step": 3, "loss": 1.0, "learning_rate": 5e-4},
        {"step": 3, "validation": {**rates, "sets": {"news": rates, "noise": {"words_per_min": 1.0}}}, "best_step": 3},
    ]
    for number in (0, 1, 3):
        plot_log(rows[:number], tmp_path / "train.png")
        assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")
    losses, errors, learning_rates = figures[-1].axes
    assert [line.get_label() for line in errors.lines][-2:] == ["news", "best: step 3"] and errors.get_ylim() == (
        0,
        105,
    )
    assert losses.lines[0].get_ydata().tolist() == [2.0, 1.5]
    assert learning_rates.lines[0].get_ydata().tolist() == [1e-3, 5e-4]
    for axes in (losses, errors):
        assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1
    assert all(step == int(step) for axes in figures[-1].axes for step in axes.get_xticks())


def test_a_short_window_makes_no_dip() -> None:
    """A log line at the end of an epoch is a mean over fewer steps than the others."""
    assert even_means([(10, 3.0), (12, 1.0), (20, 2.0)]) == [(10, 3.0), (12, 2.6), (20, 1.8)]
    assert even_means([(6, 2.0), (10, 1.0), (12, 4.0)]) == [(6, 2.0), (10, 8 / 6), (12, 2.0)]
