"""Rows that are read into shared memory are those that are read into memory of their own, at the model's rate and at theirs."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from fastscribe.audio import resample
from fastscribe.audio.probe import probe
from fastscribe.pipeline.batch_layout import BatchArrays, BatchLayout, ReadRow
from fastscribe.types import Batch, Source, Utterance

RATE = 16_000


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> list[Utterance]:
    """Recordings at three rates, of one and two channels, of 16 bits and of floats, and one of silence."""
    folder, rng = tmp_path_factory.mktemp("layout"), np.random.default_rng(0)
    kinds = [("a.wav", RATE, 1, "PCM_16"), ("b.flac", 44_100, 2, "PCM_16"), ("c.wav", 8_000, 1, "PCM_16")]
    kinds += [("d.wav", 44_100, 2, "FLOAT"), ("e.wav", RATE, 1, "PCM_16"), ("silent.wav", RATE, 1, "PCM_16")]
    utterances = []
    for index, (name, rate, channels, subtype) in enumerate(kinds):
        samples = rng.uniform(-0.5, 0.5, (rate * (index + 2) // 4, channels)) * (name != "silent.wav")
        soundfile.write(folder / name, samples, rate, subtype=subtype)
        audio = probe(Source(str(folder / name), str(folder / name), name, index=index))
        utterances.append(Utterance(audio, 0, audio.num_samples))
    return utterances


def read(arrays: BatchArrays, plan: list[Utterance]) -> list[ReadRow]:
    return [arrays.read(row, utterance) for row, utterance in enumerate(plan)]


def batch(arrays: BatchArrays, rows: list[ReadRow], plan: list[Utterance], kept: list[int]) -> Batch:
    lengths_B = np.array([rows[row].length for row in kept], np.int64)
    return arrays.batch(tuple(plan[row] for row in kept), kept, lengths_B, np.empty)


def at_the_models_rate(found: Batch) -> torch.Tensor:
    return resample.fill(found, torch.from_numpy(found.samples_BS), RATE)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kept", [[0, 1, 2, 3, 4], [1, 4]])
def test_shared_memory_holds_what_memory_of_its_own_does(plan: list[Utterance], native: bool, kept: list[int]) -> None:
    layout = pickle.loads(pickle.dumps(BatchLayout.of(plan, RATE, native)))
    memory = memoryview(bytearray(layout.num_bytes))
    # A helper and a device's process have views of their own.
    rows = read(layout.placed(memory), plan)
    shared = batch(layout.placed(memory), rows, plan, kept)
    own_arrays = layout.allocate(np.empty)
    assert read(own_arrays, plan) == rows and [row.is_silent for row in rows] == [False] * 5 + [True]
    own = batch(own_arrays, rows, plan, kept)
    assert bool(shared.native) == native and len(shared.native) == len(own.native)
    assert torch.equal(at_the_models_rate(shared), at_the_models_rate(own))
    for row, (kept_row, length) in enumerate(zip(kept, shared.lengths_B, strict=True)):
        assert length == rows[kept_row].length and not at_the_models_rate(shared)[row, length:].any()


@pytest.mark.parametrize("native", [False, True])
def test_short_rows_lie_in_silence(plan: list[Utterance], native: bool) -> None:
    """They are resampled by threads; longer rows, and those of other models, stay as they are."""
    least = 3 * RATE // 2
    short = [replace(one, num_samples=one.audio.sample_rate // 2) for one in plan[:4]]
    mixed = [*short, plan[4], replace(short[0], purpose="turns")]
    layout = pickle.loads(pickle.dumps(BatchLayout.of(mixed, RATE, native, least)))
    arrays = layout.allocate(np.empty)
    rows = read(arrays, mixed)
    found = at_the_models_rate(batch(arrays, rows, mixed, list(range(6)))).float()
    plain = BatchLayout.of(mixed, RATE, native=False).allocate(np.empty)
    plain_rows = read(plain, mixed)
    expected = at_the_models_rate(batch(plain, plain_rows, mixed, list(range(6)))).float()
    assert [row.length for row in rows] == [least] * 4 + [row.length for row in plain_rows[4:]]
    assert [len(row.cuts) for row in rows[:4]] == [2] * 4 and rows[5].cuts == ()
    for row in range(4):
        length = plain_rows[row].length
        before = (least - length + 1) // 2
        assert torch.equal(found[row, before : before + length], expected[row, :length])
        assert not found[row, :before].any() and not found[row, before + length :].any()
