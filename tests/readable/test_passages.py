"""The least certain passages of any results, with audio that has all their words and none of their neighbours'."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fastscribe.evaluation.rows import ResultRow
from fastscribe.readable.passages import least_certain, passages_of
from fastscribe.text.transcript import make_segment
from fastscribe.types import Transcript, Word
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


@given(st.lists(transcripts(), max_size=4), st.integers(1, 5))
def test_the_worst_come_first(all_transcripts: list[Transcript], num_passages: int) -> None:
    everything = [one.confidence for transcript in all_transcripts for one in passages_of(transcript, ROW)]
    found = least_certain([(transcript, ROW) for transcript in all_transcripts], num_passages)
    assert [one.confidence for one in found] == sorted(everything)[:num_passages]
