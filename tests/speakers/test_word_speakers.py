"""Words get the speakers whose turns overlap them, and RTTM of other tools is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fastscribe.errors import AudioError, UsageError
from fastscribe.results.formats.writers import to_object, to_rttm
from fastscribe.results.stored import to_result
from fastscribe.speakers.assembly import with_speakers
from fastscribe.speakers.turns import RttmTurns
from fastscribe.text.transcript import make_segment
from fastscribe.types import AudioInfo, Gap, Segment, Token, Transcript, Turn, Word

AUDIO = AudioInfo("calls/a b.wav", "calls/a b.wav", 1000, 1, 20_000)


def word(text: str, start_s: float, end_s: float) -> Word:
    return Word(text, start_s, end_s, 0.5)


WORDS = [
    word("so", 0, 1),
    word("yes", 1, 2),
    word("no", 2, 3),
    word("then", 3, 4),
    word(".", 4, 4),
    word("bye", 9, 9.5),
]
SEGMENTS = (make_segment(WORDS[:5]), make_segment(WORDS[5:]))


def transcript(segments: Sequence[Segment] = SEGMENTS) -> Transcript:
    tokens = tuple(Token(1, one.text, one.start_s, one.end_s, 0.5) for segment in segments for one in segment.words)
    return Transcript(AUDIO, "so yes no then . bye", tuple(segments), tokens, (Gap(5.0, 6.0),))


def speakers(turns: Sequence[tuple[float, float, str]]) -> list[str | None]:
    return [one.speaker for one in with_speakers(transcript(), [Turn(*turn) for turn in turns]).words]


def test_words_get_the_speaker_with_the_longest_overlap() -> None:
    assert speakers([(0, 1.4, "a"), (1.4, 3.6, "b"), (3.6, 10, "c")]) == ["a", "b", "b", "b", "c", "c"]


def test_where_several_speak_the_one_before_goes_on() -> None:
    assert speakers([(0, 3, "a"), (1, 4, "b")])[:4] == ["a", "a", "a", "b"]
    assert speakers([(1, 4, "b"), (0, 3, "a"), (1, 2, "c"), (1, 2, "c")])[:4] == ["a", "a", "a", "b"]


def test_words_outside_all_turns_get_the_nearest_one() -> None:
    assert speakers([(1, 2, "a"), (7, 7.1, "b")]) == ["a", "a", "a", "a", "a", "b"]


def test_tokens_without_words_stay() -> None:
    token = Token(1, "?", 0.0, 0.1, 0.5)
    found = with_speakers(Transcript(AUDIO, "", (), (token,)), [Turn(0, 1, "a")])
    assert found.tokens == (token,)


def test_segments_end_where_the_speaker_changes() -> None:
    found = with_speakers(transcript(), [Turn(0, 1, "a"), Turn(1, 3, "b"), Turn(3, 10, "a")])
    assert [(one.speaker, one.text) for one in found.segments] == [
        ("a", "so"),
        ("b", "yes no"),
        ("a", "then ."),
        ("a", "bye"),
    ]
    assert found.segments[3] == replace(SEGMENTS[1], words=found.words[5:], speaker="a")
    assert [one.speaker for one in found.tokens] == ["a", "b", "b", "a", "a", "a"]
    assert (found.speakers, found.gaps, found.text) == (("a", "b"), (Gap(5.0, 6.0, "a"),), transcript().text)


def test_without_turns_nothing_changes() -> None:
    assert with_speakers(transcript(), []) == transcript()


def test_a_recording_without_words_has_its_turns() -> None:
    found = with_speakers(transcript([]), [Turn(0, 1, "a")])
    assert (found.words, found.tokens, found.speakers) == ((), (), ("a",))
    assert to_rttm(found) == "SPEAKER calls/a_b.wav 1 0.000 1.000 <NA> <NA> a <NA> <NA>\n"


@pytest.mark.parametrize("row", [None, {"audio_filepath": "a b.wav", "turns": "own"}], ids=["file", "manifest"])
def test_a_stored_row_keeps_the_turns(row: dict[str, str] | None) -> None:
    found = with_speakers(replace(transcript(), audio=replace(AUDIO, row=row)), [Turn(0, 1.5, "a"), Turn(2, 3, "b")])
    stored = to_object(found)
    again = to_result(stored)
    assert isinstance(again, Transcript)
    assert again.turns == found.turns
    assert to_object(again) == stored
    assert row is None or stored["turns"] == "own"


LINES = """\
;; of another tool
SPKR-INFO x 1 <NA> <NA> <NA> unknown Ann <NA> <NA>
SPEAKER {name} 1 3.5 1.25 <NA> <NA> Ann <NA> <NA>
SPEAKER other 1 0 9 <NA> <NA> Eve <NA> <NA>

