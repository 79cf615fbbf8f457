"""Utterances into batches of waveforms, read by threads while the device is busy.

Decoding and resampling release the interpreter lock, so threads are enough. Which utterances go together is batching's
choice; features are computed elsewhere. A file that cannot be read is left out of its batch and reported beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from fastscribe.audio.read import read
from fastscribe.audio.source import to_failure
from fastscribe.types import Batch, Failure, Utterance

Wave = np.ndarray | Failure
# No batch when none of its utterances could be read; a failure comes with the utterance that it cost.
Loaded = tuple[Batch | None, tuple[tuple[Utterance, Failure], ...]]


def load_batch(
    utterances: Sequence[Utterance], *, sample_rate: int, channel: int | None, pool: ThreadPoolExecutor
) -> Loaded:
    """Reads each utterance in `pool` and waits for all. Must not itself run in `pool`, which might then never finish.

    A Failure names a recording, so one whose utterances fail together is reported once for each of them.
    """
    return _gather(utterances, _submit(utterances, sample_rate, channel, pool))


def load_batches(
    plans: Iterable[Sequence[Utterance]], *, sample_rate: int, channel: int | None, threads: int, ahead: int
) -> Generator[Loaded, None, None]:
    """A batch for each plan, in order; while the caller works on one, up to `ahead` more are being read or lie ready.

    `plans` is advanced by the caller's thread. Closing the generator drops what is pending; a read under way ends by
    itself in the background.
    """
    assert threads > 0 and ahead > 0
    readers = ThreadPoolExecutor(threads, thread_name_prefix="read")
    collator = ThreadPoolExecutor(1, thread_name_prefix="collate")  # spares the caller's thread the copying
    waiting: deque[Future[Loaded]] = deque()
    try:
        for plan in plans:
            reads = _submit(plan, sample_rate, channel, readers)  # here, so that earlier batches are read first
            waiting.append(collator.submit(_gather, plan, reads))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        collator.shutdown(wait=False, cancel_futures=True)
        readers.shutdown(wait=False, cancel_futures=True)  # wakes the collator if it waits for a read that is dropped


def _submit(
    utterances: Sequence[Utterance], sample_rate: int, channel: int | None, pool: ThreadPoolExecutor
) -> list[Future[Wave]]:
    return [pool.submit(_read_or_failure, utterance, sample_rate, channel) for utterance in utterances]


def _gather(utterances: Sequence[Utterance], reads: Sequence[Future[Wave]]) -> Loaded:
    kept: list[Utterance] = []
    waves: list[np.ndarray] = []
    failures: list[tuple[Utterance, Failure]] = []
    for utterance, future in zip(utterances, reads, strict=True):
        wave = future.result()
        if isinstance(wave, Failure):
            failures.append((utterance, wave))
        else:
            kept.append(utterance)
            waves.append(wave)
    return collate(kept, waves) if kept else None, tuple(failures)


def collate(utterances: Sequence[Utterance], waves: Sequence[np.ndarray]) -> Batch:
    """Zero-padded to the longest wave: int16 when all are, else float32 with the int16 ones scaled to [-1, 1]."""
    assert len(utterances) == len(waves) > 0
    all_int16 = all(wave.dtype == np.int16 for wave in waves)
    lengths_B = np.array([len(wave) for wave in waves], dtype=np.int64)
    samples_BS = np.zeros((len(waves), int(lengths_B.max())), dtype=np.int16 if all_int16 else np.float32)
    for row, wave in zip(samples_BS, waves, strict=True):
        row[: len(wave)] = wave
        if wave.dtype == np.int16 and not all_int16:
            row[: len(wave)] *= np.float32(1 / 32768)
    return Batch(tuple(utterances), samples_BS, lengths_B)


def _read_or_failure(utterance: Utterance, sample_rate: int, channel: int | None) -> Wave:
    try:
        return read(utterance.audio, utterance.start, utterance.num_samples, sample_rate=sample_rate, channel=channel)
    except Exception as error:  # one bad file must not stop the rest, whatever is wrong with it
        return to_failure(utterance.audio, "load", error)
