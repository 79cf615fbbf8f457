"""What of a text is spoken, and by whom: names, sounds, Markdown."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastscribe.alignment.spoken import without_markup, without_names, without_sounds
from fastscribe.alignment.texts import read_subtitles
from fastscribe.results.formats.writers import render
from fastscribe.types import AudioInfo, Segment, Transcript, Word


@pytest.mark.parametrize(
    ("text", "spoken", "speakers"),
    [
        ("Anna: Hi.\n\nBerta: Yes\nor no.", "Hi.\n\nYes\nor no.", ["Anna", "Anna", "Berta", "Berta"]),
        ("agent: a\ncustomer: b\nagent: c\ncustomer: d", "a\nb\nc\nd", ["agent", "customer"] * 2),
        ("channel 1: a\nb\nc\nSpeaker 2: d\ne", "a\nb\nc\nd\ne", [*["channel 1"] * 3, *["Speaker 2"] * 2]),
        ("Title\n\nAnna:\nHi.\nAnna: Yes.", "Title\n\n\nHi.\nYes.", [None, None, "Anna", "Anna", "Anna"]),
        ("Note: a door.", "Note: a door.", [None]),
        ("Note: a door.\nBye.\nRemember: go.", None, [None] * 3),
        ("One thing: it\nis so: never\nat all\nagain and\nagain", None, [None] * 5),
        ("at 10:30 we\nhttp://a.b c\nhe said: no", None, [None] * 3),
        ("", "", []),
        (
            "**Anna**: Hi.\nSo there.\n**A Lady of the House**: Yes.",
            "Hi.\nSo there.\nYes.",
            ["Anna", "Anna", "A Lady of the House"],
        ),
        ("**Dr: No**: Hi.\n**Anna**: Yes.\nRemember: no.", "Hi.\nYes.\nRemember: no.", ["Dr: No", "Anna", "Anna"]),
        ("[00:00:10] Ben: one\n[1:02.5] Anna: two", "one\ntwo", ["Ben", "Anna"]),
        ("(0:10) one\n[10:30] two", "one\ntwo", [None] * 2),
        ("BEN (00:05): one\nsix\nAnna [0:09]: two\nten", "one\nsix\ntwo\nten", ["BEN", "BEN", "Anna", "Anna"]),
        ("Ben  0:05\none\n\nAnna (1:00:05)\ntwo\nsix", "\none\n\n\ntwo\nsix", [*["Ben"] * 3, *["Anna"] * 3]),
        ("It was 10:30\nat 9:15 we (10:30) ate\n[1984] is old\nDoors  10:30", None, [None] * 4),
        ("Anna:\nHow?\n\nBen:\nSo.\nOr so.", "\nHow?\n\n\nSo.\nOr so.", [*["Anna"] * 3, *["Ben"] * 3]),
        ("Moses said to Aaron:\nGo.\nCome.\nHe went.\nMoses said to Aaron:\nStay.\nHe stayed.", None, [None] * 7),
        ("张三：你好\n李四：再见", "你好\n再见", ["张三", "李四"]),
        ("他说：“好”\n一\n二\n三\n他说：“不”\n四\n五", None, [None] * 7),
        ("The Right Honourable John Smith: A\nAnna: B", "A\nB", ["The Right Honourable John Smith", "Anna"]),
        ("- Anna: A\n>> BEN: B\nC", "A\nB\nC", ["Anna", "BEN", "BEN"]),
        (
            "Jo: A\n[wind]\nB\n(laughs)\n\nBen: C\n♪ ♪\nJo: [sighs]\n\n♪ la\n(and so he went away)",
            "A\n[wind]\nB\n(laughs)\n\nC\n♪ ♪\n[sighs]\n\n♪ la\n(and so he went away)",
            ["Jo", "Jo", "Jo", None, "Jo", "Ben", None, *["Jo"] * 4],
        ),
        ("Ann van Dam: A\nB\nBen: C", "A\nB\nC", ["Ann van Dam", "Ann van Dam", "Ben"]),
        (
            "Lee: A\nB\nC\nFox: D\nE\nMs Po: F\nNote: we\nLee: G\nH\nFox: I\nJ\nK\nL",
            "A\nB\nC\nD\nE\nF\nNote: we\nG\nH\nI\nJ\nK\nL",
            [*["Lee"] * 3, *["Fox"] * 2, *["Ms Po"] * 2, *["Lee"] * 2, *["Fox"] * 4],
        ),
    ],
)
def test_names_in_a_text(text: str, spoken: str | None, speakers: list[str | None]) -> None:
    assert without_names(text) == (text if spoken is None else spoken, speakers)


WORDS = {"en": ("So", "it", "is", "10:30", "there."), "zh": ("今天天气很好", "我们去公园。", "再见")}
NAMES = ("Anna", "Ben", "speaker 1", "SPEAKER_00", "张三", "أحمد", "Ursula von der Leyen", "Dr. No", "O'Hara")


@pytest.mark.parametrize("format", ["txt", "md", "srt", "vtt", "ass"])
@pytest.mark.parametrize("script", WORDS)
@settings(max_examples=40, deadline=None)
@given(turns=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 60)), min_size=1, max_size=6))
def test_who_speaks_comes_back(script: str, format: str, turns: list[tuple[str, int]]) -> None:
    """From what we write in each format, also if each speaks once, or for long. A lone name before a line may be a word."""
    speakers = dict.fromkeys(name for name, _ in turns)
    assume(len(speakers) > 1 or (format in ("md", "vtt", "ass") and "speaker 1" not in speakers))
    segments, at_s = list[Segment](), 0.0
    for name, count in turns:
        texts = [f"{WORDS[script][n % len(WORDS[script])]}{at_s:.0f}-{n}" for n in range(count)]
        words = [Word(text, at_s + n, at_s + n + 1, 0.9, speaker=name) for n, text in enumerate(texts)]
        segments.append(Segment(" ".join(texts), at_s, at_s + count, 0.9, tuple(words), speaker=name))
        at_s += 100
    audio = AudioInfo("a.wav", "a.wav", 1000, 1, round(1000 * at_s))
    written = render(Transcript(audio, "", tuple(segments), (), speakers=tuple(speakers)), format)
    if format in ("txt", "md"):
        text, found = without_names(without_markup(written) if format == "md" else written)
    else:
        text, subtitles, _ = read_subtitles(written, format)
        found = [cue.get("speaker") for cue in subtitles["cues"]]
    lines = zip(text.split("\n"), found, strict=False)
    expected = [(word.text, word.speaker) for one in segments for word in one.words]
    assert [(word, name) for line, name in lines for word in line.split()] == expected


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("# A talk\n\n[00:04] **Host**: Hi.\n**Guest:** Yes.", "\n\n**Host**: Hi.\n**Guest**: Yes."),
        ("**one** *two* __three__ _four_ ***five*** **six *seven* eight**", "one two three four five six seven eight"),
        (r"5 * 3 * 2 \*one\* two_three_four **five \* six**", "5 * 3 * 2 *one* two_three_four five * six"),
        ("**one** two **three", "one two **three"),
        ("One.\n\n**He:** two.\n\nThree.", "One.\n\nHe: two.\n\nThree."),
        ("[00:01] **Anna:** One.\n\nTwo.", "**Anna**: One.\n\nTwo."),
        ("**Dr: No:** One.\n**Dr: No**: Two.", "**Dr: No**: One.\n**Dr: No**: Two."),
    ],
)
def test_markdown(written: str, text: str) -> None:
    """Headings, times and emphasis are left out. A name stays bold, so that it is one whatever it looks like."""
    assert without_markup(written) == text


def test_sounds_in_a_text_are_not_spoken() -> None:
    """Within a line, round brackets are as good as commas; a sentence in them is spoken, and so are words in asterisks."""
    text = "(Jingle 7)\n[a bell rings in the tower]\nHe (the\tman) *said* [door slams] no.\n(So he did say it.)\n*She was.*"
    silent = without_sounds(text)
    assert silent.split("\n")[2].replace("\u2060", "") == "He (the\tman) *said*   no."
    assert list(map(len, silent.split())) == list(map(len, text.split()))
    assert not any(map(str.isalnum, "".join(silent.split("\n")[:2])))
    assert silent.split("\n")[3:] == text.split("\n")[3:]
