"""Known subtitles with other times, in each format."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
from pysubs2 import SSAFile

from fastscribe.config import SpeakerNames, SubtitleStyle
from fastscribe.results.formats.given_cues import GivenCue, cues_of_row
from fastscribe.results.formats.speaker_names import with_speaker_names
from fastscribe.results.formats.writers import render
from fastscribe.types import AudioInfo, Segment, Transcript, Word

SRT = {
    "format": "srt",
    "cues": [
        {"start": 0.0, "end": 4.0, "text": "[wind]"},
        {"start": 4.0, "end": 5.0, "text": "- <i>one</i>\n\n- {\\an8}A < B & two"},
        {"start": 5.0, "end": 6.0, "text": "three"},
    ],
}
VTT = {
    "format": "vtt",
    "header": "WEBVTT - title\n\nSTYLE\n::cue { color: red }",
    "cues": [{"start": 0, "end": 1, "text": "<v Bob><b>one</b> &lt;two", "id": "intro", "settings": "line:0"}],
}
ASS = {
    "format": "ass",
    "header": "[Script Info]\nTitle: x\n\n[Events]\n"
    "Dialogue: 1,0:00:00.00,0:00:01.00,Fancy,Bob,5,0,0,,{\\i1}one{\\i0},\\N{\\k20}two\n"
    "Dialogue: 0,0:00:01.00,0:00:02.00,Fancy,,0,0,0,,{\\p1}m 0 0\n",
    "cues": [
        {"start": 0, "end": 1, "text": "{\\i1}one{\\i0},\\N{\\k20}two"},
        {"start": 1, "end": 2, "text": "{\\p1}m 0 0"},
    ],
}


def transcript_of(
    subtitles: dict[str, Any], *lines: list[tuple[str, float, float]], length_s: float = 20
) -> Transcript:
    """Return an aligned transcript; a word without length is missing."""
    segments = []
    for number, line in enumerate(lines, start=1):
        words = tuple(Word(text, start_s, end_s, 0.9, missing=start_s == end_s) for text, start_s, end_s in line)
        span = (words[0].start_s, words[-1].end_s) if words else (9.0, 9.0)
        segments.append(Segment(" ".join(word.text for word in words), *span, 0.9, words, line=number))
    row = {"text": "\n".join(one.text for one in segments), "subtitles": subtitles}
    audio = AudioInfo("a.wav", "a.wav", 1000, 1, round(length_s * 1000), row=row)
    return Transcript(audio, " ".join(one.text for one in segments), tuple(segments), ())


FOUND = transcript_of(SRT, [], [("one", 10.0, 10.5), ("two", 11.0, 13.0)], [("three", 13.1, 13.1)])
BRIEF = SubtitleStyle(min_cue_s=1.0)


def test_subrip() -> None:
    """A sound lasts at least a second; so does what was not heard, if it is alone."""
    assert render(FOUND, "srt", style=BRIEF) == (
        "1\n00:00:09,000 --> 00:00:10,000\n[wind]\n\n"
        "2\n00:00:10,000 --> 00:00:13,000\n- <i>one</i>\n- {\\an8}A < B & two\n\n"
        "3\n00:00:13,100 --> 00:00:14,100\nthree\n\n"
    )


def test_other_formats_of_subrip() -> None:
    assert "\n- <i>one</i>\n- A &lt; B &amp; two\n" in render(FOUND, "vtt")
    assert "\n- <u>one</u>\n- A &lt; B &amp; two\n" in render(FOUND, "vtt", style=SubtitleStyle(highlight_words=True))
    assert r",,- {\k100}one\N- A < B & {\k200}two" + "\n" in render(FOUND, "ass")
    assert render(FOUND, "tsv").splitlines()[1:] == ["9000\t9000\t", "10000\t13000\tone two", "13100\t13100\tthree"]
    assert len(render(FOUND, "rttm").splitlines()) == 2


def test_webvtt() -> None:
    found = transcript_of(VTT, [("one", 1.0, 2.0), ("<two", 2.0, 3.5)])
    cue = "intro\n00:00:01.000 --> 00:00:03.500 line:0\n<v Bob><b>one</b> &lt;two\n\n"
    assert render(found, "vtt") == f"{VTT['header']}\n\n{cue}"
    assert render(found, "srt") == "1\n00:00:01,000 --> 00:00:03,500\n<b>one</b> <\u2060two\n\n"


def test_ass() -> None:
    found = transcript_of(ASS, [("one,", 1.0, 2.0), ("two", 2.0, 3.5)], [], length_s=9.006)
    written = render(found, "ass")
    assert written.startswith("[Script Info]\nTitle: x\n") and written.splitlines()[-2:] == [
        "Dialogue: 1,0:00:01.00,0:00:03.50,Fancy,Bob,5,0,0,,{\\i1}one{\\i0},\\N{\\k20}two",
        "Dialogue: 0,0:00:09.00,0:00:09.00,Fancy,,0,0,0,,{\\p1}m 0 0",
    ]
    assert render(found, "srt") == "1\n00:00:01,000 --> 00:00:03,500\n<i>one</i>,\ntwo\n\n"  # a drawing has no text
    by_eve = replace(found, segments=tuple(replace(one, speaker="Eve") for one in found.segments))
    assert [event.name for event in SSAFile.from_string(render(by_eve, "ass"))] == ["Eve", ""]


def test_a_row_whose_ass_has_a_layer_that_is_none() -> None:
    found = transcript_of(
        ASS | {"header": ASS["header"].replace("Dialogue: 1", "Dialogue: x")}, [("one,", 1.0, 2.0)], []
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "\nDialogue: 0,0:00:01.00,0:00:02.00,Fancy,Bob,5," in render(found, "ass")


@pytest.mark.parametrize("header", ["", "[Events]\nDialogue: 0,x,0:00:01.00,,,0,0,0,,one", "Style: a,b,c"])
def test_a_row_whose_ass_is_none_has_the_usual_style(header: str) -> None:
    found = transcript_of(ASS | {"header": header}, [("one,", 1.0, 2.0), ("two", 2.0, 3.5)], [], length_s=9.006)
    assert "Default,,0,0,0,,{\\k100}one,\\N{\\k150}two\n" in render(found, "ass")


def test_speakers_are_named_as_each_format_does() -> None:
    """The text of the same format stays, unless a speaker has another name now."""
    texts = {
        "srt": ("- <b>Anna</b>: one", "two", "Bob: three"),
        "vtt": ("<v.loud Anna>- <b>one</b>", "<v Anna>two", "<v Bob>three"),
    }
    for given, other, first in (("srt", "vtt", "<v Anna>- <b></b>one"), ("vtt", "srt", "Anna: - <b>one</b>")):
        cues = [
            {"start": n, "end": n + 1, "text": text, "speaker": name}
            for n, (text, name) in enumerate(zip(texts[given], ("Anna", "Anna", "Bob"), strict=True))
        ]
        row = {"format": given, "cues": cues}
        found = transcript_of(row, *([(word, n, n + 1)] for n, word in enumerate(("one", "two", "three"))))
        spoken = [replace(one, speaker=cue["speaker"]) for one, cue in zip(found.segments, cues, strict=True)]
        found = replace(found, segments=tuple(spoken), speakers=("Anna", "Bob"))
        assert shown(found, given) == [*texts[given]] and shown(found, other) == [first, *texts[other][1:]]
        renamed = shown(with_speaker_names(found, SpeakerNames(in_order=("Eve", "Bob"))), given)
        assert "Eve" in renamed[0] and "Anna" not in "".join(renamed) and renamed[2] == texts[given][2]
        assert re.findall(r"\nDialogue.*,Speaker .,(.*?),", render(found, "ass")) == ["Anna", "Anna", "Bob"]


@pytest.mark.parametrize(
    ("format", "text", "other", "renamed"),
    [
        ("srt", "ANNA (V.O.): one", "(V.O.) one", "EVE (V.O.): one"),
        ("srt", "ANNA [on phone] :\none", "[on phone]\none", "EVE [on phone] :\none"),
        ("srt", "((sighs))\n♪ <i>ANNA</i>: one ♪", "((sighs))\n♪ <i></i>one ♪", "((sighs))\n♪ <i>EVE</i>: one ♪"),
        ("srt", "(heard (far)) ANNA: one", "(heard (far)) one", "(heard (far)) EVE: one"),
        ("srt", "*sighs* ANNA: <b>one</b>\n# ANNA: two", "*sighs* <b>one</b>\n# two", None),
        ("srt", "one, ANNA: two", "one, ANNA: two", ""),
        ("vtt", "ANNA: <c.red>one</c>", "one", "EVE: <c.red>one</c>"),
        ("vtt", "<v.loud ANNA><c.red>one</c>", "one", "<v.loud EVE><c.red>one</c>"),
        ("ass", "{\\an8}ANNA:\\None", "one", "{\\an8}EVE:\\None"),
        ("srt", "ANNA：one", "one", "EVE：one"),
    ],
)
def test_a_name_among_what_is_not_spoken(format: str, text: str, other: str, renamed: str | None) -> None:
    """In another format it is not written twice; another name takes its place."""
    given = GivenCue(format, 0, 1, text, speaker="ANNA")
    assert given.markup("vtt" if format == "srt" else "srt").strip() == other
    assert given.renamed("EVE") == (text.replace("ANNA", "EVE") if renamed is None else renamed or None)


def test_a_name_with_entities() -> None:
    shown = GivenCue("srt", 0, 1, "Ann <\u2060x>: one", speaker="Ann <\u2060x>")  # no tag
    assert shown.lines == ("one",)
    given = GivenCue("vtt", 0, 1, "Tom &amp; Jo: <i>one</i>", speaker="Tom & Jo")
    assert given.markup("srt", "Tom & Jo", "Tom & Jo: ") == "Tom & Jo: <i>one</i>"
    assert given.markup("vtt", "A < B") == "A &lt; B: <i>one</i>"


def test_many_lines_are_searched_for_names_at_once() -> None:
    given = GivenCue("srt", 0, 1, "-\n" * 100_000 + "ANNA: x\n" * 100_000, speaker="ANNA")
    assert len(given.lines) == 200_000


def test_a_name_in_the_text_of_ass_has_another() -> None:
    cues = [{"start": 0, "end": 1, "text": "{\\i1}Bob: one", "speaker": "Bob"}]
    line = "Dialogue: 0,0:00:00.00,0:00:01.00,Fancy,,0,0,0,,{\\i1}"
    found = transcript_of({"format": "ass", "header": f"[Events]\n{line}Bob: one\n", "cues": cues}, [("one", 0.0, 1.0)])
    by_eve = replace(found, segments=(replace(found.segments[0], speaker="Eve {2}"),))
    assert render(by_eve, "ass").splitlines()[-1] == f"{line}Eve (2): one"


def test_a_speaker_that_is_null_is_none() -> None:
    cue = {"start": 0, "end": 1, "text": "a", "speaker": None, "id": None, "settings": None}
    given = cues_of_row({"text": "a", "subtitles": {"format": "vtt", "header": None, "cues": [cue]}})
    assert given is not None and given.header == "" and given.cues == (GivenCue("vtt", 0, 1, "a"),)


def shown(transcript: Transcript, format: str) -> list[str]:
    return [
        block.partition(" --> ")[2].split("\n")[1] for block in render(transcript, format).strip().split("\n\n")[-3:]
    ]


def test_unheard_cues_in_a_row_are_not_piled_up() -> None:
    """A scene that the recording lacks; they have the time between the others."""
    lacking = [[(word, 2.0, 2.0)] for word in ("two", "three", "four")]
    given = {"format": "srt", "cues": [{"start": n, "end": n + 1, "text": f"cue {n}"} for n in range(5)]}
    found = transcript_of(given, [("one", 1.0, 2.0)], *lacking, [("five", 2.0, 3.0)])
    times = re.findall(r"\d+,\d+", render(found, "srt", style=BRIEF))
    assert times[2:8] == ["02,000", "02,001"] * 3


def test_changed_words_are_laid_out_anew() -> None:
    """The cues that were given would still have the words as they were."""
    words = replace(FOUND.segments[1].words[1], text="2")
    segment = replace(FOUND.segments[1], text="one 2", words=(FOUND.segments[1].words[0], words))
    changed = replace(FOUND, segments=(FOUND.segments[0], segment, FOUND.segments[2]))
    assert "two" not in render(changed, "srt") and "one 2" in render(changed, "srt")


@pytest.mark.parametrize(
    "given",
    [
        None,
        "x",
        {"format": "sub", "cues": []},
        {"format": "srt"},
        {"format": "srt", "cues": [7]},
        {"format": "srt", "cues": [{"start": 0, "end": None, "text": ""}]},
        {"format": "srt", "cues": [{"start": float("nan"), "end": 1, "text": ""}]},
        {"format": "srt", "cues": []},
    ],
)
def test_a_field_of_another_kind_is_no_subtitles(given: object) -> None:
    assert cues_of_row({"text": "a", "subtitles": given}) is None
