"""Stored results: the Transcript or Failure of a row of `transcripts.jsonl`. Pure.

The writers make the same files from it as from the original result, because every format has a row's times.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from fastscribe.audio.failures import relative_id
from fastscribe.results.formats.writers import OWN_KEYS, offset_suffix
from fastscribe.types import Alternative, AudioInfo, Failure, Gap, Segment, Token, Transcript, Turn, Voice, Word

_RATE = 1000  # samples a second: a row's times are in milliseconds


class NotAResult(ValueError):
    """A row that `transcribe` has not written; the message says what it lacks."""


def to_result(
    fields: Mapping[str, Any], id: str = "", audio_s: float | None = None, index: int = 0
) -> Transcript | Failure:
    """Return the result that a row stores.

    Args:
        fields: The row's object.
        id: The recording's id; "": made of its path and offset.
        audio_s: Its length in seconds; None: the row's, or the end of its last word.
        index: Its position among the inputs.

    Returns:
        A result of which writers.to_jsonl() makes the row again. All its words are in its first segment, unless the segments
        are the lines of a known text.

    Raises:
        NotAResult: The row is no result.
    """
    try:
        return _to_result(fields, id, audio_s, index)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        missing = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise NotAResult(f"not a row of transcripts.jsonl: {missing}") from None


def _to_result(fields: Mapping[str, Any], id: str, audio_s: float | None, index: int) -> Transcript | Failure:
    path = fields["audio_filepath"]
    if not isinstance(path, str):
        raise TypeError("audio_filepath is no text")
    id = id or relative_id(path) + offset_suffix(fields.get("offset"))
    if "error" in fields:
        error = fields["error"]
        return Failure(path, id, error["stage"], error["type"], error["message"], _row(fields), index)
    prefix = "pred_" if "pred_text" in fields else ""
    words, speakers = words_of(fields["words"]), tuple(map(str, fields.get(f"{prefix}speakers", ())))
    audio = AudioInfo(
        path,
        id,
        _RATE,
        channels=1,
        num_samples=round((_length_s(fields, words) if audio_s is None else audio_s) * _RATE),
        row=_row(fields) if prefix else None,
        index=index,
        notes=tuple(map(str, fields.get("audio_notes", ()))),
        missing_channel=fields.get("missing_channel"),
        opposite_phase=tuple(map(_span, fields.get("opposite_phase", ()))),
    )
    return Transcript(
        audio,
        fields[f"{prefix}text"],
        tuple(_segments(fields["segments"], words)),
        tuple(Token(one["id"], one["piece"], *_timed(one), _text(one, "speaker")) for one in fields.get("tokens", ())),
        tuple(Gap(float(gap["start"]), float(gap["end"]), _text(gap, "speaker")) for gap in fields.get("gaps", ())),
        tuple(map(_alternative, fields.get("nbest", ()))),
        fields.get(f"{prefix}language"),
        speakers=speakers,
        speaker_channels=_speaker_channels(fields, speakers),
        turns=tuple(Turn(*_span(one), str(one["speaker"])) for one in fields.get(f"{prefix}turns", ())),
        voices=stored_voices(fields),
        removed_words=tuple(words_of(fields.get("removed_words", ()))),
    )


def stored_voices(fields: Mapping[str, Any]) -> tuple[Voice, ...]:
    """Return the voices of a row.

    Raises:
        NotAResult: A voice is damaged.
    """
    try:
        return tuple(map(_voice, fields.get("pred_voices" if "pred_text" in fields else "voices", ())))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAResult(f"not a voice of transcripts.jsonl: {error}") from None


def _voice(one: Mapping[str, Any]) -> Voice:
    speech_s, start_s, end_s = (float(one[name]) for name in ("speech", "start", "end"))
    embedding_E = None
    if "embedding" in one:
        embedding_E = np.frombuffer(b64decode(one["embedding"], validate=True), "<f2").astype(np.float32)
        if not len(embedding_E) or not np.isfinite(embedding_E).all() or not embedding_E.any():
            raise ValueError("its embedding is no vector")
    return Voice(str(one["speaker"]), speech_s, start_s, end_s, embedding_E)


def _speaker_channels(fields: Mapping[str, Any], speakers: tuple[str, ...]) -> tuple[int, ...]:
    by_speaker = fields.get("speaker_channels", {})
    if by_speaker and by_speaker.keys() != set(speakers):
        raise ValueError("speaker_channels and speakers have different names")
    return tuple(int(by_speaker[one]) for one in speakers) if by_speaker else ()


def _row(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in OWN_KEYS}


def _text(part: Mapping[str, Any], name: str) -> str | None:
    return None if part.get(name) is None else str(part[name])


def _segments(stored: Iterable[Mapping[str, Any]], words: Sequence[Word]) -> list[Segment]:
    segments = [Segment(one["text"], *_timed(one), (), _line(one.get("line")), _text(one, "speaker")) for one in stored]
    if words and not segments:
        raise ValueError("words without segments")
    if not segments:
        return []
    counts = [len(words)] if all(one.line is None for one in segments) else [len(one.text.split()) for one in segments]
    if sum(counts) != len(words):
        raise ValueError("lines without their words")
    ends = list(accumulate(counts))
    own = [tuple(words[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    own += [()] * (len(segments) - len(own))
    return [replace(one, words=found) for one, found in zip(segments, own, strict=True)]


def _line(number: object) -> int | None:
    if number is not None and type(number) is not int:
        raise TypeError("a line is no number")
    return number


def _alternative(one: Mapping[str, Any]) -> Alternative:
    return Alternative(
        one["text"], number(one, "score"), *_span(one), tuple(words_of(one["words"])), _text(one, "speaker")
    )


def words_of(stored: Iterable[Mapping[str, Any]]) -> list[Word]:
    """Return the words of their objects."""
    return [
        Word(one["word"], *_timed(one), one.get("missing") is True, _text(one, "speaker"), _text(one, "original"))
        for one in stored
    ]


def _timed(part: Mapping[str, Any]) -> tuple[float, float, float]:
    return *_span(part), number(part, "confidence")


def _span(part: Mapping[str, Any]) -> tuple[float, float]:
    return number(part, "start"), number(part, "end")


def number(part: Mapping[str, Any], name: str) -> float:
    """Return a number; null stands for one that was not finite."""
    return math.nan if part[name] is None else float(part[name])


def _length_s(fields: Mapping[str, Any], words: Sequence[Word]) -> float:
    stated = fields.get("duration")
    if isinstance(stated, (int, float)) and 0 < stated < math.inf:
        return float(stated)
    return max((word.end_s for word in words if math.isfinite(word.end_s)), default=0.0)
