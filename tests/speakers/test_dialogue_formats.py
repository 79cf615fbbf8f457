"""Who speaks, in every format."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fastscribe.config import OutputStyle, SpeakerNames, SubtitleStyle
from fastscribe.results.formats.speaker_names import read_speaker_map, with_speaker_names
from fastscribe.results.formats.subtitles import to_cues
from fastscribe.results.formats.writers import content_of, render, to_object
from fastscribe.results.stream import stream_text
from fastscribe.speakers.dialogues import merge
from fastscribe.text.transcript import make_segment
from tests.speakers.test_merge_channels import spoken

AGENT = spoken((0, "Hello."), (3, "How can I help you?"), (12, "One moment, please."))
CUSTOMER = spoken((2.5, "Hi!"), (5.0, "My bill is wrong."))
CALL = merge([replace(AGENT, audio=replace(AGENT.audio, channel=0)), CUSTOMER], ("agent", "A & B"))


def test_rows_name_the_speaker_of_segments_and_words() -> None:
    row = json.loads(render(CALL, "jsonl", tokens=True))
    assert row["speakers"] == ["agent", "A & B"] and row["text"].startswith("Hello. Hi! How can I help")
    assert row["speaker_channels"] == {"agent": 0, "A & B": 1}
    assert [one["speaker"] for one in row["segments"]][:3] == ["agent", "A & B", "agent"]
    assert [one["speaker"] for one in row["words"]][:3] == ["agent", "A & B", "agent"]
    assert {one["speaker"] for one in row["tokens"]} == {"agent", "A & B"}
    plain = render(AGENT, "jsonl", tokens=True)
    assert "speaker" not in plain


def test_text_has_a_paragraph_a_turn() -> None:
    assert render(CALL, "txt").split("\n\n") == [
        "agent: Hello.",
        "A & B: Hi!",
        "agent: How can I help you?",
        "A & B: My bill is wrong.",
        "agent: One moment, please.\n",
    ]
    assert stream_text(CALL, OutputStyle(("txt",)), is_one=False).splitlines()[1] == "call.wav\tA & B: Hi!"
    assert stream_text(CALL, OutputStyle(("txt",)), is_one=True) == render(CALL, "txt")
    silent = merge([spoken()], ("agent",))
    assert (render(silent, "txt"), render(silent, "srt"), render(silent, "vtt")) == ("\n", "", "WEBVTT\n\n")


def test_a_name_may_have_a_colon(tmp_path: Path) -> None:
    (map := tmp_path / "names.txt").write_text("speaker 1: Dr. Smith: Host\na.wav\tspeaker 2\tAnna: Guest\n")
    names = (("", "speaker 1", "Dr. Smith: Host"), ("a.wav", "speaker 2", "Anna: Guest"))
    assert read_speaker_map(map).of_labels == names


def test_one_speaker_without_a_name_is_not_named() -> None:
    for name, expected in (("channel 1", "Hello."), ("speaker 2", "Hello."), ("Anna", "Anna: Hello.")):
        alone = merge([spoken((0, "Hello."))], (name,))
        assert render(alone, "txt") == expected + "\n"
        assert render(alone, "srt").splitlines()[2] == expected
        assert ("**" in render(alone, "md")) == (name == "Anna") and json.loads(render(alone, "json"))["speakers"] == [
            name
        ]
    assert render(merge([spoken((0, "Hi.")), spoken((3, "Ho."))], ("channel 1", "channel 2")), "txt").startswith(
        "channel 1:"
    )


def test_a_style_names_the_speakers_of_files_and_streams() -> None:
    swapped = SpeakerNames(of_labels=(("", "agent", "A & B"), ("", "A & B", "agent"), ("other.wav", "agent", "x")))
    style = OutputStyle(("txt", "json"), speaker_names=swapped)
    assert render(CALL, "jsonl").encode() == content_of(CALL, "jsonl", style)
    assert json.loads(content_of(CALL, "json", style))["speaker_channels"] == {"A & B": 0, "agent": 1}
    for text in (content_of(CALL, "txt", style).decode(), stream_text(CALL, style, is_one=True)):
        assert [line for line in text.splitlines() if line][:2] == ["A & B: Hello.", "agent: Hi!"]
    second = replace(CALL, speakers=("A & B",), speaker_channels=(1,))
    assert with_speaker_names(second, SpeakerNames(("x", "y"))).speakers == ("A & B",)
    three = replace(CALL, speaker_channels=(0, 2))
    assert with_speaker_names(three, SpeakerNames(("x", "y", "z"))).speakers == ("x", "z")


def test_tables_and_lists() -> None:
    assert render(CALL, "tsv").splitlines()[:3] == ["start\tend\ttext\tspeaker", "0\t400\tHello.\tagent",
                                                  "2500\t2900\tHi!\tA & B"]  # fmt: skip
    channels = [line.split()[1] for line in render(CALL, "ctm").splitlines()]
    assert channels == ["1"] * 9 + ["2"] * 5
    starts = [float(line.split()[2]) for line in render(CALL, "ctm").splitlines()]
    assert starts[:9] == sorted(starts[:9]) and starts[9:] == sorted(starts[9:])
    assert render(CALL, "rttm").splitlines()[1] == "SPEAKER call.wav 1 2.500 0.400 <NA> <NA> A_&_B <NA> <NA>"
    assert render(AGENT, "rttm").splitlines()[0] == "SPEAKER call.wav 1 0.000 0.400 <NA> <NA> <NA> <NA> <NA>"


def test_subtitles_name_who_speaks() -> None:
    srt, vtt = render(CALL, "srt"), render(CALL, "vtt")
    assert "\nagent: Hello.\n" in srt and "\nA & B: Hi!\n" in srt and "\nagent: How can I help you?\n" in srt
    assert "\n<v agent>Hello.\n" in vtt and "\n<v A &amp; B>Hi!\n" in vtt
    karaoke = render(CALL, "vtt", style=SubtitleStyle(highlight_words=True))
    assert "\n<v agent>How <u>can</u> I help you?\n" in karaoke


def test_cues_of_two_speakers_overlap_only_where_both_speak() -> None:
    """The agent's question lasts from 3 to 5.4 s; "My bill" begins at 5. "Hi!" would be shown for a second otherwise."""
    cues = to_cues(CALL)
    assert [cue.speaker for cue in cues] == ["agent", "A & B", "agent", "A & B", "agent"]
    overlaps = [(a.end_ms, b.start_ms) for a, b in pairwise(cues) if a.end_ms > b.start_ms]
    assert overlaps == [(5400, 5000)]
    assert cues[-1].end_ms <= 60_000


