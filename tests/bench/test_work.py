"""Counted work equals torch's count, and published figures for the published shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fastscribe.bench import roofline, work
from fastscribe.cli.describe import describe
from fastscribe.config import LocalAttention, ModelConfig
from fastscribe.decode import aed
from fastscribe.decode.greedy import greedy
from fastscribe.decode.prompt import Prompt
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.model import Model
from fastscribe.types import Features, Frames
from scripts.shapes import SHAPES
from tests.checkpoint.test_known_models import read as read_published
from tests.conftest import CONVOLUTIONAL_NAMES, MODELS, checkpoint
from tests.helpers import random_models

TINY = SHAPES["tiny"]
SMALL, LARGE = SHAPES["parakeet-tdt-0.6b"], SHAPES["parakeet-rnnt-1.1b"]
CPU = torch.device("cpu")
STRIDING = replace(TINY, encoder=replace(TINY.encoder, subsampling="striding", subsampling_factor=4))


def position_flops(config: ModelConfig, length_s: float) -> float:
    """Return the operations that project the position table for recordings up to this length, once, in all layers."""
    encoder, frames = config.encoder, config.num_frames(length_s)
    return 2.0 * encoder.num_layers * encoder.d_model**2 * (2 * frames - 1)


def counted(config: ModelConfig, seconds: float) -> float:
    """Return torch's count, with the attention's score tables as products instead of one operator."""
    model = Model(config).eval()
    mel_BMT = torch.randn(1, config.features.num_mels, int(seconds * 16000) // 160)
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.encoder(Features(mel_BMT, torch.tensor([mel_BMT.shape[2]])))
    return counter.get_total_flops()


@pytest.mark.parametrize("config", [TINY, STRIDING], ids=["dw_striding", "striding"])
@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_the_encoder_does_what_is_counted(config: ModelConfig, seconds: float) -> None:
    found = work.encoder_flops(config, seconds) + position_flops(config, seconds)
    assert found == counted(config, seconds)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("jasper10x5dr", 0.01),
        ("citrinet-512", 1.0),
        ("quartznet15x5", 3.21),
        *product(("tiny-jasper", "tiny-contextnet"), (0.01, 3.21)),
    ],
)
def test_a_convolutional_encoder_does_what_is_counted(name: str, seconds: float) -> None:
    with torch.device("meta"):
        assert work.encoder_flops(SHAPES[name], seconds) == counted(SHAPES[name], seconds)


@pytest.mark.parametrize("seconds", [0.64, 5.12])
def test_a_granite_encoder_does_what_is_counted(seconds: float) -> None:
    """Whole blocks and even frames, because padding is not counted."""
    assert work.encoder_flops(SHAPES["tiny-granite"], seconds) == counted(SHAPES["tiny-granite"], seconds)
    published = SHAPES["granite-speech-5.0-470m-turboctc"]
    assert work.encoder_parameters(published) == pytest.approx(473e6, rel=0.002)


def test_nvidia_s_shapes_are_as_large_as_published() -> None:
    """333 and 18.9 million parameters, without those of norms."""
    assert work.encoder_parameters(SHAPES["jasper10x5dr"]) == pytest.approx(332.6e6, rel=0.001)
    assert work.encoder_parameters(SHAPES["quartznet15x5"]) == pytest.approx(18.9e6, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ("citrinet-256", "stt_en_citrinet_256"),
        ("citrinet-512", "stt_en_citrinet_512"),
        ("citrinet-1024-gamma-0.25", "stt_en_citrinet_1024_gamma_0_25"),
        ("contextnet-256", "stt_en_contextnet_256"),
        ("contextnet-512", "stt_en_contextnet_512"),
        ("contextnet-1024", "stt_en_contextnet_1024"),
    ],
)
def test_citrinet_and_contextnet_shapes_are_the_published_ones(shape: str, name: str) -> None:
    published, ours = read_published(name), SHAPES[shape]
    # A block's residual mode is the next blocks' default too; without a stride, the two modes are the same.
    blocks = [
        replace(block, residual="add") if block.residual != "none" else block for block in published.encoder.blocks
    ]
    plain = [replace(block, residual="add") if block.residual != "none" else block for block in ours.encoder.blocks]
    assert plain == blocks and all(block.residual == "stride_add" for block in ours.encoder.blocks if block.stride > 1)
    assert ours == replace(
        published, features=ours.features, encoder=replace(published.encoder, blocks=ours.encoder.blocks)
    )


@pytest.mark.parametrize("name", CONVOLUTIONAL_NAMES)
def test_a_convolutional_checkpoint_s_work_is_its_encoder_s(name: str) -> None:
    """Shared filters, groups, strides and a frame beyond the end."""
    config = checkpoint(MODELS / name).config
    assert work.encoder_flops(config, 2.0) == counted(config, 2.0)


def test_the_front_ends_filters_are_counted() -> None:
    samples_BS = torch.randn(1, 32000)
    with FlopCounterMode(display=False) as counter:
        LogMel(TINY.features)(samples_BS, torch.tensor([32000]))
    transforms = 200 * 5 * 512 * 9
    assert work.features_flops(TINY, 2.0) - transforms == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_greedy_decoding_does_what_is_counted() -> None:
    """One decoder that finds nothing at each frame, and one that finds a label at each step."""
    config = SHAPES["tiny-rnnt"]
    transducer = Model(config).eval().transducer
    assert transducer is not None
    frames_TD = torch.randn(12, config.encoder.d_model)
    for blank_bias, labels in ((1e4, 0), (-1e4, 120)):
        with torch.no_grad():
            transducer.joint.output.bias[config.blank_id] = blank_bias
        with FlopCounterMode(display=False) as counter:
            found = greedy(transducer, frames_TD)
        assert len(found.token_ids) == labels
        looks = 2.0 * config.joint.hidden * (config.num_labels + 1)  # type: ignore[union-attr]
        # The first symbol is the predictor's one more step; a frame that is full is left without a blank.
        step = work.decoder_flops(config, 0.96, 1) - work.decoder_flops(config, 0.96, 0) - looks
        blanks_not_looked_at = 12 * looks if labels else 0
        wanted = work.decoder_flops(config, 0.96, labels) + step - blanks_not_looked_at
        assert counter.get_total_flops() == pytest.approx(wanted)


def test_checkpoint_work_equals_the_count() -> None:
    checkpoint = random_models.checkpoint("tiny")
    wanted = work.encoder_flops(checkpoint.config, 8.0) / 8e9
    assert describe(checkpoint)["encoder_gflop_per_audio_s"] == round(wanted, 4)
    several = work.encoder_gflop_per_audio_s(checkpoint.config, [8.0, 8.0, 2.0])
    less = work.encoder_flops(checkpoint.config, 2.0) / 2e9
    assert several == pytest.approx((16.0 * wanted + 2.0 * less) / 18.0)


@pytest.mark.parametrize(("config", "seconds", "mb"), [(SMALL, 8, 37.3), (SMALL, 60, 37.3), (LARGE, 20, 59.3)])
def test_fused_encoder_bytes_match_other_counts(config: ModelConfig, seconds: float, mb: float) -> None:
    assert 2 * work.encoder_elements(config, seconds) / seconds / 1e6 == pytest.approx(mb, rel=0.005)


@given(st.floats(0.1, 200.0), st.integers(0, 40), st.integers(1, 40))
def test_local_attention_is_less_work_and_no_more_than_full(seconds: float, left: int, right: int) -> None:
    local = replace(TINY, encoder=replace(TINY.encoder, attention=LocalAttention(left, right)))
    assert 0 < work.encoder_flops(local, seconds) <= work.encoder_flops(TINY, seconds)


@given(st.lists(st.floats(0.2, 60.0), min_size=1, max_size=6))
def test_work_is_weighted_by_length(lengths_s: list[float]) -> None:
    alone = [work.per_audio_s(TINY, [length_s], "bf16", 2) for length_s in lengths_s]
    together = work.per_audio_s(TINY, lengths_s, "bf16", 2)
    weighted = sum(one.gflop * length_s for one, length_s in zip(alone, lengths_s, strict=True)) / sum(lengths_s)
    assert together.gflop == pytest.approx(weighted)
    assert min(one.mb for one in alone) <= together.mb * (1 + 1e-9)


def test_dtypes_differ_in_bytes_and_not_in_work() -> None:
    of = {"fp32": 4, "bf16": 2, "int8": 2}
    fp32, bf16, int8 = (work.per_audio_s(SMALL, [20.0], dtype, activation) for dtype, activation in of.items())
    assert fp32.gflop == bf16.gflop == int8.gflop
    assert fp32.mb == pytest.approx(2 * bf16.mb) and int8.mb == bf16.mb
    assert fp32.weights_bytes == 2 * bf16.weights_bytes == 4 * int8.weights_bytes
    assert bf16.mb_in_batches_of(10.0) - bf16.mb == pytest.approx(121.7, rel=0.01)
    in_fp32 = work.per_audio_s(SMALL, [20.0], "int8", 4)  # as where a CPU has no bf16 of its own
    assert in_fp32.mb == fp32.mb and in_fp32.weights_bytes == int8.weights_bytes


# --- what a machine could reach ---------------------------------------------------------------------------------------


def test_the_slower_rate_is_the_ceiling() -> None:
    of_the_roofline = roofline.Roofline(790.0, 4300.0, 15.4, 34.4)
    assert of_the_roofline.matrix_rtfx == pytest.approx(51_299, rel=1e-4)
    assert of_the_roofline.memory_rtfx == pytest.approx(125_000)
    assert of_the_roofline.ceiling_rtfx == of_the_roofline.matrix_rtfx
    assert of_the_roofline.one_after_the_other_rtfx == pytest.approx(36_371, rel=1e-3)
    assert roofline.Roofline(790.0, 10.0, 15.4, 34.4).ceiling_rtfx == pytest.approx(290.7, rel=1e-3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_rates_are_measured(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "_MEASURED_S", 0.01)
    monkeypatch.setattr(roofline, "_COPY_BYTES", {"cpu": 1 << 20})
    assert 0 < roofline.matrix_rate(TINY.encoder, CPU, dtype, 64) < 100
    assert 0 < roofline.memory_rate(CPU) < 10_000


def test_a_matrix_rate_is_the_layers_work_over_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each matrix takes a millisecond; the two feed-forward ones come twice."""
    calls: list[int] = []

    def a_millisecond(call, device, seconds):
        calls.append(1)
        return type("Timing", (), {"ms": 1.0})

    monkeypatch.setattr(roofline, "time_call", a_millisecond)
    encoder = TINY.encoder
    flop = 2 * 50 * (4 * encoder.d_model * encoder.ff_hidden + 7 * encoder.d_model**2)
    assert roofline.matrix_rate(encoder, CPU, "fp32", 50) == pytest.approx(flop / 8e-3 / 1e12)
    assert len(calls) == 6


