"""Subtitles of strangers as cues and the words to be spoken in them."""

from __future__ import annotations

import warnings

import pytest
from pysubs2 import SSAFile

from fastscribe.alignment.texts import NoCues, decode, format_of, read_subtitles

TIMES = (
    "00:00:01,000 --> 00:00:02,500",
    "00:00:03,000 --> 00:00:04,000",
    "00:00:05,000 --> 00:00:06,000",
    "00:00:07,000 --> 00:00:08,000",
    "00:00:09,000 --> 00:00:10,000",
)
ASS = """[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname
Style: Fancy,Arial

[Events]
Format: Layer, Start, End, Style, Name, Effect, Text
Comment: 0,0:00:00.00,0:00:09.00,Fancy,,,not shown
Dialogue: 1,0:00:03.00,0:00:04.00,Fancy,Anna,,{\\i1}there{\\i0},\\Nyou
Dialogue: 0,0:00:01.00,0:00:02.50,Fancy,Bob,,{\\pos(3,5)\\k20}hel{\\k10}lo\\hall
Dialogue: 0,0:00:05.00,0:00:06.00,Fancy,,,{\\p1}m 0 0 l 100 0{\\p0}

[Fonts]
fontname: x.ttf
"""


def srt(*texts: str) -> str:
    return "".join(
        f"{n}\n{time}\n{text}\n\n" for n, (time, text) in enumerate(zip(TIMES, texts, strict=False), start=1)
    )


def spoken(text: str, format: str = "srt") -> list[str]:
    return read_subtitles(text, format)[0].split("\n")


def cues(text: str, format: str = "srt") -> list[tuple[float, float, str]]:
    return [(cue["start"], cue["end"], cue["text"]) for cue in read_subtitles(text, format)[1]["cues"]]


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ("<i>Hello</i> <FONT color='#fff'>you</FONT>", "Hello you"),
        ("{\\an8}{y:i}Hello\\Nyou {loud}", "Hello you"),
        ("- Hello.\n-Hi, x-ray!", "Hello. Hi, x-ray!"),
        (">> Hello — you", "Hello you"),
        ("[door\nslams] Hello (quietly) you *sighs* （笑）", "Hello you"),
        ("([music])\n♪♪", ""),
        ("♪ Hello you ♪\n# and me #", "Hello you and me"),
        ("MAN: Hello\nMRS. O'HARA (V.O.): you at 5:30", "Hello you at 5:30"),
        ("Listen: hello, 注意: you", "Listen: hello, 注意: you"),
        ("Q&amp;A &lt;3 AT&T &copy", "Q&A <3 AT&T &copy"),
        ("a < b", "a b"),
        ("", ""),
    ],
)
def test_words_of_a_cue(shown: str, words: str) -> None:
    given = srt(shown, "the next")
    assert spoken(given) == [words, "the next"]
    assert cues(given) == [(1.0, 2.5, shown), (3.0, 4.0, "the next")]


def test_times_in_a_text() -> None:
    shown = ["from 00:00:01,000 to 00:00:02,000", ".45 and 12:30"]
    given = "".join(f"{n}\n0:0{n} --> 0:0{n + 1}\n{text}\n\n" for n, text in enumerate(shown, start=1))
    assert cues(given) == [(1.0, 2.0, shown[0]), (2.0, 3.0, shown[1])]


