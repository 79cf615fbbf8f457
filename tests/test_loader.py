"""Batches come in order, only so far ahead, without the files that fail, and stop when nobody wants them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.audio import loader
from fastscribe.audio.loader import collate, load_batch, load_batches
from fastscribe.audio.probe import probe
from fastscribe.audio.source import Source
from fastscribe.types import AudioInfo, Failure, Utterance

RATE = 16_000
OPTIONS = {"sample_rate": RATE, "channel": None}


def utterance(name: str = "a", num_samples: int = 4, start: int = 0) -> Utterance:
    return Utterance(AudioInfo(name, name, RATE, 1, num_samples), start, num_samples)


def written(path, num_samples, **options) -> Utterance:
    samples = np.random.default_rng(num_samples).normal(0, 0.1, num_samples)
    soundfile.write(path, samples, RATE, **options)
    audio = probe(Source(str(path), str(path), path.name))
    return Utterance(audio, 0, num_samples)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(3) as threads:
        yield threads


@pytest.fixture
def fake_read(monkeypatch):
    """Waves of ones, without files; the names of what was read are kept."""
    names: list[str] = []

    def read(audio, start, num_samples, *, sample_rate, channel):
        names.append(audio.path)
        return np.ones(num_samples, dtype=np.int16)

    monkeypatch.setattr(loader, "read", read)
    return names


waves = st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=8)


@given(waves)
def test_collate(shapes):
    arrays = [
        np.arange(1, length + 1).astype(np.int16) if is_int16 else np.linspace(0.1, 1, length, dtype=np.float32)
        for length, is_int16 in shapes
    ]
    utterances = [utterance(str(number)) for number in range(len(arrays))]
    batch = collate(utterances, arrays)
    all_int16 = all(is_int16 for _, is_int16 in shapes)
    assert batch.utterances == tuple(utterances)
    assert batch.samples_BS.dtype == (np.int16 if all_int16 else np.float32)
    assert batch.samples_BS.shape == (len(arrays), max(length for length, _ in shapes))
    assert batch.lengths_B.tolist() == [length for length, _ in shapes]
    for row, wave in zip(batch.samples_BS, arrays, strict=True):
        scaled = wave if all_int16 or wave.dtype == np.float32 else wave.astype(np.float32) / 32768
        np.testing.assert_array_equal(row[: len(wave)], scaled)
        assert not row[len(wave) :].any()


def test_int16_is_scaled_to_its_full_range():
    batch = collate([utterance()] * 2, [np.array([-32768, 32767], np.int16), np.zeros(1, np.float32)])
    np.testing.assert_array_equal(batch.samples_BS[0], [-1.0, 32767 / 32768])


def test_a_batch_of_files(tmp_path, pool):
    first, second = written(tmp_path / "a.wav", 1000), written(tmp_path / "b.flac", 700)
    batch, failures = load_batch([first, second], pool=pool, **OPTIONS)
    assert failures == () and batch.samples_BS.dtype == np.int16 and batch.lengths_B.tolist() == [1000, 700]
    as_float = written(tmp_path / "c.wav", 1200, subtype="FLOAT")
    batch, failures = load_batch([first, as_float], pool=pool, **OPTIONS)
    assert failures == () and batch.samples_BS.dtype == np.float32
    np.testing.assert_array_equal(batch.samples_BS[0, :1000], soundfile.read(first.audio.path, dtype="float32")[0])


def test_a_failing_file_is_left_out(tmp_path, pool):
    good = written(tmp_path / "a.wav", 1000)
    row = {"audio_filepath": "b.wav", "text": "x"}
    gone = Utterance(AudioInfo("b.wav", "b.wav", RATE, 1, 10, row=row, file=str(tmp_path / "b.wav")), 0, 10)
    batch, ((whose, failure),) = load_batch([gone, good], pool=pool, **OPTIONS)
    assert batch.utterances == (good,) and whose is gone
    assert (failure.path, failure.id, failure.stage, failure.row) == ("b.wav", "b.wav", "load", row)
    batch, failures = load_batch([gone, gone], pool=pool, **OPTIONS)
    assert batch is None and len(failures) == 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("odd"), KeyError("k")])
def test_any_error_is_that_files_alone(monkeypatch, pool, error):
    def read(audio, start, num_samples, **options):
        if audio.path == "bad":
            raise error
        return np.ones(num_samples, dtype=np.int16)

    monkeypatch.setattr(loader, "read", read)
    batch, ((_, failure),) = load_batch([utterance("bad"), utterance("good")], pool=pool, **OPTIONS)
    assert [item.audio.path for item in batch.utterances] == ["good"]
    assert isinstance(failure, Failure) and failure.error_type == type(error).__name__ and failure.message


def test_batches_come_in_order(monkeypatch):
    def read(audio, start, num_samples, **options):
        time.sleep(0.002 * (num_samples % 3))
        return np.ones(num_samples, dtype=np.int16)

    monkeypatch.setattr(loader, "read", read)
    plans = [[utterance(f"{number}", 1 + number % 5), utterance(f"{number}b", 2)] for number in range(30)]
    found = [batch.utterances for batch, _ in load_batches(plans, threads=4, ahead=3, **OPTIONS)]
    assert found == [tuple(plan) for plan in plans]


def test_no_plans():
    assert list(load_batches([], threads=2, ahead=2, **OPTIONS)) == []


@pytest.mark.parametrize("ahead", [1, 3])
def test_reads_only_so_far_ahead(fake_read, ahead):
    planned = []

    def plans():
        for number in range(1000):
            planned.append(number)
            yield [utterance(str(number))]

    stream = load_batches(plans(), threads=2, ahead=ahead, **OPTIONS)
    for taken in range(1, 6):
        next(stream)
        assert len(planned) == taken + ahead
    give_up = time.monotonic() + 5
    while len(fake_read) < 5 + ahead and time.monotonic() < give_up:
        time.sleep(0.001)
    assert len(fake_read) == 5 + ahead  # and that much is read while the caller works
    stream.close()


def alive(prefixes=("read", "collate")) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefixes)]


def assert_threads_end() -> None:
    for thread in alive():
        thread.join(5)
    assert not alive()


def test_closing_early_is_prompt(monkeypatch):
    released = threading.Event()
    started: list[str] = []

    def read(audio, start, num_samples, **options):
        started.append(audio.path)
        if audio.path != "0":
            released.wait(5)
        return np.ones(num_samples, dtype=np.int16)

    monkeypatch.setattr(loader, "read", read)
    plans = [[utterance(str(number)) for _ in range(20)] for number in range(50)]
    stream = load_batches(plans, threads=2, ahead=4, **OPTIONS)
    next(stream)
    begin = time.monotonic()
    stream.close()
    assert time.monotonic() - begin < 1  # though two reads are under way
    released.set()
    assert_threads_end()
    assert len(started) <= 20 + 2 + 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_plans_ends_the_threads(fake_read, error):
    def plans():
        yield [utterance()]
        yield [utterance()]
        raise error

    with pytest.raises(error):
        list(load_batches(plans(), threads=2, ahead=1, **OPTIONS))
    assert_threads_end()


def test_an_interrupt_ends_the_threads(fake_read):
    stream = load_batches([[utterance()]] * 100, threads=2, ahead=2, **OPTIONS)
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        stream.throw(KeyboardInterrupt)
    assert_threads_end()


def test_no_thread_starts_before_it_is_asked():
    before = len(alive())
    stream = load_batches([[utterance()]], threads=2, ahead=2, **OPTIONS)
    assert len(alive()) == before
    stream.close()