@pytest.mark.parametrize("width", [4, 8, 15, 42])
def test_names_keep_the_width_of_lines(width: int) -> None:
    style = SubtitleStyle(max_line_width=width)
    cues = to_cues(CALL, style, names_speakers=True)
    assert max(len(line) for cue in cues for line in cue.lines) <= width
    shown = "".join("".join(cue.lines) for cue in cues).replace(" ", "")
    assert shown == "agent:Hello.A&B:Hi!agent:HowcanIhelpyou?A&B:Mybilliswrong.agent:Onemoment,please."


def test_a_manifests_field_of_the_same_name_stays() -> None:
    row = {"audio_filepath": "call.wav", "speakers": 2, "pred_speakers": "of an earlier run"}
    for transcript, expected in ((CALL, ["agent", "A & B"]), (AGENT, None)):
        found = to_object(replace(transcript, audio=replace(transcript.audio, row=row)))
        assert (found["speakers"], found.get("pred_speakers")) == (2, expected)


def test_lines_of_a_known_text_stay_cues_of_their_own() -> None:
    call = merge([spoken((0, "How can"), (0.8, "I help you?")), spoken((3, "Hi!"))], ("agent", "Berta"))
    words = call.words
    parts = [(1, words[:2]), (2, words[2:5]), (3, words[5:])]
    lines = tuple(replace(make_segment(own), line=number, speaker=own[0].speaker) for number, own in parts)
    texts = [cue.lines for cue in to_cues(replace(call, segments=lines))]
    assert texts == [("How can",), ("I help you?",), ("Hi!",)]
    assert len(to_cues(call)) == 2
