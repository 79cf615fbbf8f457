"""Error rates of the readable recordings, by the saved weights; and `best` is the start until a model is clearly better.

That is: the test, runs, their resume and their messages.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import UsageError
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.training import trainer as trainer_module
from fastscribe.training import validation
from fastscribe.training.command import train
from fastscribe.training.corpus import Example
from fastscribe.training.dataloader import AudioDataLoader
from fastscribe.training.recipe import Recipe
from fastscribe.training.trainer import Trainer
from fastscribe.training.validation import Gain, ValidationResult, least_gain, validate, with_weights
from fastscribe.types import Batch, Hypothesis
from tests.conftest import AUDIO, MODEL
from tests.training.test_trainer import recipe_of
from tests.training.test_trainer import trainer_of as new_trainer

START = [2, 0, 3, 1, 4, 2, 1, 3]  # errors of recordings with ten words each
UNCLEAR = [2, 0, 2, 2, 3, 2, 1, 3]
CLEAR = [0, 0, 1, 0, 1, 1, 0, 1]
WORSE = [2, 1, 3, 3, 4, 2, 1, 3]


def counts_of(errors: Sequence[int]) -> dict[int, tuple[int, int]]:
    return {index: (one, 10) for index, one in enumerate(errors)}


def test_difference_is_paired_by_recording() -> None:
    gain = Gain.between(counts_of(START), {**counts_of(CLEAR), 99: (7, 10)})
    fewer = [2, 0, 2, 1, 3, 1, 1, 2]
    squares = sum((one - 1.5) ** 2 for one in fewer)  # around a mean of 1.5
    assert gain.fewer == 12 / 80 and gain.num_words == 80 and gain.num_recordings == 8
    assert gain.standard_error == pytest.approx(math.sqrt(max(squares * 8 / 7, 12)) / 80)
    assert gain.is_clear
    uneven = Gain.between({0: (9, 10), 1: (9, 100)}, {0: (1, 10), 1: (9, 100)})  # one recording has the whole gain
    residuals = [8 - 8 / 110 * 10, -8 / 110 * 100]
    assert uneven.standard_error == pytest.approx(math.sqrt(2 * sum(one**2 for one in residuals)) / 110)
    assert not uneven.is_clear


def test_recordings_that_change_alike_have_an_error_too() -> None:
    """Each of three recordings has one error fewer: they do not differ, and three words are still few."""
    alike = Gain.between(counts_of([3, 3, 3]), counts_of([2, 2, 2]))
    assert alike.standard_error == pytest.approx(math.sqrt(3) / 30) and not alike.is_clear
    assert Gain.between(counts_of([9, 9, 9]), counts_of([0, 0, 0])).is_clear
    assert not Gain.between(counts_of(START), counts_of(START)).is_clear
    assert not Gain.between({0: (0, 0)}, {0: (3, 0)}).is_clear and Gain.between({}, {}).num_words == 0


def test_words_that_would_tell() -> None:
    gain = Gain(0.01, 0.02, 1000, 100)
    assert not gain.is_clear and gain.words_to_tell == 16_000
    assert replace(gain, num_words=1013).words_to_tell == 17_000  # of 16,208, rounded up
    assert replace(gain, standard_error=0.00499).is_clear
    assert replace(gain, fewer=0.0).words_to_tell is None is replace(gain, fewer=-0.1).words_to_tell


def test_least_gain_of_a_set() -> None:
    assert least_gain(counts_of(START)) == pytest.approx(2 * 4 / 80)  # 16 errors in words that err each by itself
    assert least_gain(counts_of([0, 0])) == 0


def test_unreadable_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_MAX_S", 0.0)  # one recording per batch
    checkpoint, good = read_checkpoint(MODEL), sorted(AUDIO.glob("0*.flac"))[0]
    (tmp_path / "bad.wav").write_bytes(b"not audio")
    bad = Example(str(tmp_path / "bad.wav"), "nothing", 100.0)
    examples = [bad, Example(str(good), "wholly different words", soundfile.info(good).duration)]

    def rates_of(examples: list[Example]) -> validation.ValidationResult:
        loader = AudioDataLoader(examples, 16_000, 0.0, 1, lambda line: None)
        return validate(checkpoint, examples, loader, "cpu", "fp32")

    assert rates_of(examples).rates["wer"] >= 1 and rates_of(examples).counts.keys() == {1}
    with pytest.raises(UsageError, match="none of the 2 recordings to validate with can be read"):
        rates_of([bad, bad])


def test_digital_silence_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does `transcribe`. Beside it in a batch, speech is decoded as alone."""
    good = sorted(AUDIO.glob("0*.flac"))[0]
    soundfile.write(tmp_path / "zero.wav", np.zeros(40_000), 16_000)
    examples = [Example(str(good), "a", soundfile.info(good).duration), Example(str(tmp_path / "zero.wav"), "b", 2.5)]
    given: list[int] = []
    decode = Recognizer.transcribe

    def counted(self: Recognizer, batch: Batch) -> list[Hypothesis]:
        given.append(len(batch.lengths_B))
        return decode(self, batch)

    monkeypatch.setattr(Recognizer, "transcribe", counted)
    loader = AudioDataLoader(examples, 16_000, 0.0, 1, lambda line: None)
    found = validate(read_checkpoint(MODEL), examples, loader, "cpu", "fp32")
    assert given == [1] and found.counts.keys() == {0, 1}


