"""What of a text is spoken, and by whom: names, sounds, Markdown."""

from __future__ import annotations

import pytest

from fastscribe.alignment.spoken import without_markup, without_names, without_sounds


@pytest.mark.parametrize(
    ("text", "spoken", "speakers"),
    [
        ("Anna: Hi.\n\nBerta: Yes\nor no.", "Hi.\n\nYes\nor no.", ["Anna", "Anna", "Berta", "Berta"]),
        ("agent: a\ncustomer: b\nagent: c\ncustomer: d", "a\nb\nc\nd", ["agent", "customer"] * 2),
        ("channel 1: a", "a", ["channel 1"]),
        ("张三: 你好\n李四: 再见", "你好\n再见", ["张三", "李四"]),
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
    ],
)
def test_names_in_a_text(text: str, spoken: str | None, speakers: list[str | None]) -> None:
    assert without_names(text) == (text if spoken is None else spoken, speakers)


@pytest.mark.parametrize(
    ("given", "text"),
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
def test_markdown(given: str, text: str) -> None:
    """Headings, times and emphasis are left out. A name stays bold, so that it is one whatever it looks like."""
    assert without_markup(given) == text


def test_sounds_in_a_text_are_not_spoken() -> None:
    """Within a line, round brackets are as good as commas; a sentence in them is spoken, and so are words in asterisks."""
    text = "(Jingle 7)\n[a bell rings in the tower]\nHe (the\tman) *said* [door slams] no.\n(So he did say it.)\n*She was.*"
    silent = without_sounds(text)
    assert silent.split("\n")[2].replace("\u2060", "") == "He (the\tman) *said*   no."
    assert list(map(len, silent.split())) == list(map(len, text.split()))
    assert not any(map(str.isalnum, "".join(silent.split("\n")[:2])))
    assert silent.split("\n")[3:] == text.split("\n")[3:]
