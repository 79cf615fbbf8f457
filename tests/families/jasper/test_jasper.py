"""Convolutional encoders: independent rows, and supported and unsupported settings. test_golden.py compares them with NeMo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.checkpoint.native import config_from_json
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.checkpoint.validate import validate
from fastscribe.cli.describe import describe
from fastscribe.config import ModelConfig, Options
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint, UsageError
from fastscribe.families.jasper.config import JasperBlockConfig, JasperConfig
from fastscribe.families.jasper.encoder import JasperEncoder
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.training.data import prepare
from fastscribe.training.recipe import DataRecipe, ManifestPart, Recipe
from fastscribe.types import Features
from scripts.shapes import SHAPES
from tests.checkpoint.test_checkpoint import with_yaml
from tests.conftest import MODELS, checkpoint, refusal

JASPER, QUARTZNET = MODELS / "jasper", MODELS / "quartznet"


def test_stored_configs_that_are_none() -> None:
    stored = checkpoint(JASPER).config.to_json()
    with pytest.raises(ValueError, match="kind 'x', not one of conformer, jasper"):
        config_from_json(stored | {"encoder": stored["encoder"] | {"kind": "x"}})
    with pytest.raises(ValueError, match=r"blocks\.0: missing keys"):
        config_from_json(stored | {"encoder": stored["encoder"] | {"blocks": [{}]}})


def test_inspect() -> None:
    facts = describe(checkpoint(JASPER))
    assert (facts["blocks"], facts["dense_blocks"], facts["separable_blocks"]) == (6, 3, 0)
    assert facts["tokens"] == "character" and facts["family"] == "ctc" and facts["subsampling"] == "strides x2"


def changed_block(**changes) -> dict:
    """Change the config of a QuartzNet's second block."""
    plain = {
        "filters": 64,
        "repeat": 2,
        "kernel": [13],
        "stride": [1],
        "dilation": [1],
        "dropout": 0.0,
        "residual": True,
    }
    return plain | {"separable": True} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"se": "yes"}, "encoder.jasper.1.se: 'yes'"),
        ({"se": True, "se_reduction_ratio": 0}, "encoder.jasper.1.se_reduction_ratio: 0"),
        ({"se": True, "se_reduction_ratio": 65}, "blocks.se_hidden: 0 (supported: 1 to"),
        ({"future_context": 3}, "encoder.jasper.1.future_context: 3"),
        ({"residual_mode": "multiply"}, "residual_mode: 'multiply'"),
        ({"kernel": [13, 15]}, "kernel: [13, 15]"),
        ({"filters": -1}, "filters: -1"),
        ({"stride": [9]}, "blocks.stride: 9"),
        ({"stride": [2], "dilation": [2]}, "blocks.1.dilation: 2"),
        ({"stride": [2]}, "blocks.1.stride: 2"),  # the residual is not strided
        ({"groups": 7}, "blocks.1.groups: 7"),
        ({"heads": 7}, "blocks.1.heads: 7"),
        ({"inplace_abn": True}, "inplace_abn: True"),
        ("not a block", "no section encoder.jasper.1"),
    ],
    ids=str,
)
def test_invalid_block(tmp_path: Path, changes: dict | str, message: str) -> None:
    block = changed_block(**changes) if isinstance(changes, dict) else changes
    source = QUARTZNET / "model.nemo"
    blocks = [changed_block(stride=[2], repeat=1, kernel=[11], residual=False), block]
    with refusal(CheckpointError, message):
        read_checkpoint(with_yaml(tmp_path, source, encoder__jasper=blocks))