def test_weights_rounded_as_saved() -> None:
    checkpoint = read_checkpoint(MODEL)
    weights = {"a": torch.tensor([1.0001, 3.0]), "count": torch.tensor(1 << 20)}
    kept = with_weights(checkpoint, weights, torch.bfloat16).weights
    assert kept["a"].dtype == torch.bfloat16 and kept["a"].tolist() == [1.0, 3.0] and kept["count"] == 1 << 20


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def exact() -> list[list[int]]:
    """The errors with case and punctuation that the next validations find; empty: the same."""
    return []


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch, exact: list[list[int]]) -> list[list[int]]:
    """The errors that the next validations find."""
    found: list[list[int]] = []

    def validate(*given: object) -> ValidationResult:
        errors = found.pop(0)
        counts, exact_counts = counts_of(errors), counts_of(exact.pop(0) if exact else errors)
        rate = sum(errors for errors, _ in counts.values()) / 80
        return ValidationResult({"wer": rate, "exact_wer": rate, "cer": rate}, {}, rate, counts, exact_counts)

    monkeypatch.setattr(trainer_module, "validate", validate)
    return found


def trainer_of(recipe: Recipe, folder: Path) -> Trainer:
    return new_trainer(recipe, folder, init=read_checkpoint(MODEL))


def is_start(folder: Path) -> bool:
    """True if `best` is the model of --init: its weights, and what it states."""
    start, best = read_checkpoint(MODEL), read_checkpoint(folder / "best")
    same = all(
        torch.equal(weight.float(), best.weights[name]) for name, weight in start.weights.items() if weight.dim()
    )
    return same and best.config == start.config


def kept(trainer: Trainer) -> list[tuple[int, bool]]:
    """Return of each validation of a trained model the step that `best` is of, and whether its own gain is clear."""
    return [(row["best_step"], row["gain"]["is_clear"]) for row in trainer.folder.rows() if "gain" in row]


@pytest.mark.parametrize(
    ("errors", "is_kept"),
    [([CLEAR, UNCLEAR], True), ([UNCLEAR, WORSE], False)],
    ids=["clear first", "told otherwise"],
)
def test_best_is_the_first_step_with_a_clear_gain_or_without_a_start_to_keep(
    few: Path, tmp_path: Path, validations: list[list[int]], errors: list[list[int]], is_kept: bool
) -> None:
    recipe = recipe_of(few, batch={"seconds": 200, "buckets": 1}, run={"epochs": 2, "keep_start": is_kept})
    validations += [START, *errors]
    trainer = trainer_of(recipe, tmp_path / "run")
    assert trainer.run() and not validations
    assert kept(trainer) == [(1, one == CLEAR) for one in errors]
    assert not is_start(tmp_path / "run")
    lowest = min(sum(one) for one in errors)
    assert trainer.progress.best_rate == lowest / 80


def stopping(trainer: Trainer) -> bool:
    """Stop after the first epoch's validation."""

    def update() -> None:
        if trainer.progress.best_step is not None:
            trainer.requested_signal = signal.SIGTERM

    return trainer.run(update)


def test_resumed_run_compares_with_the_start(few: Path, tmp_path: Path, validations: list[list[int]]) -> None:
    """The start's errors are in the state."""
    recipe = recipe_of(few, batch={"seconds": 200, "buckets": 1}, run={"epochs": 3})
    validations += [START, UNCLEAR]
    first = trainer_of(recipe, tmp_path / "run")
    assert not stopping(first) and first.progress.best_step == 0 and is_start(tmp_path / "run")
    validations += [WORSE, CLEAR]
    again = trainer_of(recipe, tmp_path / "run")
    assert again.progress.gain == first.progress.gain and again.progress.best_step == 0
    assert again.run() and not validations
    assert [step for step, _ in kept(again)] == [0, 0, 3] and not is_start(tmp_path / "run")
    assert [row["step"] for row in again.folder.rows() if "validation" in row] == [0, 1, 2, 3]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda: [line.removeprefix("fastscribe: ") for line in capsys.readouterr().err.splitlines()]


