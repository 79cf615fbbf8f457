"""Channels in opposite phase: one of them is taken, wherever they cancel each other, however a recording is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.audio.mixing import joined, noted
from fastscribe.audio.probe import probe
from fastscribe.audio.read import blocks, read, read_native_into
from fastscribe.types import AudioInfo, MixNotes, Source, Utterance
from tests.conftest import AUDIO, RATE

SPEECH = soundfile.read(AUDIO / "10_1_00122.flac", dtype="float32")[0]
TONES = np.tile(SPEECH, 8)[: 20 * RATE]  # of speech, 20 s
OTHER = np.roll(TONES, 3 * RATE)


def written(path: Path, *channels: np.ndarray, offset_s: float | None = None, **options) -> AudioInfo:
    soundfile.write(path, np.clip(np.stack(channels, axis=1), -1, 1), RATE, **options)
    return probe(Source(str(path), str(path), path.name, offset_s=offset_s))


def read_whole(audio: AudioInfo) -> tuple[np.ndarray, list[tuple[int, int]]]:
    notes = MixNotes([], Counter())
    return read(audio, 0, audio.num_samples, sample_rate=RATE, notes=notes), notes.opposite


def rows(audio: AudioInfo, opposite: list[tuple[int, int]]) -> tuple[tuple[float, float], ...]:
    """Return what the recording's row says."""
    return joined(noted(audio, MixNotes(opposite, Counter())).opposite_phase, audio.duration_s)


def level(samples_S: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples_S, dtype=np.float64))))


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize(("gain", "delay"), [(-1.0, 0), (-0.95, 0), (-0.5, 0), (-1.0, 1), (-1.0, 3), (-0.95, 3)])
def test_one_channel_is_taken(tmp_path, gain, delay, subtype):
    audio = written(tmp_path / "a.wav", TONES, gain * np.roll(TONES, delay), subtype=subtype)
    samples_S, opposite = read_whole(audio)
    assert level(samples_S) == pytest.approx(level(TONES), rel=0.02)
    assert rows(audio, opposite) == ((0.0, 20.0),)


@pytest.mark.parametrize("others", [(0 * TONES, 0 * TONES, 0.1 * OTHER, 0 * TONES), (TONES, -TONES)])
def test_of_surround_sound_with_a_silent_centre_and_of_two_inverted_channels(tmp_path, others):
    audio = written(tmp_path / "a.wav", TONES, -TONES, *others)
    samples_S, opposite = read_whole(audio)
    assert bool(audio.layout) == (len(others) == 4) and rows(audio, opposite) == ((0.0, 20.0),)
    assert np.corrcoef(samples_S, TONES)[0, 1] > 0.999


def test_a_stretch_of_a_recording(tmp_path):
    """Elsewhere all channels are heard, such as the parties of a call."""
    second = OTHER.copy()
    second[8 * RATE : 14 * RATE] = -TONES[8 * RATE : 14 * RATE]
    audio = written(tmp_path / "a.wav", TONES, second)
    samples_S, opposite = read_whole(audio)
    [(begin_s, end_s)] = rows(audio, opposite)
    assert 7.5 <= begin_s <= 8.3 and 13.7 <= end_s <= 14.5
    inner, before = slice(9 * RATE, 13 * RATE), slice(0, 7 * RATE)
    assert np.corrcoef(samples_S[inner], TONES[inner])[0, 1] > 0.999
    np.testing.assert_allclose(samples_S[before], (TONES + OTHER)[before] / 2, atol=1e-4)


def test_alike_however_it_is_read(tmp_path):
    """Whole, in windows, in blocks, as a manifest's row, and for a device that takes the mean."""
    second = OTHER.copy()
    for begin, end in ((0, 3), (6, 7), (11, 15)):
        second[begin * RATE : end * RATE] = -0.97 * TONES[begin * RATE : end * RATE]
    audio = written(tmp_path / "a.wav", TONES, second)
    whole_S, _ = read_whole(audio)
    np.testing.assert_array_equal(np.concatenate(list(blocks(audio, 7_777))), whole_S)
    row = probe(Source(audio.path, audio.path, "a", offset_s=2.9, duration_s=4.3))
    np.testing.assert_array_equal(read_whole(row)[0], whole_S[row.start : row.start + row.num_samples])
    rng = np.random.default_rng(0)
    for start in (0, 1, 47_999, 96_001, *rng.integers(0, 19 * RATE, 20).tolist()):
        num_samples = min(int(rng.integers(1, 4 * RATE)), audio.num_samples - start)
        part_S = read(audio, start, num_samples, sample_rate=RATE)
        np.testing.assert_array_equal(part_S, whole_S[start : start + num_samples])
        native_SC = np.empty((num_samples, 2), np.int16)
        read_native_into(native_SC, 0, Utterance(audio, start, num_samples), RATE)
        np.testing.assert_allclose(native_SC.mean(axis=1) / 32768, part_S, atol=1.1 / 32768)


