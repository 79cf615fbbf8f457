r"""ASS: what another parser reads of it, and karaoke tags that follow the times of the words."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import av
import pysubs2
from hypothesis import given, settings

from fastscribe.config import SubtitleStyle
from fastscribe.results.formats.subtitles import spoken_spans, to_cues
from fastscribe.results.formats.writers import render
from fastscribe.types import AudioInfo, Failure, Segment, Transcript, Word
from tests.results.formats.test_writers import ANY_WORDS, STYLES, said, spoken, unwrapped
from tests.speakers.test_dialogue_formats import CALL


def tags_cs(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\{\\k(\d+)\}", text)]


@settings(max_examples=80, deadline=None)
@given(ANY_WORDS, STYLES)
def test_pysubs2_reads_every_word_and_no_other_markup(texts: list[str], style: SubtitleStyle) -> None:
    transcript = spoken(texts)
    events = list(pysubs2.SSAFile.from_string(render(transcript, "ass", style=style), format_="ass"))
    assert len(events) == len(to_cues(transcript, style))
    shown = unwrapped(event.plaintext for event in events).replace("\u2060", "")
    assert shown == unwrapped(said(texts)).replace("{", "(").replace("}", ")")
    assert all(re.fullmatch(r"\\k\d+", tag) for event in events for tag in re.findall(r"\{(.*?)\}", event.text))
    assert all(before.end <= after.start for before, after in itertools.pairwise(events))


@settings(max_examples=60, deadline=None)
@given(ANY_WORDS, STYLES)
def test_each_tag_is_half_a_hundredth_from_its_word_and_none_drifts(texts: list[str], style: SubtitleStyle) -> None:
    transcript = spoken(texts)
    events = list(pysubs2.SSAFile.from_string(render(transcript, "ass", style=style), format_="ass"))
    for event, cue in zip(events, to_cues(transcript, style), strict=True):
        timed, tags = spoken_spans(cue), tags_cs(event.text)
        assert len(tags) == len(timed) and (not tags or 10 * sum(tags) == event.end - event.start)
        starts_ms = itertools.accumulate(tags, lambda at, tag: at + 10 * tag, initial=event.start)
        assert all(abs(at - start_ms) <= 5 for at, (start_ms, _, _) in zip(starts_ms, timed, strict=False))


def test_an_event_is_as_players_expect_it() -> None:
    written = render(spoken(["Hello", "brave", "new", "world."]), "ass", style=SubtitleStyle(max_line_width=12))
    assert written.splitlines()[-1] == (
        r"Dialogue: 0,0:00:00.00,0:00:01.50,Default,,0,0,0,,{\k40}Hello {\k40}brave\N{\k40}new {\k30}world."
    )


def test_a_backslash_at_the_end_of_a_piece_does_not_open_the_tag_after_it() -> None:
    r"""libass shows `\{` as a brace, and the tag as text."""
    written = render(spoken(["a\\日b\\本"]), "ass", style=SubtitleStyle(max_line_width=5, max_lines=3))
    assert written.count("{\\k") > 2 and "\\{" not in written and "\\\u2060{\\k" in written


def test_ffmpeg_reads_it(tmp_path: Path) -> None:
    transcript = spoken(["Hello", "brave", "new", "world."])
    (tmp_path / "a.ass").write_text(render(transcript, "ass"), encoding="utf-8")
    with av.open(str(tmp_path / "a.ass")) as file:
        [packet] = [packet for packet in file.demux(file.streams.subtitles[0]) if packet.size]
        [read] = packet.decode()
        assert (packet.pts * packet.time_base, packet.duration * packet.time_base) == (0, 1.5)
        assert read.ass.endswith(rb",{\k40}Hello {\k40}brave {\k40}new {\k30}world.")  # type: ignore[union-attr]


def test_speakers_have_styles_and_names() -> None:
    read = pysubs2.SSAFile.from_string(render(CALL, "ass"), format_="ass")
    assert list(read.styles) == ["Speaker 1", "Speaker 2"]
    assert [(one.name, one.style) for one in read][:2] == [("agent", "Speaker 1"), ("A & B", "Speaker 2")]
    assert read.styles["Speaker 1"].primarycolor != read.styles["Speaker 2"].primarycolor
    assert read[0].plaintext == "Hello."


def test_a_recording_of_more_than_ten_hours() -> None:
    words = (Word("late", 36_000.0, 36_001.0, 0.9),)
    audio = AudioInfo("a.wav", "a.wav", 1000, 1, 36_002_000)
    found = Transcript(audio, "late", (Segment("late", 36_000.0, 36_001.0, 0.9, words),), ())
    assert "Dialogue: 0,10:00:00.00,10:00:01.00,Default,,0,0,0,,{\\k100}late\n" in render(found, "ass")


def test_a_failure_has_no_subtitles_and_silence_has_a_file_without_events() -> None:
    assert render(Failure("a.wav", "a", "load", "AudioError", "a.wav: not audio"), "ass") == ""
    assert not pysubs2.SSAFile.from_string(render(spoken([]), "ass"), format_="ass").events
