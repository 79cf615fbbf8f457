"""The operations of operations.py in Triton: each tensor is read and written once, sums in float32. Needs triton.

Attention is a flash kernel (Dao et al. 2022) that computes the position scores inside the tile. For a tile of N queries by N
keys, the product of the queries with 2N-1 rows of the position table holds all scores, row i shifted by N-1-i. In consecutive
tiles of a query block the second half of a band is the first half of the next one. So each step multiplies only N new rows,
rotates row i of the product by N-1-i (`tl.gather`), and takes scores above the diagonal from the new product and the others
from the previous one. The convolution moves along time with its window in registers, so that each gate is computed once
(except the halo between chunks).

Offsets that grow with a recording are 64-bit, and every grid has one axis, because the others are limited to 65,535. So
number and length of rows are limited only by memory. The caller makes the tensors' device current.

Shapes: B batch, T frames, D width, H heads, K head width, R rows of the position table, W taps, M mels, F bins, C channels.
"""

# The kernels are Triton's language, whose types are not Python's.
# mypy: allow-untyped-decorators, disable-error-code="no-untyped-def, assignment, misc"

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from fastscribe.config import AttentionConfigs
from fastscribe.families.conformer import operations
from fastscribe.families.conformer.attention import Window
from fastscribe.families.conformer.config import subsampled

_MAX_TAPS = 15  # wider windows take most of a minute to compile


@triton.jit
def _rotated_product(q, positions_ptr, position_bias_ptr, band, rotation, WIDTH: tl.constexpr, PRECISION: tl.constexpr):
    """Return the queries' scores at the table's rows `band`, with each query's row rotated."""
    columns = tl.arange(0, WIDTH)
    p = tl.load(positions_ptr + band[:, None].to(tl.int64) * WIDTH + columns[None, :])
    product = tl.dot(q, tl.trans(p), input_precision=PRECISION) + tl.load(position_bias_ptr + band)[None, :]
    return tl.gather(product, rotation, axis=1)


