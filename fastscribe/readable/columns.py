"""The result column of edited texts (results.columns): the fillers that were removed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastscribe.results.formats.writers import word_object
from fastscribe.results.stored import words_of
from fastscribe.types import Transcript


def write(transcript: Transcript) -> Mapping[str, Any]:
    return {"removed_words": list(map(word_object, transcript.removed_words))}


def read(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"removed_words": tuple(words_of(stored["removed_words"]))}
