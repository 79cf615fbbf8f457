"""Torch's operations equal formulas, and Triton's equal torch's: interpreted, on a device, and compiled for several devices.

Only tests marked `cuda` need a GPU. Otherwise Triton's interpreter runs the kernels on the CPU, and its compiler compiles them
for GPUs that are not present (tests/helpers/compiled_kernels.py).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import itertools
import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fastscribe.config import AttentionConfigs, ChunkedAttention, LocalAttention
from fastscribe.families.conformer import fused_layers
from fastscribe.families.conformer.config import EncoderConfig, subsampled
from fastscribe.families.conformer.gpu_operations import choose_operations, find_wrong_operation
from fastscribe.families.conformer.operations import POSITION_ROWS_MULTIPLE, TORCH, Operations, max_table_distance
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline import model_building
from tests.conftest import ROOT
from tests.families.conformer.test_encoder import random_encoder, small_config

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
# Relative to the largest value: a few rounding steps of the dtype.
TOLERANCES = {torch.float32: 3e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def model_config(**changes) -> EncoderConfig:
    return small_config(**({"d_model": 32, "num_heads": 2} | changes))


def real_frames(lengths_B: torch.Tensor, num_frames: int) -> torch.Tensor:
    return torch.arange(num_frames, device=lengths_B.device) < lengths_B[:, None]


def close(ours: torch.Tensor, exact: torch.Tensor, where: torch.Tensor | None = None) -> None:
    tolerance = TOLERANCES[ours.dtype] * max(1.0, float(exact.abs().max()))
    error = (ours.float() - exact.float()).abs()
    assert float((error if where is None else error[where]).max()) <= tolerance


@pytest.mark.parametrize(
    "attention",
    [None, LocalAttention(2, 1), LocalAttention(0, 6), ChunkedAttention(2, 1), ChunkedAttention(0, 4)],
    ids=str,
)
def test_attention_equals_formula(attention: AttentionConfigs | None) -> None:
    """Reference by query, key and head, with u and v as in the paper."""
    torch.manual_seed(0)
    batch, num_frames, heads, width, rows = 3, 7, 2, 4, POSITION_ROWS_MULTIPLE
    lengths_B = torch.tensor([7, 4, 1])
    q_BTHK, k_BTHK, v_BTHK = normal(3, batch, num_frames, heads, width)
    u_HK, v_HK = normal(2, heads, width)
    table_HRK = normal(heads, rows, width)
    bias_HR = torch.einsum("hrk,hk->hr", table_HRK, v_HK - u_HK)
    qkv_BTD = torch.stack([q_BTHK + u_HK, k_BTHK, v_BTHK], dim=2).flatten(2)
    ours_BTHK = TORCH.rel_attention(qkv_BTD, table_HRK, bias_HR, lengths_B, attention).unflatten(2, (heads, width))
    left, right = (attention.left, attention.right) if attention else (num_frames, num_frames)
    chunk = right + 1 if isinstance(attention, ChunkedAttention) else 1
    for b, length in enumerate(lengths_B.tolist()):
        for head in range(heads):
            for i in range(length):
                q_K, scores = q_BTHK[b, i, head], []
                chunk_start = i // chunk * chunk
                keys = range(max(0, chunk_start - left), min(length, chunk_start + right + 1))
                for j in keys:
                    position_K = table_HRK[head, rows // 2 - 1 - (i - j)]
                    content = (q_K + u_HK[head]) @ k_BTHK[b, j, head]
                    scores.append((content + (q_K + v_HK[head]) @ position_K) / math.sqrt(width))
                expected_K = torch.stack(scores).softmax(0) @ v_BTHK[b, keys.start : keys.stop, head]
                torch.testing.assert_close(ours_BTHK[b, i, head], expected_K, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("silu", [False, True])
def test_convolution_equals_formula(silu: bool, is_causal: bool) -> None:
    torch.manual_seed(0)
    num_frames, width, taps = 8, 3, 5
    lengths_B = torch.tensor([8, 3, 0])
    x_BTD, weight_WD, bias_D = normal(3, num_frames, 2 * width), normal(taps, width), normal(width)
    ours_BTD = TORCH.glu_depthwise(x_BTD, weight_WD, bias_D, lengths_B, silu, is_causal)
    for b, length in enumerate(lengths_B.tolist()):
        for t in range(num_frames):
            expected_D = bias_D.clone()
            for tap in range(taps):
                frame = t + tap - (taps - 1 if is_causal else taps // 2)
                if 0 <= frame < length:
                    expected_D += weight_WD[tap] * x_BTD[b, frame, :width] * x_BTD[b, frame, width:].sigmoid()
            torch.testing.assert_close(ours_BTD[b, t], F.silu(expected_D) if silu else expected_D)


def window_sum(x_BTFC: torch.Tensor, weight_9C: torch.Tensor, before: int, place: tuple[int, int, int]) -> torch.Tensor:
    """The sum over a 3x3 window of a stride-2 convolution at row, frame and bin `place`, with zeros outside."""
    (row, t, f), total_C = place, torch.zeros(weight_9C.shape[1])
    for tap in range(9):
        frame, column = 2 * t - before + tap // 3, 2 * f - before + tap % 3
        if 0 <= frame < x_BTFC.shape[1] and 0 <= column < x_BTFC.shape[2]:
            total_C += weight_9C[tap] * x_BTFC[row, frame, column]
    return total_C


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("num_frames", "bins"), [(9, 6), (12, 7), (2, 4)])
def test_subsampling_equals_formula(is_causal: bool, num_frames: int, bins: int) -> None:
    torch.manual_seed(0)
    lengths_B = torch.tensor([num_frames, num_frames // 2, 0])
    x_BTM, (weight_9C, depthwise_9C), bias_C = normal(3, num_frames, bins), normal(2, 9, 3), normal(3)
    ours_BTFC = TORCH.first_convolutions(x_BTM, weight_9C, bias_C, depthwise_9C, lengths_B, is_causal)
    before, sizes = 2 if is_causal else 1, [subsampled(size, 1, is_causal) for size in (num_frames, bins)]
    hidden_BTFC = torch.zeros(3, *sizes, 3)
    for b, length in enumerate(subsampled(lengths_B, 1, is_causal).tolist()):
        for t, f in itertools.product(range(min(length, sizes[0])), range(sizes[1])):
            hidden_BTFC[b, t, f] = F.relu(bias_C + window_sum(x_BTM.unsqueeze(3), weight_9C, before, (b, t, f)))
    assert ours_BTFC.shape == (3, *(subsampled(size, 1, is_causal) for size in sizes), 3)
    again_BTFC = TORCH.relu_depthwise(ours_BTFC, weight_9C, is_causal)
    is_real_BT = real_frames(subsampled(lengths_B, 2, is_causal), ours_BTFC.shape[1])
    for place in itertools.product(*map(range, ours_BTFC.shape[:3])):
        if is_real_BT[place[:2]]:
            torch.testing.assert_close(ours_BTFC[place], window_sum(hidden_BTFC, depthwise_9C, before, place))
    for place in itertools.product(*map(range, again_BTFC.shape[:3])):
        torch.testing.assert_close(again_BTFC[place], window_sum(F.relu(ours_BTFC), weight_9C, before, place))


def check_subsampling(
    form: Operations,
    dtype: torch.dtype,
    channels: int,
    num_frames: int,
    num_mels: int,
    is_causal: bool,
    device: torch.device,
) -> None:
    """Features come as a view with the frames innermost, as the encoder passes them. A NaN stays one."""
    torch.manual_seed(num_frames)
    lengths_B = torch.tensor([num_frames, num_frames // 2, 0])
    x_BTM = normal(3, num_mels, num_frames).to(dtype).transpose(1, 2)
    x_BTM[1, num_frames // 2 + 3 :] = math.nan  # behind what the row's last window reads
    weights = [(normal(*shape) / 3).to(dtype) for shape in ((9, channels), (channels,), (9, channels))]
    ours_BTFC = form.first_convolutions(*(tensor.to(device) for tensor in (x_BTM, *weights, lengths_B)), is_causal)
    exact_BTFC = TORCH.first_convolutions(*(tensor.float() for tensor in (x_BTM, *weights)), lengths_B, is_causal)
    close(ours_BTFC.cpu(), exact_BTFC, real_frames(subsampled(lengths_B, 2, is_causal), exact_BTFC.shape[1]))
    again_BTFC = form.relu_depthwise(ours_BTFC, weights[0].to(device), is_causal)
    close(again_BTFC.cpu(), TORCH.relu_depthwise(ours_BTFC.cpu().float(), weights[0].float(), is_causal))
    beyond_B = torch.tensor([num_frames + 9])
    same_BTFC = form.first_convolutions(*(tensor.to(device) for tensor in (x_BTM[:1], *weights, beyond_B)), is_causal)
    assert torch.equal(same_BTFC[0], ours_BTFC[0])  # a length beyond the frames is all of them
    ours_BTFC[0, 0, 0, 0] = math.nan
    assert form.relu_depthwise(ours_BTFC[:1], weights[0].to(device), is_causal)[0, 0, 0, 0].isnan()


def test_norm_shift_and_second_norm() -> None:
    torch.manual_seed(0)
    x_BTD, (shift_D, weight1_D, bias1_D, weight2_D, bias2_D) = normal(2, 3, 8), normal(5, 8)
    expected_BTD = F.layer_norm(x_BTD + shift_D, (8,), weight1_D, bias1_D)
    torch.testing.assert_close(TORCH.layer_norm(x_BTD, shift_D, weight1_D, bias1_D), expected_BTD)
    second_BTD = TORCH.layer_norm_twice_(x_BTD, shift_D, weight1_D, bias1_D, weight2_D, bias2_D)
    torch.testing.assert_close(x_BTD, expected_BTD)
    torch.testing.assert_close(second_BTD, F.layer_norm(expected_BTD, (8,), weight2_D, bias2_D))


def test_norm_added() -> None:
    torch.manual_seed(0)
    x_BTD, added_BTD, norms = normal(2, 3, 8).bfloat16(), normal(2, 3, 8).bfloat16(), normal(4, 8).bfloat16()
    shift_D = normal(8)
    sum_BTD = x_BTD + added_BTD
    ours_BTD = x_BTD.clone()
    normed_BTD = TORCH.layer_norm(ours_BTD, shift_D, *norms[:2], added_BTD)
    assert torch.equal(ours_BTD, sum_BTD)
    assert torch.equal(normed_BTD, TORCH.layer_norm(sum_BTD, shift_D, *norms[:2]))
    second_BTD = TORCH.layer_norm_twice_(x_BTD, shift_D, *norms, added_BTD)
    assert torch.equal(second_BTD, TORCH.layer_norm_twice_(sum_BTD, shift_D, *norms))
    assert torch.equal(x_BTD, sum_BTD)


def test_fallback_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastscribe.families.conformer.triton_kernels", None)
    operations, reason = choose_operations(model_config(), torch.float32, torch.device("cpu"))
    assert operations is TORCH
    assert reason is not None and reason.startswith("Triton cannot be imported")


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton works here")
def test_fallback_if_triton_fails() -> None:
    operations, reason = choose_operations(model_config(), torch.float32, torch.device("cpu"))
    assert operations is TORCH
    assert reason is not None and reason.startswith("Triton fails on this device (")
    assert "\n" not in reason


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TORCH)])
@pytest.mark.parametrize("attention", [None, LocalAttention(128, 128)], ids=str)
def test_detects_wrong_operations(name: str, attention: LocalAttention | None) -> None:
    def wrong(*arguments):
        result = getattr(TORCH, name)(*arguments)
        result[1, 5] *= 1.01
        return result

    broken = dataclasses.replace(TORCH, **{name: wrong})
    config = model_config(attention=attention)
    assert find_wrong_operation(TORCH, config, torch.float32, torch.device("cpu")) is None
    assert find_wrong_operation(broken, config, torch.float32, torch.device("cpu")) == name


@pytest.mark.parametrize("extra", [1, 99])
@pytest.mark.parametrize("is_causal", [False, True])
def test_detects_padding_that_is_not_zeroed(extra: int, is_causal: bool) -> None:
    """Zeroed one frame too late, or never."""

    def wrong(*arguments):
        *given, lengths_B, causal = arguments
        return TORCH.first_convolutions(*given, lengths_B + 2 * extra, causal)

    broken, config = dataclasses.replace(TORCH, first_convolutions=wrong), model_config(causal_subsampling=is_causal)
    assert find_wrong_operation(TORCH, config, torch.float32, torch.device("cpu")) is None
    assert find_wrong_operation(broken, config, torch.float32, torch.device("cpu")) == "first_convolutions"


@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_twice_"])
def test_added_variants_only_for_fp8(name: str) -> None:
    num_arguments = len(inspect.signature(getattr(TORCH, name)).parameters)

    def fails_to_add(*arguments):
        assert len(arguments) < num_arguments, "cannot add"
        return getattr(TORCH, name)(*arguments)

    broken, cpu = dataclasses.replace(TORCH, **{name: fails_to_add}), torch.device("cpu")
    assert find_wrong_operation(broken, model_config(), torch.float32, cpu) is None
    with pytest.raises(AssertionError, match="cannot add"):
        find_wrong_operation(broken, model_config(), torch.float32, cpu, adds_products=True)


@pytest.mark.parametrize(("dtype", "adds"), [("bf16", False), ("fp32", False), ("fp8", True)])
def test_dtype_selects_variants(monkeypatch: pytest.MonkeyPatch, dtype: str, adds: bool) -> None:
    """Runs on a simulated device: the CPU, without kernel selection and quantisation."""
    requests: list[bool] = []
    monkeypatch.setattr(fused_layers, "choose_operations", lambda *given: requests.append(given[3]) or (TORCH, None))
    monkeypatch.setattr("fastscribe.families.blocks.fp8.quantise_fp8_", lambda encoder: None)
    encoder = random_encoder(small_config())
    encoder.optimise_()
    model: Any = SimpleNamespace(config=SimpleNamespace(encoder=small_config()), encoder=encoder)
    model_building._prepare_for_gpu_(model, dtype, print)
    assert requests == [adds]


def test_a_refusal_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastscribe.families.conformer.triton_kernels", None)
    encoder = random_encoder(small_config())
    encoder.optimise_()
    model: Any = SimpleNamespace(config=SimpleNamespace(encoder=small_config()), encoder=encoder)
    heard = RefusedPaths(lambda line: None)
    model_building._prepare_for_gpu_(model, "fp32", heard)
    assert heard.reasons.keys() == {"triton"} and heard.reasons["triton"].startswith("Triton cannot be imported (")


def test_detects_ignored_window() -> None:
    """A device where only local attention is wrong, because it attends to all frames."""

    def wrong(*arguments):
        return TORCH.rel_attention(*arguments[:4])

    broken = dataclasses.replace(TORCH, rel_attention=wrong)
    config = model_config(attention=LocalAttention(128, 128))
    assert find_wrong_operation(broken, model_config(), torch.float32, torch.device("cpu")) is None
    assert find_wrong_operation(broken, config, torch.float32, torch.device("cpu")) == "rel_attention"


@needs_triton
def test_interpreted_kernels() -> None:
    """Run in a subprocess, because Triton decides at import whether to interpret kernels. Not every GPU has fp8."""
    files = ["tests/fakes/interpreted_fp8.py"]
    if not torch.cuda.is_available():  # else the tests on the device say more
        files.append("tests/fakes/interpreted_kernels.py")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


MAX_SHARED_BYTES = 99 * 1024  # per program on any device since Ampere
# Cases of compiled_kernels.py that compile within seconds: each kernel and its variants for one device, and attention, whose
# products are other instructions on each, for every device. Local attention has all that attention has.
EVERYWHERE = (
    ("local attention, heads of 128", torch.bfloat16),
    ("attention, heads of 64", torch.float32),
    ("GLU and 9 taps, 1024 channels", torch.bfloat16),
    ("sum and two layer norms, 1024 channels", torch.bfloat16),
    ("first convolutions, 256 channels", torch.bfloat16),
    ("ReLU and depthwise convolution, 256 channels", torch.bfloat16),
)
VARIANTS = (
    ("attention, heads of 128", torch.bfloat16),
    ("attention, heads of 64", torch.bfloat16),
    ("local attention, heads of 64", torch.bfloat16),
    ("two layer norms, 1024 channels", torch.bfloat16),
    ("two layer norms, 512 channels", torch.float32),
)
FP8 = ("fp8 of 4096 columns", torch.bfloat16)
COMPILED = (
    *((*case, 90) for case in EVERYWHERE),
    *((*EVERYWHERE[0], capability) for capability in (80, 100)),
    *((*case, 90) for case in VARIANTS),
    *((*FP8, capability) for capability in (89, 90, 100)),
)


@needs_triton
@pytest.mark.parametrize(("name", "dtype", "capability"), COMPILED, ids=str)
def test_kernels_compile(name: str, dtype: torch.dtype, capability: int) -> None:
    from tests.helpers.compiled_kernels import WORK, compiled, launches

    (launch,) = launches(lambda: WORK[name](dtype), capability)
    kernel = compiled(launch, capability)
    assert kernel.metadata.shared <= MAX_SHARED_BYTES
    if "attention" in name and dtype == torch.bfloat16:
        products = {80: "mma.sync", 90: "wgmma", 100: "tcgen05.mma"}
        assert products[capability] in kernel.asm["ptx"]
    if name.startswith("fp8") and capability > 89:
        # Rounds to nearest. Some versions of Triton emit several instructions for sm_89.
        assert "cvt.rn.satfinite.e4m3x2.f32" in kernel.asm["ptx"]


class _Grids:
    """A fake kernel that records its grid."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]):
        self.seen.append(grid)
        return lambda *arguments, **options: None