@pytest.mark.parametrize(
    ("cues", "words", "speakers"),
    [
        (
            ["Anna: one\ntwo", "three", "Bob: four", "five"],
            ["one two", "three", "four", "five"],
            [*["Anna"] * 2, *["Bob"] * 2],
        ),
        (["[wind]", "- Anna: one", "- [sighs] Anna: two"], ["", "one", "two"], ["", "Anna", "Anna"]),
        (["Anna: one", "[wind]", "two", "ANNA: (laughs)", "Bob: six"], ["one", "", "two", "", "six"],
            ["Anna", "", "Anna", "ANNA", "Bob"]),
        (["agent: one", "agent: two", "client: three"], ["one", "two", "three"], ["agent", "agent", "client"]),
        (["Anna: one\nBob: two", "Anna: three"], ["one two", "three"], []),
        (["Anna: one", "two\nAnna: three"], ["one", "two three"], []),
        (["one", "Anna: two", "Anna: three"], ["one", "two", "three"], []),
        (["one", "ANNA: two", "BOB: six"], ["one", "two", "six"], ["", "ANNA", "BOB"]),
        (["Narrator: One.", "Two.", "Remember: three.", "Four."], None, []),
        (["Narrator: One.", "Remember: two.", "Three."], None, []),
        (["Anna: One.", "Two.", "Ben: Six.", "Ten."], ["One.", "Two.", "Six.", "Ten."], ["Anna"] * 2 + ["Ben"] * 2),
        (["Anna: A.", "B.", "C.", "Ben: D.", "E."], ["A.", "B.", "C.", "D.", "E."], ["Anna"] * 3 + ["Ben"] * 2),
        (["Narrator: One."], None, []),
        (["Narrator: One.", "Two.", "Later: Six.", "Ten."], ["One.", "Two.", "Six.", "Ten."], ["Narrator"] * 2 + ["Later"] * 2),
        (["Anna Lee: one", "two", "Anna Lee: three"], ["one", "two", "three"], ["Anna Lee"] * 3),
        (["Anna: one", "two", "three"], None, []),
        (["翻译：张三", "一", "二", "我说：走", "三"], None, []),
    ],
    ids=[
        "first of each turn", "after a sound", "sounds", "small letters", "two in a cue", "behind another", "not the first",
        "a dialogue with a title", "other begins", "more of them", "two turns", "two long turns", "a lone one",
        "a title that looks like a name", "again", "once", "a colon of another script",
    ],
)  # fmt: skip
def test_names_tell_who_speaks_each_cue(cues: list[str], words: list[str] | None, speakers: list[str]) -> None:
    """Without a name, that is the speaker before. If they do not tell it of every cue behind the first name, no cue has one."""
    given = read_subtitles(srt(*cues), "srt")
    assert given[0].split("\n") == (words or cues), "words that are no name stay"
    assert [cue["speaker"] for cue in given[1]["cues"] if "speaker" in cue] == speakers
    assert given[2] == (words is not None and not speakers)


def test_voices_of_webvtt() -> None:
    voices = ("<v A &amp; B>one</v>", "two", "<v.loud Bob>three")
    text = "WEBVTT\n\n" + "".join(f"0:0{n} --> 0:0{n + 1}\n{voice}\n\n" for n, voice in enumerate(voices))
    assert [cue["speaker"] for cue in read_subtitles(text, "vtt")[1]["cues"]] == ["A & B", "A & B", "Bob"]
    both = text.replace("<v.loud Bob>", "<v Bob>no <v Anna>")
    assert not any("speaker" in cue for cue in read_subtitles(both, "vtt")[1]["cues"])
    shown = ("<v Anna>Remember: one", "<v Anna>Remember: two", "<v Ben>Ben: three", "EVE: four")
    text = "WEBVTT\n\n" + "".join(f"0:0{n} --> 0:0{n + 1}\n{one}\n\n" for n, one in enumerate(shown))
    words, given, _ = read_subtitles(text, "vtt")
    assert words == "Remember: one\nRemember: two\nthree\nfour"
    assert [cue["speaker"] for cue in given["cues"]] == ["Anna", "Anna", "Ben", "EVE"]


@pytest.mark.parametrize(
    "text",
    [
        srt("one", "two").replace("\n", "\r\n"),
        "\n\n" + srt("one", "two").replace("\n", "\r"),
        srt("one", "two").replace("1\n0", "0").replace("2\n0", "0"),
        srt("one", "two").replace("\n\n", "\n"),
        srt("one\n\n", "two"),
        "0:1 -> 0: 2, 5\none\n00:03.000-->00:04 X1:40 X2:60\ntwo",
        "7\n00:00:03,000 --> 00:00:04,000\ntwo\n\n3\n00:00:01,000 --> 00:00:02,5\none\n",
        srt("one", "two").replace("\n", "\r\r\n"),
        srt("one", "two").replace("\n0", "\n\n0"),
        "by someone\n" + srt("one", "two"),
        srt("one", "two").removeprefix("1\n"),
        "\ufeff" + srt("one", "two"),
        srt("one", "two").replace("1\n0", "١\n0").replace("2\n0", "٢\n0"),
        srt("one", "two").replace(" --> 00:00:04,000", " --> 00:00:04,000 00:00:07,000 00:00:08,000"),
    ],
    ids=[
        "CRLF", "CR", "no numbers", "no empty lines", "empty lines", "short times", "another order", "CR before CRLF",
        "empty line before times", "credit", "no first number", "second mark", "Arabic digits", "four times",
    ],
)  # fmt: skip
def test_loose_subrip(text: str) -> None:
    assert cues(text) == [(1.0, 2.5, "one"), (3.0, 4.0, "two")]


