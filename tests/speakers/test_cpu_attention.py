"""Attention of a speaker model's Transformer on a CPU: the loop beside torch's, and what is right in float64."""

import math

import pytest
import torch

from fastscribe.families.blocks.dot_product_attention import attend
from fastscribe.speakers.diarizer import attend_with_loop
from tests.conftest import torch_threads

MASKED = -1e9


def inputs(lengths: list[int], num_frames: int, heads: int = 3, width: int = 24) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values as views of one product, as a layer has them, and the mask of padding."""
    torch.manual_seed(3)
    joined_BTE = 2 * torch.randn(len(lengths), num_frames, 3 * heads * width).bfloat16()
    q_BHTK, k_BHTK, v_BHTK = joined_BTE.unflatten(2, (3, heads, width)).permute(2, 0, 3, 1, 4)
    is_beyond_BT = torch.arange(num_frames + 5) >= torch.tensor(lengths)[:, None]
    return q_BHTK, k_BHTK, v_BHTK, (is_beyond_BT.bfloat16() * MASKED)[:, None, None, :num_frames]


@torch.inference_mode()
@pytest.mark.parametrize(("lengths", "num_frames"), [([1], 1), ([33, 17, 1], 33), ([64, 64], 64), ([150, 149], 150)])
def test_the_loop_is_as_exact_as_torch(lengths: list[int], num_frames: int) -> None:
    q_BHTK, k_BHTK, v_BHTK, mask_B11T = inputs(lengths, num_frames)
    scores = q_BHTK.double() @ k_BHTK.double().transpose(2, 3) / math.sqrt(q_BHTK.shape[3]) + mask_B11T.double()
    exact = scores.softmax(3) @ v_BHTK.double()
    ours, of_torch = (form(q_BHTK, k_BHTK, v_BHTK, mask_B11T) for form in (attend_with_loop, attend))
    assert ours.shape == of_torch.shape
    assert ours.dtype == torch.bfloat16
    error, error_of_torch = ((form.double() - exact).norm() / exact.norm() for form in (ours, of_torch))
    assert error < max(0.01, 1.5 * float(error_of_torch))


@torch.inference_mode()
def test_neither_threads_nor_neighbours_nor_masked_frames_change_a_bit() -> None:
    q_BHTK, k_BHTK, v_BHTK, mask_B11T = inputs([300, 220], 300)
    with torch_threads(1):
        one = attend_with_loop(q_BHTK, k_BHTK, v_BHTK, mask_B11T)
        alone = attend_with_loop(q_BHTK[1:], k_BHTK[1:], v_BHTK[1:], mask_B11T[1:])
        k_BHTK[1, :, 220:], v_BHTK[1, :, 220:] = 3.0, -7.0
        changed = attend_with_loop(q_BHTK, k_BHTK, v_BHTK, mask_B11T)
    with torch_threads(3):
        assert torch.equal(attend_with_loop(q_BHTK, k_BHTK, v_BHTK, mask_B11T), one)
    assert torch.equal(alone[0], one[1])
    assert torch.equal(changed, one)


@torch.inference_mode()
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_damaged_key_reaches_the_outputs(bad: float) -> None:
    q_BHTK, k_BHTK, v_BHTK, mask_B11T = inputs([20], 20)
    k_BHTK[0, 1, 4, 0] = bad
    out_BHTK = attend_with_loop(q_BHTK, k_BHTK, v_BHTK, mask_B11T)
    assert out_BHTK[0, 1].isnan().all()
    assert out_BHTK[0, 0].isfinite().all()
