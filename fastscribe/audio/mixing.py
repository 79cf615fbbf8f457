"""Several channels of a recording become one. Imported when such a recording is read.

That is their mean; of surround sound, a sum with weights where its centre is not read alone (surround.py).

Channels in opposite phase cancel each other in a mix. Where most of the sound is lost, the first of two such channels replaces
the other. That is decided for blocks of BLOCK_S, from the energies of the channels and their products with each other: in the
block, if all is lost there, and in those around it. (By itself, each block would choose by its vowel where a part is lost; such
changes cost more words than the loss.) Blocks count from the file's beginning, and the sound around a window is read for them,
so that a recording is mixed alike whether it is read whole or in windows. Between different mixes, the sound is faded over.

Dimensions: S samples, C channels, K blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, groupby
from typing import Any

import numpy as np

from fastscribe.types import (
    AnyArray,
    AudioInfo,
    BoolArray,
    Float32Array,
    Float64Array,
    Int64Array,
    MixNotes,
    SampleArray,
)

BLOCK_S = 0.25
_NEAR = 3  # blocks on either side that are measured together with a block
AROUND = _NEAR + 1  # blocks on either side that take part in a decision
FADE_S = 0.01
NEAR_S = 1.0  # between two spans that are noted as one: pauses have nothing to cancel
MIN_NOTED_S = 2.0
_MEASURED = 500  # samples of a block
_PIECE_BLOCKS = 64  # that are read at once
_SILENCE = 1e-10  # energy of a mix of 16-bit samples that differ by one step now and then
_AUDIBLE = 1e-6  # energy of a channel: -60 dB
_APART = 16  # times the energy of all other channels: 12 dB
# A mix with a smaller share of the energy that unrelated channels would have is cancelled.
CANCELLED = 0.3
LOST = 0.05  # of a block alone
# Of sound with a centre, whose other channels have none; without one, all channels but the subwoofer are alike.
FRONT_WEIGHTS = {"FC": 1.0, "FL": 0.7071, "FR": 0.7071, "FLC": 0.7071, "FRC": 0.7071}
LOW = "LFE"
_CHANNELS_ADDED_IN_PAIRS = 8  # from this number on, numpy adds channels in another order

Span = tuple[int, int]


def mix_weights(layout: Sequence[str]) -> Float32Array | None:
    """Return the weights of channels by their names (channel_layout.py); None for their mean, which all have without names."""
    if not layout:
        return None
    if "FC" in layout:
        weights_C = np.array([FRONT_WEIGHTS.get(name, 0.0) for name in layout], np.float32)
    else:
        weights_C = np.array([float(name != LOW) for name in layout], np.float32)
    return np.asarray(weights_C / weights_C.sum(), np.float32)


class MixedSound:
    """An open sound whose channels are mixed, with the methods of soundfile.SoundFile that read.py uses.

    Args:
        sound: A sound.OpenSound at its beginning, or one that seek() is called for.
        weights_C: Of its channels; None: their mean.
        is_mono: True: it has one channel; False, without weights: it has all channels, whose mean is the mix.
        notes: Gets what is read shows of the channels, by samples from the file's beginning.
    """

    format = "mixed"

    def __init__(self, sound: Any, weights_C: Float32Array | None, is_mono: bool, notes: MixNotes) -> None:
        assert is_mono or weights_C is None
        self._sound, self._is_mono, self._notes = sound, is_mono, notes
        self._is_mean, channels = weights_C is None, int(sound.channels)
        self._usual_C = np.full(channels, 1 / channels, np.float32) if weights_C is None else weights_C
        self.samplerate: int = sound.samplerate
        self.subtype: str = sound.subtype
        self.channels: int = 1 if is_mono else sound.channels
        self._block: int = max(1, round(BLOCK_S * self.samplerate))
        self._position = 0  # of the next sample to give
        self._raw_SC: AnyArray | None = None  # the sound's own samples
        self._raw_begin = 0

    def seek(self, position: int) -> None:
        """Continue at this sample."""
        self._position = position
        self._raw_SC, self._raw_begin = None, self._first_block(position) * self._block
        self._sound.seek(self._raw_begin)

    def buffer_read_into(self, samples_SC: SampleArray, dtype: str) -> int:
        """Fill samples [S, C] of this dtype from the front; return the number read, which is lower at the end."""
        filled, piece = 0, _PIECE_BLOCKS * self._block
        while filled < len(samples_SC):
            wanted_SC = samples_SC[filled : filled + piece]
            got = self._fill(wanted_SC, dtype)
            filled += got
            if got < len(wanted_SC):
                break
        return filled

    def close(self) -> None:
        self._sound.close()

    def _first_block(self, position: int) -> int:
        """Return the first block that counts for the mix of a sample: by its own block, and by the one that it fades from."""
        return max(0, position // self._block - AROUND - 1)

    def _fill(self, samples_SC: SampleArray, dtype: str) -> int:
        block, first = self._block, self._first_block(self._position)
        raw_SC = self._read(first * block, (-(-(self._position + len(samples_SC)) // block) + AROUND) * block, dtype)
        begin = self._position - first * block
        end = min(begin + len(samples_SC), len(raw_SC))
        if end <= begin:
            return 0
        with np.errstate(over="ignore", invalid="ignore"):  # the reader finds such samples
            weights_KC, is_opposite_K, is_alone_KC = block_weights(raw_SC, block, self._usual_C)
            if not self._is_mono:
                samples_SC[: end - begin] = raw_SC[begin:end]
            for is_usual, low, high in self._stretches(weights_KC, begin, end):
                if self._is_mono:
                    mono_S = samples_SC[low - begin : high - begin, 0]
                    self._mix_into(raw_SC, weights_KC, low, mono_S, is_usual)
                elif not is_usual:
                    mono_S = np.empty(high - low, np.float32)
                    self._mix_into(raw_SC, weights_KC, low, mono_S)
                    rounded_S = np.rint(mono_S) if samples_SC.dtype == np.int16 else mono_S
                    samples_SC[low - begin : high - begin] = rounded_S[:, None]
        for is_opposite, low, high in _runs(is_opposite_K.tolist()):
            if is_opposite:
                self._note(first * block + max(begin, low * block), first * block + min(end, high * block))
        num_alone_C = is_alone_KC[-(-begin // block) : end // block].sum(axis=0)
        self._notes.alone.update({channel: num * block for channel, num in enumerate(num_alone_C.tolist()) if num})
        self._position += end - begin
        return end - begin

    def _read(self, begin: int, end: int, dtype: str) -> AnyArray:
        """Return the sound's own samples [S, C] from `begin` to `end`, fewer at its end. `begin` never decreases."""
        kept_SC = np.empty((0, self._sound.channels), dtype)
        if self._raw_SC is not None:
            kept_SC = self._raw_SC[begin - self._raw_begin :]
        raw_SC = np.empty((end - begin, self._sound.channels), dtype)
        raw_SC[: len(kept_SC)] = kept_SC
        got = int(self._sound.buffer_read_into(raw_SC[len(kept_SC) :], dtype))
        self._raw_SC, self._raw_begin = raw_SC[: len(kept_SC) + got], begin
        return self._raw_SC

    def _stretches(self, weights_KC: Float32Array, begin: int, end: int) -> Iterator[tuple[bool, int, int]]:
        """Yield (has, begin, end) of spans of samples: their blocks, and the ones before these, have the usual mix or not."""
        usual_K = (weights_KC == self._usual_C).all(axis=1)
        usual_K[1:] &= usual_K[:-1].copy()
        for is_usual, low, high in _runs(usual_K.tolist()):
            low, high = max(begin, low * self._block), min(end, high * self._block)
            if low < high:
                yield is_usual, low, high

    def _mix_into(
        self, raw_SC: AnyArray, weights_KC: Float32Array, begin: int, mono_S: AnyArray, is_usual: bool = False
    ) -> None:
        """Mix what begins at sample `begin` of raw_SC. Its first block may fade from the one before."""
        end = begin + len(mono_S)
        if is_usual:
            if self._is_mean:
                downmix(raw_SC[begin:end], mono_S)
            else:
                _weigh(raw_SC[begin:end], self._usual_C, mono_S)
            return
        fade = max(1, round(FADE_S * self.samplerate))
        for number in range(begin // self._block, -(-end // self._block)):
            start = number * self._block
            low, high = max(begin, start), min(end, start + self._block)
            block_SC, weights_C = raw_SC[low:high], weights_KC[number]
            _weigh(block_SC, weights_C, mono_S[low - begin : high - begin])
            before_C = weights_KC[max(0, number - 1)]
            if (before_C != weights_C).any() and low < start + fade:
                fading_SC = block_SC[: start + fade - low]
                ramp_S = (np.arange(low - start, low - start + len(fading_SC), dtype=np.float32) + 1) / (fade + 1)
                _weigh(fading_SC, before_C, old_S := np.empty(len(fading_SC), np.float32))
                part_S = mono_S[low - begin : low - begin + len(fading_SC)]
                part_S += (1 - ramp_S) * (old_S - part_S)

    def _note(self, begin: int, end: int) -> None:
        """Keep a span in which channels cancel each other."""
        if begin < end:
            spans = self._notes.opposite
            if spans and spans[-1][1] >= begin:
                begin = spans.pop()[0]
            spans.append((begin, end))


def noted(audio: AudioInfo, notes: MixNotes) -> AudioInfo:
    """Return a recording with what its mix shows of its channels."""
    rate, end_s = audio.sample_rate, audio.duration_s
    spans = [
        (max(0.0, (begin - audio.start) / rate), min(end_s, (end - audio.start) / rate))
        for begin, end in notes.opposite
    ]
    alone_s = tuple(notes.alone[channel] / rate for channel in range(audio.channels))
    return replace(audio, opposite_phase=tuple(span for span in spans if span[0] < span[1]), alone_s=alone_s)


def joined(spans_s: Iterable[tuple[float, float]], duration_s: float) -> tuple[tuple[float, float], ...]:
    """Return what a recording's row says of spans: those near each other as one, and none that is short.

    In natural stereo, single sounds cancel each other by the distance of the microphones.
    """
    found: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans_s):
        if found and begin_s - found[-1][1] <= NEAR_S:
            before_s = found.pop()
            begin_s, end_s = before_s[0], max(end_s, before_s[1])
        found.append((begin_s, end_s))
    return tuple(span for span in found if span[1] - span[0] >= min(MIN_NOTED_S, duration_s / 2))