@needs_triton
@pytest.mark.parametrize(("rows", "num_frames", "frames_a_program"), [(10_000_000, 1, 1), (1, 10_000_000, 64)])
def test_grid_sizes(monkeypatch: pytest.MonkeyPatch, rows: int, num_frames: int, frames_a_program: int) -> None:
    """A grid has at most 2^31 - 1 programs on its first axis, and 65,535 on the others."""
    from fastscribe.families.conformer import triton_kernels
    from fastscribe.families.conformer.triton_kernels import TRITON

    grids = _Grids()
    kernels = "rel_attention", "glu_depthwise", "layer_norm", "first_convolutions", "relu_depthwise"
    for name in (f"{kernel}_kernel" for kernel in kernels):
        monkeypatch.setattr(triton_kernels, name, grids)
    with torch.device("meta"):
        heads, width, lengths_B = 8, 1024, torch.empty(rows, dtype=torch.int64)
        table_rows = 2 * POSITION_ROWS_MULTIPLE * -(-num_frames // POSITION_ROWS_MULTIPLE)
        table_HRK, bias_HR = torch.empty(heads, table_rows, width // heads), torch.empty(heads, table_rows)
        x_BTD, weight_WD = torch.empty(rows, num_frames, width), torch.empty(9, width)
        TRITON.rel_attention(torch.empty(rows, num_frames, 3 * width), table_HRK, bias_HR, lengths_B)
        TRITON.glu_depthwise(torch.empty(rows, num_frames, 2 * width), weight_WD, None, lengths_B, True)
        TRITON.layer_norm(x_BTD, None, weight_WD[0], weight_WD[0])
        weight_9C = torch.empty(9, 256)
        features_BTM = torch.empty(rows, num_frames, 128)
        TRITON.first_convolutions(features_BTM, weight_9C, weight_9C[0], weight_9C, lengths_B)
        TRITON.relu_depthwise(torch.empty(rows, num_frames, 32, 256), weight_9C)
    assert len(grids.seen) == len(kernels)
    for grid in grids.seen:
        assert rows * num_frames // frames_a_program <= grid[0] < 2**31 and max(grid[1:], default=1) <= 65_535


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@needs_triton
class TestOnTheDevice:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("width", [64, 128])
    @pytest.mark.parametrize(
        "attention",
        [
            None,
            *(LocalAttention(*sides) for sides in ((128, 128), (64, 0), (0, 31), (300, 65), (5000, 5000))),
            *(ChunkedAttention(*sides) for sides in ((70, 13), (70, 1), (70, 0), (56, 3), (300, 99), (-1, 6), (9, -1))),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("num_frames", [1, 2, 31, 64, 65, 127, 251, 700])
    def test_rel_attention(
        self, dtype: torch.dtype, width: int, attention: AttentionConfigs | None, num_frames: int
    ) -> None:
        from fastscribe.families.conformer.triton_kernels import TRITON

        torch.manual_seed(num_frames)
        lengths_B = torch.tensor([num_frames, num_frames // 2, 1, 0])
        rows = 2 * POSITION_ROWS_MULTIPLE * -(-max_table_distance(num_frames, attention) // POSITION_ROWS_MULTIPLE)
        qkv_BTD, table_HRK = normal(4, num_frames, 12 * width).to(dtype), normal(4, rows, width).to(dtype)
        bias_HR = normal(4, rows)
        arguments = [argument.cuda() for argument in (qkv_BTD, table_HRK, bias_HR, lengths_B)]
        ours_BTD = TRITON.rel_attention(*arguments, attention).cpu()
        assert ours_BTD.isfinite().all()
        exact_BTD = TORCH.rel_attention(qkv_BTD.float(), table_HRK.float(), bias_HR, lengths_B, attention)
        close(ours_BTD, exact_BTD, real_frames(lengths_B, num_frames))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("taps", [5, 9, 15, 31])
    @pytest.mark.parametrize(("width", "num_frames"), [(512, 1), (1024, 35), (1024, 36), (512, 37), (1024, 700)])
    @pytest.mark.parametrize("is_causal", [False, True])
    def test_glu_depthwise(self, dtype: torch.dtype, taps: int, width: int, num_frames: int, is_causal: bool) -> None:
        from fastscribe.families.conformer.triton_kernels import TRITON

        torch.manual_seed(num_frames)
        lengths_B = torch.tensor([num_frames, num_frames // 2, 1, 0])
        floats = [normal(4, num_frames, 2 * width), normal(taps, width), normal(width)]
        rounded = [tensor.to(dtype) for tensor in floats]
        on_device = [tensor.cuda() for tensor in (*rounded, lengths_B)]
        ours_BTD = TRITON.glu_depthwise(*on_device, True, is_causal).cpu()
        close(ours_BTD, TORCH.glu_depthwise(*(tensor.float() for tensor in rounded), lengths_B, True, is_causal))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("channels", [64, 256, 320])
    @pytest.mark.parametrize("num_frames", [1, 30, 701])
    @pytest.mark.parametrize("is_causal", [False, True])
    def test_subsampling(self, dtype: torch.dtype, channels: int, num_frames: int, is_causal: bool) -> None:
        from fastscribe.families.conformer.triton_kernels import TRITON

        check_subsampling(TRITON, dtype, channels, num_frames, 80, is_causal, torch.device("cuda"))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"use_bias": False, "conv_norm": "layer_norm"},
            {"attention": LocalAttention(128, 128)},
            {"attention": ChunkedAttention(70, 13), "causal_conv": True, "conv_norm": "layer_norm"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize(("width", "heads"), [(512, 8), (1024, 8)])
    def test_a_model_s_operations_are_right(self, dtype: torch.dtype, changes: dict, width: int, heads: int) -> None:
        config = model_config(d_model=width, num_heads=heads, conv_kernel=9, **changes)
        operations, reason = choose_operations(config, dtype, torch.device("cuda"), adds_products=True)
        assert reason is None
        assert operations is not TORCH

    def test_offsets_beyond_32_bits(self) -> None:
        """Return the last frames of a row with more than 2^31 values as a separate row."""
        from fastscribe.families.conformer.triton_kernels import TRITON

        if torch.cuda.mem_get_info()[0] < 20 << 30:
            pytest.skip("needs 20 GB of free memory")
        torch.manual_seed(0)
        last, like = 64, {"device": "cuda", "dtype": torch.bfloat16}
        heads, width, num_frames = 64, 128, 90_000
        qkv_BTD = torch.randn(1, num_frames, 3 * heads * width, **like)
        assert qkv_BTD.numel() > 2**31
        table_rows = 2 * POSITION_ROWS_MULTIPLE * -(-num_frames // POSITION_ROWS_MULTIPLE)
        zeros = torch.zeros(heads, table_rows, width, **like), torch.zeros(heads, table_rows, device="cuda")
        ours_BTD = TRITON.rel_attention(qkv_BTD, *zeros, torch.tensor([num_frames], device="cuda"))[:, -last:]
        q_HTK, k_HTK, v_HTK = qkv_BTD[0].unflatten(1, (3, heads, width)).permute(1, 2, 0, 3)
        out_HTK = F.scaled_dot_product_attention(q_HTK[:, -last:], k_HTK, v_HTK)
        scale = float(out_HTK.float().abs().max())
        assert (ours_BTD[0] - out_HTK.transpose(0, 1).flatten(1)).float().abs().max() < 0.03 * scale
        del qkv_BTD, q_HTK, k_HTK, v_HTK, zeros
        num_frames, width = 1_100_000, 1024
        x_BTD, weight_WD = torch.randn(1, num_frames, 2 * width, **like), torch.randn(9, width, **like)
        ours_BTD = TRITON.glu_depthwise(x_BTD, weight_WD, None, torch.tensor([num_frames], device="cuda"), True)
        alone = x_BTD[:, -last:].cpu().float(), weight_WD.cpu().float(), None, torch.tensor([last]), True
        close(ours_BTD[:, 4 - last :].cpu(), TORCH.glu_depthwise(*alone)[:, 4:])
