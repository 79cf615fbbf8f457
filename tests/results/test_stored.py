"""A stored row makes the same files as the result that it was made of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.config import OUTPUT_FORMATS
from fastscribe.results.formats.writers import render, to_jsonl
from fastscribe.results.stored import NotAResult, to_result
from fastscribe.types import Alternative, AudioInfo, Failure, Gap, Segment, Token, Transcript, Word

TEXTS = st.sampled_from(["Hello", "a-->b", "<i>", "两个", "", "\udce9", "end."])
NUMBERS = st.one_of(st.floats(0, 5, allow_nan=False), st.sampled_from([0.0005, 1.0005, 2.0015, math.nan, math.inf]))
ROWS = st.sampled_from(
    [
        None,
        {"audio_filepath": "x/a.wav"},
        {"duration": 2, "text": "r", "audio_filepath": "a.wav", "b": [1]},
        {"audio_filepath": "a.wav", "speakers": ["of the user"], "speaker": 1},
    ]
)
SPEAKERS = st.sampled_from([(), ("agent",), ("agent", "<b> --> & \n\udce9:")])


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    timed = st.tuples(TEXTS, NUMBERS, NUMBERS, NUMBERS)
    speakers = draw(SPEAKERS)
    speaker = st.sampled_from(speakers or (None,))
    words = [Word(*one, speaker=draw(speaker)) for one in draw(st.lists(timed, max_size=12))]
    cut = draw(st.integers(0, len(words)))
    parts = [tuple(words[:cut]), tuple(words[cut:])] if words else []
    segments = tuple(Segment(*draw(timed), part, None, draw(speaker)) for part in parts)
    rate, num_samples = draw(st.sampled_from([8000, 16_000, 22_050])), draw(st.integers(1, 100_000))
    row = draw(ROWS)
    audio = AudioInfo("x/a.wav" if row is None else row["audio_filepath"], "a.wav", rate, 1, num_samples, row=row)
    opposite = draw(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=2))
    missing = draw(st.sampled_from([None, 3, "center"]))
    audio = replace(audio, missing_channel=missing, opposite_phase=tuple(opposite))
    tokens = tuple(Token(3, *one, draw(speaker)) for one in draw(st.lists(timed, max_size=3)))
    gaps = (Gap(draw(st.floats(0, 2)), 2.0, draw(speaker)),) * draw(st.integers(0, 1))
    others = draw(st.lists(st.tuples(TEXTS, NUMBERS, NUMBERS, NUMBERS), max_size=2))
    nbest = tuple(Alternative(*one, tuple(words[:cut]), draw(speaker)) for one in others)
    language = draw(st.sampled_from([None, "hi-IN"]))
    channels = draw(st.sampled_from([(), tuple(range(len(speakers)))]))
    text = draw(TEXTS)
    return Transcript(audio, text, segments, tokens, gaps, nbest, language, speakers, speaker_channels=channels)


def stored(result: Transcript | Failure, tokens: bool = True) -> Transcript | Failure:
    """What a later run reads; the journal has the length, rounded to milliseconds."""
    item = result if isinstance(result, Failure) else result.audio
    length_s = None if isinstance(item, Failure) else round(item.duration_s, 3)
    return to_result(json.loads(to_jsonl(result, tokens)), item.id, length_s)


@settings(max_examples=120, deadline=None)
@given(transcripts())
def test_every_format_is_made_of_the_row(transcript: Transcript) -> None:
    again = stored(transcript)
    for format in OUTPUT_FORMATS:
        assert render(again, format, tokens=True) == render(transcript, format, tokens=True)


@pytest.mark.parametrize("row", [None, {"audio_filepath": "b.wav", "speaker": 1}])
def test_failures(row: dict[str, Any] | None) -> None:
    failure = Failure("b.wav", "b.wav", "load", "AudioError", "broken", row)
    for format in OUTPUT_FORMATS:
        assert render(stored(failure), format) == render(failure, format)


def test_ids_and_lengths_without_a_journal() -> None:
    row = {"audio_filepath": "/x/a.wav", "offset": 1.5, "pred_text": "", "segments": [], "words": []}
    result = to_result(row)
    assert isinstance(result, Transcript) and (result.audio.id, result.audio.duration_s) == ("x/a.wav@1500", 0.0)


@pytest.mark.parametrize(
    "row", [{}, {"audio_filepath": 1}, {"audio_filepath": "a"}, {"audio_filepath": "a", "error": "x"},
            {"audio_filepath": "a", "text": "", "segments": [], "words": [{"word": "x"}]},
            {"audio_filepath": "a", "text": "", "segments": [],
             "words": [{"word": "x", "start": 0, "end": 1, "confidence": 0}]},
            {"audio_filepath": "a", "text": "", "segments": [], "words": [], "speakers": ["b"],
             "speaker_channels": {"a": 0}}],
)  # fmt: skip
def test_other_rows_are_no_results(row: dict[str, Any]) -> None:
    with pytest.raises(NotAResult, match=r"not a row of transcripts\.jsonl"):
        to_result(row)
