"""The least certain passages of any results, with audio that has all their words and none of their neighbours'."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.audio.probe import probe
from fastscribe.readable.clips import mp3_clip
from fastscribe.readable.passages import least_certain, passages_of
from fastscribe.results.rows import ResultRow
from fastscribe.text.transcript import make_segment
from fastscribe.types import Redaction, Samples, Source, Transcript, Word
from tests.readable.test_fillers import AUDIO

ROW = ResultRow("rows.jsonl", 1, {})
CONFIDENCES = st.floats(0, 1) | st.just(math.nan)
PAUSES = st.sampled_from([0.0, 0.1, 0.5, 3.0])


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    words, at_s = [], 0.0
    for _ in range(draw(st.integers(0, 40))):
        at_s += draw(PAUSES)
        words.append(Word("w", at_s, at_s + 0.7, draw(CONFIDENCES)))
        at_s += 0.7
    cut = draw(st.integers(0, len(words)))
    segments = tuple(make_segment(own) for own in (words[:cut], words[cut:]) if own)
    return Transcript(replace(AUDIO, num_samples=round(at_s * 1000) + 100), "", segments, ())


@given(transcripts())
def test_passages_have_every_word_once_and_short_audio(transcript: Transcript) -> None:
    found = list(passages_of(transcript, ROW))
    assert tuple(word for passage in found for word in passage.words) == transcript.words
    for passage in found:
        assert 0 <= passage.start_s <= passage.words[0].start_s
        assert passage.words[-1].end_s <= passage.end_s <= transcript.audio.duration_s + 1e-6
        assert passage.end_s - passage.start_s <= 15.7
        others = [word for word in transcript.words if word not in passage.words]
        assert all(word.end_s <= passage.start_s + 1e-6 or word.start_s >= passage.end_s - 1e-6 for word in others)


def test_a_passage_is_as_uncertain_as_its_two_worst_words() -> None:
    words = [Word("w", at / 2, at / 2 + 0.4, confidence) for at, confidence in enumerate([0.9, 0.2, 1.0, 0.4])]
    transcript = Transcript(AUDIO, "", (make_segment(words), make_segment([replace(words[0], start_s=5, end_s=6)])), ())
    assert [one.confidence for one in passages_of(transcript, ROW)] == pytest.approx([0.3, 0.9])


def test_what_was_redacted_is_nothing_to_check() -> None:
    words = [Word(text, at / 2, at / 2 + 0.4, 0.9 if at else 0.1) for at, text in enumerate(["([number],", "dogs"])]
    alone = Word("[name].", 5.0, 6.0, 0.1)
    transcript = Transcript(AUDIO, "", (make_segment(words), make_segment([alone])), ())
    [passage] = passages_of(transcript, ROW)
    assert (passage.words, passage.confidence) == (tuple(words), 0.9)


def test_clips_are_the_passage_without_what_was_redacted() -> None:
    samples = np.sin(np.arange(48_000) * 0.3).astype(np.float32)[:, None]
    audio = probe(Source("tone.wav", Samples(samples, 16_000, "tone"), "tone"))
    clip, rate = soundfile.read(io.BytesIO(mp3_clip(audio, 1.0, 2.5, [Redaction("name", 1.5, 1.6)])))
    loud = np.abs(clip[: 15 * rate // 10]).reshape(-1, rate // 20).max(axis=1) > 0.3
    assert rate == 16_000 and abs(len(clip) / rate - 1.5) < 0.2
    assert loud[1:5].all() and not loud[8:14].any() and loud[18:29].all()  # silent from 1.3 to 1.8 s


@given(st.lists(transcripts(), max_size=4), st.integers(1, 5))
def test_the_worst_come_first(all_transcripts: list[Transcript], num_passages: int) -> None:
    everything = [one.confidence for transcript in all_transcripts for one in passages_of(transcript, ROW)]
    found = least_certain([(transcript, ROW) for transcript in all_transcripts], num_passages)
    assert [one.confidence for one in found] == sorted(everything)[:num_passages]
