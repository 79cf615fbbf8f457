"""The encoder's inference form equals its training form, and its parts equal reference formulas."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastscribe.config import (
    AttentionConfigs,
    ChunkedAttention,
    LocalAttention,
    Options,
    parse_attention,
)
from fastscribe.errors import UsageError
from fastscribe.families.blocks import forms
from fastscribe.families.blocks.forms import PackedLinear, UnpackedLinear, can_pack, has_faster_mkl, pack_linears_
from fastscribe.families.blocks.padding import Padding
from fastscribe.families.conformer import attention
from fastscribe.families.conformer.attention import Positions, RelPositionAttention, relative_positions
from fastscribe.families.conformer.config import EncoderConfig, LanguagePromptConfig
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.model import optimise_
from fastscribe.types import Features
from tests.conftest import torch_threads


def small_config(**changes) -> EncoderConfig:
    values = {
        "num_mels": 20,
        "num_layers": 2,
        "d_model": 32,
        "num_heads": 4,
        "ff_hidden": 64,
        "conv_kernel": 5,
        "conv_norm": "batch_norm",
        "use_bias": True,
        "xscaling": True,
        "subsampling": "dw_striding",
        "subsampling_factor": 4,
        "subsampling_channels": 8,
    }
    return EncoderConfig(**(values | changes))


def random_encoder(config: EncoderConfig) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(config).eval().requires_grad_(False)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.3, 2.0)
            module.weight.normal_()
            module.bias.normal_()
    for parameter in encoder.parameters():
        if parameter.dim() == 2 and parameter.shape[0] == config.num_heads:  # the position biases start at zero
            parameter.normal_()
    return encoder


VARIANTS = (
    {},
    {"conv_norm": "layer_norm", "use_bias": False, "xscaling": False},
    {"subsampling": "striding", "subsampling_factor": 8, "conv_kernel": 9},
    {"subsampling_factor": 2, "num_heads": 2, "num_mels": 33},
    {"attention": LocalAttention(3, 5)},
    {"attention": LocalAttention(7, 0, num_global=1)},
    {
        "attention": ChunkedAttention(4, 1),
        "causal_subsampling": True,
        "causal_conv": True,
        "conv_norm": "layer_norm",
        "use_bias": False,
        "language_prompt": LanguagePromptConfig(5, 24, {"auto": 3}, 3),
    },
    {"attention": ChunkedAttention(0, 3), "causal_conv": True, "subsampling": "striding", "causal_subsampling": True},
)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("pack", [False, True])
def test_inference_form_equals_training_form(changes: dict, pack: bool) -> None:
    config = small_config(**changes)
    encoder = random_encoder(config)
    fused = copy.deepcopy(encoder)
    optimise_(fused)
    if pack:
        pack_linears_(fused, torch.float32)
    lengths_B = torch.tensor([90, 41, 7, 1])
    features = Features(torch.randn(4, config.num_mels, 90), lengths_B)
    reference, ours = encoder(features), fused(features)
    assert torch.equal(reference.lengths_B, ours.lengths_B)
    for row, length in enumerate(ours.lengths_B):
        torch.testing.assert_close(
            ours.frames_BTD[row, :length], reference.frames_BTD[row, :length], atol=2e-5, rtol=1e-4
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full", None),
        ("local:128,128", LocalAttention(128, 128)),
        ("local:0,7", LocalAttention(0, 7)),
        ("local:30,0,1", LocalAttention(30, 0, num_global=1)),
        ("local:1,2,0", LocalAttention(1, 2)),
        ("70,1", ChunkedAttention(70, 1)),
        ("-1,3", ChunkedAttention(-1, 3)),
    ],
)
def test_attention_option(text: str, expected: LocalAttention | None) -> None:
    assert parse_attention(text) == expected
    assert Options(attention=text).attention == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "local:5",
        "local:0,0",
        "local:-1,5",
        "local:1,2,2",
        "local:1,2 ",
        "Full",
        "local:٣,4",
        "70,2",
        "-1,-1",
        "70",
    ],
)
def test_invalid_attention_option(text: str) -> None:
    with pytest.raises(UsageError, match="attention"):
        Options(attention=text)


def counted_distances(after_TT: torch.Tensor, local: LocalAttention | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distance that NeMo uses for each pair of frames, and whether it has a position.

    NeMo's scores have columns -w .. w, with w the wider side. It adds the positions of the window's left part to the first
    `left` columns and the others to the last `right + 1`, whether these are in the window or not.
    """
    if local is None:
        return after_TT, torch.ones_like(after_TT)
    counted_TT, has_position_TT = torch.zeros_like(after_TT), torch.zeros_like(after_TT)
    wider = max(local.left, local.right)
    for part in (
        list(zip(range(-wider, -wider + local.left), range(-local.left, 0), strict=True)),
        list(zip(range(wider - local.right, wider + 1), range(local.right + 1), strict=True)),
    ):
        for column, position in part:
            counted_TT[after_TT == column] = position
            has_position_TT[after_TT == column] = 1
    return counted_TT, has_position_TT