def test_no_click_where_it_begins(tmp_path):
    """A tone has no step that is larger than its own."""
    tone = 0.3 * np.sin(2 * np.pi * 200 * np.arange(8 * RATE) / RATE)
    second = np.where(np.arange(8 * RATE) < 4 * RATE + 1000, tone, -tone)
    samples_S, opposite = read_whole(written(tmp_path / "a.wav", tone, second))
    assert opposite and np.abs(np.diff(samples_S)).max() < 1.1 * np.abs(np.diff(tone)).max()


@pytest.mark.parametrize(
    "second",
    [
        np.roll(TONES, 5),
        0.3 * TONES,
        OTHER,
        -OTHER,
        np.zeros_like(TONES),
        np.random.default_rng(1).normal(0, 0.05, len(TONES)),
        -0.2 * TONES,  # its mean is as clear as the channel
    ],
    ids=["delayed", "softer", "another voice", "inverted", "silent", "noise", "soft and opposite"],
)
def test_others_are_averaged(tmp_path, second):
    audio = written(tmp_path / "a.wav", TONES, second, subtype="FLOAT")
    samples_S, opposite = read_whole(audio)
    assert rows(audio, opposite) == ()
    samples_SC = soundfile.read(audio.path, dtype="float32")[0]
    at = slice(0, opposite[0][0] if opposite else None)
    np.testing.assert_array_equal(samples_S[at], samples_SC.mean(axis=1)[at])


@pytest.mark.parametrize(
    ("leak", "alone_s"), [(0.03, (10.0, 6.0)), (0.5, (0.0, 0.0)), (1.0, (0.0, 0.0))], ids=["soft", "loud", "one voice"]
)
def test_the_time_in_which_a_channel_alone_has_sound(tmp_path, leak, alone_s):
    """As of two voices with a microphone each, if the other voice is soft there; in silence neither channel has sound."""
    noise_S = np.random.default_rng(2).normal(0, 0.3, 10 * RATE)
    voices = np.zeros((2, 20 * RATE))
    voices[0, : len(noise_S)], voices[1, 14 * RATE :] = noise_S, noise_S[: 6 * RATE]
    audio = written(tmp_path / "a.wav", voices[0] + leak * voices[1], voices[1] + leak * voices[0])
    rows_SC = np.empty((10 * RATE, 2), np.int16)
    for num_parts, read_part in ((1, read), (2, read), (2, read_native_into)):
        notes, length = MixNotes([], Counter()), audio.num_samples // num_parts
        for part in range(num_parts):
            if read_part is read:
                read(audio, part * length, length, sample_rate=RATE, notes=notes)
            else:
                read_native_into(rows_SC, 0, Utterance(audio, part * length, length), RATE, notes)
        assert noted(audio, notes).alone_s == pytest.approx(alone_s, abs=0.6)


def test_a_constant_offset_hides_nothing(tmp_path):
    samples_S, opposite = read_whole(written(tmp_path / "a.wav", TONES + 0.2, 0.2 - TONES))
    assert np.corrcoef(samples_S, TONES)[0, 1] > 0.999 and opposite


def test_what_a_row_says():
    assert joined([(5.0, 8.0), (0.0, 1.0), (1.5, 3.0), (10.0, 11.0)], 60.0) == ((0.0, 3.0), (5.0, 8.0))
    assert joined([(0.0, 0.9)], 1.0) == ((0.0, 0.9),)
    audio = replace(AudioInfo("a", "a", 100, 2, 500), start=1000)
    assert noted(audio, MixNotes([(900, 1100), (1400, 1700)], Counter())).opposite_phase == ((0.0, 1.0), (4.0, 5.0))
