"""Cuts: they tile, they keep the limit, they fall where it is quiet."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.audio.probe import probe
from fastscribe.audio.source import Source
from fastscribe.errors import AudioError
from fastscribe.segment import choose_cuts, frame_energy, split
from fastscribe.types import AudioInfo

RATE = 8_000
levels = st.lists(st.sampled_from([0.0, 1e-9, 0.01, 0.5, 1.0]), max_size=400)


def recording(path, samples, rate=RATE, **options) -> AudioInfo:
    soundfile.write(path, samples, rate, **options)
    return probe(Source(str(path), str(path), path.name))


def speech_with_pauses(pauses_s, length_s, pause_s=0.4):
    samples = np.random.default_rng(0).normal(0, 0.1, round(length_s * RATE)).astype(np.float32)
    for pause in pauses_s:
        samples[round(pause * RATE) : round((pause + pause_s) * RATE)] *= 0.001
    return samples


@given(levels, st.integers(1, 120))
def test_pieces_tile_and_keep_the_limit(energy, max_frames):
    cuts = choose_cuts(np.array(energy), 0.02, max_frames * 0.02)
    edges = [0, *cuts, len(energy)]
    pieces = [end - begin for begin, end in itertools.pairwise(edges)]
    assert sum(pieces) == len(energy)
    assert all(0 < piece <= max_frames for piece in pieces) or not energy
    if cuts:
        assert min(pieces) >= 0.29 * max_frames - 1
    assert bool(cuts) == (len(energy) > max_frames)


@given(levels, st.integers(1, 120), st.floats(1e-3, 1e3))
def test_cuts_do_not_depend_on_the_level(energy, max_frames, gain):
    power_of_two = 2.0 ** round(np.log2(gain))  # exact, so that ties stay ties
    quiet, loud = np.array(energy), np.array(energy) * power_of_two
    assert choose_cuts(quiet, 0.02, max_frames * 0.02) == choose_cuts(loud, 0.02, max_frames * 0.02)


@given(st.integers(0, 5000), st.integers(1, 500))
def test_silence(num_frames, max_frames):
    cuts = choose_cuts(np.zeros(num_frames), 0.01, max_frames * 0.01)
    assert all(end - begin <= max_frames for begin, end in itertools.pairwise([0, *cuts, num_frames]))


def test_the_quietest_place_before_the_limit_wins():
    energy = np.ones(6000)
    energy[1000:1040] = 0.1  # a pause, but nowhere near the limit
    energy[1700:1740] = 0.3
    energy[1800:1840] = 0.2
    assert choose_cuts(energy, 0.02, 40.0)[0] in range(1806, 1835)


def test_one_quiet_frame_is_not_a_pause():
    energy = np.ones(2000)
    energy[950] = 0.0
    energy[800:820] = 0.5
    assert choose_cuts(energy, 0.02, 20.0)[0] in range(805, 816)


def test_the_middle_of_a_long_silence():
    energy = np.ones(2000)
    energy[850:950] = 0.0
    assert choose_cuts(energy, 0.02, 20.0)[0] in range(890, 911)


@pytest.mark.parametrize("num_frames", [1001, 1010, 1300, 1699, 1700, 1701, 2000, 2001])
def test_no_tiny_last_piece(num_frames):
    energy = np.random.default_rng(0).random(num_frames)
    edges = [0, *choose_cuts(energy, 0.02, 20.0), num_frames]
    assert min(end - begin for begin, end in itertools.pairwise(edges)) >= 300


def test_short_audio_is_not_even_opened():
    audio = AudioInfo("nowhere.wav", "nowhere.wav", RATE, 1, 20 * RATE)
    for max_s in (20.0, 40.0, 0.0):
        (utterance,) = split(audio, max_s, None)
        assert (utterance.start, utterance.num_samples, utterance.audio) == (0, 20 * RATE, audio)


def test_a_recording_is_cut_in_its_pauses(tmp_path):
    audio = recording(tmp_path / "a.flac", speech_with_pauses([4.5, 9.0, 13.2], 17.0))
    utterances = split(audio, 5.0, None)
    starts = [utterance.start_s for utterance in utterances]
    assert starts[:4] == [
        0.0,
        pytest.approx(4.7, abs=0.15),
        pytest.approx(9.2, abs=0.15),
        pytest.approx(13.4, abs=0.15),
    ]
    assert_tiles(audio, utterances, 5.0)


def assert_tiles(audio, utterances, max_s):
    assert utterances[0].start == 0
    for before, after in itertools.pairwise(utterances):
        assert before.start + before.num_samples == after.start
    assert utterances[-1].start + utterances[-1].num_samples == audio.num_samples
    assert all(0 < utterance.duration_s <= max_s for utterance in utterances)


@pytest.mark.parametrize("num_samples", [5 * RATE, 5 * RATE + 1, 5 * RATE + 159, 12 * RATE - 1, 12 * RATE + 161])
@pytest.mark.parametrize("rate", [8_000, 11_025])
def test_any_length_tiles(tmp_path, num_samples, rate):
    audio = recording(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.1, num_samples), rate)
    assert_tiles(audio, split(audio, 3.0, None), 3.0)


@pytest.mark.parametrize("max_s", [0.0001, 0.004, 0.05, 0.3])
def test_limits_that_make_little_sense(tmp_path, max_s):
    audio = recording(tmp_path / "a.wav", np.zeros(RATE))
    assert_tiles(audio, split(audio, max_s, None), max(max_s, 1 / RATE))


def test_minutes_of_digital_silence(tmp_path):
    audio = recording(tmp_path / "a.flac", np.zeros(600 * RATE, dtype=np.int16))
    utterances = split(audio, 40.0, None)
    assert_tiles(audio, utterances, 40.0)
    assert min(utterance.duration_s for utterance in utterances) > 10


def test_the_chosen_channel_decides(tmp_path):
    samples = np.stack([speech_with_pauses([6.0], 12.0), speech_with_pauses([7.0], 12.0)], axis=1)
    audio = recording(tmp_path / "a.wav", samples)
    assert split(audio, 10.0, 0)[1].start_s == pytest.approx(6.2, abs=0.15)
    assert split(audio, 10.0, 1)[1].start_s == pytest.approx(7.2, abs=0.15)


def test_energy_ignores_a_constant_offset_and_counts_the_last_frame(tmp_path):
    samples = np.full(2 * RATE + 1, 0.5, dtype=np.float32)
    samples[RATE:] += np.tile([0.1, -0.1], RATE // 2 + 1)[: RATE + 1]
    audio = recording(tmp_path / "a.wav", samples, subtype="FLOAT")
    energy = frame_energy(audio, 160, None)
    assert len(energy) == 101
    np.testing.assert_allclose(energy[:50], 0, atol=1e-9)
    np.testing.assert_allclose(energy[50:100], 0.01, atol=1e-6)


def test_a_long_recording_that_cannot_be_read(tmp_path):
    audio = recording(tmp_path / "a.wav", speech_with_pauses([], 12.0))
    (tmp_path / "a.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:50_000])
    with pytest.raises(AudioError, match="truncated"):
        split(audio, 5.0, None)
