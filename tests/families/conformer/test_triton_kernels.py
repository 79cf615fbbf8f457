"""Torch's operations equal formulas, and Triton's equal torch's: interpreted, on a device, and compiled for several devices.

Only tests marked `cuda` need a GPU. Otherwise Triton's interpreter runs the kernels on the CPU, and its compiler compiles them
for GPUs that are not present (tests/helpers/compiled_kernels.py).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable
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
from fastscribe.families.model import optimise_
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline import model_building
from tests.conftest import ROOT
from tests.families.conformer.test_encoder import random_encoder, small_config
from tests.helpers.warm_process import LIBRARIES_ALONE

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


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton works here")
def test_fallback_if_triton_fails() -> None:
    operations, refused = choose_operations(model_config(), torch.float32, torch.device("cpu"))
    assert operations is TORCH
    assert refused is not None and refused.startswith("Triton kernels are unavailable (Triton fails on this device (")
    assert "\n" not in refused


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


def prepare_for_gpu(dtype: str, say: Callable[[str], None]) -> None:
    encoder = random_encoder(small_config())
    optimise_(encoder)
    model: Any = SimpleNamespace(config=SimpleNamespace(encoder=small_config()), encoder=encoder)
    model_building._prepare_for_gpu_(model, dtype, say)


@pytest.mark.parametrize(("dtype", "adds"), [("bf16", False), ("fp32", False), ("fp8", True)])
def test_dtype_selects_variants(monkeypatch: pytest.MonkeyPatch, dtype: str, adds: bool) -> None:
    """Runs on a simulated device: the CPU, without kernel selection and quantisation."""
    requests: list[bool] = []
    monkeypatch.setattr(fused_layers, "choose_operations", lambda *given: requests.append(given[3]) or (TORCH, None))
    monkeypatch.setattr("fastscribe.families.blocks.fp8.quantise_fp8_", lambda encoder: None)
    prepare_for_gpu(dtype, print)
    assert requests == [adds]


def test_a_refusal_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastscribe.families.conformer.triton_kernels", None)
    heard = RefusedPaths(lambda line: None)
    prepare_for_gpu("fp32", heard)
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
    """Run in another process, because Triton decides at import whether to interpret kernels. Not every GPU has fp8."""
    arguments = ["-x", "-p", "no:cacheprovider", "tests/fakes/interpreted_kernels.py"]
    if torch.cuda.is_available():  # the tests on the device say more of the others
        arguments += ["-k", "fp8"]
    program = "import sys, pytest, torch; torch.set_num_threads(1); sys.exit(pytest.main(sys.argv[1:]))"
    done = LIBRARIES_ALONE.python(
        program, *arguments, env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=ROOT, timeout_s=250
    )
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
@needs_triton
class TestOnTheDevice:
    @pytest.fixture
    def triton(self) -> Operations:
        from fastscribe.families.conformer.triton_kernels import TRITON

        return TRITON

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
        self, triton: Operations, dtype: torch.dtype, width: int, attention: AttentionConfigs | None, num_frames: int
    ) -> None:
        torch.manual_seed(num_frames)
        lengths_B = torch.tensor([num_frames, num_frames // 2, 1, 0])
        rows = 2 * POSITION_ROWS_MULTIPLE * -(-max_table_distance(num_frames, attention) // POSITION_ROWS_MULTIPLE)
        qkv_BTD, table_HRK = normal(4, num_frames, 12 * width).to(dtype), normal(4, rows, width).to(dtype)
        bias_HR = normal(4, rows)
        arguments = [argument.cuda() for argument in (qkv_BTD, table_HRK, bias_HR, lengths_B)]
        ours_BTD = triton.rel_attention(*arguments, attention).cpu()
        assert ours_BTD.isfinite().all()
        exact_BTD = TORCH.rel_attention(qkv_BTD.float(), table_HRK.float(), bias_HR, lengths_B, attention)
        close(ours_BTD, exact_BTD, real_frames(lengths_B, num_frames))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("taps", [5, 9, 15, 31])
    @pytest.mark.parametrize(("width", "num_frames"), [(512, 1), (1024, 35), (1024, 36), (512, 37), (1024, 700)])
    @pytest.mark.parametrize("is_causal", [False, True])
    def test_glu_depthwise(
        self, triton: Operations, dtype: torch.dtype, taps: int, width: int, num_frames: int, is_causal: bool
    ) -> None:
        torch.manual_seed(num_frames)
        lengths_B = torch.tensor([num_frames, num_frames // 2, 1, 0])
        floats = [normal(4, num_frames, 2 * width), normal(taps, width), normal(width)]
        rounded = [tensor.to(dtype) for tensor in floats]
        on_device = [tensor.cuda() for tensor in (*rounded, lengths_B)]
        ours_BTD = triton.glu_depthwise(*on_device, True, is_causal).cpu()
        close(ours_BTD, TORCH.glu_depthwise(*(tensor.float() for tensor in rounded), lengths_B, True, is_causal))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("channels", [64, 256, 320])
    @pytest.mark.parametrize("num_frames", [1, 30, 701])
    @pytest.mark.parametrize("is_causal", [False, True])
    def test_subsampling(
        self, triton: Operations, dtype: torch.dtype, channels: int, num_frames: int, is_causal: bool
    ) -> None:
        check_subsampling(triton, dtype, channels, num_frames, 80, is_causal, torch.device("cuda"))

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
        operations, refused = choose_operations(config, dtype, torch.device("cuda"), adds_products=True)
        assert refused is None
        assert operations is not TORCH

    def test_offsets_beyond_32_bits(self, triton: Operations) -> None:
        """Return the last frames of a row with more than 2^31 values as a separate row."""
        if torch.cuda.mem_get_info()[0] < 20 << 30:
            pytest.skip("needs 20 GB of free memory")
        torch.manual_seed(0)
        last, like = 64, {"device": "cuda", "dtype": torch.bfloat16}
        heads, width, num_frames = 64, 128, 90_000
        qkv_BTD = torch.randn(1, num_frames, 3 * heads * width, **like)
        assert qkv_BTD.numel() > 2**31
        table_rows = 2 * POSITION_ROWS_MULTIPLE * -(-num_frames // POSITION_ROWS_MULTIPLE)
        zeros = torch.zeros(heads, table_rows, width, **like), torch.zeros(heads, table_rows, device="cuda")
        ours_BTD = triton.rel_attention(qkv_BTD, *zeros, torch.tensor([num_frames], device="cuda"))[:, -last:]
        q_HTK, k_HTK, v_HTK = qkv_BTD[0].unflatten(1, (3, heads, width)).permute(1, 2, 0, 3)
        out_HTK = F.scaled_dot_product_attention(q_HTK[:, -last:], k_HTK, v_HTK)
        scale = float(out_HTK.float().abs().max())
        assert (ours_BTD[0] - out_HTK.transpose(0, 1).flatten(1)).float().abs().max() < 0.03 * scale
        del qkv_BTD, q_HTK, k_HTK, v_HTK, zeros
        num_frames, width = 1_100_000, 1024
        x_BTD, weight_WD = torch.randn(1, num_frames, 2 * width, **like), torch.randn(9, width, **like)
        ours_BTD = triton.glu_depthwise(x_BTD, weight_WD, None, torch.tensor([num_frames], device="cuda"), True)
        alone = x_BTD[:, -last:].cpu().float(), weight_WD.cpu().float(), None, torch.tensor([last]), True
        close(ours_BTD[:, 4 - last :].cpu(), TORCH.glu_depthwise(*alone)[:, 4:])
