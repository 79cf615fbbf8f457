"""Squeeze-and-excite: the layer equals a slow definition, and Citrinet and ContextNet models equal NeMo 3.0.0 in any batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fastscribe.bench.work import LABELS_PER_S
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.checkpoint.value import Section
from fastscribe.cli.describe import describe
from fastscribe.families.blocks.padding import Padding
from fastscribe.families.jasper.config import JasperConfig
from fastscribe.families.jasper.encoder import SqueezeExcite
from fastscribe.families.jasper.nemo import encoder_config
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.text.transcript import assemble
from fastscribe.types import Frames
from scripts.random_checkpoint import random_checkpoint
from tests.conftest import AUDIO, MODELS, golden, waveform
from tests.helpers.collate import batch_of
from tests.helpers.se_checkpoint import NAMES, se_config, write_checkpoint

EXPECTED = golden(MODELS / "se")["models"]
named = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    return {name: read_checkpoint(write_checkpoint(name, tmp_path_factory.mktemp(name))) for name in NAMES}


@pytest.fixture(scope="module")
def built(loaded: dict[str, Checkpoint]) -> dict[str, Recognizer]:
    return {name: Recognizer.build(checkpoint, "cpu", "fp32") for name, checkpoint in loaded.items()}


@cache
def random_model(shape: str, dtype: str) -> Recognizer:
    return Recognizer.build(random_weights(shape), "cpu", dtype)


random_weights = cache(random_checkpoint)


def encode(model: Recognizer, files: list[str]) -> Frames:
    return model.encode(model.features(*model.upload(batch_of([waveform(AUDIO / file) for file in files]))))


# --- NeMo -----------------------------------------------------------------------------------------------------------


@named
def test_tokens_times_and_text_equal_nemo(
    built: dict[str, Recognizer], loaded: dict[str, Checkpoint], name: str
) -> None:
    expected, model, tokenizer = EXPECTED[name], built[name], loaded[name].tokenizer
    for files in (list(expected), *([file] for file in list(expected)[::3])):
        batch = batch_of([waveform(AUDIO / file) for file in files])
        for file, utterance, hypothesis in zip(files, batch.utterances, model.transcribe(batch), strict=True):
            assert (file, list(hypothesis.token_ids)) == (file, expected[file]["tokens"])
            assert (file, list(hypothesis.token_frames)) == (file, expected[file]["token_frames"])
            transcript = assemble(utterance.audio, [(utterance, hypothesis)], tokenizer, 0.08, False)
            assert transcript.text == expected[file]["text"]


@named
def test_frames_equal_nemo(built: dict[str, Recognizer], name: str) -> None:
    for files in (list(EXPECTED[name]), *([file] for file in list(EXPECTED[name])[1::3])):
        frames = encode(built[name], files)
        for row, file in enumerate(files):
            expected, ours_TD = EXPECTED[name][file], frames.frames_BTD[row, : frames.lengths_B[row]]
            assert len(ours_TD) == expected["num_frames"]
            assert float(ours_TD.double().mean()) == pytest.approx(expected["mean"], rel=1e-4)
            places = torch.linspace(0, ours_TD.numel() - 1, len(expected["sampled"])).long()
            size = float(ours_TD.abs().mean())
            assert ours_TD.flatten()[places].tolist() == pytest.approx(expected["sampled"], rel=1e-4, abs=1e-4 * size)


# --- the layer ------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def test_a_row_without_frames_has_no_nan() -> None:
    lengths_B = torch.tensor([4, 0])
    x_BC1T = torch.randn(2, 6, 1, 5).contiguous(memory_format=torch.channels_last)
    found_BCT = SqueezeExcite(6, 3, F.relu_)(x_BC1T, lengths_B, Padding.of(lengths_B, 5)).squeeze(2)
    assert found_BCT[0, :, :4].all() and not found_BCT[0, :, 4:].any() and not found_BCT[1].any()


def test_bf16() -> None:
    files = ["05_0_00148.flac", "e03_one_second_exact.flac"]
    exact, near = (encode(random_model("tiny-citrinet", dtype), files) for dtype in ("fp32", "bf16"))
    assert near.frames_BTD.dtype == torch.bfloat16
    for row, length in enumerate(exact.lengths_B.tolist()):
        exact_TD, near_TD = exact.frames_BTD[row, :length], near.frames_BTD[row, :length].float()
        assert (exact_TD - near_TD).norm() < 0.03 * exact_TD.norm()


# --- settings -------------------------------------------------------------------------------------------------------


def blocks_of(name: str, **changes: Any) -> JasperConfig:
    """Read the encoder of a model with changes of its second block."""
    encoder = se_config(name)["encoder"]
    encoder["jasper"][1] |= changes
    return encoder_config(Section({key: encoder[key] for key in encoder if key != "_target_"}, "encoder", "here"))


def test_settings_as_in_nemo() -> None:
    """NeMo divides the width by 8 unless the block says otherwise, and looks at no context at inference."""
    assert [block.se_hidden for block in blocks_of("citrinet").blocks] == [4, 4, 4, 4, 5, 5, 6]
    assert [block.se_hidden for block in blocks_of("mixed").blocks] == [4, 16, 4, None, 5, 9]
    assert blocks_of("citrinet", se_context_size=64, se_interpolation_mode="area") == blocks_of("citrinet")
    assert blocks_of("citrinet", se_reduction_ratio=2).blocks[1].se_hidden == 16
    assert blocks_of("citrinet", se=None, se_reduction_ratio=2).blocks[1].se_hidden is None


def test_inspect(loaded: dict[str, Checkpoint]) -> None:
    facts = describe(loaded["contextnet"])
    assert (facts["blocks"], facts["squeeze_excite_blocks"], facts["decoders"]) == (6, 6, ["rnnt"])
    assert facts["subsampling"] == "strides x8" and facts["frame_s"] == 0.08
    assert describe(loaded["mixed"])["squeeze_excite_blocks"] == 5


@pytest.mark.parametrize("shape", ["tiny-citrinet", "tiny-contextnet"])
def test_random_models_write_text(shape: str) -> None:
    model = random_model(shape, "fp32")
    waves = [waveform(AUDIO / file) for file in ("01_0_00010.flac", "07_0_00193.flac")]
    found = model.transcribe(batch_of(waves))
    seconds = sum(len(wave) for wave in waves) / 16000
    assert 0.2 * LABELS_PER_S < sum(len(hypothesis.token_ids) for hypothesis in found) / seconds < 5 * LABELS_PER_S
    assert len({label for hypothesis in found for label in hypothesis.token_ids}) > 5
