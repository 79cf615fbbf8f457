"""The Triton kernels, run by Triton's interpreter, equal torch's forms. test_kernels.py runs this file in a process of its
own: whether kernels are interpreted is settled when Triton is imported.

Matrix products are tried in float32 and float16, since the interpreter multiplies bfloat16 wrongly.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.model import triton_kernels
from fastscribe.model.kernels import POSITION_ROWS_MULTIPLE, TORCH, choose_operations
from fastscribe.model.triton_kernels import TRITON
from tests.test_kernels import close, model_config, normal, real_frames

LENGTHS = st.lists(st.integers(0, 90), min_size=1, max_size=3).filter(any)
FEW = settings(max_examples=4, deadline=None, derandomize=True)


@FEW
@given(
    lengths=LENGTHS,
    spare=st.integers(0, 3),
    width=st.sampled_from([16, 32]),
    block=st.sampled_from([32, 64]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
)
def test_rel_attention(lengths: list[int], spare: int, width: int, block: int, dtype: torch.dtype) -> None:
    torch.manual_seed(sum(lengths))
    lengths_B, num_frames = torch.tensor(lengths), max(lengths) + spare
    rows = POSITION_ROWS_MULTIPLE * (-(-2 * num_frames // POSITION_ROWS_MULTIPLE) + spare % 2)
    qkv_BTD, positions_HRK = normal(len(lengths), num_frames, 6 * width).to(dtype), normal(2, rows, width).to(dtype)
    bias_HR = normal(2, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_kernels, "_attention_block", lambda _: block)
        ours_BTD = TRITON.rel_attention(qkv_BTD, positions_HRK, bias_HR, lengths_B)
    exact_BTD = TORCH.rel_attention(qkv_BTD.float(), positions_HRK.float(), bias_HR, lengths_B)
    assert ours_BTD.isfinite().all()
    close(ours_BTD, exact_BTD, real_frames(lengths_B, num_frames))


@FEW
@given(
    lengths=LENGTHS,
    spare=st.integers(0, 3),
    taps=st.sampled_from([5, 9, 11]),
    width=st.sampled_from([8, 24]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bias=st.booleans(),
    silu=st.booleans(),
)
def test_glu_depthwise(
    lengths: list[int], spare: int, taps: int, width: int, dtype: torch.dtype, bias: bool, silu: bool
) -> None:
    torch.manual_seed(sum(lengths))
    lengths_B, num_frames = torch.tensor(lengths), max(lengths) + spare
    x_BTD, weight_WD = normal(len(lengths), num_frames, 2 * width).to(dtype), normal(taps, width).to(dtype)
    bias_D = normal(width).to(dtype) if bias else None
    ours_BTD = TRITON.glu_depthwise(x_BTD, weight_WD, bias_D, lengths_B, silu)
    float_bias_D = None if bias_D is None else bias_D.float()
    exact_BTD = TORCH.glu_depthwise(x_BTD.float(), weight_WD.float(), float_bias_D, lengths_B, silu)
    close(ours_BTD, exact_BTD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [24, 64])
@pytest.mark.parametrize("shifted", [False, True])
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


def test_the_comparison_accepts_right_kernels() -> None:
    assert choose_operations(model_config(), torch.float32, torch.device("cpu")) == (TRITON, None)


def test_the_comparison_refuses_what_the_device_gets_wrong() -> None:
    """The interpreter's bfloat16 products stand for a device that computes nonsense."""
    operations, reason = choose_operations(model_config(), torch.bfloat16, torch.device("cpu"))
    assert operations is TORCH
    assert reason == "Triton computes rel_attention wrongly on this device"
