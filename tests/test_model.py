"""The encoder's inference form equals its training form, and its parts equal their textbook definitions."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import EncoderConfig, PredictorConfig
from fastscribe.model.encoder import Encoder, Padding, relative_positions, relative_shift
from fastscribe.model.packed import PackedLinear, can_pack, pack_linears_
from fastscribe.model.transducer import Predictor
from fastscribe.types import Features


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
)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("pack", [False, True])
def test_inference_form_equals_training_form(changes: dict, pack: bool) -> None:
    config = small_config(**changes)
    encoder = random_encoder(config)
    fused = copy.deepcopy(encoder)
    fused.optimise_()
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


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_a_row_does_not_depend_on_its_neighbours(changes: dict) -> None:
    encoder = random_encoder(small_config(**changes))
    encoder.optimise_()
    mel_BMT = torch.randn(3, encoder.config.num_mels, 80)
    lengths_B = torch.tensor([80, 33, 2])
    for row, length in enumerate(lengths_B):
        mel_BMT[row, :, length:] = 0
    together = encoder(Features(mel_BMT, lengths_B))
    for row, length in enumerate(lengths_B):
        alone = encoder(Features(mel_BMT[row : row + 1, :, :length], lengths_B[row : row + 1]))
        count = int(alone.lengths_B[0])
        torch.testing.assert_close(together.frames_BTD[row, :count], alone.frames_BTD[0, :count], atol=1e-5, rtol=1e-4)


def test_position_tables_of_any_length_are_slices_of_one() -> None:
    """Inference keeps the longest table it has seen; a shorter batch after a longer one must see the same positions."""
    encoder = random_encoder(small_config())
    encoder.optimise_()
    short = Features(torch.randn(1, 20, 30), torch.tensor([30]))
    before = encoder(short).frames_BTD
    encoder(Features(torch.randn(1, 20, 200), torch.tensor([200])))
    torch.testing.assert_close(encoder(short).frames_BTD, before, atol=1e-6, rtol=1e-5)


def test_relative_shift_reads_the_distance_of_each_pair() -> None:
    num_frames = 6
    scores = torch.randn(2, 3, num_frames, 2 * num_frames - 1)
    shifted = relative_shift(scores)
    for i in range(num_frames):
        for j in range(num_frames):
            assert torch.equal(shifted[:, :, i, j], scores[:, :, i, num_frames - 1 - (i - j)])


def test_relative_positions_run_from_far_left_to_far_right() -> None:
    table = relative_positions(4, 6, torch.float32, torch.device("cpu"))
    assert table.shape == (7, 6)
    assert torch.allclose(table[3], torch.tensor([0.0, 1, 0, 1, 0, 1]))
    assert torch.allclose(table[0, 0], torch.sin(torch.tensor(3.0)))


def test_padding_is_filled_beyond_each_length_only() -> None:
    x = torch.ones(2, 3, 5)
    Padding.of(torch.tensor([5, 2]), 5).fill_(x, 7.0, time_axis=2)
    assert x[0].eq(1).all()
    assert x[1, :, :2].eq(1).all()
    assert x[1, :, 2:].eq(7).all()


@pytest.mark.parametrize("num_layers", [1, 3])
def test_predictor_steps_are_the_lstm(num_layers: int) -> None:
    torch.manual_seed(0)
    predictor = Predictor(PredictorConfig(hidden=12, num_layers=num_layers), num_tokens=9).eval()
    labels_BN = torch.randint(0, 9, (4, 7))
    expected, _ = predictor.lstm(predictor.embedding(labels_BN).transpose(0, 1))
    state = predictor.initial_state(4)
    for index in range(7):
        output_BH, state = predictor.step(labels_BN[:, index], state)
        torch.testing.assert_close(output_BH, expected[index], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 3000])
def test_packed_linear_is_linear(bias: bool, rows: int) -> None:
    if not can_pack(torch.float32):
        pytest.skip("this torch cannot pack on this processor")
    linear = nn.Linear(24, 40, bias=bias).requires_grad_(False)
    x = torch.randn(2, rows, 24)
    torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(PackedLinear(linear, "swish")(x), F.silu(linear(x)), atol=1e-5, rtol=1e-4)
