"""Each format: the exact schema, round trips for any text, and other parsers."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pysubs2
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastscribe._system.text_layout import clean_text
from fastscribe.audio.formats import is_other_name
from fastscribe.config import OUTPUT_FORMATS, OutputStyle, SubtitleStyle
from fastscribe.errors import OptionError
from fastscribe.results.formats.cue_files import to_srt, to_vtt
from fastscribe.results.formats.writers import (
    LAID_OUT,
    SINGLE_FORMATS,
    render,
    rendered,
    to_ctm,
    to_json,
    to_jsonl,
    to_tsv,
)
from fastscribe.types import AudioInfo, Failure, Gap, Segment, Token, Transcript, Word
from tests.conftest import ROOT

AUDIO = AudioInfo("in/a b.wav", "a b.wav", sample_rate=16_000, channels=1, num_samples=40_001)
WORDS = (Word("Hello", 0.08, 0.4804, 0.987), Word("<b>&", 0.56, 0.8, 0.5), Word("world.", 0.9, 1.2, 1.0))
TOKENS = (Token(7, "▁Hello", 0.08, 0.48, 0.987), Token(8, "▁wörld", 0.9, 1.2, 1.0))
TRANSCRIPT = Transcript(AUDIO, "Hello <b>& world.", (Segment("Hello <b>& world.", 0.08, 1.2, 0.829, WORDS),), TOKENS)
MAY_BE_EMPTY = ("srt", "ctm")  # formats that write nothing where there are no words
FAILURE = Failure("in/b.wav", "b.wav", "load", "AudioError", "in/b.wav: not audio")
ERROR = {"stage": "load", "type": "AudioError", "message": "in/b.wav: not audio"}


def with_row(row: dict[str, Any]) -> Transcript:
    return replace(TRANSCRIPT, audio=replace(AUDIO, row=row))


def test_gaps_are_listed_with_the_words() -> None:
    gaps = (Gap(2.0, 4.0004), Gap(10.0, 13.5))
    assert json.loads(to_jsonl(replace(TRANSCRIPT, gaps=gaps)))["gaps"] == [
        {"start": 2.0, "end": 4.0},
        {"start": 10.0, "end": 13.5},
    ]


def test_a_rendered_transcript_has_its_texts_and_what_is_counted() -> None:
    whole = replace(with_row({"audio_filepath": "a", "n": 1}), gaps=(Gap(2.0, 4.0),), language="en", speakers=("Ann",))
    whole = replace(whole, audio=replace(whole.audio, file="elsewhere"))
    style = OutputStyle(("srt", "json"), tokens=True)
    found = rendered(whole, style)
    assert found.contents == {
        format: render(whole, format, tokens=True).encode() for format in ("jsonl", "srt", "json")
    }
    assert render(found, "srt") == to_srt(whole)
    assert (found.text, found.gaps, found.language, found.speakers) == (whole.text, whole.gaps, "en", ("Ann",))
    assert (found.segments, found.tokens, found.audio) == ((), (), AUDIO)
    with pytest.raises(OptionError, match=r"^format 'vtt': the result was rendered as json, jsonl, srt only"):
        render(found, "vtt")
    with pytest.raises(OptionError, match=r"^style .*: not a fastscribe.SubtitleStyle"):
        render(whole, "srt", style=style)  # type: ignore[arg-type]


def one_word(text: str, start_s: float = 0.0, end_s: float = 1.0, confidence: float = 0.9) -> Transcript:
    word = Word(text, start_s, end_s, confidence)
    return Transcript(AUDIO, text, (Segment(text, start_s, end_s, confidence, (word,)),), (Token(1, text, 0, 1, 1),))


def test_jsonl_is_the_documented_object() -> None:
    line = to_jsonl(TRANSCRIPT)
    assert line.endswith("}\n")
    assert json.loads(line) == {
        "audio_filepath": "in/a b.wav",
        "duration": 2.5,
        "text": "Hello <b>& world.",
        "segments": [{"text": "Hello <b>& world.", "start": 0.08, "end": 1.2, "confidence": 0.83}],
        "words": [
            {"word": "Hello", "start": 0.08, "end": 0.48, "confidence": 0.99},
            {"word": "<b>&", "start": 0.56, "end": 0.8, "confidence": 0.5},
            {"word": "world.", "start": 0.9, "end": 1.2, "confidence": 1.0},
        ],
        "gaps": [],
    }
    assert list(json.loads(line)) == ["audio_filepath", "duration", "text", "segments", "words", "gaps"]


def test_tokens_come_on_request_and_unescaped() -> None:
    line = to_jsonl(TRANSCRIPT, tokens=True)
    assert json.loads(line)["tokens"] == [
        {"id": 7, "piece": "▁Hello", "start": 0.08, "end": 0.48, "confidence": 0.99},
        {"id": 8, "piece": "▁wörld", "start": 0.9, "end": 1.2, "confidence": 1.0},
    ]
    assert "▁wörld" in line


def test_a_failure_says_where_and_why() -> None:
    assert json.loads(to_jsonl(FAILURE)) == {"audio_filepath": "in/b.wav", "error": ERROR}


def test_json_is_the_same_object_on_many_lines() -> None:
    for result in (TRANSCRIPT, FAILURE):
        assert json.loads(to_json(result, tokens=True)) == json.loads(to_jsonl(result, tokens=True))
        assert to_json(result).count("\n") > 3


def test_manifest_rows_keep_their_fields_and_text() -> None:
    row = {"audio_filepath": "x.wav", "offset": 1.5, "duration": 2.0, "text": "reference", "lang": "de", "n": [1, {}]}
    found = json.loads(to_jsonl(with_row(row)))
    assert {key: found[key] for key in row} == row
    assert found["pred_text"] == TRANSCRIPT.text
    assert set(found) - set(row) == {"pred_text", "segments", "words", "gaps"}
    assert json.loads(to_jsonl(replace(FAILURE, row=row))) == {**row, "error": ERROR}


def test_manifest_row_without_duration_gets_it() -> None:
    found = json.loads(to_jsonl(with_row({"audio_filepath": "x.wav"})))
    assert found["duration"] == 2.5
    assert "text" not in found


def test_empty_row_names_its_file() -> None:
    assert json.loads(to_jsonl(with_row({})))["audio_filepath"] == "in/a b.wav"
    assert json.loads(to_jsonl(replace(FAILURE, row={})))["audio_filepath"] == "in/b.wav"


def test_earlier_results_in_a_row_are_replaced() -> None:
    stale: dict[str, Any] = dict.fromkeys(("pred_text", "segments", "words", "gaps", "tokens", "error"), "stale")
    row = {"audio_filepath": "x.wav", **stale}
    assert "stale" not in to_jsonl(with_row(row))
    assert "stale" not in to_jsonl(with_row(row), tokens=True)
    assert json.loads(to_jsonl(replace(FAILURE, row=row))) == {"audio_filepath": "x.wav", "error": ERROR}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_lacks_become_null(number: float) -> None:
    row = {"audio_filepath": "x.wav", "duration": number, "nested": [{"deep": number}]}
    strange = replace(one_word("a", number, number, number), audio=replace(AUDIO, row=row))
    for text in (to_jsonl(strange, tokens=True), to_json(strange), to_jsonl(replace(FAILURE, row=row))):
        assert "NaN" not in text
        assert "Infinity" not in text
        found = json.loads(text)
        assert found["duration"] is None
        assert found["nested"] == [{"deep": None}]
    for format in OUTPUT_FORMATS:
        assert not {"nan", "inf", "-inf"} & set(render(strange, format).lower().split())


def test_lone_surrogates_are_escaped_and_json_reads_them_back() -> None:
    broken = "caf\udce9"
    found = replace(one_word(broken), audio=replace(AUDIO, path=broken + ".wav", id=broken + ".wav"))
    assert json.loads(to_jsonl(found).encode())["audio_filepath"] == broken + ".wav"
    for format in OUTPUT_FORMATS:
        written = render(found, format).replace(r"\\", "\\")  # Markdown escapes it
        assert "caf\\udce9" in written and written.encode(), f"{format}: its texts pass clean_text()"


@settings(max_examples=100, deadline=None)
@given(st.text(), st.sampled_from(OUTPUT_FORMATS), st.booleans())
def test_any_text_can_be_written_in_any_format(text: str, format: str, tokens: bool) -> None:
    written = render(one_word(text), format, tokens)
    assert written.encode().decode() == written
    assert written.endswith("\n") or (written == "" and format in MAY_BE_EMPTY)
    if format in ("jsonl", "json"):
        assert json.loads(written)["text"] == text
    if format in ("jsonl", "txt", "tsv", "ctm") and written:
        lines = written.splitlines()
        assert len(lines) == (2 if format == "tsv" else 1)
        assert format != "tsv" or len(lines[1].split("\t")) == 3
        assert format != "ctm" or len(lines[0].split()) == 6


def test_srt_by_example() -> None:
    assert to_srt(TRANSCRIPT) == "1\n00:00:00,080 --> 00:00:01,200\nHello <\u2060b>& world.\n\n"


def test_vtt_escapes_markup() -> None:
    assert to_vtt(TRANSCRIPT) == "WEBVTT\n\n00:00:00.080 --> 00:00:01.200\nHello &lt;b&gt;&amp; world.\n\n"
    assert to_vtt(Transcript(AUDIO, "", (), ())) == "WEBVTT\n\n"
    assert to_srt(Transcript(AUDIO, "", (), ())) == ""


def test_vtt_with_highlights_repeats_a_cue_for_each_word() -> None:
    assert to_vtt(TRANSCRIPT, SubtitleStyle(highlight_words=True)) == (
        "WEBVTT\n\n"
        "00:00:00.080 --> 00:00:00.560\n<u>Hello</u> &lt;b&gt;&amp; world.\n\n"
        "00:00:00.560 --> 00:00:00.900\nHello <u>&lt;b&gt;&amp;</u> world.\n\n"
        "00:00:00.900 --> 00:00:01.200\nHello &lt;b&gt;&amp; <u>world.</u>\n\n"
    )
    style = SubtitleStyle(max_line_width=10, highlight_words=True)
    assert to_vtt(TRANSCRIPT, style).split("\n\n")[3].splitlines()[1:] == ["Hello &lt;b&gt;&amp;", "<u>world.</u>"]
    assert to_srt(TRANSCRIPT, style) == to_srt(TRANSCRIPT, SubtitleStyle(max_line_width=10))


def test_a_cue_too_short_for_its_words_is_shown_plain() -> None:
    hurried = replace(spoken(["a", "b", "c"]), audio=replace(AUDIO, num_samples=32))  # 2 ms
    assert "<u>" not in to_vtt(hurried, SubtitleStyle(highlight_words=True))
    assert "a b c" in to_vtt(hurried, SubtitleStyle(highlight_words=True))


def test_style_applies_to_subtitle_formats_only() -> None:
    narrow = SubtitleStyle(max_line_width=6, max_lines=3, highlight_words=True)
    for format in OUTPUT_FORMATS:
        differs = render(TRANSCRIPT, format, style=narrow) != render(TRANSCRIPT, format)
        assert differs == (format in LAID_OUT), format


def test_clock_counts_past_a_day() -> None:
    long_audio = replace(AUDIO, num_samples=16_000 * 400_000)
    late = replace(one_word("late", 363_599.9996, 363_601.5), audio=long_audio)
    assert "101:00:00,000 --> 101:00:01,500" in to_srt(late)


def test_tsv_equals_whispers() -> None:
    assert to_tsv(TRANSCRIPT) == "start\tend\ttext\n80\t1200\tHello <b>& world.\n"
    assert to_tsv(one_word("a\tb\nc")) == "start\tend\ttext\n0\t1000\ta b c\n"
    of_nobody = to_tsv(replace(TRANSCRIPT, speakers=("Ann",)))  # a segment of a dialogue without a speaker
    assert of_nobody == "start\tend\ttext\tspeaker\n80\t1200\tHello <b>& world.\t\n"


def test_ctm_has_six_fields_a_word() -> None:
    assert to_ctm(TRANSCRIPT).splitlines() == [
        "a_b.wav 1 0.080 0.400 Hello 0.99",
        "a_b.wav 1 0.560 0.240 <b>& 0.50",
        "a_b.wav 1 0.900 0.300 world. 1.00",
    ]
    assert to_ctm(one_word("two words", 1.0, 0.5)) == "a_b.wav 1 1.000 0.000 two_words 0.90\n"
    assert to_ctm(one_word(" \n")) == ""


def test_only_json_formats_report_failures() -> None:
    assert [format for format in OUTPUT_FORMATS if render(FAILURE, format)] == ["jsonl", "json"]


def spoken(texts: list[str]) -> Transcript:
    words = tuple(Word(text, 0.4 * index, 0.4 * index + 0.3, 0.9) for index, text in enumerate(texts))
    audio = replace(AUDIO, num_samples=round(len(texts) * 0.4 * 16_000))
    return Transcript(audio, " ".join(texts), (Segment(" ".join(texts), 0.0, 0.4 * len(texts), 0.9, words),), ())


# Text that players take for markup or structure. Digits are left out: pysubs2 takes a last line of them for a cue's number.
TRICKY = [
    "<b>",
    "</i>",
    "<",
    ">",
    "a<b",
    "<c.red>",
    "&",
    "&amp;",
    "&lt;i&gt;",
    "{\\an8}",
    "{x}",
    "\\N",
    "\\n",
    "C:\\home",
]
TRICKY += [
    "-->",
    "<!--",
    "NOTE",
    "STYLE",
    "WEBVTT",
    "\x00",
    "\u2028",
    "\u200b",
    "\u200fא",
    "\udce9",
    "日本語",
    "{",
    "}",
    "<u>",
]
ANY_WORDS = st.lists(st.sampled_from(TRICKY) | st.text(st.sampled_from("abzäж,.<>&{}\\Nnh-"), max_size=8), max_size=40)
STYLES = st.builds(
    SubtitleStyle, st.integers(4, 60), st.integers(1, 4), max_chars_per_second=st.none() | st.floats(5, 40)
)


def said(texts: list[str]) -> list[str]:
    return clean_text(" ".join(clean_text(text) for text in texts)).split()


def unwrapped(lines: Iterable[str]) -> str:
    """Remove spaces, because words wider than a line are cut."""
    return "".join("".join(line.split()) for line in lines)


@settings(max_examples=80, deadline=None)
@given(ANY_WORDS, STYLES)
def test_pysubs2_reads_srt_back_without_markup(texts: list[str], style: SubtitleStyle) -> None:
    written = to_srt(spoken(texts), style)
    assume(not re.search(r"\n[0-9]+\n\n", written))  # it takes a last line of digits for the number of the next cue
    events = list(pysubs2.SSAFile.from_string(written, format_="srt"))
    shown = unwrapped(event.plaintext for event in events).replace("\u2060", "")
    assert shown == unwrapped(said(texts)).replace("{", "(").replace("}", ")")
    assert all("{" not in event.text for event in events)  # how pysubs2 keeps the markup it finds
    assert all(before.end <= after.start for before, after in itertools.pairwise(events))


@settings(max_examples=80, deadline=None)
@given(ANY_WORDS, STYLES)
def test_webvtt_reads_vtt_back(texts: list[str], style: SubtitleStyle) -> None:
    webvtt = pytest.importorskip("webvtt")
    plain = webvtt.from_string(to_vtt(spoken(texts), style)).captions
    marked = webvtt.from_string(to_vtt(spoken(texts), replace(style, highlight_words=True))).captions
    assert html.unescape(unwrapped(caption.text for caption in plain)) == unwrapped(said(texts))
    repeats = [(text, list(group)) for text, group in itertools.groupby(marked, key=lambda caption: caption.text)]
    assert [text for text, _ in repeats] == [text for text, _ in itertools.groupby(caption.text for caption in plain)]
    underlined = re.findall(r"<u>(.*?)</u>", "\n".join(caption.raw_text for caption in marked))
    assert html.unescape("".join(underlined)) == unwrapped(said(texts))
    for before, after in itertools.pairwise(marked):
        assert before.start < before.end <= after.start


def named_in_table(path: str, header: str) -> dict[str, str]:
    """The rows of a table of formats, by the formats that the first column names."""
    table = (ROOT / path).read_text(encoding="utf-8").partition(header)[2].partition("\n\n")[0]
    return {name: row for row in table.splitlines()[2:] for name in re.findall("`([a-z0-9]+)`", row.split("|")[1])}


def test_the_guide_to_speakers_says_how_an_output_format_names_them() -> None:
    named = set(named_in_table("docs/speakers.md", "| format | who speaks |"))
    assert named == set(OUTPUT_FORMATS), "docs/speakers.md: add a row to the table of formats, or take one out"


@pytest.mark.parametrize("format", OUTPUT_FORMATS)
def test_an_output_format_has_a_test_of_its_own(format: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))]
    own = re.compile(rf'to_{format}\(|render\([^\n]*, "{format}"')
    assert any(map(own.search, texts)), f"to_{format}() has no test in {Path(__file__).parent}"


def test_an_output_format_is_known_to_folders_and_to_stdout() -> None:
    assert [format for format in OUTPUT_FORMATS if not is_other_name(f"a.{format}")] == []
    rows = named_in_table("docs/transcribe.md", "| format | several recordings")
    said = {name: "an error before" in row for name, row in rows.items()}
    assert said == {format: format in SINGLE_FORMATS for format in OUTPUT_FORMATS}, (
        "docs/transcribe.md: the table of formats says which are `an error before anything is decoded`; "
        "SINGLE_FORMATS in writers.py has the same ones"
    )