def block_weights(raw_SC: AnyArray, block: int, usual_C: Float32Array) -> tuple[Float32Array, BoolArray, BoolArray]:
    """Return the weights of the channels in each block [K, C], whether channels cancel each other in it [K], and where one
    alone has sound [K, C].

    AROUND blocks at either end lack their neighbours, unless these are a recording's ends.
    """
    energies_KCC = _energies(raw_SC, block, _measured(block))
    products_KCC = energies_KCC * np.outer(usual_C, usual_C)
    padded_KCC = np.pad(products_KCC, ((_NEAR, _NEAR), (0, 0), (0, 0)))
    near_KCC = np.sum([padded_KCC[at : at + len(products_KCC)] for at in range(2 * _NEAR + 1)], axis=0)
    cancelled_K = _is_cancelled(near_KCC, CANCELLED)
    lost_K = _is_cancelled(products_KCC, LOST)
    weights_KC = np.tile(usual_C, (len(energies_KCC), 1))
    is_opposite_K = np.zeros(len(weights_KC), np.bool_)
    if (cancelled_K | lost_K).any():
        pairs = {
            number: tuple(_opposite_pairs((near_KCC if cancelled_K[number] else products_KCC)[number]))
            for number in np.flatnonzero(cancelled_K | lost_K).tolist()
        }
        for number in range(len(weights_KC)):
            for first, second in sorted({pair for near in (-1, 0, 1) for pair in pairs.get(number + near, ())}):
                weights_KC[number, first] += weights_KC[number, second]
                weights_KC[number, second] = 0
                is_opposite_K[number] = True
    parts_KC = np.einsum("kcc->kc", energies_KCC)
    is_alone_KC = (parts_KC > _AUDIBLE) & (parts_KC > _APART * (parts_KC.sum(axis=1, keepdims=True) - parts_KC))
    return weights_KC, is_opposite_K, is_alone_KC


