"""Matrices in 8 bits with a scale per row: near the weights that were written, half of bf16's size, refused when damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.lazy_weights import sources_of
from fastscribe.checkpoint.native import is_stored_in_rows
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli.describe import describe
from fastscribe.errors import CheckpointError
from fastscribe.families.model import build_model
from tests.conftest import MODELS, ROOT, checkpoint

PACKAGED = ROOT / "fastscribe" / "default_model"
MATRIX = "encoder.layers.0.feed_forward1.linear1.weight"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "bf16"
    native_writer.write(checkpoint(MODELS / "hybrid"), made, torch.bfloat16)
    return made


@pytest.fixture(scope="module")
def folder(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "int8"
    native_writer.write(read_checkpoint(plain), made, torch.bfloat16, in_8_bits=True)
    return made


def test_weights_are_near(plain: Path, folder: Path) -> None:
    original, again = read_checkpoint(plain), read_checkpoint(folder)
    assert again.config == original.config and again.num_parameters == original.num_parameters
    assert again.weights.keys() == {name for name in original.weights if not name.endswith(".num_batches_tracked")}
    for name, source in sources_of(again.weights).items():
        weight, found = original.weights[name], again.weights[name]
        assert found.shape == source.shape and str(found.dtype) == f"torch.{source.dtype}"
        if is_stored_in_rows(source):
            steps = weight.float().flatten(1).abs().amax(dim=1) / 127
            difference = (found - weight.float()).flatten(1).abs().amax(dim=1)
            assert found.dtype == torch.float32 and (difference <= 0.5001 * steps).all() and difference.any()
        else:
            assert torch.equal(found, weight)
    build_model(again.config, again.weights, "int8")


def test_inspect_names_what_is_stored(plain: Path, folder: Path) -> None:
    facts = describe(read_checkpoint(folder))
    assert (facts["stored_dtype"], facts["computes_in"]) == ("bfloat16, int8", ["fp32", "bf16", "int8", "fp8"])
    assert describe(read_checkpoint(plain))["stored_dtype"] == "bfloat16"


def test_size() -> None:
    """The packaged model has a byte a weight and a few percent."""
    count = read_checkpoint(PACKAGED).num_parameters
    assert count < (PACKAGED / "model.safetensors").stat().st_size < 1.04 * count


def test_written_again(folder: Path, tmp_path: Path) -> None:
    """Storing what was read changes nothing; a row of zeros stays one; scales are float32 whatever the dtype."""
    again = read_checkpoint(folder)
    zero = {name: again.weights[name] for name in again.weights}
    zero[MATRIX] = zero[MATRIX].clone()
    zero[MATRIX][3] = 0
    native_writer.write(replace(again, weights=zero), tmp_path / "own", torch.float32, in_8_bits=True)
    stored = load_file(tmp_path / "own" / "model.safetensors")
    assert stored[MATRIX].dtype == torch.int8 and stored[MATRIX + ".row_scales"].dtype == torch.float32
    found = read_checkpoint(tmp_path / "own").weights
    for name, weight in zero.items():
        torch.testing.assert_close(found[name], weight.float(), rtol=1e-6, atol=0)


def rewrite(folder: Path, target: Path, stored: dict[str, torch.Tensor]) -> None:
    """Copy a folder with other weights."""
    for name in ("config.json", "tokenizer.model"):
        (target / name).write_bytes((folder / name).read_bytes())
    save_file(stored, target / "model.safetensors")


@pytest.mark.parametrize("damage", ["missing", "short", "dtype", "nan", "scalar"])
def test_damaged_scales(folder: Path, tmp_path: Path, damage: str) -> None:
    stored = load_file(folder / "model.safetensors")
    scales = stored.pop(MATRIX + ".row_scales")
    if damage != "missing":
        changed = {
            "short": scales[1:].clone(),
            "dtype": scales.bfloat16(),
            "nan": scales.clone().fill_(torch.nan),
            "scalar": scales[0].clone(),
        }
        stored[MATRIX + ".row_scales"] = changed[damage]
    rewrite(folder, tmp_path, stored)
    message = "NaN or infinity" if damage == "nan" else "has 8 bits and not one scale for each row"
    with pytest.raises(CheckpointError, match=message):
        dict(read_checkpoint(tmp_path).weights)


def test_other_formats_have_no_8_bits(plain: Path, folder: Path, tmp_path: Path) -> None:
    """A scale alone is an unknown tensor, and 8 bits in another format are refused (test_hostile_checkpoints.py)."""
    stored = load_file(plain / "model.safetensors")
    stored[MATRIX + ".row_scales"] = torch.ones(len(stored[MATRIX]))
    rewrite(plain, tmp_path, stored)
    made = read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="row_scales"):
        build_model(made.config, made.weights, "own")
    assert "row_scales" not in json.dumps(sorted(read_checkpoint(folder).weights))
