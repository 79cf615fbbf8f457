"""Selection of torch's or Triton's implementation of the encoder's memory-bound operations (operations.py).

Triton's is used if it compiles on the device and matches torch's results on small random cases.

Shapes: B batch, T frames, D width, H heads, K head width, R rows of a position table, W taps of a convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fastscribe.config import AttentionConfigs, ChunkedAttention, LocalAttention
from fastscribe.families.conformer.config import EncoderConfig, subsampled
from fastscribe.families.conformer.operations import POSITION_ROWS_MULTIPLE, TORCH, Operations
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.fast_paths import RefusedPath

# Of the random cases, the longest first. The last windows of 33 frames and of 34 reach into padding: subsampling's with frames
# on both sides, and causal ones.
_LENGTHS = (70, 33, 34, 1, 0)
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # relative to the largest value


def choose_operations(
    config: EncoderConfig | GraniteConfig, dtype: torch.dtype, device: torch.device, adds_products: bool = False
) -> tuple[Operations, RefusedPath | None]:
    """Select an implementation, after compiling and testing the kernels that such a model runs.

    Args:
        config: config of the encoder.
        dtype: dtype of the encoder.
        device: device of the encoder.
        adds_products: True if norms add products to the stream, as with fp8. Only then are these variants tested, so that
            their failure does not affect other models.

    Returns:
        Triton's operations and None, or torch's and the line that says why.
    """
    try:
        from fastscribe.families.conformer.triton_kernels import TRITON
    except ImportError as error:
        return _refused(f"Triton cannot be imported ({error})")
    try:
        wrong = find_wrong_operation(TRITON, config, dtype, device, adds_products)
    except Exception as error:  # a compiler, a driver or a missing tool may fail in any way; none must stop the run
        summary = " ".join(str(error).split())[:200]
        return _refused(f"Triton fails on this device ({type(error).__name__}: {summary})")
    return _refused(f"Triton computes {wrong} wrongly on this device") if wrong else (TRITON, None)


def _refused(reason: str) -> tuple[Operations, RefusedPath]:
    return TORCH, RefusedPath("triton", reason, f"Triton kernels are unavailable ({reason}); using torch's")


def find_wrong_operation(
    form: Operations,
    config: EncoderConfig | GraniteConfig,
    dtype: torch.dtype,
    device: torch.device,
    adds_products: bool = False,
) -> str | None:
    """Return the name of the first operation that differs from torch's in float32 on the CPU by more than rounding."""
    lengths_B = torch.tensor(_LENGTHS)
    for name, *arguments in _random_cases(config, dtype, lengths_B, adds_products):
        exact = [one.float().clone() if torch.is_tensor(one) and one.is_floating_point() else one for one in arguments]
        ours = [one.to(device, copy=True) if torch.is_tensor(one) else one for one in arguments]
        expected_BTD = getattr(TORCH, name)(*exact)
        with torch.cuda.device_of(ours[0]):
            result_BTD = getattr(form, name)(*ours)
        # Operations may write to the first argument.
        for got, right in ((result_BTD, expected_BTD), (ours[0], exact[0])):
            got = got.cpu().float()
            real_BT = torch.arange(got.shape[1]) < _real_frames(got.shape[1], lengths_B, config)[:, None]
            error = (got - right)[real_BT].abs().max()
            if not got.isfinite().all() or error > _TOLERANCE[dtype] * right.abs().max():
                return str(name)
    return None


def _real_frames(num_frames: int, lengths_B: torch.Tensor, config: EncoderConfig | GraniteConfig) -> torch.Tensor:
    """Return the rows' valid frames in a tensor of the batch, which may be subsampled."""
    is_causal = isinstance(config, EncoderConfig) and config.causal_subsampling
    times = next(n for n in range(3) if subsampled(_LENGTHS[0], n, is_causal) == num_frames)
    return subsampled(lengths_B, times, is_causal)


def _random_cases(
    config: EncoderConfig | GraniteConfig, dtype: torch.dtype, lengths_B: torch.Tensor, adds_products: bool
) -> Iterator[tuple[Any, ...]]:
    """Yield name and arguments of each operation on a small batch, in every variant that a model of this config runs."""
    random = torch.Generator().manual_seed(0)
    batch, num_frames = len(lengths_B), int(lengths_B.max())
    width, heads, rows = config.d_model, config.num_heads, 2 * POSITION_ROWS_MULTIPLE

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    table_HRK, bias_HR = normal(heads, rows, width // heads), normal(heads, rows).float()
    window: AttentionConfigs | None = None
    channels, batch_norm, use_bias, is_causal = width, True, True, False
    if isinstance(config, GraniteConfig):
        channels = config.conv_width
    else:
        window, use_bias, is_causal = config.attention, config.use_bias, config.causal_conv
        batch_norm = config.conv_norm == "batch_norm"
    if window is not None:  # blocks begin and end inside the batch
        window = ChunkedAttention(40, 4) if isinstance(window, ChunkedAttention) else LocalAttention(40, 3)
    yield "rel_attention", normal(batch, num_frames, 3 * width), table_HRK, bias_HR, lengths_B, window
    bias_D = normal(channels) if batch_norm or use_bias else None
    gates_BTD, weight_WD = normal(batch, num_frames, 2 * channels), normal(config.conv_kernel, channels)
    yield "glu_depthwise", gates_BTD, weight_WD, bias_D, lengths_B, batch_norm, is_causal
    x_BTD = normal(batch, num_frames, width)
    shift_D = normal(width).float() if use_bias else None
    yield "layer_norm", x_BTD, None, normal(width), normal(width)
    yield "layer_norm", x_BTD, shift_D, normal(width), normal(width)
    yield "layer_norm_twice_", x_BTD, shift_D, normal(width), normal(width), normal(width), normal(width)
    if isinstance(config, EncoderConfig) and config.subsampling == "dw_striding":
        channels, is_causal = config.subsampling_channels, config.causal_subsampling
        weights = normal(9, channels), normal(channels), normal(9, channels)
        yield "first_convolutions", normal(batch, num_frames, config.num_mels), *weights, lengths_B, is_causal
        yield "relu_depthwise", normal(batch, num_frames, 6, channels), normal(9, channels), is_causal
    if not adds_products:
        return
    added_BTD = normal(batch, num_frames, width)
    yield "layer_norm", x_BTD, shift_D, normal(width), normal(width), added_BTD
    yield "layer_norm_twice_", x_BTD, shift_D, *(normal(width) for _ in range(4)), added_BTD
