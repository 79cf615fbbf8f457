"""Voice models against NeMo's vectors of the same checkpoints and recordings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fastscribe.checkpoint import nemo
from fastscribe.cli.models import inspect
from fastscribe.errors import CheckpointError
from fastscribe.pipeline.model_building import prepare
from fastscribe.speakers.nemo_voices import read_voice_model
from fastscribe.speakers.side_model import VoicePrinter
from tests.conftest import MODELS, refusal
from tests.helpers import voices
from tests.speakers.test_sortformer import of_batch

GOLDENS = json.loads((MODELS / "voices.json").read_text())
ROUNDING = 5e-5  # of the length of a vector; 2e-5 of it by the order of sums, which is that of the processor


@cache
def recordings() -> tuple[np.ndarray, ...]:
    return tuple(map(voices.recording, voices.LENGTHS_S))


def vectors(path: Path, samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the vectors of recordings in one batch."""
    return of_batch(VoicePrinter.build(read_voice_model(path), torch.device("cpu"), prepare), samples)


@pytest.fixture(params=voices.MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str, tmp_path: Path) -> Path:
    return voices.write_nemo(tmp_path / "model.nemo", voices.config(name))


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the relative error; a part of each vector is stored."""
    assert len(found) == 24
    found = found[: len(expected)]
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def test_neighbours_in_a_batch_change_nothing(name: str, model: Path) -> None:
    found = vectors(model, recordings())
    assert len(found) == len(recordings())
    for own, expected in zip(found, GOLDENS[name], strict=True):
        assert error(own, np.array(expected)) < ROUNDING


@pytest.mark.parametrize(
    ("name", "section", "key", "value", "message"),
    [
        ("titanet", "decoder", "pool_mode", "max", "decoder.pool_mode: 'max' (supported: attention, xvector, tap)"),
        ("titanet", "decoder", "emb_sizes", [24, 0], "decoder.emb_sizes: [24, 0]"),
        ("titanet", "decoder", "feat_in", 60, "decoder.feat_in: 60 (supported: 64)"),
        ("titanet", "decoder", "dropout", 0.5, "decoder.dropout"),
        ("titanet", "preprocessor", "features", 64, "encoder.feat_in: 80 (supported: 64)"),
        ("titanet", "encoder", "normalization_mode", "group", "encoder.normalization_mode"),
        ("ecapa", "encoder", "scale", 5, "encoder.scale: 5 (supported: divisors of 32)"),
        ("ecapa", "encoder", "filters", [32, 16, 32, 32, 80], "encoder.filters"),
        ("ecapa", "encoder", "kernel_sizes", [5, 3, 3, 2, 1], "odd numbers"),
        ("ecapa", "encoder", "dilations", [1, 1], "encoder.dilations: [1, 1] (supported: 5 numbers)"),
        ("ecapa", "preprocessor", "pad_to", "max", "preprocessor.pad_to: 'max'"),
    ],
)
def test_an_unsupported_setting_is_named(
    name: str, section: str, key: str, value: object, message: str, tmp_path: Path
) -> None:
    settings = voices.config(name)
    settings[section] = settings[section] | {key: value}
    path = voices.write_nemo(tmp_path / "model.nemo", voices.config(name), settings)
    with refusal(CheckpointError, message):
        read_voice_model(path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    settings = voices.config("titanet")
    stated = settings | {"decoder": settings["decoder"] | {"emb_sizes": [24, 24]}}
    path = voices.write_nemo(tmp_path / "model.nemo", settings, stated)
    with pytest.raises(CheckpointError, match=r"layers\.1\.linear\.weight"):
        vectors(path, recordings()[:1])


def test_a_voice_model_is_named_as_what_it_is(tmp_path: Path) -> None:
    path = voices.write_nemo(tmp_path / "model.nemo", voices.config("titanet"))
    with pytest.raises(CheckpointError, match="give it to --voices"):
        nemo.read(path)


@pytest.mark.parametrize(("name", "family", "width"), [("titanet", "titanet", 64), ("ecapa", "ecapa_tdnn", 96)])
def test_inspect(name: str, family: str, width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = voices.config(name)
    path = voices.write_nemo(tmp_path / "model.nemo", settings)
    inspect(str(path), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["family"], found["d_model"], found["voice_print"], found["mels"]) == (family, width, 24, 80)
    unused = ("num_batches_tracked", "decoder.final.weight")
    sizes = [np.prod(shape) for key, shape in voices.shapes(settings).items() if not key.endswith(unused)]
    assert found["parameters"] == sum(sizes)