def test_settings_as_in_nemo(tmp_path: Path) -> None:
    """Kernels are truncated, then made odd; a residual mode applies to later blocks; only masked filters are shared."""
    blocks = [
        changed_block(kernel=[13], kernel_size_factor=0.6, heads=8, residual_mode="max"),
        changed_block(kernel=12, stride=1),
        changed_block(residual=False, separable=False, heads=8),
    ]
    found = [
        read_checkpoint(
            with_yaml(
                tmp_path / str(masked), QUARTZNET / "model.nemo", encoder__jasper=blocks, encoder__conv_mask=masked
            )
        ).config.encoder.blocks
        for masked in (True, False)
    ]
    assert [block.kernel for block in found[0]] == [7, 13, 13]
    assert [block.residual for block in found[0]] == ["max", "max", "none"]
    assert [[block.heads for block in blocks] for blocks in found] == [[8, None, None], [None, None, None]]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder__jasper", []),
        ("encoder__jasper", "many"),
        ("encoder__activation", "tanh"),
        ("encoder__normalization_mode", "layer"),
        ("encoder__frame_splicing", 3),
        ("encoder__conv_mask", "yes"),
        ("encoder__quantize", True),
        ("encoder__feat_in", 80),
    ],
)
def test_invalid_encoder(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=key.replace("__", r"\.")) as error:
        read_checkpoint(with_yaml(tmp_path, QUARTZNET / "model.nemo", **{key: value}))
    assert len(str(error.value)) < 1000


BLOCK = JasperBlockConfig(16, 1, 3, 1, False, 1, False, 1, None, "none", False)
DENSE = replace(BLOCK, residual="add", dense=True)


def with_blocks(*blocks: JasperBlockConfig) -> ModelConfig:
    return replace(SHAPES["quartznet15x5"], encoder=JasperConfig(64, blocks, "relu", masked=True))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([BLOCK, DENSE, BLOCK, DENSE], "residual"),  # the last block's dense input is missing
        ([BLOCK, DENSE, replace(BLOCK, residual="add")], "residual"),
        ([DENSE, replace(DENSE, stride=2, residual="stride_add")], "stride"),
        ([replace(BLOCK, kernel=4)], "kernel"),
        ([replace(BLOCK, heads=4)], "heads"),
        ([replace(BLOCK, stride=8, repeat=3)], "encoder stride"),
        ([replace(BLOCK, residual="sum")], "blocks.residual"),
        ([replace(BLOCK, dense=1)], "blocks.dense"),
        ([replace(BLOCK, repeat=2.0)], "blocks.repeat"),
        ([replace(BLOCK, repeat=64)] * 100, "4000 convolutions"),
        ([DENSE] * 100, "4000 convolutions"),
        ([BLOCK] * 257, "256 blocks"),
        ([], "256 blocks"),
    ],
)
def test_stored_blocks_must_match(blocks: list[JasperBlockConfig], message: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        validate(with_blocks(*blocks), "here")
    validate(with_blocks(BLOCK, DENSE, DENSE), "here")


STRIDES = st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.booleans()), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 50), STRIDES, st.booleans())
@torch.inference_mode()
def test_num_frames(length: int, strides: list[tuple[int, bool]], masked: bool) -> None:
    blocks = [replace(BLOCK, filters=4, repeat=2, stride=stride, stride_last=last) for stride, last in strides]
    config = JasperConfig(4, tuple(blocks), "relu", masked)
    encoder = JasperEncoder(config).eval()
    found = encoder(Features(torch.randn(1, 4, max(1, length)), torch.tensor([length])))
    assert found.frames_BTD.shape[1] == encoder.num_frames(max(1, length))
    beyond = 0 if masked or length == 0 else 1
    wanted = min(length, -(-(length + beyond) // config.subsampling_factor))
    assert int(found.lengths_B) == wanted


def test_unsupported_options() -> None:
    loaded = checkpoint(QUARTZNET)
    for options, dtype, message in (
        (Options(attention="full"), "fp32", "this model has none"),
        (Options(decoder="tdt"), "fp32", "has ctc"),
        (Options(), "int8", "--dtype int8"),
    ):
        with pytest.raises(UsageError, match=message):
            Recognizer.build(loaded, "cpu", dtype, options)
    with pytest.raises(UsageError, match=r"only FastConformer .* can be trained"):
        prepare(Recipe(DataRecipe((ManifestPart("no-such.jsonl"),))), loaded)
