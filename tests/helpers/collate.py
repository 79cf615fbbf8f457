"""The definition of a batch, with all its samples in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastscribe.types import AudioInfo, Batch, SampleArray, Utterance


def utterance(wave: SampleArray) -> Utterance:
    """Return a recording of one utterance at 16 kHz."""
    return Utterance(AudioInfo("a.wav", "a.wav", 16000, 1, len(wave)), 0, len(wave))


def batch_of(waves: Sequence[SampleArray]) -> Batch:
    """Return a batch of whole recordings at 16 kHz, as `collate` does."""
    return collate(list(map(utterance, waves)), waves)


def collate(utterances: Sequence[Utterance], waves: Sequence[SampleArray]) -> Batch:
    """Return a batch of waves that are in memory already. load_batches() gives the same result.

    Args:
        utterances: One per wave.
        waves: Mono at the model's rate, one-dimensional, int16 or float32 in [-1, 1].

    Returns:
        A batch, zero-padded to the longest wave: int16 if all waves are, else float32 with the int16 ones scaled to [-1, 1].
    """
    assert len(utterances) == len(waves) > 0
    all_int16 = all(wave.dtype == np.int16 for wave in waves)
    lengths_B = np.array([len(wave) for wave in waves], dtype=np.int64)
    samples_BS = np.zeros((len(waves), int(lengths_B.max())), dtype=np.int16 if all_int16 else np.float32)
    for row, wave in zip(samples_BS, waves, strict=True):
        row[: len(wave)] = wave
        if wave.dtype == np.int16 and not all_int16:
            row[: len(wave)] *= np.float32(1 / 32768)
    return Batch(tuple(utterances), samples_BS, lengths_B)
