"""Only long silence that certainly is none of the speech is left out, with margins at its sound.

Rows that are too short lie in the middle of silence: their samples, and times that count from the utterance's beginning.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fastscribe.segmentation.loudness import quiet_frames
from fastscribe.segmentation.segment import split
from fastscribe.segmentation.silence import centre, find_sound, steady_quiet, trim_silence, with_cuts
from fastscribe.types import Cut, Hypothesis
from tests.segmentation.test_segment import recording

RATE = 8_000
NEW_RATE, FRAME_S, LEAST = 16_000, 0.08, 16_000  # of rows that are too short


def spans(*lengths_s):
    """Return what is found in sound and silence in turn, of these lengths, in frames of 20 ms."""
    silent = np.repeat(np.arange(len(lengths_s)) % 2 == 1, [round(length_s * 50) for length_s in lengths_s])
    return [(begin / 50, end / 50) for begin, end in find_sound(silent, 0.02)]


def test_long_silence_is_left_out_but_for_its_margins():
    assert spans(0, 1.0, 3.0) == [(0.76, 4.0)]
    assert spans(3.0, 1.0) == [(0.0, 3.5)]
    assert spans(3.0, 2.0, 3.0) == [(0.0, 3.5), (4.76, 8.0)]
    assert spans(0, 30.0, 3.0, 30.0) == [(29.76, 33.5)]
    assert spans(0, 30.0) == spans() == []


def test_shorter_silence_stays():
    assert spans(0, 0.98, 3.0, 1.98, 3.0, 0.98) == [(0.0, pytest.approx(9.94))]


def speech(seconds, level, generator):
    """Return noise whose loudness changes by 20 dB five times a second, as that of syllables does."""
    shape = np.where(np.arange(round(seconds * RATE)) * 5 // RATE % 2, 1.0, 0.1)
    return level * shape * generator.normal(0, 1, len(shape))


def split_by_phrase(tmp_path, *sounds):
    audio = recording(tmp_path / "a.wav", np.concatenate(sounds), RATE, subtype="FLOAT")
    utterances = split(audio, 12.0, 0.08, by_phrase=True)
    return [(utterance.start_s, utterance.end_s) for utterance in utterances]


def test_soft_speech_is_decoded(tmp_path):
    """It is as quiet as the noise between words elsewhere, but varies."""
    generator = np.random.default_rng(0)
    noise, soft = generator.normal(0, 1e-4, 5 * RATE), speech(4.0, 3e-4, generator)
    loud = speech(8.0, 0.1, generator)
    found = split_by_phrase(tmp_path, noise, soft, loud, noise, loud)
    assert found[0][0] == pytest.approx(4.76, abs=0.25) and found[-1][1] == 30.0
    left_out = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(found) if begin > end]
    assert left_out == [(pytest.approx(17.5, abs=0.25), pytest.approx(21.76, abs=0.06))]


def test_noise_at_the_floor_and_zeros_are_left_out(tmp_path):
    generator = np.random.default_rng(0)
    loud, noise = speech(8.0, 0.1, generator), generator.normal(0, 1e-3, 10 * RATE)
    for silence in (noise, np.zeros(10 * RATE)):
        found = split_by_phrase(tmp_path, silence, loud, silence)
        assert found[0][0] == pytest.approx(9.76, abs=0.06) and found[-1][1] == pytest.approx(18.5, abs=0.25)


def test_a_silent_recording_has_no_sound(tmp_path):
    assert split_by_phrase(tmp_path, np.zeros(30 * RATE)) == [(0.0, 0.0)]


def test_steady_noise_is_no_silence():
    """A recording as loud throughout may be speech over music."""
    energy = np.random.default_rng(0).uniform(0.9, 1.1, 2_000)
    assert not steady_quiet(energy, quiet_frames(energy, 0.02)).any()


@pytest.mark.parametrize(("lengths_s", "trimmed"), [
    ((0, 2.0, 3.0), [(1.76, 5.0)]), ((3.0, 2.0), [(0.0, 3.5)]), ((0, 4.0, 3.0, 4.0), [(3.76, 7.5)]), ((0, 5.0), []),
    ((0, 1.98, 3.0, 1.98), [(0.0, 6.96)]), ((1.0, 5.0, 1.0), [(0.0, 7.0)]), ((), []),
])  # fmt: skip
def test_a_recording_within_the_limit_is_trimmed_at_its_edges(lengths_s, trimmed):
    silent = np.repeat(np.arange(len(lengths_s)) % 2 == 1, [round(length_s * 50) for length_s in lengths_s])
    assert [(begin / 50, end / 50) for begin, end in trim_silence(silent, 0.02)] == trimmed


@pytest.mark.parametrize("level", [0.0, 1e-4])
def test_a_short_recording_with_silence_is_one_utterance(tmp_path, level):
    generator = np.random.default_rng(0)
    sound, room = speech(3.0, 0.1, generator), level * generator.normal(0, 1, 4 * RATE)
    assert split_by_phrase(tmp_path, room, sound, room) == [(pytest.approx(3.76, abs=0.1), pytest.approx(7.5, abs=0.1))]
    assert split_by_phrase(tmp_path, sound) == [(0.0, 3.0)]
    assert split_by_phrase(tmp_path, sound[: RATE * 3 // 2]) == [(0.0, 1.5)]


@pytest.mark.parametrize("limit_s", [0.0, 3.0, 60.0])
def test_without_phrases_all_is_decoded(tmp_path, limit_s):
    """5 s of room noise in front are longer than a limit of 3 s: the pieces still cover the recording."""
    generator = np.random.default_rng(0)
    room, sound = generator.normal(0, 1e-4, 5 * RATE), speech(4.0, 0.1, generator)
    audio = recording(tmp_path / "a.wav", np.concatenate([room, sound]), RATE, subtype="FLOAT")
    found = split(audio, limit_s, 0.08)
    assert (found[0].start_s, found[-1].end_s) == (0.0, 9.0) and (len(found) == 1) == (limit_s != 3.0)
    assert all(after.start_s <= before.end_s for before, after in itertools.pairwise(found))
    assert limit_s == 0.0 or max(piece.duration_s for piece in found) <= limit_s + 1e-9 or limit_s == 60.0


def test_no_limit_means_one_whole_utterance(tmp_path):
    (found,) = split(recording(tmp_path / "a.wav", np.zeros(5 * RATE), RATE), 0.0, 0.08, by_phrase=True)
    assert (found.start_s, found.end_s) == (0.0, 5.0)


@pytest.mark.parametrize(("length", "before"), [(1, 8000), (4800, 5600), (11201, 2400), (15999, 1)])
def test_samples_lie_in_the_middle(length: int, before: int) -> None:
    samples = np.arange(1, length + 1, dtype=np.int16)
    row_S = np.full(20000, 7, np.int16)
    row_S[:length] = samples
    cuts = centre(row_S, length, LEAST, NEW_RATE)
    assert np.array_equal(row_S[before : before + length], samples)
    assert not row_S[:before].any() and not row_S[before + length : LEAST].any()
    assert cuts == (
        Cut(0.0, -before / NEW_RATE),
        Cut((before + length) / NEW_RATE, -(LEAST - before - length) / NEW_RATE),
    )


def hypothesis(frames: list[int], durations: list[int], is_timed: bool) -> Hypothesis:
    count = len(frames)
    return Hypothesis(tuple(range(count)), tuple(frames), tuple(durations), (math.log(0.5),) * count, is_timed=is_timed)


def moved(said: Hypothesis) -> list[tuple[int, int]]:
    """Return the times in an utterance of 5 frames (0.4 s) behind 4 frames of silence (0.3 s)."""
    found = with_cuts(said, (Cut(0.0, -0.3), Cut(0.7, -0.3)), FRAME_S)
    assert not found.nbest or found.nbest == (replace(found, nbest=()),)
    return list(zip(found.token_frames, found.token_durations, strict=True))


def test_times_count_from_the_utterance() -> None:
    """Times in the silence become the nearest of the utterance."""
    said = hypothesis([0, 3, 4, 6, 8, 10, 12], [1, 2, 2, 2, 3, 1, 1], is_timed=True)
    expected = [(0, 0), (0, 1), (0, 2), (2, 2), (4, 1), (5, 0), (5, 0)]
    assert moved(said) == moved(replace(said, nbest=(said,))) == expected


def test_tokens_without_times_are_spread_over_the_utterance() -> None:
    assert moved(hypothesis([0, 4, 8], [4, 4, 5], is_timed=False)) == [(0, 1), (1, 2), (3, 2)]
    assert moved(hypothesis([], [], is_timed=False)) == []
