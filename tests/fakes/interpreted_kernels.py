"""The Triton kernels, run by Triton's interpreter, equal torch's forms. test_triton_kernels.py runs this file in a
process of its own: whether kernels are interpreted is settled when Triton is imported. No GPU takes part.

Matrix products are tried in float32 and float16, since the interpreter multiplies bfloat16 wrongly.
"""

from __future__ import annotations

import copy

import pytest
import torch

from fastscribe.config import AttentionConfigs, ChunkedAttention, LocalAttention
from fastscribe.cuda import fp8_format, fp8_triton
from fastscribe.families.blocks import fp8
from fastscribe.families.conformer import gpu_operations, triton_kernels
from fastscribe.families.conformer.gpu_operations import choose_operations
from fastscribe.families.conformer.operations import POSITION_ROWS_MULTIPLE, TORCH, max_table_distance
from fastscribe.families.conformer.triton_kernels import TRITON
from fastscribe.families.granite.fused_layers import fuse_
from fastscribe.families.model import optimise_
from fastscribe.types import Features
from tests.families.conformer.test_triton_kernels import check_subsampling, close, model_config, normal, real_frames
from tests.families.granite.test_granite import difference, random_encoder, small

# The interpreter of Triton 3.6 takes a loop's bound from an array of one number, which numpy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")


@pytest.mark.parametrize(("width", "block", "dtype"), [(16, 32, torch.float32), (32, 64, torch.float16)])
def test_rel_attention(width: int, block: int, dtype: torch.dtype) -> None:
    check_attention([66, 33, 0], 3, width, block, dtype, None)


@pytest.mark.parametrize(("left", "right"), [(31, 32), (64, 64)])
def test_local_attention_at_the_edges_of_blocks(left: int, right: int) -> None:
    check_attention([98, 33], 0, 16, 32, torch.float32, LocalAttention(left, right))


@pytest.mark.parametrize(("left", "right"), [(70, 13), (-1, 6), (9, -1)])
def test_chunked_attention(left: int, right: int) -> None:
    """Chunks that begin and end anywhere in a block."""
    check_attention([109, 33], 0, 16, 32, torch.float32, ChunkedAttention(left, right))