@triton.jit(do_not_specialize=["num_frames", "num_rows", "left", "right", "chunk"])
def rel_attention_kernel(
    qkv_ptr,
    positions_ptr,
    position_bias_ptr,
    lengths_ptr,
    out_ptr,
    num_frames,
    num_rows,
    left,
    right,
    chunk,
    log2_scale,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LOCAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Process BLOCK queries of a head of a row in tiles of BLOCK keys.

    With LOCAL, only keys in the window, which is that of the first frame of the query's chunk.
    """
    blocks = tl.cdiv(num_frames, BLOCK)
    first, head = tl.program_id(0) % blocks * BLOCK, tl.program_id(0) // blocks % HEADS
    row = (tl.program_id(0) // (blocks * HEADS)).to(tl.int64)
    length = tl.minimum(tl.load(lengths_ptr + row).to(tl.int32), num_frames)
    in_block, columns = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    stride: tl.constexpr = 3 * HEADS * WIDTH
    qkv_ptr += row * num_frames * stride + head * WIDTH
    tile = in_block[:, None] * stride + columns[None, :]
    queries = first + in_block
    q = tl.load(qkv_ptr + first.to(tl.int64) * stride + tile, mask=queries[:, None] < num_frames, other=0.0)

    first_key, end = 0, tl.where(first < length, length, 0)
    if LOCAL:
        chunk_starts, last = queries - queries % chunk, first + BLOCK - 1
        first_key = tl.maximum(first - first % chunk - left, 0)
        end = tl.minimum(end, last - last % chunk + right + 1)
        qkv_ptr += tl.cast(first_key, tl.int64) * stride

    # Row num_rows/2 - 1 - i + j of the table is the distance from query i to key j. The first band starts at the last query
    # and the first key. Query i needs its row of the product from BLOCK - 1 - i on; above the diagonal that is the next band.
    rotation = (BLOCK - 1 - in_block[:, None] + in_block[None, :]) % BLOCK
    above_diagonal = in_block[None, :] > in_block[:, None]
    band = head * num_rows + num_rows // 2 - first - BLOCK + first_key + in_block
    last_product = _rotated_product(q, positions_ptr, position_bias_ptr, band, rotation, WIDTH, PRECISION)

    # Not -inf: for a query whose window begins in a later tile, -inf - -inf would be NaN.
    highest = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    out = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(first_key, end, BLOCK):
        band += BLOCK
        product = _rotated_product(q, positions_ptr, position_bias_ptr, band, rotation, WIDTH, PRECISION)
        position_scores = tl.where(above_diagonal, product, last_product)
        last_product = product
        keys = start + in_block
        k = tl.load(qkv_ptr + HEADS * WIDTH + tile, mask=keys[:, None] < length, other=0.0)
        v = tl.load(qkv_ptr + 2 * HEADS * WIDTH + tile, mask=keys[:, None] < length, other=0.0)
        qkv_ptr += BLOCK * stride
        scores = tl.dot(q, tl.trans(k), position_scores, input_precision=PRECISION)
        seen = keys[None, :] < length
        if LOCAL:
            seen &= keys[None, :] >= chunk_starts[:, None] - left
            seen &= keys[None, :] <= chunk_starts[:, None] + right
        scores = tl.where(seen, scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1) * log2_scale)
        shares = tl.exp2(scores * log2_scale - new_highest[:, None])
        decay = tl.exp2(highest - new_highest)
        total = total * decay + tl.sum(shares, 1)
        out = tl.dot(shares.to(v.dtype), v, out * decay[:, None], input_precision=PRECISION)
        highest = new_highest
    out = out / tl.where(total > 0, total, 1.0)[:, None]
    out_ptr += (row * num_frames + first) * (HEADS * WIDTH) + head * WIDTH
    out_ptrs = out_ptr + in_block[:, None] * (HEADS * WIDTH) + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=queries[:, None] < num_frames)


@triton.jit
def _gated(x_ptr, frame, length, channels, WIDTH: tl.constexpr):
    """Return the GLU of a frame in float32; zero before the row's start and beyond its length."""
    mask = channels < tl.where((frame >= 0) & (frame < length), WIDTH, 0)
    x_ptr += tl.cast(frame, tl.int64) * (2 * WIDTH)
    value = tl.load(x_ptr + channels, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + WIDTH + channels, mask=mask, other=0.0).to(tl.float32)
    return value * tl.sigmoid(gate)


@triton.jit(do_not_specialize=["num_frames"])
def glu_depthwise_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    lengths_ptr,
    out_ptr,
    num_frames,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    SILU: tl.constexpr,
    BEFORE: tl.constexpr,
):
    """Process CHUNK frames of BLOCK channels of a row; BEFORE taps are before the output's frame. `bias_ptr` may be None."""
    chunks, blocks = tl.cdiv(num_frames, CHUNK), tl.cdiv(WIDTH, BLOCK)
    start, block = tl.program_id(0) % chunks * CHUNK, tl.program_id(0) // chunks % blocks
    row = (tl.program_id(0) // (chunks * blocks)).to(tl.int64)
    length = tl.minimum(tl.load(lengths_ptr + row).to(tl.int32), num_frames)
    channels = block * BLOCK + tl.arange(0, BLOCK)
    x_ptr += row * num_frames * (2 * WIDTH)
    out_ptr += row * num_frames * WIDTH
    bias = tl.zeros([BLOCK], tl.float32)
    if bias_ptr is not None:
        bias += tl.load(bias_ptr + channels, mask=channels < WIDTH, other=0.0).to(tl.float32)
    weights, window = (), ()
    for tap in tl.static_range(TAPS):
        weight = tl.load(weight_ptr + tap * WIDTH + channels, mask=channels < WIDTH, other=0.0)
        weights += (weight.to(tl.float32),)
    for tap in tl.static_range(TAPS - 1):
        window += (_gated(x_ptr, start + tap - BEFORE, length, channels, WIDTH),)
    for frame in range(start, start + CHUNK, TAPS):
        for step in tl.static_range(TAPS):  # all reads first: the compiler cannot move them before a write
            window += (_gated(x_ptr, frame + step + TAPS - 1 - BEFORE, length, channels, WIDTH),)
        for step in tl.static_range(TAPS):
            total = bias
            for tap in tl.static_range(TAPS):
                total += weights[tap] * window[step + tap]
            if SILU:
                total = total * tl.sigmoid(total)
            mask = channels < tl.where(frame + step < num_frames, WIDTH, 0)
            frame_ptr = out_ptr + tl.cast(frame + step, tl.int64) * WIDTH
            tl.store(frame_ptr + channels, total.to(out_ptr.dtype.element_ty), mask=mask)
        window = window[TAPS:]


@triton.jit
def _normalised(x, weight_ptr, bias_ptr, columns, WIDTH: tl.constexpr, EPSILON: tl.constexpr):
    """Return the LayerNorm of a frame in float32. Columns beyond WIDTH are zero in the input and undefined in the output."""
    mask = columns < WIDTH
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - tl.sum(x) / WIDTH, 0.0)
    variance = tl.sum(centred * centred) / WIDTH
    return centred * tl.rsqrt(variance + EPSILON) * weight + bias


