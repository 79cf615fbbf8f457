"""int8 and fp8 layers equal their references, are within a rounding step of float32, and treat rows independently.

tests/fakes/interpreted_kernels.py has the fp8 kernel.
"""

from __future__ import annotations

import copy
import platform

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastscribe._system.processors import has_native_int8
from fastscribe.families.blocks import fp8, int8, int8_packing
from fastscribe.families.blocks.forms import pack_linears_
from fastscribe.families.blocks.fp8 import Fp8Linear, fp8_problem, quantise_fp8_
from fastscribe.families.blocks.int8 import (
    Int8Linear,
    int8_linear,
    int8_problem,
    quantise_and_pack,
    quantise_int8_,
    quantise_weight,
)
from fastscribe.families.conformer.fused_layers import fuse_
from fastscribe.families.conformer.operations import TORCH
from fastscribe.families.model import optimise_
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline import model_building
from fastscribe.types import Features
from tests.families.conformer.test_encoder import random_encoder, small_config

needs_int8 = pytest.mark.skipif(int8_problem() is not None, reason=str(int8_problem()))
needs_vnni = pytest.mark.skipif(not has_native_int8(), reason="oneDNN needs VNNI or AMX for int8")
SHAPES = st.tuples(st.integers(1, 70), st.integers(1, 300), st.integers(1, 70), st.booleans(), st.integers(0, 2**31))


def random_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def case(shape: tuple[int, int, int, bool, int]) -> tuple[nn.Linear, torch.Tensor]:
    """A layer, and rows of very different magnitude."""
    rows, inputs, outputs, bias, seed = shape
    torch.manual_seed(seed)
    return random_linear(inputs, outputs, bias), torch.randn(rows, inputs) * 10.0 ** torch.randint(-3, 4, (rows, 1))


def row_errors(ours_RN: torch.Tensor, linear: nn.Linear, x_RK: torch.Tensor, step: float) -> torch.Tensor:
    """Return errors relative to the bound for rounding x by `step` of its row's maximum, and W likewise."""
    x_step_R1 = x_RK.abs().amax(1, keepdim=True) * step
    weight_step_N = linear.weight.abs().amax(1) * step
    from_x = x_step_R1 * linear.weight.abs().sum(1)
    from_weight = x_RK.abs().sum(1, keepdim=True) * weight_step_N
    both = x_step_R1 * weight_step_N * x_RK.shape[1]
    return (ours_RN - linear(x_RK)).abs() / (from_x + from_weight + both + 1e-5 * linear(x_RK).abs() + 1e-9)


# --- int8 -----------------------------------------------------------------------------------------------------------


@needs_int8
@settings(deadline=None, max_examples=30)
@given(SHAPES)
def test_int8_equals_reference(shape: tuple[int, int, int, bool, int]) -> None:
    linear, x_RK = case(shape)
    ours_RN = Int8Linear(linear)(x_RK)
    definition_RN = int8_linear(x_RK, linear.weight, linear.bias)
    torch.testing.assert_close(ours_RN, definition_RN, rtol=1e-5, atol=1e-6 * float(definition_RN.abs().max()))
    assert row_errors(ours_RN, linear, x_RK, step=0.5 / 127).max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_blocks_of_rows_quantise_as_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x_RK = case((23, 40, 1, False, 3))[1].to(dtype)
    whole = int8._quantise_block(x_RK)
    for elements in (1, 200, 23 * 40):
        monkeypatch.setattr(int8, "_BLOCK_ELEMENTS", elements)
        assert all(map(torch.equal, int8.quantise_rows(x_RK), whole))


