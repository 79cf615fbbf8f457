"""Shapes are those of the published models, and random checkpoints speak as speech does."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastscribe.bench import synthetic
from fastscribe.bench.work import LABELS_PER_S
from fastscribe.checkpoint import nemo_export
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.checkpoint.validate import validate
from fastscribe.config import Options
from fastscribe.families.model import Model
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.training import bpe
from fastscribe.transcriber import Transcriber
from scripts import random_checkpoint
from scripts.benchmarks import agreement
from scripts.random_checkpoint import random_tokenizer
from scripts.shapes import SHAPES
from tests.helpers import random_models
from tests.helpers.random_models import transcriber


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_valid_configs(shape: str) -> None:
    validate(SHAPES[shape], shape)


@pytest.mark.parametrize(
    ("shape", "millions"),
    [
        ("parakeet-tdt-0.6b", 618),
        ("parakeet-tdt-0.6b-v3", 627),
        ("parakeet-rnnt-1.1b", 1070),
        ("parakeet-ctc-0.6b", 610),
    ],
)
def test_published_shapes_have_the_published_sizes(shape: str, millions: int) -> None:
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in Model(SHAPES[shape]).parameters())
    assert round(parameters / 1e6) == millions


@pytest.mark.parametrize("shape", ["tiny", "tiny-rnnt", "tiny-ctc", "tiny-streaming"])
def test_random_models_speak_at_the_rate_of_speech(shape: str) -> None:
    """Also on recordings that they were not tuned on, of another length, and spread over the frames."""
    waves = synthetic.waves([8.0] * 8 + [20.0] * 4, seed=11)
    found = agreement.hypotheses(transcriber(shape), waves)
    rates = [
        len(hypothesis.token_ids) * synthetic.RATE_HZ / len(wave) for hypothesis, wave in zip(found, waves, strict=True)
    ]
    assert LABELS_PER_S - 1.2 < sum(rates) / len(rates) < LABELS_PER_S + 1.2
    assert max(rates) < 3 * LABELS_PER_S
    at_a_frame = Counter(count for one in found for count in Counter(one.token_frames).values())
    assert at_a_frame[1] > 0.7 * sum(at_a_frame.values())
    assert len({label for one in found for label in one.token_ids}) > 30


def test_random_transducer_uses_its_predictor() -> None:
    """A silenced predictor changes the labels."""
    recognizer = transcriber("tiny")._recognizer
    waves = synthetic.waves([8.0] * 4, seed=12)
    before = agreement.hypotheses(transcriber("tiny"), waves)
    checkpoint = random_models.checkpoint("tiny")
    weights = dict(checkpoint.weights)
    weights["transducer.joint.predictor.weight"] = torch.zeros_like(weights["transducer.joint.predictor.weight"])
    deaf = Checkpoint(checkpoint.path, "fastscribe", checkpoint.config, checkpoint.tokenizer, weights)
    other = Transcriber(deaf, LocalExecutor(Recognizer.build(deaf, "cpu", "fp32")), Options(), 0.0)
    assert recognizer.decoder_name == "tdt"
    assert agreement.compare(agreement.hypotheses(other, waves), before)["equal_share"] == 0.0


def test_random_model_is_reproducible_and_storable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = random_checkpoint.random_checkpoint("tiny")
    assert all(
        torch.equal(tensor, again.weights[name]) for name, tensor in random_models.checkpoint("tiny").weights.items()
    )
    assert not torch.equal(
        random_checkpoint.random_checkpoint("tiny", seed=1).weights["encoder.subsampling.out.weight"],
        again.weights["encoder.subsampling.out.weight"],
    )
    monkeypatch.setattr(sys, "argv", ["random_checkpoint", "tiny", str(tmp_path / "model")])
    random_checkpoint.main()
    stored = read_checkpoint(tmp_path / "model")
    assert stored.config == again.config and stored.tokenizer == again.tokenizer
    assert stored.has_random_weights and again.has_random_weights
    name = "encoder.subsampling.out.weight"
    assert torch.equal(stored.weights[name].float(), again.weights[name].bfloat16().float())
    with pytest.raises(SystemExit):  # the folder is there
        random_checkpoint.main()


def test_nemo_takes_a_model_with_a_sentencepiece_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_models.make_once(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["random_checkpoint", "tiny", str(tmp_path / "model"), "--sentencepiece"])
    random_checkpoint.main()
    nemo_export.write(read_checkpoint(tmp_path / "model"), tmp_path / "model.nemo", torch.float32)
    found = read_checkpoint(tmp_path / "model.nemo")
    assert found.has_random_weights and len(found.tokenizer.pieces) == SHAPES["tiny"].num_labels


def test_a_large_sentencepiece_vocabulary_is_of_sentences_that_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """SentencePiece skips a sentence of more than a MiB."""
    made, train, texts = random_models.checkpoint("tiny"), bpe.train_vocabulary, []
    made = replace(made, config=replace(made.config, num_labels=8192))
    monkeypatch.setattr(bpe, "train_vocabulary", lambda found, *_: texts.extend(found) or train(found[:20], 64, "bpe"))
    random_checkpoint.with_sentencepiece(made)
    assert sum(map(len, texts)) > 1 << 20 and max(map(len, texts)) < 1 << 20


@pytest.mark.parametrize("num_labels", [16, 1024, 8192])
def test_random_tokenizer_pieces_are_unique(num_labels: int) -> None:
    pieces = random_tokenizer(replace(SHAPES["tiny"], num_labels=num_labels)).pieces
    assert len(set(pieces)) == num_labels
