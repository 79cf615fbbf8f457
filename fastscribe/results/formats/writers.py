"""The text of a Transcript or a Failure in each output format. Pure.

Every format has the times of the JSON formats, which are rounded to milliseconds, so that the others can be made of a stored
row (stored.py). Every text can be encoded as UTF-8 and ends in a newline, unless it is empty. Lone surrogates, which
undecodable file names and some JSON contain, become backslash escapes, which JSON readers turn back. JSON has no NaN, so
numbers that are not finite become null in JSON and 0 elsewhere.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from fastscribe._system.text_layout import clean_text
from fastscribe.config import OUTPUT_FORMATS, OutputFormat, OutputStyle, SubtitleStyle, check_kind
from fastscribe.errors import OptionError
from fastscribe.types import (
    Alternative,
    Failure,
    Gap,
    RenderedTranscript,
    Segment,
    Token,
    Transcript,
    Turn,
    Voice,
    Word,
)

# A text of them holds one recording.
SINGLE_FORMATS = frozenset(OUTPUT_FORMATS) - {"jsonl", "json", "txt", "ctm", "rttm"}
_MODULES = {"ass": "ass", "textgrid": "textgrid"}  # of formats that are not written here
_MODULES |= dict.fromkeys(("txt", "md"), "paragraphs") | dict.fromkeys(("srt", "vtt"), "cue_files")
LAID_OUT = frozenset(("srt", "vtt", "ass"))  # options change their layout
# Keys of a result alone. A manifest row that has them is an earlier run's output, so its values are dropped.
OWN_KEYS = frozenset(
    (
        "pred_text",
        "pred_language",
        "pred_speakers",
        "speaker_channels",
        "missing_channel",
        "opposite_phase",
        "pred_turns",
        "pred_voices",
        "segments",
        "words",
        "gaps",
        "audio_notes",
        "removed_words",
        "nbest",
        "tokens",
        "error",
    )
)
_LINE_BREAKS = ("\x85", "\u2028", "\u2029")  # JSON allows them, but str.splitlines splits at them
_encode_line = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
DEFAULT_STYLE = SubtitleStyle()
_encode_lines = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=2).encode


def render(
    result: Transcript | Failure, format: OutputFormat, tokens: bool = False, style: SubtitleStyle = DEFAULT_STYLE
) -> str:
    """Return a result's text in one format.

    Args:
        result: Of a Failure, only the JSON formats have a text.
        format: "jsonl", "srt" and so on, as for `-f` of the command. "jsonl" is the row.
        tokens: Add the tokens to the JSON formats.
        style: Layout of subtitles. A RenderedTranscript has the layout and tokens that it was rendered with.

    Returns:
        The text; it ends in a newline, unless it is empty.

    Raises:
        UsageError: There is no such format, a RenderedTranscript was rendered as others, or the style is none of subtitles.
    """
    check_kind("style", style, SubtitleStyle)
    if format not in OUTPUT_FORMATS:
        raise OptionError("format", format, f"not one of {', '.join(OUTPUT_FORMATS)}")
    if isinstance(result, RenderedTranscript):
        if format not in result.contents:
            rendered_as = ", ".join(sorted(result.contents))
            raise OptionError("format", format, f"the result was rendered as {rendered_as} only, and has no words")
        return result.contents[format].decode()
    if format == "jsonl":
        return to_jsonl(result, tokens)
    if format == "json":
        return to_json(result, tokens)
    if isinstance(result, Failure):
        return ""
    # The module of this format alone is imported.
    write = getattr(import_module(f"fastscribe.results.formats.{_MODULES.get(format, 'writers')}"), f"to_{format}")
    text: str = write(result, style) if format in LAID_OUT else write(result)
    return text


def content_of(result: Transcript | Failure, format: str, style: OutputStyle) -> bytes:
    """Return a result's text in one format, as a file has it. A RenderedTranscript has that of the style of its run."""
    if isinstance(result, RenderedTranscript):
        return result.contents[format]
    known = cast(OutputFormat, format)  # a journal names formats by the ends of file names
    return render(result if format == "jsonl" else named(result, style), known, style.tokens, style.subtitles).encode()


def named(result: Transcript | Failure, style: OutputStyle) -> Transcript | Failure:
    """Return a result with the style's names of speakers. Rows have the labels of their run."""
    if style.speaker_names is None or isinstance(result, Failure) or not result.speakers:
        return result
    from fastscribe.results.formats.speaker_names import with_speaker_names

    return with_speaker_names(result, style.speaker_names)