@needs_int8
@pytest.mark.parametrize("inputs", [8, 512])
def test_int8_exact_on_small_integers(inputs: int) -> None:
    """With 127 in each row and column all scales are 1, and nothing is rounded."""
    torch.manual_seed(0)
    linear = random_linear(inputs, 24)
    linear.weight.copy_(torch.randint(-127, 128, (24, inputs)))
    linear.bias.copy_(torch.randint(-9, 10, (24,)))
    x = torch.randint(-127, 128, (2, 5, inputs)).float()
    linear.weight[:, 3], x[..., 0] = -127, 127
    assert torch.equal(Int8Linear(linear)(x), linear(x))


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_rows_independent(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x_RK = Int8Linear(random_linear(96, 64), "swish").to(dtype), torch.randn(300, 96, dtype=dtype)
    together_RN = layer(x_RK)
    assert together_RN.dtype == dtype
    for first, last in ((0, 1), (7, 10), (100, 300)):
        assert torch.equal(layer(x_RK[first:last]), together_RN[first:last])


@needs_int8
def test_int8_shape_and_silu() -> None:
    torch.manual_seed(0)
    linear, x_BTK = random_linear(24, 40), torch.randn(2, 7, 24)
    torch.testing.assert_close(Int8Linear(linear, "swish")(x_BTK), F.silu(Int8Linear(linear)(x_BTK)))


@needs_int8
def test_int8_of_zeros() -> None:
    linear = random_linear(24, 40)
    assert torch.equal(Int8Linear(linear)(torch.zeros(3, 24)), linear.bias.expand(3, 40))


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", [(1024, 512), (1030, 1024), (96, 64)], ids=str)
def test_packing_loop_equals_onednn(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Its bytes and scales are those of the levels of `quantise_weight`, ties and a row of zeros included."""
    torch.manual_seed(0)
    weight_NK = (torch.randn(shape) * 10.0 ** torch.randint(-3, 2, (shape[0], 1))).to(dtype)
    weight_NK[3], weight_NK[5], weight_NK[5, 7] = 0.0, 2.5, -127.0  # a scale of one: 2.5 is a tie
    packed, scale_N = quantise_and_pack(weight_NK)
    if (
        platform.machine() in ("x86_64", "AMD64")
        and shape[0] % 64 == 0
        and weight_NK.numel() >= int8_packing.MIN_WEIGHTS
    ):
        assert int8_packing.pack(weight_NK) is not None  # else oneDNN has packed it
    levels_NK, wanted_N = quantise_weight(weight_NK)
    wanted = torch.ops.onednn.qlinear_prepack(levels_NK, None)
    assert np.array_equal(int8_packing._bytes_of(packed), int8_packing._bytes_of(wanted))
    assert torch.equal(scale_N, wanted_N)


@needs_vnni
def test_onednn_packs_where_the_layout_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_packing, "_BLOCKS", (40,))
    int8_packing._layout.cache_clear()
    torch.manual_seed(0)
    linear, x_RK = random_linear(640, 1280), torch.randn(3, 640)
    assert int8_packing.pack(linear.weight) is None
    int8_packing._layout.cache_clear()
    torch.testing.assert_close(
        Int8Linear(linear)(x_RK), int8_linear(x_RK, linear.weight, linear.bias), rtol=1e-4, atol=1e-5
    )


@needs_vnni
def test_a_torch_that_hides_its_layouts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(packed: torch.Tensor) -> None:
        raise AttributeError("no data_ptr")

    monkeypatch.setattr(int8_packing, "PROBLEMS", [])
    monkeypatch.setattr(int8_packing, "_bytes_of", refuse)
    int8_packing._layout.cache_clear()
    heard = RefusedPaths(lambda line: None)
    model_building._say_slow_packing(heard)
    assert int8_packing.pack(random_linear(640, 1280).weight) is None and heard.reasons == {}
    model_building._say_slow_packing(heard)
    assert heard.reasons == {"int8": "no data_ptr"}
    int8_packing._layout.cache_clear()


def test_int8_scale_rounding() -> None:
    """The largest value of a row is restored up to the rounding of the dtype, not of the scale."""
    x_RK = (torch.linspace(0.1, 3.0, 500)[:, None] * torch.tensor([1.0, -1.0, 0.25])).bfloat16()
    levels_RK, scale_R1 = int8.quantise_rows(x_RK)
    assert scale_R1.dtype == torch.bfloat16
    levels = levels_RK.float() - 128
    assert levels.abs().max() == 127
    assert ((levels * scale_R1.float() - x_RK.float()).abs() <= 0.51 * scale_R1.float()).all()


# --- fp8 ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(SHAPES)
def test_fp8_error_bound(shape: tuple[int, int, int, bool, int]) -> None:
    """Three bits of mantissa: the error is at most 1/16 of a value, and so of its row's maximum."""
    linear, x_RK = case(shape)
    assert row_errors(Fp8Linear(linear)(x_RK), linear, x_RK, step=1 / 16).max() <= 1


def test_fp8_equals_product_of_stored_values() -> None:
    torch.manual_seed(0)
    linear, x_RK = random_linear(48, 32), torch.randn(9, 48)
    layer = Fp8Linear(linear)
    (x_fp8, x_scale), weight = fp8.quantise_rows(x_RK), layer.weight_NK.double() * layer.scale_1N.t().double()
    expected = (x_fp8.double() * x_scale.double()) @ weight.t() + linear.bias.double()
    torch.testing.assert_close(layer(x_RK), expected.float(), rtol=1e-5, atol=1e-5)


def test_fp8_largest_value_and_zeros() -> None:
    x_RK = torch.tensor([[0.3, -2.0, 1.0], [0.0, 0.0, 0.0]])
    values_RK, scale_R1 = fp8.quantise_rows(x_RK)
    assert values_RK.float()[0, 1] == -448
    assert (values_RK.float() * scale_R1)[1].eq(0).all()


def test_fp8_after_cast() -> None:
    torch.manual_seed(0)
    linear, x_RK = random_linear(48, 32), torch.randn(9, 48)
    layer = Fp8Linear(linear)
    expected_RN = layer(x_RK)
    layer.to(torch.bfloat16)
    assert layer.weight_NK.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(layer(x_RK), expected_RN, rtol=1e-2, atol=1e-2)


@pytest.mark.cuda
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 17, 3000])
def test_fp8_on_gpu_equals_reference(rows: int, bias: bool) -> None:
    device = torch.device("cuda")
    if problem := fp8_problem(device):
        pytest.skip(problem)
    from fastscribe.cuda import fp8_triton

    torch.manual_seed(0)
    linear = random_linear(1024, 2048, bias).to(device, torch.bfloat16)
    x_RK = torch.randn(rows, 1024, device=device, dtype=torch.bfloat16)
    layer = Fp8Linear(linear)
    for ours, definition in zip(fp8_triton.quantise_rows(x_RK), fp8.quantise_rows(x_RK), strict=True):
        torch.testing.assert_close(ours.float(), definition.float(), rtol=0.13, atol=1e-6)  # quotients may tie
    expected = fp8.scaled_product(*fp8.quantise_rows(x_RK), layer.weight_NK, layer.scale_1N, layer.bias_N)
    torch.testing.assert_close(layer(x_RK).float(), expected, rtol=2e-2, atol=2e-2)


