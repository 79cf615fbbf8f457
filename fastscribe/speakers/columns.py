"""The result columns of speakers (results.columns): their names, channels, turns and voice prints. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastscribe.results.formats.writers import seconds, span_object
from fastscribe.results.stored import NotAResult, number
from fastscribe.types import Transcript, Turn, Voice


def write(transcript: Transcript) -> Mapping[str, Any]:
    channels = transcript.speaker_channels
    return {
        "speakers": list(transcript.speakers),
        "speaker_channels": dict(zip(transcript.speakers, channels, strict=True)) if channels else {},
        "turns": [{**span_object(one.start_s, one.end_s), "speaker": one.speaker} for one in transcript.turns],
        "voices": list(map(_voice_object, transcript.voices)),
    }


def read(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    speakers = tuple(map(str, stored.get("speakers", ())))
    turns = tuple(
        Turn(number(one, "start"), number(one, "end"), str(one["speaker"])) for one in stored.get("turns", ())
    )
    by_speaker = stored.get("speaker_channels", {})
    if by_speaker and by_speaker.keys() != set(speakers):
        raise ValueError("speaker_channels and speakers have different names")
    channels = tuple(int(by_speaker[one]) for one in speakers) if by_speaker else ()
    return {"speakers": speakers, "speaker_channels": channels, "turns": turns, "voices": stored_voices(stored)}


def stored_voices(fields: Mapping[str, Any]) -> tuple[Voice, ...]:
    """Return the voices of a row.

    Raises:
        NotAResult: A voice is damaged.
    """
    try:
        return tuple(map(_voice, fields.get("pred_voices" if "pred_text" in fields else "voices", ())))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotAResult(f"not a voice of transcripts.jsonl: {error}") from None


def _voice_object(voice: Voice) -> dict[str, Any]:
    """Return the object of a voice; its embedding is the Base64 of 16-bit floats, the low byte first."""
    found = {"speaker": voice.speaker, "speech": seconds(voice.speech_s), **span_object(voice.start_s, voice.end_s)}
    if voice.embedding_E is not None:
        found["embedding"] = b64encode(voice.embedding_E.astype("<f2").tobytes()).decode()
    return found


def _voice(one: Mapping[str, Any]) -> Voice:
    speech_s, start_s, end_s = (float(one[name]) for name in ("speech", "start", "end"))
    embedding_E = None
    if "embedding" in one:
        embedding_E = np.frombuffer(b64decode(one["embedding"], validate=True), "<f2").astype(np.float32)
        if not len(embedding_E) or not np.isfinite(embedding_E).all() or not embedding_E.any():
            raise ValueError("its embedding is no vector")
    return Voice(str(one["speaker"]), speech_s, start_s, end_s, embedding_E)
