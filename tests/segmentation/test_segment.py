"""Pieces cover the recording, keep the limit, are cut in quiet, and overlap if there is none."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.audio.probe import probe
from fastscribe.errors import AudioError
from fastscribe.segmentation.loudness import frame_energy, quiet_frames
from fastscribe.segmentation.segment import choose_phrases, choose_pieces, split
from fastscribe.types import AudioInfo, Source, Utterance

RATE = 8_000
levels = st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.5, 1.0]), max_size=400)


def recording(path, samples, rate=RATE, **options) -> AudioInfo:
    soundfile.write(path, samples, rate, **options)
    return probe(Source(str(path), str(path), path.name))


def speech_with_pauses(pauses_s, length_s, pause_s=0.4):
    samples = np.random.default_rng(0).normal(0, 0.1, round(length_s * RATE)).astype(np.float32)
    for closure in range(0, len(samples), RATE):
        samples[closure : closure + RATE // 20] *= 0.001
    for pause in pauses_s:
        samples[round(pause * RATE) : round((pause + pause_s) * RATE)] *= 0.001
    return samples


def pieces_of(energy, max_s, frame_s=0.02):
    energy = np.asarray(energy, dtype=np.float64)
    return choose_pieces(energy, quiet_frames(energy, frame_s), frame_s, max_s)


@given(levels, st.lists(st.booleans(), max_size=400), st.integers(1, 120))
def test_pieces_cover_in_order_and_keep_the_limit(energy, quiet, max_frames):
    quiet = np.resize(np.array(quiet or [False]), len(energy))
    pieces = choose_pieces(np.array(energy), quiet, 0.02, max_frames * 0.02)
    assert pieces[0][0] == 0 and pieces[-1][1] == len(energy)
    assert all(0 < end - begin <= max_frames for begin, end in pieces) or not energy
    for (begin, end), (next_begin, next_end) in itertools.pairwise(pieces):
        assert begin < next_begin <= end < next_end
        assert end - next_begin <= max_frames / 4
        assert next_begin == end or not is_pause(quiet, (end + next_begin) // 2)
    for begin, end in pieces[:-1]:
        assert end - begin >= 0.29 * max_frames - 1 or quiet[begin:end].all()
    for before, after in itertools.pairwise(itertools.islice(pieces, 0, None, 2)):
        assert before[1] <= after[0]  # at most two pieces hear the same


def is_pause(quiet, frame):
    return any(quiet[max(0, frame - i) : frame - i + 11].all() for i in range(11) if 0 <= frame - i <= len(quiet) - 11)


@given(levels, st.integers(1, 120), st.integers(-10, 10))
def test_pieces_do_not_depend_on_the_level(energy, max_frames, power):
    """By powers of two, so that ties stay ties; away from digital silence."""
    loud = np.maximum(np.array(energy), 1e-3)
    assert pieces_of(loud, max_frames * 0.02) == pieces_of(loud * 2.0**power, max_frames * 0.02)


@given(st.integers(0, 5000), st.integers(1, 500), st.sampled_from([0.0, 1.0]))
def test_silence_and_steady_noise(num_frames, max_frames, energy):
    pieces = pieces_of(np.full(num_frames, energy), max_frames * 0.01, 0.01)
    assert all(end - begin <= max_frames for begin, end in pieces)
    overlapping = any(end > begin for (_, end), (begin, _) in itertools.pairwise(pieces))
    if energy == 0 and num_frames >= 20 and max_frames >= 50:  # enough for a pause, and its lead
        assert not overlapping
    if energy > 0:
        assert overlapping == (num_frames > max_frames >= 8)


def with_pauses(num_frames, pauses, floor=1e-4):
    """Return the energy of 20 ms frames of loud sound with closures, quiet in the given frame ranges."""
    energy = np.random.default_rng(0).uniform(0.5, 1.0, num_frames)
    energy[25::50] = floor
    for begin, end in pauses:
        energy[begin:end] = floor
    return energy


def cuts(pieces):
    return [begin for begin, _ in pieces[1:]]


@pytest.mark.parametrize(
    ("pauses", "cut"),
    [
        ([(700, 720), (1000, 1040), (1700, 1720)], 1040 - 12),  # at the end of the longest one
        ([(1000, 1080), (1500, 1560), (1800, 1830)], 1560 - 12),  # in the last of several long ones
        ([(1700, 1714)], 1707),  # in the middle of a short one
    ],
)
def test_where_a_pause_is_cut(pauses, cut):
    assert cuts(pieces_of(with_pauses(3000, pauses), 40.0)) == [cut]


def test_a_closure_is_not_a_pause():
    pieces = pieces_of(with_pauses(3000, [(1700, 1708)]), 40.0)
    assert pieces[0][1] > pieces[1][0]


@pytest.mark.parametrize("last", [1950, 2010, 2060, 2100, 4000, 5000])
def test_long_silence_becomes_its_own_piece(last):
    """So only a piece of nothing but silence begins with a long silence."""
    energy = with_pauses(6000, [(1800, last)])
    pieces = pieces_of(energy, 40.0)
    quiet = quiet_frames(energy, 0.02)
    begins = [begin for begin, end in pieces[1:] if not quiet[begin:end].all()]
    assert begins[0] == last - 12
    assert pieces[0][1] <= 2000 and quiet[pieces[0][1] - 1]
    assert min(end - begin for begin, end in pieces) >= 50


def test_pieces_overlap_without_a_pause():
    energy = with_pauses(3000, [])
    energy[1600:1612] = 0.3
    (begin, end), (next_begin, next_end) = pieces_of(energy, 40.0)
    assert (begin, next_end) == (0, 3000)
    assert end - next_begin == 200
    assert (end + next_begin) // 2 in range(1603, 1610)


def phrases_of(energy, max_s):
    return choose_phrases(energy, quiet_frames(energy, 0.02), 0.02, max_s)


@given(levels, st.lists(st.booleans(), max_size=400), st.integers(1, 120))
def test_phrases_cover_in_order_and_keep_the_limit(energy, quiet, max_frames):
    quiet = np.resize(np.array(quiet or [False]), len(energy))
    pieces = choose_phrases(np.array(energy), quiet, 0.02, max_frames * 0.02)
    assert pieces[0][0] == 0 and pieces[-1][1] == len(energy)
    assert all(0 < end - begin <= max_frames for begin, end in pieces) or not energy
    assert all(
        begin < next_begin <= end < next_end for (begin, end), (next_begin, next_end) in itertools.pairwise(pieces)
    )


def test_every_clear_pause_separates_phrases():
    """Even where they would fit in one piece; below 0.5 s a speaker hesitates."""
    energy = with_pauses(1500, [(400, 425), (700, 724), (900, 940)])
    assert phrases_of(energy, 40.0) == [(0, 414), (414, 928), (928, 1500)]
    assert pieces_of(energy, 40.0) == [(0, 1500)]


def test_phrases_are_no_shorter_than_three_seconds():
    """Of two pauses that are closer the longer one counts, whichever comes first."""
    assert cuts(phrases_of(with_pauses(1500, [(400, 440), (480, 530)]), 40.0)) == [518]
    assert cuts(phrases_of(with_pauses(1500, [(400, 450), (490, 530)]), 40.0)) == [438]
    assert cuts(phrases_of(with_pauses(1500, [(400, 440), (530, 580)]), 40.0)) == [568]
    assert cuts(phrases_of(with_pauses(1500, [(400, 440), (540, 590)]), 40.0)) == [428, 578]
    assert cuts(phrases_of(with_pauses(1500, [(40, 100), (1410, 1450)]), 40.0)) == []


def test_long_phrases_are_cut_in_silence_first_then_at_the_least_speech():
    energy = with_pauses(1500, [(400, 440), (800, 825)])
    energy[1150:1162] = 0.3
    pieces = phrases_of(energy, 12.0)
    assert pieces[:2] == [(0, 428), (428, 814)]
    (_, end), (begin, _) = pieces[2:4]
    assert (end + begin) // 2 in range(1150, 1163) and end > begin


def test_soft_noise_is_quiet_beside_speech():
    """20 dB below it, and louder or softer in another part of the recording."""
    noise = np.concatenate([np.full(15_000, 0.01), np.full(15_000, 0.0001)])
    speech = np.random.default_rng(0).uniform(0.5, 1.5, 30_000) * np.repeat([1.0, 0.01], 15_000)
    talking = np.arange(30_000) % 400 < 340
    quiet = quiet_frames(np.where(talking, speech, noise), 0.02)
    assert (quiet == ~talking).mean() > 0.97


@pytest.mark.parametrize("num_frames", [1001, 1010, 1300, 1699, 1700, 1701, 2000, 2001])
@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_no_tiny_last_piece(num_frames, pause):
    energy = np.random.default_rng(0).random(num_frames)
    energy[np.arange(num_frames) % 40 < pause * 50] = 0
    assert min(end - begin for begin, end in pieces_of(energy, 20.0)) >= 300


def test_short_audio_is_not_opened():
    audio = AudioInfo("nowhere.wav", "nowhere.wav", RATE, 1, 20 * RATE)
    for max_s in (20.0, 40.0, 0.0):
        (utterance,) = split(audio, max_s)
        assert (utterance.start, utterance.num_samples, utterance.audio) == (0, 20 * RATE, audio)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 44_100, 44_099])
def test_cuts_lie_on_the_encoders_frames(tmp_path, rate):
    samples = np.random.default_rng(0).normal(0, 0.1, 30 * rate).astype(np.float32)
    for pause_s in (3.21, 6.54, 9.87, 13.02, 17.77, 22.2, 26.6):
        samples[round(pause_s * rate) : round((pause_s + 0.5) * rate)] *= 0.001
    audio = recording(tmp_path / "a.wav", samples, rate)
    utterances = split(audio, 5.0, frame_s=0.08)
    assert_tiles(audio, utterances, 5.0)
    for utterance in utterances:
        frame = round(utterance.start_s / 0.08)
        assert abs(utterance.start - frame * 0.08 * rate) <= 0.5
        assert rate == 44_099 or utterance.start == frame * 8 * rate // 100


def test_a_recording_is_cut_in_its_pauses(tmp_path):
    audio = recording(tmp_path / "a.flac", speech_with_pauses([4.5, 9.0, 13.2], 17.0))
    utterances = split(audio, 5.0)
    starts = [utterance.start_s for utterance in utterances]
    assert starts[:4] == pytest.approx([0.0, 4.66, 9.16, 13.36], abs=0.05)
    assert_tiles(audio, utterances, 5.0)


def assert_tiles(audio, utterances, max_s):
    """Assert that the utterances cover the recording, with overlaps of at most a part of their length."""
    assert utterances[0].start == 0
    for before, after in itertools.pairwise(utterances):
        overlap = before.start + before.num_samples - after.start
        assert 0 <= overlap <= min(4.0, max_s / 4) * audio.sample_rate + 1
    assert utterances[-1].start + utterances[-1].num_samples == audio.num_samples
    assert all(0 < utterance.duration_s <= max_s for utterance in utterances)


@pytest.mark.parametrize("max_s", [0.0001, 0.004, 0.05, 0.3])
def test_unusual_limits(tmp_path, max_s):
    audio = recording(tmp_path / "a.wav", np.tile([0.001, -0.001], RATE // 2))
    assert_tiles(audio, split(audio, max_s), max(max_s, 1 / RATE))


def test_minutes_of_digital_silence(tmp_path):
    """No model is given them; around them, a margin stays."""
    minutes = np.zeros(120 * RATE)
    audio = recording(tmp_path / "a.flac", minutes)
    assert split(audio, 40.0) == (Utterance(audio, 0, 0),)
    spoken = np.concatenate([minutes, np.tile([0.1, -0.1], RATE), minutes])
    audio = recording(tmp_path / "b.flac", spoken)
    [found] = split(audio, 40.0, 0.08)
    assert (found.start_s, found.end_s) == (pytest.approx(119.76), pytest.approx(122.48))


def test_minutes_of_near_silence_are_decoded(tmp_path):
    audio = recording(tmp_path / "a.flac", np.tile([1e-4, -1e-4], 60 * RATE))
    utterances = split(audio, 40.0)
    assert_tiles(audio, utterances, 40.0)
    assert min(utterance.duration_s for utterance in utterances) > 10


def test_the_chosen_channel_decides(tmp_path):
    samples = np.stack([speech_with_pauses([6.0], 12.0), speech_with_pauses([7.0], 12.0)], axis=1)
    audio = recording(tmp_path / "a.wav", samples)
    starts_s = [split(replace(audio, channel=channel), 10.0)[1].start_s for channel in (0, 1)]
    assert starts_s == pytest.approx([6.16, 7.16], abs=0.05)


def test_energy_ignores_offset_and_keeps_last_frame(tmp_path):
    samples = np.full(2 * RATE + 1, 0.5, dtype=np.float32)
    samples[RATE:] += np.tile([0.1, -0.1], RATE // 2 + 1)[: RATE + 1]
    audio = recording(tmp_path / "a.wav", samples, subtype="FLOAT")
    energy = frame_energy(audio, 160)
    assert len(energy) == 101
    np.testing.assert_allclose(energy[:50], 0, atol=1e-9)
    np.testing.assert_allclose(energy[50:100], 0.01, atol=1e-6)


def test_unreadable_long_recording(tmp_path):
    audio = recording(tmp_path / "a.wav", speech_with_pauses([], 12.0))
    (tmp_path / "a.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:50_000])
    with pytest.raises(AudioError, match="truncated"):
        split(audio, 5.0)