def test_an_attention_decoder_does_what_is_counted() -> None:
    """Counted but not computed: the prompt's logits except the last, and attention of its tokens to later ones."""
    config = SHAPES["tiny-canary"]
    model = Model(config).eval().requires_grad_(False).aed
    assert model is not None and config.aed is not None
    model.head.bias[0] = -1e4
    prompt = Prompt((1,) * work.PROMPT_TOKENS, 0, None, None, {})
    for seconds in (5.0, 15.0):
        frames = Frames(torch.randn(1, config.num_frames(seconds), config.encoder.d_model), torch.tensor([100_000]))
        labels = int(work.LABELS_PER_S * seconds)
        state = aed.AedState.allocate(model, prompt, model.new_cache(1, frames.frames_BTD.shape[1], 200), 200)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            aed.load_batch_(model, prompt, state, frames)
            for number in range(labels):
                aed.step(model, prompt, state, work.PROMPT_TOKENS + 1 + number)
        assert counter.get_total_flops() == pytest.approx(work.decoder_flops(config, seconds, labels), rel=0.05)


def test_fewer_decoder_layers_read_less() -> None:
    """A layer of width 1,024 has 14.7 M weights, read for each token; the embedding comes on top."""
    large, flash = SHAPES["canary-1b"], SHAPES["canary-1b-flash"]
    assert large.aed is not None and flash.aed is not None
    assert work.aed_parameters(large.aed) == pytest.approx(24 * 14.7e6 + 4128 * 1024, rel=0.01)
    assert work.aed_parameters(large.aed) > 4.5 * work.aed_parameters(flash.aed)
    ratio = (
        work.per_audio_s(large, [10.0], "bf16", 2).weights_bytes
        / work.per_audio_s(flash, [10.0], "bf16", 2).weights_bytes
    )
    assert ratio > 3


def test_each_lane_of_a_beam_looks_and_steps() -> None:
    shared = 2.0 * work.decoder_flops(SMALL, 8, 28, beam=1) - work.decoder_flops(SMALL, 8, 28, beam=2)
    assert 0 < shared < work.decoder_flops(SMALL, 8, 28)
    own = work.decoder_flops(SMALL, 8, 28) - shared
    assert work.decoder_flops(SMALL, 8, 28, beam=12) == pytest.approx(shared + 12 * own)
    greedy, beam = (work.per_audio_s(SMALL, [8.0], "fp32", 4, width) for width in (1, 12))
    assert beam.gflop - greedy.gflop == pytest.approx(1e-9 * 11 * own / 8, rel=0.1)