SPEAKER {name} 1 0.5 2 <NA> <NA> Bob <NA> <NA>
"""


@pytest.mark.parametrize("name", ["calls/a_b.wav", "a_b", "a_b.wav", "calls/a_b"])
def test_a_file_of_turns_names_recordings_in_any_way(name: str, tmp_path: Path) -> None:
    path = tmp_path / "all.rttm"
    path.write_text(LINES.format(name=name))
    turns = RttmTurns(path)
    assert turns.of(AUDIO) == (Turn(0.5, 2.5, "Bob"), Turn(3.5, 4.75, "Ann"))
    part = replace(AUDIO, id="calls/a b.wav@1000", start=1000, num_samples=3000)
    assert turns.of(part) == (Turn(0.0, 1.5, "Bob"), Turn(2.5, 3.0, "Ann"))


@pytest.mark.parametrize("name", ["calls/a b.wav", "calls/a b", "a b", "a_b"])
def test_a_folder_has_a_file_for_each_recording(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.rttm"
    path.parent.mkdir(exist_ok=True)
    path.write_text("SPEAKER whatever 1 0.5 2 <NA> <NA> Bob <NA> <NA>\n")
    turns = RttmTurns(tmp_path)
    assert turns.of(AUDIO) == (Turn(0.5, 2.5, "Bob"),)
    before = turns.digest()
    path.write_text("SPEAKER whatever 1 0.5 2 <NA> <NA> Eve <NA> <NA>\n")
    assert turns.digest() != before


def test_a_recording_without_turns_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "b.rttm").write_text(LINES.format(name="b"))
    for turns in (RttmTurns(tmp_path), RttmTurns(tmp_path / "b.rttm")):
        with pytest.raises(AudioError, match="has no turns of its speakers"):
            turns.of(AUDIO)


@pytest.mark.parametrize(
    "line",
    [
        "SPEAKER a 1 0.5 2 <NA> <NA>",
        "SPEAKER a 1 -1 2 <NA> <NA> Bob",
        "SPEAKER a 1 0 nan <NA> <NA> Bob",
        "00:00 Bob: hello",
    ],
    ids=["short", "negative", "nan", "text"],
)
def test_a_line_that_is_no_rttm_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.rttm"
    path.write_text(f"SPEAKER a 1 0 2 <NA> <NA> Bob <NA> <NA>\n{line}\n")
    with pytest.raises(UsageError, match="line 2"):
        RttmTurns(path)
    with pytest.raises(UsageError, match="no such file"):
        RttmTurns(tmp_path / "missing.rttm")


def test_the_digest_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.rttm").mkdir()
    before = RttmTurns(tmp_path).digest()
    link = tmp_path / "gone.rttm"
    try:
        link.symlink_to(tmp_path / "nowhere")
    except OSError:
        pytest.skip("this system lets nobody make links")
    with pytest.raises(UsageError, match=r"--rttm .*gone\.rttm: "):
        RttmTurns(tmp_path).digest()
    link.unlink()
    link.write_text("SPEAKER a 1 0 1 <NA> <NA> Ann <NA> <NA>\n")
    assert RttmTurns(tmp_path).digest() != before