def test_best_that_is_worse_than_the_start_is_said(
    manifest: Path, tmp_path: Path, validations: list[list[int]], said: Any
) -> None:
    validations += [START, WORSE]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"data: {{train: {manifest}}}\nrun: {{keep_start: false}}\n")
    train(recipe, tmp_path / "run", str(MODEL), 1, "cpu", "fp32", False, False)
    assert said()[-1].endswith(": no better, and best is that step: run.keep_start: true would keep the start")


@pytest.mark.parametrize("is_resumed", [False, True])
def test_clearly_better_case_is_said_where_the_start_stays(
    manifest: Path,
    tmp_path: Path,
    validations: list[list[int]],
    exact: list[list[int]],
    said: Any,
    is_resumed: bool,
) -> None:
    """The state has what was measured. Without a change, no points are counted."""
    exact += [START, CLEAR]
    validations += [START, START]
    for _ in range(1 + is_resumed):
        train(manifest, tmp_path / "run", str(MODEL), 1, "cpu", "fp32", False, False)
    assert said()[-3:-1] == [
        "the best step of training has 20.00 %, as --init has (80 words): no better",
        "with case and punctuation training got clearly better, from 20.00 % of the words wrong to 5.00 %: "
        "data.normalizer: none has these decide",
    ]


@pytest.mark.parametrize("errors", [UNCLEAR, CLEAR, WORSE], ids=["unclear", "clear", "worse"])
def test_what_is_said(
    manifest: Path, tmp_path: Path, validations: list[list[int]], said: Any, errors: list[int]
) -> None:
    """Before the first step, how little the recordings can show; at the end, which weights `best` has, and why."""
    validations += [START, errors]
    run = tmp_path / "run"
    train(manifest, run, str(MODEL), 1, "cpu", "fp32", False, False)
    lines = said()
    few = lines.index("before the first step: WER 20.00 %") + 1
    assert lines[few].startswith(
        "80 words to validate with kept from those to train on: a gain of less than about 10.0 points"
    )
    assert "until then best stays the model of --init; more recordings in data.validation show" in lines[few]
    last = f"{run / 'last'} is the trained model; run.keep_start: false has best be the step with the lowest rate"
    start = f"{run / 'best'}: the model of --init, unchanged: word error rate 20.00 % on "
    if errors is CLEAR:
        assert lines[-2].startswith(f"{run / 'best'}: word error rate 5.00 % on ")
        assert lines[-1] == (
            "the best step of training has 5.00 %, 15.00 points below the 20.00 % of --init (standard error 4.33, 80 words)"
        )
        return
    assert lines[-3].startswith(start) and lines[-1] == last
    assert lines[-3].endswith(f"; try the trained model with --model {run / 'last'}") == (errors is UNCLEAR)
    if errors is WORSE:
        assert lines[-2].endswith(
            "has 23.75 %, 3.75 points above the 20.00 % of --init (standard error 2.63, 80 words): no better"
        )
    else:
        assert lines[-2] == (
            "the best step of training has 18.75 %, 1.25 points below the 20.00 % of --init (standard error 2.27, 80 words): "
            "too few words to tell that from chance; about 1,100 would (data.validation)"
        )


def test_each_line_with_the_deciding_rate_names_the_sets(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    sets = {"news": {"wer": 0.5}, "noise": {"words_per_min": 3.0}}
    result = ValidationResult({"wer": 0.5, "exact_wer": 0.5, "cer": 0.5}, sets, 0.5, counts_of(START), counts_of(START))
    monkeypatch.setattr(trainer_module, "validate", lambda *given: result)
    train(few, tmp_path / "run", str(MODEL), 1, "cpu", "fp32", False, False)
    named = [line for line in said() if "WER 50.00 %, news 50.00 %, noise 3.00 words/min" in line]
    assert [line.partition(":")[0] for line in named] == ["before the first step", "epoch 1"]


def test_recordings_of_their_own_can_show_little_too(
    manifest: Path, tmp_path: Path, validations: list[list[int]], said: Any
) -> None:
    """The plan, which decodes nothing, assumes an error rate. One word is no words."""
    validations += [[9] * 8, [9] * 8]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"data: {{train: {manifest}, validation: {manifest.with_name('validation.jsonl')}}}")
    train(recipe, tmp_path / "run", str(MODEL), 0, "cpu", "fp32", False, False)
    plan = "20 words to validate with: if --init has 10 % of them wrong, a gain of less than about 14.1 points will not"
    assert any(line.startswith(plan) for line in said())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastscribe.training.validation.num_words", lambda counts: 1)
        train(recipe, tmp_path / "run", str(MODEL), 0, "cpu", "fp32", False, False)
    assert any(line.startswith("1 word to validate with: ") for line in said())
    train(recipe, tmp_path / "run", str(MODEL), 1, "cpu", "fp32", False, False)
    lines = said()
    after = lines[lines.index("before the first step: WER 90.00 %") + 1]
    assert after.startswith("80 words to validate with: a gain of less than about 21.2 points will not show")
