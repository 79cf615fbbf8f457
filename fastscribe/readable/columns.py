"""The result columns of edited texts (results.columns): the fillers that were removed, and what was redacted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastscribe.results.formats.writers import span_object, word_object
from fastscribe.results.stored import number, words_of
from fastscribe.types import Redaction, Transcript


def write(transcript: Transcript) -> Mapping[str, Any]:
    redacted = [{"kind": one.kind, **span_object(one.start_s, one.end_s)} for one in transcript.redacted or ()]
    return {"removed_words": list(map(word_object, transcript.removed_words)), "redacted": redacted}


def read(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {"removed_words": tuple(words_of(stored.get("removed_words", ())))}
    if "redacted" in stored:
        found["redacted"] = tuple(
            Redaction(str(one["kind"]), number(one, "start"), number(one, "end")) for one in stored["redacted"]
        )
    return found