# --- both, in an encoder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pytest.param("int8", marks=needs_int8), "fp8"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_quantised_encoder(kind: str, use_bias: bool) -> None:
    encoder = random_encoder(small_config(use_bias=use_bias))
    optimise_(encoder)
    quantised = copy.deepcopy(encoder)
    {"int8": quantise_int8_, "fp8": quantise_fp8_}[kind](quantised)
    replaced = [module for module in quantised.modules() if isinstance(module, (Int8Linear, Fp8Linear))]
    assert len(replaced) == 8 * encoder.config.num_layers
    pack_linears_(quantised, torch.float32)
    mel_BMT, lengths_B = torch.randn(3, 20, 80), torch.tensor([80, 33, 2])
    for row, length in enumerate(lengths_B):
        mel_BMT[row, :, length:] = 0
    expected, together = encoder(Features(mel_BMT, lengths_B)), quantised(Features(mel_BMT, lengths_B))
    for row, length in enumerate(lengths_B):
        count = int(together.lengths_B[row])
        ours_TD = together.frames_BTD[row, :count]
        error = (ours_TD - expected.frames_BTD[row, :count]).norm() / expected.frames_BTD[row, :count].norm()
        assert 0 < error < {"int8": 0.05, "fp8": 0.25}[kind]
        alone = quantised(Features(mel_BMT[row : row + 1, :, :length], lengths_B[row : row + 1]))
        # Attention's rounding depends on the batch shape, so a value near a tie may round to another step.
        assert (alone.frames_BTD[0, :count] - ours_TD).norm() / ours_TD.norm() < 0.01


@pytest.mark.parametrize("use_bias", [True, False])
def test_fp8_in_fused_layers(use_bias: bool) -> None:
    plain = random_encoder(small_config(use_bias=use_bias))
    optimise_(plain)
    quantised = copy.deepcopy(plain)
    fuse_(quantised, TORCH)
    quantise_fp8_(quantised)
    replaced = [module for module in quantised.modules() if isinstance(module, Fp8Linear)]
    assert len(replaced) == 8 * plain.config.num_layers
    features = Features(torch.randn(1, 20, 80), torch.tensor([80]))
    ours, expected = quantised(features).frames_BTD, plain(features).frames_BTD
    assert 0 < (ours - expected).norm() / expected.norm() < 0.25
