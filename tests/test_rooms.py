"""Which options are paths, and which ask for a room."""

from __future__ import annotations

from typing import Any

import pytest

from fastscribe import Options, UsageError, rooms
from fastscribe.config import CHANGES_OF_TEXT
from fastscribe.readable.edits import LANGUAGES_OF_CHANGES
from fastscribe.results.fingerprint import option_name
from fastscribe.rooms import SIDE_MODELS


def test_options_with_paths_are_found_by_what_they_name() -> None:
    options = Options(align_with="a", lm="l", speakers="s", voices="v")
    assert list(rooms.paths_in(options, "model", "side model").items()) == [
        ("align_with", "a"),
        ("speakers", "s"),
        ("voices", "v"),
    ]
    assert rooms.paths_in(Options(speakers="channels", lm="channels"), "side model", "file") == {"lm": "channels"}
    assert rooms.PATHS.keys() <= Options.__dataclass_fields__.keys() and rooms.WORDS.keys() <= rooms.PATHS.keys()
    assert SIDE_MODELS.keys() == {option for option, kind in rooms.PATHS.items() if kind == "side model"}


@pytest.mark.parametrize(
    ("chosen", "has_speakers", "changes_text"),
    [
        ({}, False, False),
        ({"itn": False, "boost": [], "speakers": None}, False, False),
        ({"speakers": "channels", "itn": True}, True, True),
        ({"rttm": "a.rttm"}, True, False),
        ({"remove_fillers": True}, False, True),
    ],
)
def test_a_field_with_its_default_asks_for_no_room(
    chosen: dict[str, Any], has_speakers: bool, changes_text: bool
) -> None:
    options = Options(**chosen)
    assert (options.has_speakers, options.changes_text) == (has_speakers, changes_text)


def test_a_change_of_the_text_is_known_to_fingerprints() -> None:
    [readable] = (room for room in rooms.ROOMS if room.name == "readable")
    assert set(map(option_name, CHANGES_OF_TEXT)) == set(readable.flags["transcribe"]) == set(LANGUAGES_OF_CHANGES)


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ({"speaker_names": ()}, "speaker_names"),
        ({"speaker_names": ("a",)}, "speaker_names"),
        ({"speaker_streaming": "chunk_len=6"}, "speaker_streaming"),
        ({"voices": "v"}, "voices"),
    ],
)
def test_an_option_of_speakers_alone_is_checked(chosen: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Options(**chosen)
