"""The GPU form of the encoder equals the plain one for all variants, and never waits for the device."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

from fastscribe.config import AttentionConfigs, ChunkedAttention, LocalAttention
from fastscribe.families.conformer import encoder as encoder_module
from fastscribe.families.conformer.config import LanguagePromptConfig
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.conformer.fused_layers import add_product_, fuse_
from fastscribe.families.conformer.operations import TORCH
from fastscribe.families.model import optimise_
from fastscribe.types import Features
from tests.families.conformer.test_encoder import random_encoder, small_config

VARIANTS = (
    {},
    {"use_bias": False, "conv_kernel": 9},
    {"conv_norm": "layer_norm", "xscaling": False},
    {"conv_norm": "layer_norm", "use_bias": False, "conv_kernel": 31},
    {"num_layers": 1, "num_heads": 2},
    {"attention": LocalAttention(4, 4)},
    {"attention": LocalAttention(3, 8), "use_bias": False},
    {"subsampling": "striding", "subsampling_factor": 4},
    {"attention": ChunkedAttention(4, 1), "causal_conv": True, "conv_norm": "layer_norm", "use_bias": False},
    {"attention": ChunkedAttention(-1, 2), "language_prompt": LanguagePromptConfig(5, 24, {"auto": 3}, 3)},
)


def pair(dtype: torch.dtype = torch.float32, **changes) -> tuple[Encoder, Encoder]:
    """The plain inference form and the fused one, with the same random weights."""
    plain = random_encoder(small_config(**changes))
    for norm in (module for module in plain.modules() if isinstance(module, nn.LayerNorm)):
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(std=0.3)
    optimise_(plain)
    plain.to(dtype)
    gpu_form = copy.deepcopy(plain)
    fuse_(gpu_form, TORCH)
    return plain, gpu_form


def ragged(num_mels: int = 20) -> Features:
    torch.manual_seed(1)
    return Features(torch.randn(5, num_mels, 90), torch.tensor([90, 41, 7, 1, 0]))


def difference(plain: nn.Module, gpu_form: nn.Module, features: Features) -> float:
    reference, ours = plain(features), gpu_form(features)
    assert torch.equal(reference.lengths_B, ours.lengths_B)
    assert ours.frames_BTD.isfinite().all()
    real_BT = torch.arange(ours.frames_BTD.shape[1]) < ours.lengths_B[:, None]
    return float((ours.frames_BTD - reference.frames_BTD)[real_BT].float().abs().max())


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_fused_equals_plain(changes: dict) -> None:
    assert difference(*pair(**changes), ragged()) < 2e-5


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_bf16_error(changes: dict) -> None:
    exact, _ = pair(**changes)
    plain, gpu_form = pair(torch.bfloat16, **changes)
    assert difference(exact, gpu_form, ragged()) < 1.5 * difference(exact, plain, ragged()) + 0.02


@pytest.mark.parametrize(
    ("attention", "rows"),
    [
        (None, 2048),
        (LocalAttention(128, 128), 512),
        (LocalAttention(130, 20), 640),
        (LocalAttention(3000, 10), 2048),
        (ChunkedAttention(70, 13), 512),
        (ChunkedAttention(-1, 1), 2048),
    ],
    ids=str,
)
def test_recording_beyond_cached_positions(attention: AttentionConfigs | None, rows: int) -> None:
    """A window within the cached table uses it; a wider one projects its positions on demand."""
    plain, gpu_form = pair(attention=attention)
    lengths_B = torch.tensor([4400, 1300])  # 1100 frames
    assert difference(plain, gpu_form, Features(torch.randn(2, 20, 4400), lengths_B)) < 2e-5
    kept_rows = gpu_form.layers.layers[0].self_attn.positions_HRK.shape[1]
    assert kept_rows == rows


def test_cached_positions_keep_address() -> None:
    _, gpu_form = pair()
    before = [buffer.data_ptr() for buffer in gpu_form.buffers()]
    gpu_form(ragged())
    gpu_form(Features(torch.randn(1, 20, 4400), torch.tensor([4400])))
    assert [buffer.data_ptr() for buffer in gpu_form.buffers()] == before


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_fused_layers_do_not_sync(changes: dict) -> None:
    """Meta tensors have no values, so code that runs on them never waits for one."""
    _, gpu_form = pair(torch.bfloat16, **changes)
    gpu_form.to("meta")
    frames = gpu_form(Features(torch.empty(3, 20, 90, device="meta"), torch.empty(3, dtype=torch.int64, device="meta")))
    assert frames.frames_BTD.shape == (3, 23, 32)


class Doubled(nn.Module):
    """A layer that is not a plain matrix."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.linear(x)


def test_a_plain_matrix_is_added_in_its_product() -> None:
    linear = nn.Linear(6, 4, bias=False).requires_grad_(False)
    assert add_product_(torch.randn(2, 3, 4), torch.randn(2, 3, 6), linear) is None


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_norms_add_quantised_products(changes: dict) -> None:
    """As with fp8, the next norm adds the last product of each of the four branches."""
    plain, gpu_form = pair(**changes)
    for owner in list(gpu_form.layers.modules()):
        for name in ("linear2", "linear_out", "pointwise2"):
            if isinstance(linear := getattr(owner, name, None), nn.Linear):
                setattr(owner, name, Doubled(linear))
                linear.weight.mul_(0.5)
    assert difference(plain, gpu_form, ragged()) < 2e-5


# Each form at each limit; each subsampling, causal or not, in each form and at each limit.


@pytest.mark.parametrize("limit", [1, 3000, 20000])
@pytest.mark.parametrize(
    ("subsampling", "is_causal"), [("dw_striding", False), ("dw_striding", True), ("striding", True)]
)
def test_subsampling_in_parts(monkeypatch: pytest.MonkeyPatch, subsampling: str, is_causal: bool, limit: int) -> None:
    """Splits by rows, then by frames: the same frames up to a bit or two, in every form."""
    torch.manual_seed(0)
    encoder = random_encoder(small_config(subsampling=subsampling, subsampling_factor=8, causal_subsampling=is_causal))
    optimised = copy.deepcopy(encoder)
    optimise_(optimised)
    fused, once = copy.deepcopy(optimised), copy.deepcopy(optimised)
    fuse_(fused, TORCH)
    fuse_(once, dataclasses.replace(TORCH))
    # Operations that never write the first convolution's output have a fourth of it to fit.
    before, is_smaller = encoder.subsampling.elements_per_frame, subsampling == "dw_striding"
    assert once.subsampling.elements_per_frame == (before // 4 if is_smaller else before)
    mel_BTM, lengths_B = torch.randn(5, 203, 20), torch.tensor([203, 0, 1, 96, 202])
    for layer in (form.subsampling for form in (encoder, optimised, fused, once)):
        whole_BTD, whole_lengths_B = layer(mel_BTM, lengths_B)
        is_real_BT = torch.arange(whole_BTD.shape[1]) < whole_lengths_B[:, None]
        for name, is_inference in (("_MAX_CONV_ELEMENTS", False), ("_MAX_CPU_CONV_ELEMENTS", True)):
            with monkeypatch.context() as patch, torch.inference_mode(is_inference):
                patch.setattr(encoder_module, name, limit)
                pieces_BTD, pieces_lengths_B = layer(mel_BTM, lengths_B)
            assert torch.equal(pieces_lengths_B, whole_lengths_B) and pieces_BTD.shape == whole_BTD.shape
            torch.testing.assert_close(pieces_BTD[is_real_BT], whole_BTD[is_real_BT], atol=1e-6, rtol=1e-6)