@cache
def _measured(block: int) -> Int64Array:
    """Return which samples of a block are measured: irregular ones, as regular ones would make different tones alike."""
    return np.sort(np.random.default_rng(0).permutation(block)[:_MEASURED])


def _energies(raw_SC: AnyArray, block: int, measured: Int64Array) -> Float64Array:
    """Return the mean products of all pairs of channels in each block [K, C, C]."""
    num_whole, channels = len(raw_SC) // block, raw_SC.shape[1]
    parts: list[AnyArray] = [raw_SC[: num_whole * block].reshape(num_whole, block, channels)]
    if len(raw_SC) % block:
        parts.append(raw_SC[None, num_whole * block :])
    scale = 1 / 32768 if raw_SC.dtype == np.int16 else 1.0
    found = []
    for part_KSC in parts:
        places = measured[measured < part_KSC.shape[1]]
        measured_KSC = part_KSC[:, places if len(places) else slice(None)].astype(np.float32) * np.float32(scale)
        measured_KSC -= measured_KSC.mean(axis=1, keepdims=True)  # a constant offset is no sound
        products_KCC = np.matmul(measured_KSC.transpose(0, 2, 1), measured_KSC)
        found.append(products_KCC.astype(np.float64) / max(1, measured_KSC.shape[1]))
    return np.concatenate(found)