def hidden_by(attention: AttentionConfigs | None, num_frames: int) -> torch.Tensor:
    """Return the mask [T, T] of keys that queries do not see, by NeMo's formula."""
    i_T1, j_T = torch.arange(num_frames)[:, None], torch.arange(num_frames)
    if attention is None:
        return torch.zeros(num_frames, num_frames, dtype=torch.bool)
    left, right = attention.left, attention.right
    if isinstance(attention, LocalAttention):
        return (j_T - i_T1 < -left) | (j_T - i_T1 > right)
    if right == -1:
        return j_T < i_T1 - left
    chunks_back_TT = i_T1 // (right + 1) - j_T // (right + 1)
    return (chunks_back_TT < 0) | ((chunks_back_TT > left // (right + 1)) & torch.tensor(left >= 0))


def attention_by_the_formula(layer: RelPositionAttention, x_TD: torch.Tensor, masked: AttentionConfigs | None):
    """Reference for one recording, head by head, with scores outside the window masked: [T, D] to [T, D]."""
    num_frames, width = x_TD.shape
    q_HTK, k_HTK, v_HTK = (
        linear(x_TD).unflatten(1, (layer.num_heads, -1)).transpose(0, 1)
        for linear in (layer.linear_q, layer.linear_k, layer.linear_v)
    )
    table_RD = relative_positions(num_frames, num_frames, width, x_TD.dtype, x_TD.device)
    positions_HRK = layer.linear_pos(table_RD).unflatten(1, (layer.num_heads, -1)).transpose(0, 1)
    after_TT = torch.arange(num_frames) - torch.arange(num_frames)[:, None]  # key index minus query index
    local = masked if isinstance(masked, LocalAttention) else None
    counted_TT, has_position_TT = counted_distances(after_TT, local)
    num_global = local.num_global if local else 0
    heads = []
    for q_TK, k_TK, v_TK, p_RK, u_K, v_K in zip(
        q_HTK, k_HTK, v_HTK, positions_HRK, layer.pos_bias_u, layer.pos_bias_v, strict=True
    ):
        position_TT = ((q_TK + v_K) @ p_RK.T).gather(1, num_frames + counted_TT)
        scores_TT = (q_TK + u_K) @ k_TK.T + position_TT * has_position_TT
        scores_TT[hidden_by(masked, num_frames)] = -math.inf
        scores_TT = torch.cat([q_TK @ k_TK[:num_global].T, scores_TT], dim=1) / math.sqrt(layer.head_width)
        out_TK = scores_TT.softmax(1) @ torch.cat([v_TK[:num_global], v_TK])
        for i in range(num_global):
            out_TK[i] = (q_TK[i] @ k_TK.T / math.sqrt(layer.head_width)).softmax(0) @ v_TK
        heads.append(out_TK)
    return layer.linear_out(torch.cat(heads, dim=1))


def check_attention(lengths: list[int], masked: AttentionConfigs | None) -> None:
    """Compare a batch with noise as padding with the formula for each row."""
    config = small_config(attention=masked)
    layer = random_encoder(config).layers[0].self_attn
    x_BTD, lengths_B = torch.randn(len(lengths), max(lengths), config.d_model), torch.tensor(lengths)
    expected = [attention_by_the_formula(layer, x_TD[:n], masked) for x_TD, n in zip(x_BTD, lengths, strict=True)]
    for fuse in (False, True):
        if fuse:
            layer.fuse_()
        ours_BTD = layer(x_BTD, Padding.of(lengths_B, max(lengths)), Positions.of(x_BTD, masked))
        assert ours_BTD.isfinite().all()
        for ours_TD, right_TD in zip(ours_BTD, expected, strict=True):
            torch.testing.assert_close(ours_TD[: len(right_TD)], right_TD, atol=1e-5, rtol=1e-4)


# Around the borders of blocks. Each window has three of the lengths, and each kind of window all of them.


@pytest.mark.parametrize(
    ("masked", "longest"),
    [(None, 129), (LocalAttention(12, 4), 257), (LocalAttention(4, 12, 1), 129), (ChunkedAttention(56, 13), 257)],
    ids=str,
)
def test_attention_equals_formula(masked: AttentionConfigs | None, longest: int) -> None:
    """Across the border of a block; test_block_sizes tries every window in small ones."""
    check_attention([longest, longest // 2, 1], masked)


LOCAL_WINDOWS = st.builds(
    lambda left, right, num_global: LocalAttention(left, right if left else max(right, 1), num_global),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 1),
)
CHUNK_WINDOWS = st.builds(
    lambda chunks_before, right: ChunkedAttention(max(-1, chunks_before * (right + 1)), right),
    st.integers(-1, 4),
    st.integers(0, 8),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.one_of(LOCAL_WINDOWS, CHUNK_WINDOWS), st.integers(1, 9))
def test_block_sizes(lengths: list[int], masked: AttentionConfigs, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_BLOCK", block)
        check_attention(lengths, masked)


@pytest.mark.parametrize("masked", [None, LocalAttention(9, 30)], ids=str)
def test_position_table_cache(masked: LocalAttention | None) -> None:
    """The longest is kept. A short recording clips a window; a longer one needs more of it, on each side independently."""
    encoder = random_encoder(small_config(attention=masked))
    optimise_(encoder)
    batches = [Features(torch.randn(1, 20, frames), torch.tensor([frames])) for frames in (20, 60, 400)]
    fresh = copy.deepcopy(encoder)
    in_order = [encoder(features).frames_BTD for features in batches]
    backwards = [fresh(features).frames_BTD for features in reversed(batches)]
    for first, second in zip(in_order, reversed(backwards), strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("masked", [LocalAttention(16, 8), ChunkedAttention(16, 7)], ids=str)
def test_local_attention_memory(masked: AttentionConfigs) -> None:
    """No intermediate tensor has frames x frames elements."""
    layer = random_encoder(small_config(attention=masked)).layers[0].self_attn
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.untyped_storage().nbytes())
            return result

    num_frames = 2000
    x_BTD = torch.randn(1, num_frames, 32)
    with Watch():
        layer(x_BTD, Padding.of(torch.tensor([num_frames]), num_frames), Positions.of(x_BTD, masked))
    assert 0 < largest <= x_BTD.nbytes * 3


def test_large_matrices_are_left_to_mkl_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_pack(torch.float32):
        pytest.skip("this torch cannot pack on this processor")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    for has_avx512, form in ((False, UnpackedLinear), (True, PackedLinear)):
        monkeypatch.setattr(forms, "instructions", lambda has_avx512=has_avx512: {"avx2", *["avx512f"] * has_avx512})
        layer = nn.ModuleDict(
            {"linear1": nn.Linear(512, 600), "joint": nn.Linear(512, 600), "linear2": nn.Linear(600, 48)}
        )
        pack_linears_(layer, torch.float32)
        assert [type(layer[name]) for name in layer] == [form, PackedLinear, PackedLinear]
        assert not has_faster_mkl(torch.bfloat16)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_row_by_mkl_does_not_depend_on_the_others(bias: bool, threads: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(512, 768, bias=bias).requires_grad_(False)
    x_BTK = torch.randn(2, 300, 512)
    with torch_threads(threads):
        y_BTN = UnpackedLinear(linear)(x_BTK)
        torch.testing.assert_close(y_BTN, linear(x_BTK), atol=1e-5, rtol=1e-4)
        for rows in (1, 2, 3, 7, 15, 16, 31, 33, 100):
            found = UnpackedLinear(linear)(x_BTK[:, :rows].contiguous())
            torch.testing.assert_close(found, y_BTN[:, :rows], atol=1e-5, rtol=1e-4)
            if has_faster_mkl(torch.float32):  # where it is used
                assert torch.equal(found, y_BTN[:, :rows])
    assert UnpackedLinear(linear)(x_BTK[:, :0]).shape == (2, 0, 768)
