"""Downmix and resampling on the device: the batch rows that the loader left at their native rate.

A windowed-sinc low-pass, evaluated only at the new samples (polyphase; J. O. Smith, Digital Audio Resampling). It meets the
specification of soxr's HQ preset, which the CPU path uses: flat to 0.913 of the smaller Nyquist frequency, more
than 120 dB down from that frequency on, zero phase. Positions are whole numbers of native samples, so hours do not drift.

All new samples of one block (a whole number of periods, about 10 ms) come from the same span of native ones, so
resampling is one matrix product of overlapping spans with a bank of filters, about 30 MFLOP a second of audio at 16 kHz.
It runs in true float32 (cuda/no_tf32.py): TF32 would leave 66 dB. Rows and blocks are processed in chunks, so that
intermediate results stay small. Nothing here waits for the device.

Dimensions: B batch rows, R rows of a chunk of NativeRows, S samples, C channels, K blocks, W native samples in a span,
P new samples in a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import torch

from fastscribe.audio.read import ratio
from fastscribe.cuda.device import small_to_device, to_device
from fastscribe.cuda.no_tf32 import no_tf32
from fastscribe.types import Batch, Float64Array, Int64Array, NativeRows

_PASSBAND = 0.913  # of the smaller Nyquist frequency
_REJECTION_DB = 126.0
_BLOCK_S = 0.008  # minimum; larger blocks mean larger products and less overlap
_BYTES_AT_ONCE = 1 << 28  # of the spans of a chunk


@dataclass(frozen=True)
class _Filters:
    bank_WP: torch.Tensor
    step: int  # native samples from one block to the next
    context: int  # native samples of a span before its block's first new sample


def fill(batch: Batch, samples_BS: torch.Tensor, sample_rate: int) -> torch.Tensor:
    """Resample the native rows of a batch that has some.

    Args:
        samples_BS: the batch's samples on a device, [B, S] int16 or float32.

    Returns:
        [B, S] float32 with the native rows filled in.

    The batch's arrays are copied on the current stream and must live until it has done so.
    """
    filled_BS = _to_float(samples_BS, copy=True)
    for native in batch.native:
        _fill(filled_BS, native, batch.lengths_B[list(native.rows)], sample_rate)
    return filled_BS


def resample_rows(samples_BS: torch.Tensor, native_rate: int, sample_rate: int) -> torch.Tensor:
    """Resample whole recordings, with silence around them: float32 [B, S * sample_rate / native_rate, rounded up]."""
    filters = _filters(native_rate, sample_rate, samples_BS.device)
    up, down = ratio(native_rate, sample_rate)
    length = -(-samples_BS.shape[1] * up // down)
    blocks = range(max(1, math.ceil(length / filters.bank_WP.shape[1])))
    return _resample(samples_BS[..., None], 0, filters, blocks)[:, :length]


def _fill(filled_BS: torch.Tensor, native: NativeRows, lengths_R: Int64Array, sample_rate: int) -> None:
    device, length = filled_BS.device, filled_BS.shape[1]
    filters = _filters(native.rate, sample_rate, device)
    span, block = filters.bank_WP.shape
    rows_R, ends_R = small_to_device(np.array([native.rows, lengths_R]), device)
    samples_RSC = to_device(native.samples_BSC, device)
    for rows, blocks in _chunks(len(native.rows), math.ceil(length / block), 4 * span):
        begin, end = blocks.start * block, min(blocks.stop * block, length)
        new_RS = _resample(samples_RSC[rows], native.begin, filters, blocks)[:, : end - begin]
        positions_S = torch.arange(begin, end, device=device)
        new_RS.masked_fill_(positions_S >= ends_R[rows, None], 0.0)
        filled_BS[:, begin:end].index_copy_(0, rows_R[rows], new_RS)


def _chunks(num_rows: int, num_blocks: int, bytes_a_block: int) -> Iterator[tuple[slice, range]]:
    """Split rows and blocks into chunks: some whole rows, or part of one."""
    rows = max(1, _BYTES_AT_ONCE // (bytes_a_block * max(1, num_blocks)))
    blocks = max(1, _BYTES_AT_ONCE // (bytes_a_block * rows))
    for row, block in product(range(0, num_rows, rows), range(0, num_blocks, blocks)):
        yield slice(row, row + rows), range(block, min(block + blocks, num_blocks))


def _to_float(samples: torch.Tensor, copy: bool = False) -> torch.Tensor:
    if samples.dtype == torch.int16:
        return samples.to(torch.float32).mul_(1 / 32768)
    return samples.clone() if copy else samples


def _resample(samples_RSC: torch.Tensor, begin: int, filters: _Filters, blocks: range) -> torch.Tensor:
    """Resample `blocks` to mono at the new rate: [R, K*P]. Block 0 begins at native sample `begin`."""
    span = filters.bank_WP.shape[0]
    first = begin - filters.context + blocks.start * filters.step
    end = first + (len(blocks) - 1) * filters.step + span
    mono_RS = _to_float(samples_RSC[:, max(0, first) : max(0, end)]).mean(-1)
    before = max(0, -first)
    padded_RS = torch.nn.functional.pad(mono_RS, (before, end - first - before - mono_RS.shape[1]))
    spans_RKW = padded_RS.unfold(1, span, filters.step)
    with no_tf32(spans_RKW.device):
        return (spans_RKW @ filters.bank_WP).flatten(1)


@lru_cache(maxsize=32)
def _filters(native_rate: int, sample_rate: int, device: torch.device) -> _Filters:
    """Build the filter bank: new sample p of a block lies at native position p x down / up, and has one column."""
    up, down = ratio(native_rate, sample_rate)
    periods = max(1, math.ceil(_BLOCK_S * sample_rate / up))
    num_new, step = periods * up, periods * down
    half = _half_width(native_rate, sample_rate)
    distances_WP = np.arange(-half, step + half)[:, None] - np.arange(num_new) * down / up
    bank_WP = torch.from_numpy(_response(distances_WP, native_rate, sample_rate, half).astype(np.float32))
    return _Filters(bank_WP.to(device), step, half)


def _half_width(native_rate: int, sample_rate: int) -> int:
    """Native samples on either side that contribute to a new one (Kaiser's formula)."""
    transition = (1 - _PASSBAND) * min(native_rate, sample_rate) / 2 / native_rate
    return math.ceil((_REJECTION_DB - 7.95) / (14.36 * transition) / 2)


def _response(distances: Float64Array, native_rate: int, sample_rate: int, half: int) -> Float64Array:
    """Kaiser-windowed sinc with gain 1 at 0 Hz and 0.5 in the middle of the transition band."""
    cutoff = (1 + _PASSBAND) / 2 * min(native_rate, sample_rate) / native_rate  # of the native Nyquist frequency
    beta = 0.1102 * (_REJECTION_DB - 8.7)
    window = np.i0(beta * np.sqrt(np.clip(1 - (distances / half) ** 2, 0, None))) / np.i0(beta)
    return np.where(np.abs(distances) <= half, cutoff * np.sinc(cutoff * distances) * window, 0.0)
