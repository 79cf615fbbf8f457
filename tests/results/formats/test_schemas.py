"""The schemas have every field that is written, and no other. Tests of the commands check whole runs against them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from fastscribe.cli.schema import SchemaName, schema_text
from fastscribe.pipeline.stats import DeviceShare, RunStats
from fastscribe.results.formats.writers import to_object
from fastscribe.types import (
    Alternative,
    AudioInfo,
    Failure,
    Gap,
    Segment,
    Token,
    Transcript,
    Turn,
    Voice,
    Word,
)
from tests.helpers.processes import fastscribe
from tests.helpers.schemas import check_schema, validator

ROW = {"audio_filepath": "a.wav", "offset": 1.5, "duration": 2.0, "text": "said", "speakers": 2, "anything": [{}]}
ROW |= {"subtitles": {"format": "srt", "cues": [{"start": 0.0, "end": 1.0, "text": "said"}]}}
WORD = Word("$2", 0.0, 0.5, 0.9, missing=True, speaker="a", original="two dollars")
PLACE = ("a.wav", "a.wav", 16_000, 2, 40_000)
FULL = Transcript(
    AudioInfo(
        *PLACE, notes=("it was read to the end of the file",), missing_channel="center", opposite_phase=((0.0, 2.5),)
    ),
    "$2",
    (Segment("$2", 0.0, 0.5, 0.9, (WORD,), line=1, speaker="a"),),
    (Token(3, "▁two", 0.0, 0.5, 0.9, "a"),),
    (Gap(0.5, 2.5, "a"),),
    (Alternative("to", -1.5, 0.0, 0.5, (replace(WORD, speaker=None),), "a"),),
    "en-US",
    ("a", "b"),
    (Turn(0.0, 0.5, "a"),),
    (WORD,),
    speaker_channels=(0, 1),
    voices=(Voice("a", 9.5, 0.0, 4.5, np.eye(1, 3, dtype=np.float32)[0]), Voice("b", 0.0, 0.0, 0.0)),
)
PLAIN = Transcript(AudioInfo(*PLACE), "", (), ())
FAILED = Failure("a.wav", "a.wav", "load", "AudioError", "broken")
STATS = RunStats(1, 0, 2.5, 1.0, 1.0, {"decode": 0.5}, 100, 90, 1000, "CPU", "fp32", 0.5, "--price-per-hour")
TOTALS = {"files": 1, "failed": 0, "audio_s": 2.5000001, "not_given": 0}


def of_row(transcript: Transcript) -> Transcript:
    return replace(transcript, audio=replace(transcript.audio, row=ROW))


def definition(name: str, kind: SchemaName = "result") -> dict[str, Any]:
    found: dict[str, Any] = validator(kind).schema["$defs"][name]["properties"]
    return found


@pytest.mark.parametrize("result", [FULL, PLAIN, of_row(FULL), of_row(PLAIN), FAILED, replace(FAILED, row=ROW)])
def test_results_are_as_the_schema_says(result: Transcript | Failure) -> None:
    check_schema("result", [to_object(result, tokens=True), to_object(result)])


def test_every_field_of_the_schema_is_written() -> None:
    """A field that nothing writes any more would stay in the documentation."""
    plain, row = to_object(FULL, tokens=True), to_object(of_row(FULL), tokens=True)
    assert plain.keys() == definition("transcript").keys() | definition("found").keys()
    own = definition("row_transcript").keys() | definition("found").keys()
    assert row.keys() == own | ROW.keys()
    items = {"segment": "segments", "word": "words", "token": "tokens", "alternative": "nbest", "gap": "gaps"}
    items |= {"turn": "turns", "voice": "voices", "span": "opposite_phase"}
    for name, field in items.items():
        assert plain[field][0].keys() == definition(name).keys(), name
    assert to_object(FAILED).keys() == definition("failure").keys()


def test_every_field_says_when_it_is_present() -> None:
    """It is required, or has `when`: the table in docs/fields.md has a column for that."""
    lacking = []
    for kind in get_args(SchemaName):
        definitions = json.loads(schema_text(kind))["$defs"]
        objects = [*definitions.values(), *(one for each in definitions.values() for one in properties(each).values())]
        for each in objects:
            for name, field in properties(each).items():
                whole = definitions.get(field.get("$ref", "").removeprefix("#/$defs/"), {}) | field
                if name not in each.get("required", ()) and "when" not in whole:
                    lacking.append(f"{each['title']}: {name}")
    assert not lacking, "give these a `when` in fastscribe/results/formats/schema/, or name them in `required`"


def properties(definition: dict[str, Any]) -> dict[str, Any]:
    return dict(definition.get("properties", {}))


def test_the_command_prints_them() -> None:
    cases: list[tuple[tuple[str, ...], SchemaName]] = [((), "result"), (("report",), "report"), (("event",), "event")]
    for arguments, name in cases:
        done = fastscribe("schema", *arguments)
        assert (done.returncode, json.loads(done.stdout)) == (0, validator(name).schema)
    other = fastscribe("schema", "other")
    assert other.returncode == 2 and "schema other: not one of result, report, event" in other.stderr


def test_reports_are_as_the_schema_says() -> None:
    stats = replace(STATS, totals=TOTALS, devices=[DeviceShare("cpu:0", "CPU", 1, 1, 2.5, 0.5, 1000)])
    written: dict[str, Any] = {**stats.to_json(), "inputs": 1, "inputs_digest": "1f", "request": None}
    check_schema("report", [STATS.to_json(), written, written | {"request": "1f"}])
    assert written["totals"]["audio_s"] == 2.5
    assert written.keys() == definition("run", "report").keys()
    with pytest.raises(AssertionError, match="new"):
        check_schema("report", [written | {"new": 1}])