def test_a_number_may_be_a_cues_text() -> None:
    assert spoken(srt("42", "1984", "7")) == ["42", "1984", "7"]
    assert spoken("0:01 --> 0:02\n41\n42\n0:03 --> 0:04\n7\n") == ["41 42", "7"]
    assert spoken("0:01 --> 0:02\n41\n\n0:03 --> 0:04\n7\n") == ["41", "7"]
    assert spoken(srt("", "two").replace("\n\n", "\n").replace("\n2\n", "\n7\n")) == ["", "two"]


def test_webvtt() -> None:
    text = (
        "WEBVTT - a title\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:900000\n\nSTYLE\n::cue { color: red }\n\nNOTE a word\n\n"
        "REGION\nid:fred\n\n"
        "intro\n00:01.000 --> 00:02.500 region:fred line:0\n"
        "<v.loud Bob>He<00:01.500>llo</v> <c.red>you&nbsp;all</c>\n\nNOTE more\n\n"
        "00:00:03.000 --> 00:00:04.000\n<i>there</i>\n"
    )
    words, given, _ = read_subtitles(text, "vtt")
    assert words == "Hello you all\nthere"
    assert given["header"] == "WEBVTT - a title\n\nSTYLE\n::cue { color: red }"
    assert given["cues"] == [
        {
            "start": 1.0,
            "end": 2.5,
            "text": "<v.loud Bob>Hello</v> <c.red>you&nbsp;all</c>",
            "id": "intro",
            "settings": "line:0",
            "speaker": "Bob",
        },
        {"start": 3.0, "end": 4.0, "text": "<i>there</i>", "speaker": "Bob"},
    ]


def test_a_name_in_webvtt_may_have_two_times() -> None:
    name, times = "chapter 00:00:01.000 and 00:00:02.000", "00:01.000 --> 00:02.500"
    _, given, _ = read_subtitles(f"WEBVTT\n\n{name}\n{times}\none\n\n{name}\n{times} line:0\ntwo\n", "vtt")
    assert [(cue["id"], cue["text"]) for cue in given["cues"]] == [(name, "one"), (name, "two")]


@pytest.mark.parametrize("damaged", ["00:00:0x,000 --> 00:00:03,000", "0:02 --> oops", "00:00:02,000 -->"])
def test_a_cue_whose_times_cannot_be_read_keeps_its_place(damaged: str) -> None:
    words, given, _ = read_subtitles(
        f"1\n0:01 --> 0:02\none\n\n2\n{damaged}\ntwo\n\n3\n0:03 --> 0:04\nthree --> four\n", "srt"
    )
    assert words.split("\n")[:2] == ["one", "two"] and [cue["start"] for cue in given["cues"]] == [1.0, 1.0, 3.0]
    with pytest.raises(NoCues):
        read_subtitles(f"1\n{damaged}\ntwo\n", "srt")


def test_rolling_captions_are_spoken_once() -> None:
    """Each line is shown twice, and alone for a moment in between."""
    shown = ["one two", "one two", "one two\nthree", "three", "three\nfour"]
    clocks = [f"00:0{n}.000 --> 00:0{n + 1}.000" for n in range(len(shown))]
    text = "WEBVTT\n\n" + "".join(f"{clock}\n \n{lines}\n\n" for clock, lines in zip(clocks, shown, strict=True))
    assert spoken(text, "vtt") == ["one two", "", "three", "", "four"]
    assert spoken(srt("No!", "No!", "Yes.")) == ["No!", "No!", "Yes."]


def test_ass() -> None:
    words, given, _ = read_subtitles(ASS, "ass")
    assert words.split("\n") == ["hello all", "there, you", ""]
    assert given["cues"][1] == {"start": 3.0, "end": 4.0, "text": "{\\i1}there{\\i0},\\Nyou", "speaker": "Anna"}
    kept = SSAFile.from_string(given["header"], "ass")
    assert [(one.layer, one.style, one.name, one.type) for one in kept][:2] == [
        (0, "Fancy", "Bob", "Dialogue"),
        (1, "Fancy", "Anna", "Dialogue"),
    ]
    assert kept.info == {"ScriptType": "v4.00+"} and list(kept.styles) == ["Fancy"] and not kept.fonts_opaque