def rendered(transcript: Transcript, style: OutputStyle) -> RenderedTranscript:
    """Return a transcript's output and what a run counts of it, without its words and tokens.

    The audio lacks its file and its manifest's row, which another process, the receiver, has.
    """
    formats = {"jsonl", *style.formats}  # a folder has rows whatever the formats
    contents: dict[str, bytes] = {format: content_of(transcript, format, style) for format in formats}
    return RenderedTranscript(
        replace(transcript.audio, file="", unread=None, row=None),
        transcript.text,
        (),
        (),
        transcript.gaps,
        language=transcript.language,
        speakers=transcript.speakers,
        contents=contents,
    )


def to_jsonl(result: Transcript | Failure, tokens: bool = False) -> str:
    """Return the object on one line, also for readers that split at Unicode's line breaks."""
    line = _dumps(to_object(result, tokens), _encode_line)
    if not line.isascii():
        for char in _LINE_BREAKS:
            line = line.replace(char, f"\\u{ord(char):04x}")
    return line + "\n"


def to_json(result: Transcript | Failure, tokens: bool = False) -> str:
    return _dumps(to_object(result, tokens), _encode_lines) + "\n"


def to_object(result: Transcript | Failure, tokens: bool = False) -> dict[str, Any]:
    """Return the object of the JSON formats: seconds with 3 decimals, confidences with 2.

    With a manifest row, the row's fields come first, `text` stays the reference and `pred_text` is the hypothesis. So
    `pred_language` is the language that the model wrote, which is `language` otherwise, and `pred_speakers` is `speakers`.
    """
    if isinstance(result, Failure):
        error = {"stage": result.stage, "type": result.error_type, "message": result.message}
        return {**_carried(result.row), **_path(result.row, result.path), "error": error}
    audio, row, channels = result.audio, result.audio.row, result.speaker_channels
    prefix = "" if row is None else "pred_"
    found: dict[str, Any] = {
        "duration": None if row is not None and "duration" in row else round(float(audio.duration_s), 3),
        f"{prefix}text": result.text,
        f"{prefix}language": result.language,
        f"{prefix}speakers": list(result.speakers) or None,
        "speaker_channels": dict(zip(result.speakers, channels, strict=True)) if channels else None,
        "missing_channel": audio.missing_channel,
        "opposite_phase": [span_object(*span) for span in audio.opposite_phase] or None,
        f"{prefix}turns": [{**span_object(one.start_s, one.end_s), "speaker": one.speaker} for one in result.turns]
        or None,
        f"{prefix}voices": list(map(_voice_object, result.voices)) or None,
        "segments": [
            _timed("text", one.text, one, line=one.line, missing=one.is_missing or None) for one in result.segments
        ],
        "words": [word_object(word) for word in result.words],
        "gaps": [{**span_object(gap.start_s, gap.end_s), **_speaker(gap)} for gap in result.gaps],
        "audio_notes": list(audio.notes) or None,
        "removed_words": list(map(word_object, result.removed_words)) or None,
        "nbest": list(map(_alternative, result.nbest)) or None,
        "tokens": [{"id": one.id, **_timed("piece", one.piece, one)} for one in result.tokens] if tokens else None,
    }
    present = {name: value for name, value in found.items() if value is not None}
    return {**_carried(row), **_path(row, audio.path), **present}


def _voice_object(voice: Voice) -> dict[str, Any]:
    """Return the object of a voice; its embedding is the Base64 of 16-bit floats, the low byte first."""
    found = {"speaker": voice.speaker, "speech": seconds(voice.speech_s), **span_object(voice.start_s, voice.end_s)}
    if voice.embedding_E is not None:
        found["embedding"] = b64encode(voice.embedding_E.astype("<f2").tobytes()).decode()
    return found


def to_tsv(transcript: Transcript) -> str:
    """Return TSV as openai/whisper writes it: a header, then a line for each segment, with integer milliseconds.

    A dialogue has a fourth column, the speaker.
    """
    has_speakers = bool(transcript.speakers)
    return ("start\tend\ttext\tspeaker\n" if has_speakers else "start\tend\ttext\n") + "".join(
        f"{_whole_ms(segment.start_s)}\t{_whole_ms(segment.end_s)}\t{clean_text(segment.text)}"
        + (f"\t{clean_text(segment.speaker or '')}\n" if has_speakers else "\n")
        for segment in transcript.segments
    )


