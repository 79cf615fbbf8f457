"""Downmix and resampling on the device: the rows of a batch that the loader left as their files hold them.

A windowed-sinc low-pass, evaluated only where a new sample lies (polyphase; J. O. Smith, Digital Audio Resampling). Its
specification is that of soxr's HQ preset, which the CPU path uses: flat to 0.913 of the smaller Nyquist frequency, more
than 120 dB down from that frequency on, zero phase. Positions are whole numbers of native samples, so hours do not drift.

All new samples of one block (a whole number of periods, about 10 ms) come from the same span of native ones, so
resampling is one matrix product of overlapping spans with a bank of filters, about 30 MFLOP a second of audio at 16 kHz.
It must run in true float32: TF32 would leave 66 dB. Nothing here waits for the device.

Dimensions: B batch rows, R rows of one NativeRows, S samples, C channels, K blocks, W native samples in a span, P new
samples in a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from fastscribe.audio.rates import ratio
from fastscribe.types import Batch, NativeRows

_PASSBAND = 0.913  # of the smaller Nyquist frequency
_REJECTION_DB = 126.0
_BLOCK_S = 0.008  # at least; larger blocks mean larger products and less overlap
_BYTES_AT_ONCE = 1 << 28  # of spans


@dataclass(frozen=True)
class _Filters:
    bank_WP: torch.Tensor
    step: int  # native samples from one block to the next
    reach: int  # native samples of a span that lie before its block's first new sample


def fill(batch: Batch, samples_BS: torch.Tensor, sample_rate: int) -> torch.Tensor:
    """`samples_BS` (the batch's, on a device) with its native rows filled in: as it was without such rows, else float32.

    The batch's own arrays are copied to the device on the current stream and must live until it has come that far.
    """
    if not batch.native:
        return samples_BS
    filled_BS = _to_float(samples_BS, copy=True)
    for native in batch.native:
        samples_RSC = torch.from_numpy(native.samples_BSC).to(samples_BS.device, non_blocking=True)
        lengths_R = torch.from_numpy(batch.lengths_B[list(native.rows)]).to(samples_BS.device, non_blocking=True)
        resampled_RS = _resampled(samples_RSC, native, sample_rate, filled_BS.shape[1])
        positions_S = torch.arange(filled_BS.shape[1], device=samples_BS.device)
        resampled_RS.masked_fill_(positions_S >= lengths_R[:, None], 0.0)
        rows_R = torch.tensor(native.rows).to(samples_BS.device, non_blocking=True)
        filled_BS.index_copy_(0, rows_R, resampled_RS)
    return filled_BS


def _to_float(samples: torch.Tensor, copy: bool = False) -> torch.Tensor:
    if samples.dtype == torch.int16:
        return samples.to(torch.float32).mul_(1 / 32768)
    return samples.clone() if copy else samples


def _resampled(samples_RSC: torch.Tensor, native: NativeRows, sample_rate: int, length: int) -> torch.Tensor:
    """[R, length], a group of rows at a time, so that the spans of many do not fill the memory."""
    filters = _filters(native.rate, sample_rate, samples_RSC.device)
    span, block = filters.bank_WP.shape
    bytes_a_row = 4 * span * math.ceil(length / block)
    rows = max(1, _BYTES_AT_ONCE // bytes_a_row)
    return torch.cat([_resample(part_RSC, native.begin, filters, length) for part_RSC in samples_RSC.split(rows)])


def _resample(samples_RSC: torch.Tensor, begin: int, filters: _Filters, length: int) -> torch.Tensor:
    """Mono at the new rate: [R, length], of which the first sample lies at native sample `begin`."""
    mono_RS = _to_float(samples_RSC).mean(-1)
    span, block = filters.bank_WP.shape
    blocks = math.ceil(length / block)
    first = begin - filters.reach
    needed = first + (blocks - 1) * filters.step + span
    padded_RS = torch.nn.functional.pad(mono_RS, (max(0, -first), max(0, needed - mono_RS.shape[1])))
    spans_RKW = padded_RS[:, max(0, first) :].unfold(1, span, filters.step)[:, :blocks]
    return (spans_RKW @ filters.bank_WP).flatten(1)[:, :length]


@lru_cache(maxsize=32)
def _filters(native_rate: int, sample_rate: int, device: torch.device) -> _Filters:
    """New sample p of a block lies at native position p x down / up of it; a column of the bank is the filter there."""
    up, down = ratio(native_rate, sample_rate)
    periods = max(1, math.ceil(_BLOCK_S * sample_rate / up))
    num_new, step = periods * up, periods * down
    half = _half_width(native_rate, sample_rate)
    distances_WP = np.arange(-half, step + half)[:, None] - np.arange(num_new) * down / up
    bank_WP = torch.from_numpy(_response(distances_WP, native_rate, sample_rate, half).astype(np.float32))
    return _Filters(bank_WP.to(device), step, half)


def _half_width(native_rate: int, sample_rate: int) -> int:
    """Native samples on either side of a new one that matter to it (Kaiser's formula)."""
    transition = (1 - _PASSBAND) * min(native_rate, sample_rate) / 2 / native_rate
    return math.ceil((_REJECTION_DB - 7.95) / (14.36 * transition) / 2)


def _response(distances: np.ndarray, native_rate: int, sample_rate: int, half: int) -> np.ndarray:
    """Kaiser-windowed sinc with unit gain at 0 Hz and half of it in the middle of the transition band."""
    cutoff = (1 + _PASSBAND) / 2 * min(native_rate, sample_rate) / native_rate  # of the native Nyquist frequency
    beta = 0.1102 * (_REJECTION_DB - 8.7)
    window = np.i0(beta * np.sqrt(np.clip(1 - (distances / half) ** 2, 0, None))) / np.i0(beta)
    return np.where(np.abs(distances) <= half, cutoff * np.sinc(cutoff * distances) * window, 0.0)