def check_attention(
    lengths: list[int], spare: int, width: int, block: int, dtype: torch.dtype, attention: AttentionConfigs | None
) -> None:
    torch.manual_seed(sum(lengths))
    lengths_B, num_frames = torch.tensor(lengths), max(lengths) + spare
    reach = 2 * max_table_distance(num_frames, attention)
    rows = POSITION_ROWS_MULTIPLE * (-(-reach // POSITION_ROWS_MULTIPLE) + spare % 2)
    qkv_BTD, positions_HRK = normal(len(lengths), num_frames, 6 * width).to(dtype), normal(2, rows, width).to(dtype)
    bias_HR = normal(2, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_kernels, "_attention_block", lambda _: block)
        ours_BTD = TRITON.rel_attention(qkv_BTD, positions_HRK, bias_HR, lengths_B, attention)
    exact_BTD = TORCH.rel_attention(qkv_BTD.float(), positions_HRK.float(), bias_HR, lengths_B, attention)
    assert ours_BTD.isfinite().all()
    close(ours_BTD, exact_BTD, real_frames(lengths_B, num_frames))


@pytest.mark.parametrize(
    ("taps", "longest", "dtype", "bias", "silu", "is_causal"),
    [(5, 37, torch.float32, True, False, True), (11, 7, torch.bfloat16, False, True, False)],
)
def test_glu_depthwise(taps: int, longest: int, dtype: torch.dtype, bias: bool, silu: bool, is_causal: bool) -> None:
    lengths, spare, width = [longest, 5, 0], 2, 8
    torch.manual_seed(sum(lengths))
    lengths_B, num_frames = torch.tensor(lengths), max(lengths) + spare
    x_BTD, weight_WD = normal(len(lengths), num_frames, 2 * width).to(dtype), normal(taps, width).to(dtype)
    bias_D = normal(width).to(dtype) if bias else None
    ours_BTD = TRITON.glu_depthwise(x_BTD, weight_WD, bias_D, lengths_B, silu, is_causal)
    float_bias_D = None if bias_D is None else bias_D.float()
    exact_BTD = TORCH.glu_depthwise(x_BTD.float(), weight_WD.float(), float_bias_D, lengths_B, silu, is_causal)
    close(ours_BTD, exact_BTD)


@pytest.mark.parametrize(
    ("dtype", "channels", "num_frames", "num_mels", "is_causal"),
    [
        (torch.float32, 8, 6, 5, True),
        (torch.float32, 300, 4, 2, False),  # several blocks of channels
    ],
)
def test_subsampling(dtype: torch.dtype, channels: int, num_frames: int, num_mels: int, is_causal: bool) -> None:
    check_subsampling(TRITON, dtype, channels, num_frames, num_mels, is_causal, torch.device("cpu"))


@pytest.mark.parametrize(("dtype", "width", "shifted"), [(torch.float32, 24, False), (torch.float16, 64, True)])
def test_layer_norms(dtype: torch.dtype, width: int, shifted: bool) -> None:
    torch.manual_seed(width)
    x_BTD, parameters = (3 * normal(2, 5, width) + 1).to(dtype), [normal(width).to(dtype) for _ in range(4)]
    shift_D = normal(width) if shifted else None
    exact = [parameter.float() for parameter in parameters]
    close(TRITON.layer_norm(x_BTD, shift_D, *parameters[:2]), TORCH.layer_norm(x_BTD.float(), shift_D, *exact[:2]))
    ours_BTD, torch_BTD = x_BTD.clone(), x_BTD.clone()
    normed_BTD = TRITON.layer_norm_twice_(ours_BTD, shift_D, *parameters)
    close(normed_BTD, TORCH.layer_norm_twice_(torch_BTD, shift_D, *parameters).float())
    close(ours_BTD, torch_BTD.float())


def test_layer_norms_that_add() -> None:
    torch.manual_seed(0)
    (x_BTD, added_BTD), parameters, shift_D = normal(2, 2, 5, 24), normal(4, 24), normal(24)
    sum_BTD, ours_BTD = x_BTD + added_BTD, x_BTD.clone()
    normed_BTD = TRITON.layer_norm(ours_BTD, shift_D, *parameters[:2], added_BTD)
    assert torch.equal(ours_BTD, sum_BTD)
    close(normed_BTD, TORCH.layer_norm(sum_BTD, shift_D, *parameters[:2]))
    normed_BTD = TRITON.layer_norm_twice_(x_BTD, shift_D, *parameters, added_BTD)
    close(normed_BTD, TORCH.layer_norm_twice_(sum_BTD, shift_D, *parameters))
    close(x_BTD, sum_BTD)


def test_the_comparison_accepts_right_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variants that add products, which are tested after all others."""
    monkeypatch.setattr(gpu_operations, "_LENGTHS", (6, 5, 1, 0))  # the interpreter takes seconds for a frame and bin
    config = model_config(num_mels=4)
    found = choose_operations(config, torch.float32, torch.device("cpu"), adds_products=True)
    assert found == (TRITON, None)


def test_the_kernels_as_granite_runs_them() -> None:
    """A convolution wider than the stream, and an encoder whose blocks are the rows of the attention kernel."""
    config = small(num_layers=2, d_model=32, num_heads=2, conv_width=64, block=8)
    plain = random_encoder(config)
    optimise_(plain)
    for_gpu = copy.deepcopy(plain)
    fuse_(for_gpu, TRITON)
    features = Features(torch.randn(2, 12, 22), torch.tensor([22, 18]))
    assert difference(plain, for_gpu, features) < 1e-4


def test_the_comparison_refuses_what_the_device_gets_wrong() -> None:
    """The interpreter's inexact bfloat16 products simulate a faulty device."""
    operations, refused = choose_operations(model_config(), torch.bfloat16, torch.device("cpu"))
    assert operations is TORCH
    assert refused is not None and refused.reason == "Triton computes rel_attention wrongly on this device"


# --- fp8 ------------------------------------------------------------------------------------------------------------


def some_rows(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """A matrix with a row of zeros."""
    torch.manual_seed(0)
    x_RK = torch.randn(shape).mul(7).to(dtype)
    x_RK[0] = 0
    return x_RK


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float32, (7, 100)), (torch.bfloat16, (2, 513))], ids=str)
def test_fp8_scales_and_quotients(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """The output is float32, because the interpreter drops the carry if rounding to fp8 reaches the next power of two."""
    x_RK = some_rows(shape, dtype)
    scale_R1, quotient_RK = torch.empty(shape[0], 1), torch.empty(shape)
    columns = 1 << (shape[1] - 1).bit_length()
    fp8_triton.quantise_rows_kernel[(shape[0],)](
        x_RK, quotient_RK, scale_R1, shape[1], fp8_format.MAX_VALUE, fp8_format.MIN_MAXIMUM, columns
    )
    _, expected_R1 = fp8.quantise_rows(x_RK)
    assert torch.equal(scale_R1, expected_R1)
    assert torch.equal(quotient_RK, x_RK.float() / expected_R1)


def test_fp8_values_that_need_no_rounding() -> None:
    x_RK = torch.tensor([[448.0, -2.0, 0.0, 0.875, -13.0], [-448.0, 1.0, 2.0**-6, 2.0**-9, 240.0]])
    values_RK, scale_R1 = fp8_triton.quantise_rows(x_RK)
    assert values_RK.dtype == torch.float8_e4m3fn
    assert torch.equal(scale_R1, torch.ones(2, 1))
    assert torch.equal(values_RK.float(), x_RK)


def test_fp8_of_no_rows() -> None:
    values_RK, scale_R1 = fp8_triton.quantise_rows(torch.empty(0, 16))
    assert values_RK.shape == (0, 16)
    assert scale_R1.shape == (0, 1)