@triton.jit
def layer_norm_kernel(
    x_ptr,
    shift_ptr,
    weight1_ptr,
    bias1_ptr,
    weight2_ptr,
    bias2_ptr,
    added_ptr,
    out_ptr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Process one frame. With `weight2_ptr` the first norm overwrites x, and `out` is the second norm of it.

    With `added_ptr` x becomes x + added first. With a second norm this sum is not written, because the norm replaces it.
    """
    offset = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, BLOCK)
    mask = columns < WIDTH
    x = tl.load(x_ptr + offset + columns, mask=mask, other=0.0).to(tl.float32)
    if added_ptr is not None:
        x += tl.load(added_ptr + offset + columns, mask=mask, other=0.0).to(tl.float32)
        rounded = x.to(x_ptr.dtype.element_ty)
        if weight2_ptr is None:
            tl.store(x_ptr + offset + columns, rounded, mask=mask)
        x = rounded.to(tl.float32)
    if shift_ptr is not None:
        x += tl.load(shift_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    out = _normalised(x, weight1_ptr, bias1_ptr, columns, WIDTH, EPSILON).to(out_ptr.dtype.element_ty)
    if weight2_ptr is not None:
        tl.store(x_ptr + offset + columns, out, mask=mask)
        first = tl.where(mask, out.to(tl.float32), 0.0)
        out = _normalised(first, weight2_ptr, bias2_ptr, columns, WIDTH, EPSILON).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offset + columns, out, mask=mask)


@triton.jit
def _relu(x):
    return tl.where(x < 0, 0.0, x)  # a NaN stays one


@triton.jit
def _first_convolution(mels, weights, bias, is_real, ROW: tl.constexpr, COLUMN: tl.constexpr):
    """Return ReLU of the first convolution whose window begins at frame ROW and bin COLUMN of 7 x 5 mels; zero if padding."""
    total = bias
    for frame in tl.static_range(3):
        for place in tl.static_range(3):
            total += weights[3 * frame + place] * mels[5 * (ROW + frame) + COLUMN + place]
    return tl.where(is_real, _relu(total), 0.0)


@triton.jit(do_not_specialize=["num_frames", "out_frames", "row_stride", "frame_stride", "mel_stride"])
def first_convolutions_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    depthwise_ptr,
    once_ptr,
    out_ptr,
    num_frames,
    out_frames,
    row_stride,
    frame_stride,
    mel_stride,
    MELS: tl.constexpr,
    BINS: tl.constexpr,
    OUT_BINS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    BEFORE: tl.constexpr,
):
    """Process BLOCK channels of a frame of the output, from its lowest bin to its highest.

    `once_ptr` has the rows' valid frames of the first convolution, which makes BINS bins. A window of it is 3 x 3; its first
    column is the last one of the bin before.
    """
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    out_frame, block = tl.program_id(0) % out_frames, tl.program_id(0) // out_frames % blocks
    row = (tl.program_id(0) // (out_frames * blocks)).to(tl.int64)
    once = tl.load(once_ptr + row).to(tl.int32)
    channels = block * BLOCK + tl.arange(0, BLOCK)
    is_channel = channels < CHANNELS
    weights, depthwise = (), ()
    for tap in tl.static_range(9):
        weights += (tl.load(weight_ptr + tap * CHANNELS + channels, mask=is_channel, other=0.0).to(tl.float32),)
        depthwise += (tl.load(depthwise_ptr + tap * CHANNELS + channels, mask=is_channel, other=0.0).to(tl.float32),)
    bias = tl.load(bias_ptr + channels, mask=is_channel, other=0.0).to(tl.float32)
    middle = 2 * out_frame - BEFORE  # of the first convolution's frames, the window's first
    x_ptr += row * row_stride
    out_ptr += (row * out_frames + out_frame) * (OUT_BINS * CHANNELS)
    last0, last1, last2 = bias * 0.0, bias * 0.0, bias * 0.0
    for out_bin in range(OUT_BINS):
        next_bin = 2 * out_bin - BEFORE + 1
        mels = ()
        for i in tl.static_range(7):
            frame = 2 * middle - BEFORE + i
            frame_ptr = x_ptr + tl.cast(frame, tl.int64) * frame_stride
            for j in tl.static_range(5):
                mel = 2 * next_bin - BEFORE + j
                is_mel = (frame >= 0) & (frame < num_frames) & (mel >= 0) & (mel < MELS)
                mels += (
                    tl.load(frame_ptr + tl.cast(mel, tl.int64) * mel_stride, mask=is_mel, other=0.0).to(tl.float32),
                )
        total = depthwise[0] * last0 + depthwise[3] * last1 + depthwise[6] * last2
        is_bin = (next_bin >= 0) & (next_bin < BINS)
        for i in tl.static_range(3):
            is_real = is_bin & (middle + i >= 0) & (middle + i < once)
            total += depthwise[3 * i + 1] * _first_convolution(mels, weights, bias, is_real, 2 * i, 0)
        is_bin = (next_bin + 1 >= 0) & (next_bin + 1 < BINS)
        last0 = _first_convolution(mels, weights, bias, is_bin & (middle >= 0) & (middle < once), 0, 2)
        last1 = _first_convolution(mels, weights, bias, is_bin & (middle + 1 >= 0) & (middle + 1 < once), 2, 2)
        last2 = _first_convolution(mels, weights, bias, is_bin & (middle + 2 >= 0) & (middle + 2 < once), 4, 2)
        total += depthwise[2] * last0 + depthwise[5] * last1 + depthwise[8] * last2
        tl.store(out_ptr + out_bin * CHANNELS + channels, total.to(out_ptr.dtype.element_ty), mask=is_channel)


@triton.jit
def _relu_of(x_ptr, frame, place, num_frames, channels, BINS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return ReLU of a frame's bin in float32; zero outside."""
    is_inside = (frame >= 0) & (frame < num_frames) & (place >= 0) & (place < BINS)
    mask = channels < tl.where(is_inside, CHANNELS, 0)
    x_ptr += tl.cast(frame, tl.int64) * (BINS * CHANNELS) + place * CHANNELS
    return _relu(tl.load(x_ptr + channels, mask=mask, other=0.0).to(tl.float32))


@triton.jit(do_not_specialize=["num_frames", "out_frames"])
def relu_depthwise_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    num_frames,
    out_frames,
    BINS: tl.constexpr,
    OUT_BINS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    BEFORE: tl.constexpr,
):
    """Process BLOCK channels of a frame of the output, from its lowest bin to its highest, as first_convolutions_kernel."""
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    out_frame, block = tl.program_id(0) % out_frames, tl.program_id(0) // out_frames % blocks
    row = (tl.program_id(0) // (out_frames * blocks)).to(tl.int64)
    channels = block * BLOCK + tl.arange(0, BLOCK)
    weights = ()
    for tap in tl.static_range(9):
        weights += (
            tl.load(weight_ptr + tap * CHANNELS + channels, mask=channels < CHANNELS, other=0.0).to(tl.float32),
        )
    first = 2 * out_frame - BEFORE
    x_ptr += row * num_frames * (BINS * CHANNELS)
    out_ptr += (row * out_frames + out_frame) * (OUT_BINS * CHANNELS)
    last0, last1, last2 = weights[0] * 0.0, weights[0] * 0.0, weights[0] * 0.0
    for out_bin in range(OUT_BINS):
        place = 2 * out_bin - BEFORE + 1
        total = weights[0] * last0 + weights[3] * last1 + weights[6] * last2
        for i in tl.static_range(3):
            total += weights[3 * i + 1] * _relu_of(x_ptr, first + i, place, num_frames, channels, BINS, CHANNELS)
        last0 = _relu_of(x_ptr, first, place + 1, num_frames, channels, BINS, CHANNELS)
        last1 = _relu_of(x_ptr, first + 1, place + 1, num_frames, channels, BINS, CHANNELS)
        last2 = _relu_of(x_ptr, first + 2, place + 1, num_frames, channels, BINS, CHANNELS)
        total += weights[2] * last0 + weights[5] * last1 + weights[8] * last2
        mask = channels < CHANNELS
        tl.store(out_ptr + out_bin * CHANNELS + channels, total.to(out_ptr.dtype.element_ty), mask=mask)


def rel_attention(
    qkv_BTD: torch.Tensor,
    positions_HRK: torch.Tensor,
    bias_HR: torch.Tensor,
    lengths_B: torch.Tensor,
    attention: AttentionConfigs | None = None,
) -> torch.Tensor:
    heads, num_rows, width = positions_HRK.shape
    if not 16 <= width <= 128 or width & (width - 1):
        return operations.rel_attention(qkv_BTD, positions_HRK, bias_HR, lengths_B, attention)
    batch, num_frames, _ = qkv_BTD.shape
    window = Window.of(attention, num_frames)
    assert qkv_BTD.is_contiguous() and positions_HRK.is_contiguous() and bias_HR.is_contiguous()
    assert (
        num_rows % operations.POSITION_ROWS_MULTIPLE == 0
        and 2 * operations.max_table_distance(num_frames, attention) <= num_rows
    )
    out_BTD = qkv_BTD.new_empty(batch, num_frames, heads * width)
    block = _attention_block(qkv_BTD)
    rel_attention_kernel[(triton.cdiv(num_frames, block) * heads * batch,)](
        qkv_BTD,
        positions_HRK,
        bias_HR,
        lengths_B,
        out_BTD,
        num_frames,
        num_rows,
        window.left,
        window.right,
        window.chunk,
        math.log2(math.e) / math.sqrt(width),
        HEADS=heads,
        WIDTH=width,
        BLOCK=block,
        LOCAL=attention is not None,
        PRECISION="tf32x3" if qkv_BTD.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=1 if block * width > 4096 else 2,  # so that shared memory holds two programs per SM
        enable_fp_fusion=True,
    )
    return out_BTD


def _attention_block(qkv_BTD: torch.Tensor) -> int:
    """Return 64 for 16-bit types on Hopper and Blackwell, which multiply such tiles; else 32, because registers are limited."""
    on_hopper = qkv_BTD.is_cuda and torch.cuda.get_device_capability(qkv_BTD.device)[0] in (9, 10)
    return 64 if on_hopper and qkv_BTD.dtype != torch.float32 else 32


def glu_depthwise(
    x_BTD: torch.Tensor,
    weight_WD: torch.Tensor,
    bias_D: torch.Tensor | None,
    lengths_B: torch.Tensor,
    silu: bool,
    is_causal: bool = False,
) -> torch.Tensor:
    batch, num_frames, _ = x_BTD.shape
    taps, width = weight_WD.shape
    assert x_BTD.is_contiguous() and weight_WD.is_contiguous() and taps % 2 == 1
    out_BTD = x_BTD.new_empty(batch, num_frames, width)
    if taps > _MAX_TAPS:
        return operations.glu_depthwise(x_BTD, weight_WD, bias_D, lengths_B, silu, is_causal)
    channels = 4 if taps <= 9 else 2  # per thread, which holds a window of 2W-1 frames in registers
    chunk, block = taps * max(1, round(32 / taps)), 64 * channels
    glu_depthwise_kernel[(triton.cdiv(num_frames, chunk) * triton.cdiv(width, block) * batch,)](
        x_BTD,
        weight_WD,
        bias_D,
        lengths_B,
        out_BTD,
        num_frames,
        WIDTH=width,
        TAPS=taps,
        CHUNK=chunk,
        BLOCK=block,
        SILU=silu,
        BEFORE=taps - 1 if is_causal else taps // 2,
        num_warps=2,
        enable_fp_fusion=True,
    )
    return out_BTD


def layer_norm(
    x_BTD: torch.Tensor,
    shift_D: torch.Tensor | None,
    weight_D: torch.Tensor,
    bias_D: torch.Tensor,
    added_BTD: torch.Tensor | None = None,
) -> torch.Tensor:
    return layer_norm_twice_(x_BTD, shift_D, weight_D, bias_D, None, None, added_BTD)


def layer_norm_twice_(
    x_BTD: torch.Tensor,
    shift_D: torch.Tensor | None,
    weight1_D: torch.Tensor,
    bias1_D: torch.Tensor,
    weight2_D: torch.Tensor | None,  # None: once
    bias2_D: torch.Tensor | None,
    added_BTD: torch.Tensor | None = None,
) -> torch.Tensor:
    assert x_BTD.is_contiguous() and (added_BTD is None or added_BTD.is_contiguous())
    width = x_BTD.shape[-1]
    block = triton.next_power_of_2(width)
    out_BTD = torch.empty_like(x_BTD)
    layer_norm_kernel[(x_BTD.numel() // width,)](
        x_BTD,
        shift_D,
        weight1_D,
        bias1_D,
        weight2_D,
        bias2_D,
        added_BTD,
        out_BTD,
        WIDTH=width,
        BLOCK=block,
        EPSILON=operations.EPSILON,
        num_warps=max(1, block // 1024),  # one warp needs no synchronisation, if a frame fits into its registers
        enable_fp_fusion=True,
    )
    return out_BTD


def first_convolutions(
    x_BTM: torch.Tensor,
    weight_9C: torch.Tensor,
    bias_C: torch.Tensor,
    depthwise_9C: torch.Tensor,
    lengths_B: torch.Tensor,
    is_causal: bool = False,
) -> torch.Tensor:
    batch, num_frames, mels = x_BTM.shape
    channels = weight_9C.shape[1]
    assert weight_9C.is_contiguous() and depthwise_9C.is_contiguous()
    once_B = subsampled(lengths_B, 1, is_causal).clamp(max=subsampled(num_frames, 1, is_causal))
    out_frames, out_bins = subsampled(num_frames, 2, is_causal), subsampled(mels, 2, is_causal)
    out_BTFC = x_BTM.new_empty(batch, out_frames, out_bins, channels)
    grid, options = _by_channels(out_BTFC, is_causal)
    first_convolutions_kernel[grid](
        x_BTM,
        weight_9C,
        bias_C,
        depthwise_9C,
        once_B,
        out_BTFC,
        num_frames,
        out_frames,
        *x_BTM.stride(),
        MELS=mels,
        BINS=subsampled(mels, 1, is_causal),
        **options,
    )
    return out_BTFC


def relu_depthwise(x_BTFC: torch.Tensor, weight_9C: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    batch, num_frames, bins, channels = x_BTFC.shape
    assert x_BTFC.is_contiguous() and weight_9C.is_contiguous()
    out_frames, out_bins = (subsampled(size, 1, is_causal) for size in (num_frames, bins))
    out_BTFC = x_BTFC.new_empty(batch, out_frames, out_bins, channels)
    grid, options = _by_channels(out_BTFC, is_causal)
    relu_depthwise_kernel[grid](x_BTFC, weight_9C, out_BTFC, num_frames, out_frames, BINS=bins, **options)
    return out_BTFC


def _by_channels(out_BTFC: torch.Tensor, is_causal: bool) -> tuple[tuple[int], dict[str, Any]]:
    """Return the grid of programs for a block of channels of a frame each, and what such kernels take by name."""
    batch, frames, bins, channels = out_BTFC.shape
    block = min(256, triton.next_power_of_2(channels))
    sizes = {"OUT_BINS": bins, "CHANNELS": channels, "BLOCK": block, "BEFORE": 2 if is_causal else 1}
    # Four channels a thread if there are as many.
    options = {"num_warps": max(1, block // 128), "enable_fp_fusion": True}
    return (frames * triton.cdiv(channels, block) * batch,), sizes | options


TRITON = operations.Operations(
    rel_attention, glu_depthwise, layer_norm, layer_norm_twice_, first_convolutions, relu_depthwise
)