def to_ctm(transcript: Transcript) -> str:
    """Return NIST's CTM: `id channel start duration word confidence`. Spaces in id and word become underscores.

    Channels count from 1: the speakers of a dialogue, one after another, as scorers expect them.
    """
    recording = _unspaced(transcript.audio.id)
    channels = {speaker: number for number, speaker in enumerate(transcript.speakers, start=1)}
    return "".join(
        f"{recording} {channels.get(word.speaker or '', 1)} {_finite(seconds(word.start_s)):.3f} "
        f"{max(0.0, _finite(seconds(word.end_s) - seconds(word.start_s))):.3f}"
        f" {_unspaced(word.text)} {_finite(word.confidence):.2f}\n"
        for word in sorted(transcript.words, key=lambda word: channels.get(word.speaker or "", 1))
        if clean_text(word.text)
    )


def to_rttm(transcript: Transcript) -> str:
    """Return NIST's RTTM. Spaces become underscores.

    It has a line for each turn if these are known, also where no words are. Else it has one for each segment, with its speaker,
    or `<NA>` without one.
    """
    recording = _unspaced(transcript.audio.id)
    return "".join(
        f"SPEAKER {recording} 1 {_finite(seconds(one.start_s)):.3f} "
        f"{max(0.0, _finite(seconds(one.end_s) - seconds(one.start_s))):.3f}"
        f" <NA> <NA> {'<NA>' if one.speaker is None else _unspaced(one.speaker)} <NA> <NA>\n"
        for one in spans_of(transcript)
    )


def spans_of(transcript: Transcript) -> Sequence[Turn | Segment]:
    """Return what says who speaks when: the turns of a speaker model or of --rttm, else the segments."""
    return transcript.turns or tuple(one for one in transcript.segments if one.line is None or one.words)


def offset_suffix(offset: Any) -> str:
    """Return the end of the id of a row with this offset in seconds."""
    has_offset = isinstance(offset, (int, float)) and 0 < offset < math.inf
    return f"@{round(offset * 1000)}" if has_offset else ""


def _carried(row: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if row is None else {key: value for key, value in row.items() if key not in OWN_KEYS}


def _path(row: Mapping[str, Any] | None, path: str) -> dict[str, str]:
    return {} if row is not None and "audio_filepath" in row else {"audio_filepath": path}


def _alternative(alternative: Alternative) -> dict[str, Any]:
    return {
        "text": alternative.text,
        "score": round(float(alternative.score), 4),
        **span_object(alternative.start_s, alternative.end_s),
        "words": [word_object(replace(word, speaker=None)) for word in alternative.words],
        **_speaker(alternative),
    }


def word_object(word: Word) -> dict[str, Any]:
    """Return the object of a word."""
    return _timed("word", word.text, word, original=word.original, missing=word.missing or None)


def _speaker(part: Gap | Alternative) -> dict[str, str]:
    return {} if part.speaker is None else {"speaker": part.speaker}


def _timed(key: str, text: str, part: Segment | Word | Token, **details: object) -> dict[str, Any]:
    """Return the object of a part with a text; it lacks what is None."""
    found: dict[str, Any] = {
        key: text,
        "start": seconds(part.start_s),
        "end": seconds(part.end_s),
        "confidence": round(float(part.confidence), 2),
    }
    for name, value in (("speaker", part.speaker), *details.items()):
        if value is not None:
            found[name] = value
    return found


def span_object(start_s: float, end_s: float) -> dict[str, Any]:
    """Return the object of a span of the recording."""
    return {"start": seconds(start_s), "end": seconds(end_s)}


def seconds(time_s: float) -> float:
    """Return a time as the JSON formats have it."""
    return round(float(time_s), 3)


def _dumps(value: dict[str, Any], encode: Callable[[Any], str]) -> str:
    try:
        text = encode(value)
    except ValueError:
        text = encode(_without_nan(value))
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def _whole_ms(time_s: float) -> int:
    return round(_finite(seconds(time_s) * 1000))


def _finite(number: float) -> float:
    return float(number) if math.isfinite(number) else 0.0


def _unspaced(text: str) -> str:
    return clean_text(text).replace(" ", "_") or "_"
