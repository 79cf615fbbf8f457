"""Recordings without speech: the model learns to write nothing for them, and what it writes is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from fastscribe.errors import UsageError
from fastscribe.training.corpus import ManifestPart
from fastscribe.training.data import prepare
from fastscribe.training.learner import targets_of
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.manifest import ExampleLimits, read_manifests
from fastscribe.training.network import Network
from fastscribe.training.planner import label_counts
from fastscribe.training.scoring import Scoring, ValidationSet
from fastscribe.training.trainer import Trainer
from fastscribe.training.validation import _to_result
from fastscribe.types import Features
from tests.training.test_network import CPU, noise, tiny
from tests.training.test_trainer import STILL, plan_of, recipe_of
from tests.training.test_trainer import trainer_of as new_trainer


@pytest.fixture
def noises(tmp_path: Path) -> Path:
    """Three recordings of noise, 1 s each, with rows without a text, with an empty one, and with a blank one."""
    random = np.random.default_rng(0)
    for number, text in enumerate(({}, {"text": ""}, {"text": " "})):
        soundfile.write(tmp_path / f"{number}.wav", 0.1 * random.standard_normal(16_000), 16_000)
        with (tmp_path / "noise.jsonl").open("a") as rows:
            rows.write(json.dumps({"audio_filepath": f"{number}.wav", "duration": 1.0, **text}) + "\n")
    return tmp_path / "noise.jsonl"


def with_noise(recipe_manifest: Path, noises: Path, **sections: Any) -> Any:
    recipe = recipe_of(recipe_manifest, **sections)
    train = (*recipe.data.train, ManifestPart(str(noises), non_speech=True))
    object.__setattr__(recipe.data, "train", train)
    return recipe


@pytest.mark.parametrize("is_mixed", [False, True])
def test_losses_against_the_sum_over_all_paths(is_mixed: bool) -> None:
    """Without labels CTC and RNN-T have one path: a blank a frame. Rows count as the given numbers of labels."""
    model = tiny(conv_norm="layer_norm", durations=())
    network = Network(model, TransducerLossConfig(), 0.5, 0.0).eval()
    features, tokens, counts = noise(), [(), (), (1, 2, 2) if is_mixed else ()], [7, 1, 3]
    losses = network(features, targets_of(tokens, CPU, counts), 1.0)
    frames = model.encoder(features)
    assert model.ctc is not None and model.transducer is not None
    start_BH = model.transducer.predictor.step(torch.full((3,), 20), model.transducer.predictor.initial_state(3))[0]
    joint = model.transducer.joint
    ctc_BTV = model.ctc(frames.frames_BTD).log_softmax(2)
    rnnt_BTV = joint.output(
        joint.activation(joint.encoder(frames.frames_BTD) + joint.predictor(start_BH)[:, None])
    ).log_softmax(2)
    for name, log_probs_BTV in (("ctc", ctc_BTV), ("transducer", rnnt_BTV)):
        total = -sum(log_probs_BTV[row, : frames.lengths_B[row], 20].sum() for row in range(2 if is_mixed else 3))
        if is_mixed:
            last = Features(features.mel_BMT[2:], features.lengths_B[2:])
            total = total + 3 * network(last, targets_of(tokens[2:], CPU), 1.0)[name]
        torch.testing.assert_close(losses[name], total.detach() / 11, rtol=1e-4, atol=1e-5)
    assert not int(losses["unaligned"])
    losses["loss"].backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    assert gradients["ctc.output.weight"].ne(0).any() and gradients["transducer.joint.output.weight"].ne(0).any()


def test_weight_of_a_recording_without_speech() -> None:
    """It counts as the labels that speech of its length has."""
    counts = label_counts(np.array([10, 0, 20, 0]), np.array([4.0, 3.0, 6.0, 0.1]))
    assert counts.tolist() == [10, 9, 20, 1]


def gradients_of(trainer: Trainer, batches: list[list[int]]) -> dict[str, torch.Tensor]:
    """The gradient of an epoch of one step, without augmentation and batch statistics, which differ between batches."""
    taken: dict[str, torch.Tensor] = {}

    def take() -> None:
        taken.update(
            {name: master.grad.clone() for name, master in trainer.weights.masters.items() if master.grad is not None}
        )

    network = trainer.learner.network
    network.train = lambda mode=True: torch.nn.Module.train(network, False)  # type: ignore[method-assign]
    trainer.planner.plan = lambda epoch: plan_of(batches, len(trainer.examples))  # type: ignore[method-assign]
    trainer.weights.optimiser.step = take  # type: ignore[assignment,method-assign]
    trainer.run_validation = lambda: None  # type: ignore[method-assign]
    assert trainer.run() and trainer.progress.step == 1 and taken
    return taken


def test_steps_sum_batches_without_labels(manifest: Path, noises: Path, tmp_path: Path) -> None:
    """A batch of noise and one of speech equal one batch of both; a batch of noise alone has a gradient too."""
    recipe = with_noise(manifest, noises, **STILL)
    num_speech = sum(not example.non_speech for example in prepare(recipe, None).corpus.examples)
    silent = [num_speech, num_speech + 1]
    made: list[dict[str, torch.Tensor]] = []
    for number, batches in enumerate(([[0, *silent]], [[0], silent], [silent])):
        recipe = with_noise(manifest, noises, **STILL, batch={"accumulate": len(batches)}, run={"epochs": 1})
        made.append(gradients_of(new_trainer(recipe, tmp_path / str(number)), batches))
    for name, gradient in made[0].items():
        torch.testing.assert_close(made[1][name], gradient, rtol=1e-4, atol=1e-5)
    assert made[2]["ctc.output.weight"].abs().sum() > 0


def test_a_run_learns_to_write_nothing(manifest: Path, noises: Path, tmp_path: Path) -> None:
    recipe = with_noise(manifest, noises, run={"epochs": 1})
    validation = (*recipe.data.validation, ManifestPart(str(noises), non_speech=True))
    object.__setattr__(recipe.data, "validation", validation)
    trainer = new_trainer(recipe, tmp_path / "run")
    assert [(example.text, example.tokens) for example in trainer.examples[-3:]] == [("", ())] * 3
    assert trainer.run()
    row = trainer.folder.rows()[-1]["validation"]
    assert list(row["sets"]) == ["validation", "noise"] and set(row["sets"]["noise"]) == {
        "words_per_min",
        "characters_per_min",
    }


def test_inserted_words_count() -> None:
    """In the set as words per minute, and in the rate of all sets as errors."""
    pairs = {0: ("one two", "one two"), 1: ("three four", "three four"), 2: ("", "uh huh"), 3: ("", "")}
    sets = [ValidationSet("speech", 2, True), ValidationSet("noise", 2, True, non_speech=True)]
    result = _to_result(pairs, [1.0, 1.0, 10.0, 20.0], Scoring("unicode"), sets)
    assert result.sets["noise"] == {"words_per_min": 4.0, "characters_per_min": 12.0}
    assert result.deciding == result.rates["wer"] == 0.5 and result.sets["speech"]["wer"] == 0
    apart = [sets[0], ValidationSet("noise", 2, False, non_speech=True)]
    assert _to_result(pairs, [1.0, 1.0, 10.0, 20.0], Scoring("unicode"), apart).deciding == 0


def test_long_recordings_are_cut(noises: Path) -> None:
    part = ManifestPart(str(noises), non_speech=True)
    corpus = read_manifests([part], ExampleLimits(max_duration_s=0.4))
    assert len(corpus.examples) == 9 and not corpus.left_out
    assert [round(example.offset_s, 3) for example in corpus.examples[:3]] == [0, 0.333, 0.667]
    assert {round(example.duration_s, 3) for example in corpus.examples} == {0.333}


def test_a_folder_without_speech(noises: Path, tmp_path: Path) -> None:
    corpus = read_manifests([ManifestPart(str(tmp_path), non_speech=True)], ExampleLimits())
    assert [(Path(e.path).name, e.text, e.duration_s) for e in corpus.examples] == [
        (f"{number}.wav", "", 1.0) for number in range(3)
    ]
    (tmp_path / "bad.wav").write_bytes(b"not audio")
    with pytest.raises(UsageError, match=r"bad\.wav.*take it away"):
        read_manifests([ManifestPart(str(tmp_path), non_speech=True)], ExampleLimits())


def test_wrong_uses(manifest: Path, noises: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.jsonl: line 1: text 'At Rice.* in a manifest of non_speech"):
        read_manifests([ManifestPart(str(manifest), non_speech=True)], ExampleLimits())
    recipe = recipe_of(manifest)
    silent = (ManifestPart(str(noises), non_speech=True),)
    for section, said in (("validation", "only manifests with speech"), ("train", "nothing with speech to train on")):
        kept = getattr(recipe.data, section)
        object.__setattr__(recipe.data, section, silent)
        with pytest.raises(UsageError, match=f"the recipe: data.{section}: {said}"):
            prepare(recipe, None)
        object.__setattr__(recipe.data, section, kept)