def test_ssa() -> None:
    text = (
        "[Script Info]\n\n[V4 Styles]\nFormat: Name, Fontname, Fontsize, PrimaryColour\nStyle: Old,Arial,20,255\n\n[Events]\n"
        "Dialogue: Marked=0,0:00:01.00,0:00:02.00,Old,Bob,0000,0000,0000,,hello, you\n"
    )
    words, given, _ = read_subtitles(text, "ass")
    assert words == "hello, you" and "Style: Old,Arial,20,&H000000FF," in given["header"]


def test_styles_of_ass() -> None:
    """A player reads a colour with & at its end and columns in any order, and does without a style that it cannot read."""
    bad = ASS.replace("Fancy,Arial\n", "Fancy,Arial,&H000000FF&, 0\nStyle: No,Arial,x,0\nStyle: No,Arial,0x,0\n")
    words, given, _ = read_subtitles(bad.replace("Fontname\n", "Fontname, PrimaryColour, Bold\n"), "ass")
    assert words.split("\n") == ["hello all", "there, you", ""] and "\nStyle: No" not in given["header"]
    assert "\nStyle: Fancy,Arial,20,&H000000FF," in given["header"]
    moved = ASS.replace("Name, Fontname\n", "Fontsize, PrimaryColour, Name, Fontname\n")
    _, given, _ = read_subtitles(moved.replace("Fancy,Arial\n", "30,&H000000FF&,Fancy,Arial\n"), "ass")
    assert "\nStyle: Fancy,Arial,30,&H000000FF," in given["header"]


def test_times_of_ass() -> None:
    """A line whose times cannot be read is not shown. What pysubs2 changes in others, such as a layer, it does silently."""
    shown = {"00:05.00": 5, "11:00:05.5": 39605.5, "-0:00:05.00": 0, "100:00:05.00": 359999.999}
    clocks = (*shown, "0:00:0x.00", "", "5", "0:00:05.00 x")
    lines = "".join(f"Dialogue: x,{clock},{clock},,,,{clock}\n" for clock in clocks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, given, _ = read_subtitles(ASS[: ASS.index("Comment")].upper().replace("FORMAT", "Format") + lines, "ass")
    assert [(cue["text"], cue["start"]) for cue in given["cues"]] == sorted(shown.items(), key=lambda one: one[1])
    assert SSAFile.from_string(given["header"], "ass").events[-1].text == "100:00:05.00"


def test_sections_of_ass_that_are_left_out() -> None:
    _, given, _ = read_subtitles(
        ASS + "\n[Aegisub Extradata]\nData: 0,key,value\n\n[Graphics]\nfilename: x.png\n", "ass"
    )
    assert not {"[Fonts]", "[Graphics]", "value", "not shown"} & set(given["header"].replace(",", "\n").split("\n"))


def test_encodings() -> None:
    text = srt("Président, “sí”")
    for encoding, guess in (
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-32", None),
        ("utf-16-le", "utf-16-le"),
        ("utf-16-be", "utf-16-be"),
        ("windows-1252", "windows-1252"),
    ):
        assert decode(text.encode(encoding)) == (text, guess), encoding
    assert read_subtitles(text, "srt", "windows-1252")[1]["encoding"] == "windows-1252"


def test_formats() -> None:
    assert format_of("\nWEBVTT\n", ".srt") == "vtt" and format_of(ASS, ".txt") == "ass"
    assert format_of(srt("one"), ".txt") == "srt" and format_of("", ".ssa") == "ass"
    assert format_of("A text that speaks of --> and WEBVTT\n1\n2", ".txt") is None
    for format in ("srt", "vtt", "ass"):
        with pytest.raises(NoCues, match="no cue with a time"):
            read_subtitles("no cues\n", format)


def test_few_lines_of_two_cues_are_compared() -> None:
    """Rolling captions repeat two or three. To compare all ends with all begins would take minutes."""
    many = "No!\n" * 400_000
    assert [len(one.split()) for one in spoken(srt(many + "Yes.", many))] == [400_001, 400_000]
