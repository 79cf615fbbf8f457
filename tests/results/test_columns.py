"""Columns of rooms keep their places and names in a row, are read back, and damaged ones are refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from fastscribe.results.formats.writers import OWN_KEYS, to_jsonl, to_object
from fastscribe.results.stored import NotAResult, to_result
from fastscribe.types import Transcript
from tests.results.formats.test_schemas import FULL, PLAIN, ROW, of_row

ORDER = ["duration", "text", "language", "speakers", "speaker_channels", "missing_channel", "opposite_phase", "turns"]
ORDER += ["voices", "segments", "words", "gaps", "audio_notes", "removed_words", "nbest", "tokens"]
WITH_PREFIX = {"text", "language", "speakers", "turns", "voices"}
EMPTY: dict[str, Any] = {"audio_filepath": "a.wav", "text": "", "segments": [], "words": []}
SPAN = {"start": 0, "end": 1}
VOICE = {"speaker": "a", "speech": 1, **SPAN}


def test_columns_have_their_places_in_a_row() -> None:
    assert list(to_object(FULL, tokens=True)) == ["audio_filepath", *ORDER]
    found = [f"pred_{name}" if name in WITH_PREFIX else name for name in ORDER[1:]]
    assert list(to_object(of_row(FULL), tokens=True)) == [*ROW, *found]
    assert set(found) - {"language"} <= OWN_KEYS


def test_the_full_transcript_has_every_field() -> None:
    """A field that no test fills may be lost on its way into a row and back."""
    missing = [field.name for field in fields(Transcript) if getattr(FULL, field.name) == getattr(PLAIN, field.name)]
    assert missing == ["is_timed"], "fill FULL in tests/results/formats/test_schemas.py; a stored row has no is_timed"


@pytest.mark.parametrize("result", [FULL, of_row(FULL), PLAIN, of_row(PLAIN)])
def test_a_row_is_made_again_of_what_is_read(result: Transcript) -> None:
    row = to_jsonl(result, tokens=True)
    again = to_result(json.loads(row))
    assert to_jsonl(again, tokens=True) == row
    for name in ("speakers", "speaker_channels", "turns", "voices", "removed_words"):
        assert getattr(again, name) == getattr(result, name)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"speakers": 1}, "'int' object is not iterable"),
        ({"speaker_channels": {"a": 0}}, "speaker_channels and speakers have different names"),
        ({"turns": [SPAN]}, "no speaker"),
        ({"removed_words": [SPAN | {"word": "um"}]}, "no confidence"),
        ({"voices": [SPAN]}, "not a voice of transcripts.jsonl: 'speech'"),
        ({"voices": [VOICE | {"embedding": "AAAA"}]}, "not a voice of transcripts.jsonl: buffer size must be a multiple"
         " of element size"),
        ({"voices": [VOICE | {"embedding": "AAA="}]}, "not a voice of transcripts.jsonl: its embedding is no vector"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_manifest", [False, True])
def test_a_damaged_column_is_told(columns: dict[str, Any], problem: str, is_manifest: bool) -> None:
    row = EMPTY | columns
    if is_manifest:
        row = (
            EMPTY
            | {"pred_text": ""}
            | {f"pred_{name}" if name in WITH_PREFIX else name: value for name, value in columns.items()}
        )
    with pytest.raises(NotAResult) as found:
        to_result(row)
    assert str(found.value) == f"not a row of transcripts.jsonl: {problem}"
