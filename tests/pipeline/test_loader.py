"""Batches come in order, with limited prefetch, without failed files, and loading stops when the generator is closed."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.audio.probe import planned, probe
from fastscribe.audio.read import context_samples, is_plain_ratio, read
from fastscribe.pipeline import batch_layout, loader, prefetch
from fastscribe.pipeline.interfaces import IDLE
from fastscribe.pipeline.loader import default_threads
from fastscribe.types import AudioInfo, Hypothesis, Source, Utterance
from tests.helpers.collate import collate
from tests.helpers.loading import THREADS, load_batches

RATE = 16_000
OPTIONS = {"sample_rate": RATE}


def utterance(name: str = "a", num_samples: int = 4, start: int = 0) -> Utterance:
    return Utterance(AudioInfo(name, name, RATE, 1, num_samples, is_int16=True), start, num_samples)


def load_batch(utterances, **options):
    [loaded] = load_batches([utterances], threads=3, ahead=1, **OPTIONS, **options)
    return loaded


def written(path, num_samples, **options) -> Utterance:
    samples = np.random.default_rng(num_samples).normal(0, 0.1, num_samples)
    soundfile.write(path, samples, RATE, **options)
    audio = probe(Source(str(path), str(path), path.name))
    return Utterance(audio, 0, num_samples)


@pytest.fixture
def fake_read(monkeypatch):
    """Read waves of ones, without files; record the names."""
    names: list[str] = []

    def read_into(row_S, utterance, *options):
        names.append(utterance.audio.path)
        row_S[: utterance.num_samples] = 1
        return utterance.num_samples

    monkeypatch.setattr(batch_layout, "read_into", read_into)
    return names


def test_a_failing_file_is_left_out(tmp_path):
    good = written(tmp_path / "a.wav", 1000)
    row = {"audio_filepath": "b.wav", "text": "x"}
    gone = Utterance(AudioInfo("b.wav", "b.wav", RATE, 1, 10, row=row, file=str(tmp_path / "b.wav")), 0, 10)
    batch, ((whose, failure),) = load_batch([gone, good])
    assert batch.utterances == (good,) and whose is gone
    assert (failure.path, failure.id, failure.stage, failure.row) == ("b.wav", "b.wav", "load", row)
    batch, failures = load_batch([gone, gone])
    assert batch is None and len(failures) == 2


class SlowReader:
    """Reads ones at once, but blocks for some names until they are released."""

    def __init__(self, monkeypatch, slow) -> None:
        self.slow, self.released = set(slow), threading.Event()
        monkeypatch.setattr(batch_layout, "read_into", self.read_into)

    def read_into(self, row_S, utterance, *options) -> int:
        if utterance.audio.path in self.slow:
            assert self.released.wait(20)
        row_S[: utterance.num_samples] = 1
        return utterance.num_samples


def names(batch) -> list[str]:
    return [utterance.audio.path for utterance in batch.utterances]


def numbered(sizes) -> list[list[Utterance]]:
    numbers = iter(range(1000))
    return [[utterance(str(next(numbers)), 5) for _ in range(size)] for size in sizes]


def test_late_files_leave_while_the_source_is_idle(monkeypatch, impatient):
    """Each IDLE of the source, and it yields one regularly, releases the files that were read meanwhile."""
    slow = SlowReader(monkeypatch, ["0"])
    stream = load_batches([*numbered([2]), *[IDLE] * 1000], threads=2, ahead=2, **OPTIONS)
    assert names(next(stream)[0]) == ["1"]
    assert next(stream) is IDLE
    slow.released.set()
    loaded, deadline = IDLE, time.monotonic() + 60
    while loaded is IDLE and time.monotonic() < deadline:
        loaded = next(stream)
        time.sleep(0.01)
    assert names(loaded[0]) == ["0"]
    stream.close()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), max_size=8),
    slow=st.sets(st.integers(0, 30), max_size=4),
    bad=st.sets(st.integers(0, 30), max_size=4),
    threads=st.integers(1, 3),
    ahead=st.integers(1, 3),
)
def test_each_utterance_comes_once_if_files_are_slow(sizes, slow, bad, threads, ahead):
    def read_into(row_S, utterance, *options):
        number = int(utterance.audio.path)
        time.sleep(0.03 if number in slow else 0)
        if number in bad:
            raise SystemExit
        row_S[: utterance.num_samples] = number + 1
        return utterance.num_samples

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_layout, "read_into", read_into)
        patch.setattr(prefetch, "MAX_WAIT_S", 0.01)
        loaded = list(load_batches(numbered(sizes), threads=threads, ahead=ahead, allocate=dirty_memory, **OPTIONS))
    batches = [batch for batch, _ in loaded if batch is not None]
    count = sum(sizes)
    assert sorted(int(name) for batch in batches for name in names(batch)) == [n for n in range(count) if n not in bad]
    assert sorted(int(whose.audio.path) for _, failures in loaded for whose, _ in failures) == [
        number for number in range(count) if number in bad
    ]
    for batch in batches:
        for name, row_S in zip(names(batch), batch.samples_BS, strict=True):
            assert (row_S == int(name) + 1).all()


def test_idle_source_flushes_batches(fake_read):
    planned = []

    def plans():
        for size in (1, 1, 0, 0, 1):
            planned.append(size)
            yield [utterance()] * size if size else IDLE

    stream = load_batches(plans(), threads=2, ahead=3, **OPTIONS)
    sizes = []
    for loaded in stream:
        sizes.append(0 if loaded is IDLE else len(loaded[0].utterances))
        if len(sizes) < 4:
            assert len(planned) == max(3, len(sizes))
    assert sizes == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetch_is_limited(fake_read, ahead):
    planned = []

    def plans():
        for number in range(1000):
            planned.append(number)
            yield [utterance(str(number))]

    stream = load_batches(plans(), threads=2, ahead=ahead, **OPTIONS)
    for taken in range(1, 6):
        next(stream)
        assert len(planned) == taken + ahead
    give_up = time.monotonic() + 60
    while len(fake_read) < 5 + ahead and time.monotonic() < give_up:
        time.sleep(0.001)
    assert len(fake_read) == 5 + ahead  # and that much is read while the caller works
    stream.close()


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]


def assert_threads_end() -> None:
    for thread in alive():
        thread.join(5)
    assert not alive()


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


KINDS = [
    {"file": "a.wav"},
    {"file": "b.flac"},
    {"file": "c.wav", "subtype": "PCM_24"},
    {"file": "d.wav", "rate": 44_100},
    {"file": "e.flac", "channels": 2},
    {"file": "f.flac", "rate": 48_000, "channels": 2},
    {"file": "g.wav", "rate": 44_100, "channels": 2, "subtype": "FLOAT"},
    {"file": "h.wav", "rate": 44_099},
]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> list[AudioInfo]:
    folder = tmp_path_factory.mktemp("recordings")
    found = []
    for kind in KINDS:
        path, rate = folder / kind["file"], kind.get("rate", RATE)
        noise = np.random.default_rng(0).normal(0, 0.1, (rate, kind.get("channels", 1)))
        soundfile.write(path, noise, rate, subtype=kind.get("subtype"))
        found.append(probe(Source(str(path), str(path), path.name)))
    return found


def utterances_of(
    recordings: list[AudioInfo], picks: list[tuple[int, int, int]], channel: int | None = None
) -> list[Utterance]:
    """Return utterances from (recording, first hundredth, last hundredth)."""
    return [
        Utterance(
            replace(audio, channel=channel), begin * audio.num_samples // 100, (end - begin) * audio.num_samples // 100
        )
        for audio, begin, end in ((recordings[which], begin, begin + size) for which, begin, size in picks)
    ]


picks = st.lists(
    st.tuples(st.integers(0, len(KINDS) - 1), st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=7
)


@settings(max_examples=30, deadline=None)
@given(picks=picks, channel=st.sampled_from([None, 0]))
def test_batch_equals_collated_waves(recordings, picks, channel):
    plan = utterances_of(recordings, picks, channel)
    waves = [read(u.audio, u.start, u.num_samples, sample_rate=RATE) for u in plan]
    expected = collate(plan, waves)
    [(batch, failures)] = load_batches([plan], sample_rate=RATE, threads=2, ahead=1, allocate=dirty_memory)
    assert failures == () and batch.utterances == expected.utterances and batch.native == ()
    assert batch.samples_BS.dtype == expected.samples_BS.dtype
    np.testing.assert_array_equal(batch.samples_BS, expected.samples_BS)
    np.testing.assert_array_equal(batch.lengths_B, expected.lengths_B)


@pytest.mark.parametrize("native", [False, True])
def test_digital_silence_is_not_decoded(tmp_path, native):
    """At each rate, mono and stereo; one sample that is not zero is decoded, and so is what surrounds silence."""
    plan, expected = [], []
    for rate, channels in [(RATE, 1), (8_000, 1), (44_100, 2)]:
        for kind in ("zeros", "sound in the middle", "one sample"):
            samples = np.zeros((2 * rate, channels))
            if kind == "sound in the middle":
                samples[rate - 100 : rate + 100] = 0.1
            elif kind == "one sample":
                samples[-1] = 0.1
            path = str(tmp_path / f"{kind} {rate}.wav")
            soundfile.write(path, samples, rate, subtype="PCM_16")
            audio = probe(Source(path, path, f"{kind} {rate}"))
            plan.append(Utterance(audio, 0, audio.num_samples))
            expected.append(kind != "zeros")
    [(batch, settled)] = load_batches([plan], sample_rate=RATE, threads=2, ahead=1, native=native)
    assert batch.utterances == tuple(one for one, is_decoded in zip(plan, expected, strict=True) if is_decoded)
    assert settled == tuple(
        (one, Hypothesis()) for one, is_decoded in zip(plan, expected, strict=True) if not is_decoded
    )


def dirty_memory(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.full(shape, 77, dtype)


@settings(max_examples=30, deadline=None)
@given(picks=picks, channel=st.sampled_from([None, 0]))
def test_native_rows_hold_the_files_samples(recordings, picks, channel):
    plan = utterances_of(recordings, picks, channel)
    [(batch, failures)] = load_batches([plan], sample_rate=RATE, threads=2, ahead=1, allocate=dirty_memory, native=True)
    assert failures == ()
    places = {row: (group, index) for group in batch.native for index, row in enumerate(group.rows)}
    assert len(places) == sum(len(group.rows) for group in batch.native)
    for row, utterance in enumerate(plan):
        audio = utterance.audio
        wave = read(audio, utterance.start, utterance.num_samples, sample_rate=RATE)
        assert batch.lengths_B[row] == len(wave)
        downmixed = audio.channels > 1 and channel is None
        assert (row in places) == ((audio.sample_rate != RATE or downmixed) and is_plain_ratio(audio.sample_rate, RATE))
        if row in places:
            assert not batch.samples_BS[row].any()
            check_native(*places[row], utterance, channel)
        elif batch.samples_BS.dtype == wave.dtype:
            np.testing.assert_array_equal(batch.samples_BS[row, : len(wave)], wave)


def check_native(group, index: int, utterance: Utterance, channel: int | None) -> None:
    """The stretch begins at `begin`, surrounded by the recording's own samples up to the context, then zeros."""
    audio, samples_SC = utterance.audio, group.samples_BSC[index]
    whole_SC = soundfile.read(audio.path, dtype=samples_SC.dtype.name, always_2d=True)[0]
    whole_SC = whole_SC if channel is None else whole_SC[:, [channel]]
    margin = context_samples(audio.sample_rate, RATE)
    assert (group.rate, group.begin) == (audio.sample_rate, margin)
    begin, end = utterance.start, utterance.start + utterance.num_samples
    step = audio.sample_rate // math.gcd(audio.sample_rate, RATE)
    before = min(margin, begin // step * step)
    known_SC = whole_SC[begin - before : end + margin]
    at = margin - before
    np.testing.assert_array_equal(samples_SC[at : at + len(known_SC)], known_SC)
    assert not samples_SC[:at].any() and not samples_SC[at + len(known_SC) :].any()


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("lost", [0, 10, 9000])
def test_batches_are_contiguous_in_the_callers_memory(monkeypatch, tmp_path, recordings, native, lost):
    """Otherwise its copy to a device is not from pinned memory, and the host waits for it."""
    given_memory = []

    def allocate(shape, dtype):
        given_memory.append(dirty_memory(shape, dtype))
        return given_memory[-1]

    def read_into(row_S, utterance, *options, real=batch_layout.read_into):
        return real(row_S, utterance, *options) - (lost if utterance is longest else 0)

    monkeypatch.setattr(batch_layout, "read_into", read_into)
    longest = written(tmp_path / "a.wav", 2 * RATE)
    gone = Utterance(AudioInfo("gone", "gone", 48_000, 2, 48_000, is_int16=True), 0, 48_000)
    stereo = [Utterance(recordings[5], start, 10_000) for start in (0, 20_000)]
    plan = [stereo[0], gone, longest, gone, stereo[1], Utterance(recordings[0], 0, RATE)]
    batch, failures = load_batch(plan, allocate=allocate, native=native)
    kept = [stereo[0], longest, stereo[1], plan[-1]]
    assert len(failures) == 2 and batch.utterances == tuple(kept)
    assert batch.samples_BS.shape[1] == (2 * RATE - lost if lost == 9000 else 2 * RATE)
    for array in (batch.samples_BS, *(group.samples_BSC for group in batch.native)):
        assert array.flags.c_contiguous and any(np.shares_memory(array, memory) for memory in given_memory)
    (clean, _) = load_batch(kept, native=native)
    width = clean.samples_BS.shape[1]
    np.testing.assert_array_equal(batch.samples_BS[:, :width], clean.samples_BS)
    assert [group.rows for group in batch.native] == [group.rows for group in clean.native]
    for ours, expected in zip(batch.native, clean.native, strict=True):
        width = expected.samples_BSC.shape[1]
        np.testing.assert_array_equal(ours.samples_BSC[:, :width], expected.samples_BSC)


def unread(audio: AudioInfo, offset_s: float | None, duration_s: float) -> Utterance:
    source = Source(audio.path, audio.path, audio.id, offset_s=offset_s, duration_s=duration_s)
    found = planned(source, RATE)
    return Utterance(found, 0, found.num_samples)


def test_unopened_files(recordings):
    """Results equal those of opened files; a duration that is too long is cut at the end. Channels and rates may differ."""
    cuts = [(None, 0.5), (0.25, 0.5), (0.5, 30.0), (None, 1.0)]
    plan = [unread(audio, *cuts[which % 4]) for which, audio in enumerate(recordings)]
    audios = [probe(item.audio.unread) for item in plan]
    known = [Utterance(audio, 0, audio.num_samples) for audio in audios]
    assert any(audio.channels > 1 for audio in audios) and len({audio.sample_rate for audio in audios}) > 2
    batch, failures = load_batch(plan, allocate=dirty_memory)
    expected, _ = load_batch(known, allocate=dirty_memory)
    assert failures == () and batch.utterances == tuple(known)
    assert all(item.audio.unread is None for item in batch.utterances)
    np.testing.assert_array_equal(batch.samples_BS, expected.samples_BS)
    np.testing.assert_array_equal(batch.lengths_B, expected.lengths_B)


@pytest.mark.parametrize("rate", [8000, 16_000, 44_100, 48_000])
def test_what_a_manifest_promises_has_room_for_what_the_file_has(tmp_path, rate: int) -> None:
    """The promise is rounded down, and what comes out of resampling up. 16-bit samples are those of an opened file."""
    samples = np.random.default_rng(0).normal(0, 0.1, rate)
    soundfile.write(tmp_path / "a.wav", samples, rate)
    audio = probe(Source(str(tmp_path / "a.wav"), str(tmp_path / "a.wav"), "a"))
    for duration_s in (0.1, 0.12345, 1 / 3, 0.99999, 1.0):
        batch, _ = load_batch([unread(audio, None, duration_s)])
        [opened] = batch.utterances
        whole, _ = load_batch([opened])
        scale = np.float32(1 / 32768) if whole.samples_BS.dtype == np.int16 else np.float32(1)
        [length] = whole.lengths_B
        assert batch.lengths_B == [length] and batch.samples_BS.dtype == np.float32
        np.testing.assert_array_equal(batch.samples_BS[0, :length], whole.samples_BS[0] * scale)


def test_unopened_file_that_cannot_be_opened(recordings):
    gone = unread(AudioInfo("gone", "gone", RATE, 1, RATE), None, 1.0)
    beyond = unread(recordings[0], 5.0, 1.0)
    good = unread(recordings[0], None, 1.0)
    plans = [[gone, good, beyond], [gone], [Utterance(recordings[1], 0, 100)]]
    loaded = list(load_batches(plans, threads=2, ahead=1, **OPTIONS))
    failures = [(whose.audio.path, failure.stage) for _, failures in loaded for whose, failure in failures]
    assert sorted(failures) == sorted([("gone", "probe"), (recordings[0].path, "probe"), ("gone", "probe")])
    assert sum(len(batch.utterances) for batch, _ in loaded if batch is not None) == 2


def test_unopened_file_that_hangs(monkeypatch, impatient, recordings):
    released = threading.Event()

    def hanging_probe(source):
        if source.id == "hangs":
            assert released.wait(20)
        return probe(source)

    monkeypatch.setattr(loader, "probe", hanging_probe)
    hangs = unread(AudioInfo(recordings[0].path, "hangs", RATE, 1, RATE), None, 0.5)
    plans = [[hangs, unread(recordings[1], None, 0.5)], *[[unread(recordings[0], None, 0.1)]] * 9, [hangs]] * 3
    stream = load_batches(plans, threads=2, ahead=2, **OPTIONS)
    assert sum(len(next(stream)[0].utterances) for _ in range(30)) == 30
    released.set()
    assert [item.audio.id for batch, _ in stream for item in batch.utterances] == ["hangs"] * 6


def test_a_file_that_is_no_longer_16_bit(tmp_path):
    was = written(tmp_path / "a.wav", 1000)
    written(tmp_path / "a.wav", 1000, subtype="PCM_24")
    _, ((_, failure),) = load_batch([was])
    assert failure.message == "changed since the run began"


def test_default_threads_are_in_range(monkeypatch):
    assert 2 <= default_threads() <= 32
    for processors, threads in ((1, 2), (2, 2), (4, 2), (16, 14), (256, 32)):
        monkeypatch.setattr(loader, "usable_processors", lambda processors=processors: processors)
        assert default_threads() == threads