def _is_cancelled(products_KCC: Float64Array, share: float) -> BoolArray:
    parts_K = np.einsum("kcc->k", products_KCC)
    cancelled_K: BoolArray = (products_KCC.sum(axis=(1, 2)) < share * parts_K) & (parts_K > _SILENCE)
    return cancelled_K


def _opposite_pairs(products_CC: Float64Array) -> Iterator[tuple[int, int]]:
    """Yield the pairs of channels, of a mix in which they cancel, whose second the first has to replace."""
    products_CC = products_CC.copy()
    while products_CC.sum() < CANCELLED * products_CC.trace():
        pairs = list(combinations(range(len(products_CC)), 2))
        shares = [products_CC[i, j] / max(1e-30, products_CC[i, i] + products_CC[j, j]) for i, j in pairs]
        first, second = pairs[int(np.argmin(shares))]
        if products_CC[first, second] >= 0:
            return
        yield first, second
        factor = np.sqrt(products_CC[second, second] / max(1e-30, products_CC[first, first]))
        products_CC[second] = factor * products_CC[first]
        products_CC[:, second] = products_CC[second]
        products_CC[second, second] = factor * products_CC[first, second]


def _runs(values: Sequence[bool]) -> Iterator[tuple[bool, int, int]]:
    """Yield (value, begin, end) of each stretch of equal values."""
    end = 0
    for value, same in groupby(values):
        begin, end = end, end + len(list(same))
        yield value, begin, end


def _weigh(samples_SC: AnyArray, weights_C: Float32Array, mono_S: AnyArray) -> None:
    """Sum the channels [S, C] with their weights into mono_S, channel by channel, so that each sample's sum is the same."""
    mono_S[:] = 0
    for channel in np.flatnonzero(weights_C).tolist():
        mono_S += samples_SC[:, channel] * weights_C[channel]


def downmix(samples_SC: Float32Array, mono_S: AnyArray) -> None:
    """Average the channels [S, C] into mono_S, bit for bit as np.mean, thirty times as fast for two channels."""
    channels = samples_SC.shape[1]
    if channels >= _CHANNELS_ADDED_IN_PAIRS:
        np.mean(samples_SC, axis=-1, out=mono_S)
        return
    mono_S[:] = samples_SC[:, 0]
    for channel in range(1, channels):
        mono_S += samples_SC[:, channel]
    mono_S /= np.float32(channels)
