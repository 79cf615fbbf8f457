"""Sortformer against NeMo's probabilities of the same checkpoints and recordings, and its memory's settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastscribe._system.processors import has_native_bf16
from fastscribe.errors import CheckpointError
from fastscribe.families.blocks.int8 import int8_problem
from fastscribe.families.conformer.config import MIN_WIDTH_OF_LOOPS
from fastscribe.families.conformer.cpu_layers import CpuLayers
from fastscribe.families.model import torch_dtype
from fastscribe.pipeline.model_building import prepare
from fastscribe.speakers.diarizer import Diarizer, attend_with_loop
from fastscribe.speakers.readers import read_speaker_model
from fastscribe.speakers.side_model import SideModel
from tests.conftest import MODELS, refusal
from tests.helpers import sortformer
from tests.helpers.collate import batch_of

GOLDENS = json.loads((MODELS / "sortformer.json").read_text())
STEP = 13  # of the stored probabilities
ROUNDING = 2e-4  # of the stored numbers, and of another order of sums, which is that of the processor


@cache
def recordings() -> tuple[np.ndarray, ...]:
    return tuple(map(sortformer.recording, sortformer.LENGTHS_S))


def probabilities(path: Path, samples: Sequence[np.ndarray], dtype: str = "fp32") -> list[np.ndarray]:
    """Return the probabilities [T, N] of recordings in one batch."""
    return of_batch(Diarizer.build(read_speaker_model(path), torch.device("cpu"), prepare, dtype), samples)


def of_batch(model: SideModel[Any, Any], samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what a side model finds in recordings, in one batch."""
    batch = batch_of(samples)
    frames = model.encode(model.features(*map(torch.from_numpy, (batch.samples_BS, batch.lengths_B))))
    found = model.read(model.submit(frames).numpy(), frames)
    return [one.found for one in found if one.found is not None]


@pytest.fixture(params=sortformer.MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def model(name: str, folder: Path) -> Path:
    path = folder / f"{name}.nemo"
    return path if path.exists() else sortformer.write_nemo(path, sortformer.config(name))


@cache
def exact(path: Path, is_batch: bool, min_width: int = MIN_WIDTH_OF_LOOPS) -> list[np.ndarray]:
    """Return the probabilities of all recordings in float32, one by one or in one batch; `min_width` is that in force."""
    diarizer = Diarizer.build(read_speaker_model(path), torch.device("cpu"), prepare, "fp32")
    if is_batch:
        return of_batch(diarizer, recordings())
    return [of_batch(diarizer, [samples])[0] for samples in recordings()]


@pytest.mark.parametrize("min_width", [1, MIN_WIDTH_OF_LOOPS])
def test_probabilities_are_those_of_nemo(
    name: str, model: Path, min_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers of wide encoders give them too."""
    monkeypatch.setattr("fastscribe.families.conformer.config.MIN_WIDTH_OF_LOOPS", min_width)
    for samples, found, expected in zip(recordings(), exact(model, False, min_width), GOLDENS[name], strict=True):
        assert found.shape == (-(-(len(samples) // 160) // 8), 4)
        np.testing.assert_allclose(found.ravel()[::STEP], expected, atol=ROUNDING)


def test_neighbours_in_a_batch_change_nothing(model: Path) -> None:
    for alone, found in zip(exact(model, False), exact(model, True), strict=True):
        np.testing.assert_allclose(found, alone, atol=2e-5)


@pytest.mark.parametrize(("dtype", "min_width", "most"), [("bf16", 1, 0.02), ("bf16", 512, 0.02), ("int8", 1, 0.04)])
@pytest.mark.parametrize("name", ["v1", "v2"])
def test_subsampling_and_layers_are_in_the_dtype_of_the_run(
    model: Path, dtype: str, min_width: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In torch's layers and in those of wide encoders. A cache of random weights soon keeps other frames: a chunk counts."""
    if dtype == "int8" and (problem := int8_problem()):
        pytest.skip(problem)
    monkeypatch.setattr("fastscribe.families.conformer.config.MIN_WIDTH_OF_LOOPS", min_width)
    built = Diarizer.build(read_speaker_model(model), torch.device("cpu"), prepare, dtype).model
    assert isinstance(built.encoder.layers, CpuLayers) is (min_width == 1)
    assert built.layers[0].attention.out.weight.dtype == torch_dtype(dtype)
    has_loop = min_width == 1 and built.layers_dtype == torch.bfloat16 and has_native_bf16()
    assert (built.layers[0].attention.attend is attend_with_loop) is has_loop
    assert built.projection is not None
    assert built.encoder.subsampling.out.weight.dtype == torch_dtype(dtype)
    assert (
        built._subsampled(torch.zeros(1, built.config.features.num_mels, 80), torch.tensor([80]))[0].dtype
        == torch.float32
    )
    rest = torch.nn.ModuleList([built.projection, built.hidden, built.speakers])
    assert {one.weight.dtype for one in rest.modules() if hasattr(one, "weight")} == {torch.float32}
    count = None if built.config.cache is None else built.config.cache.chunk_frames
    expected, found = (
        np.concatenate([one[:count] for one in every])
        for every in (exact(model, True, min_width), probabilities(model, recordings(), dtype))
    )
    assert 0 < np.abs(expected - found).mean() < most


def test_a_recording_shorter_than_a_frame_has_no_probabilities(model: Path) -> None:
    short, long = probabilities(model, [recordings()[1][:100], recordings()[1]])
    assert short.shape[0] == 0
    assert len(long) == 38


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("sortformer_modules", "num_spks", 3, "max_num_of_spks"),
        ("sortformer_modules", "spkcache_len", 7, "sortformer_modules.spkcache_len: 7 (supported: 8 to"),
        ("sortformer_modules", "fc_d_model", 64, "sortformer_modules.fc_d_model: 64 (supported: 32)"),
        ("sortformer_modules", "spk_attention", 2, "sortformer_modules.spk_attention"),
        ("sortformer_modules", "weak_boost_rate", "much", "sortformer_modules.weak_boost_rate"),
        ("transformer_encoder", "hidden_act", "swish", "transformer_encoder.hidden_act: 'swish' (supported: relu)"),
        ("transformer_encoder", "num_attention_heads", 5, "multiples of 5 heads"),
        ("transformer_encoder", "mask_future", True, "transformer_encoder.mask_future"),
        ("encoder", "n_layers", 10**9, "encoder.num_layers"),
        ("preprocessor", "features", 64, "encoder.feat_in: 128 (supported: 64)"),
    ],
)
def test_an_unsupported_setting_is_named(section: str, key: str, value: object, message: str, tmp_path: Path) -> None:
    settings = sortformer.config("v2")
    settings[section] = settings[section] | {key: value}
    path = sortformer.write_nemo(tmp_path / "model.nemo", sortformer.config("v2"), settings)
    with refusal(CheckpointError, message):
        read_speaker_model(path)
