"""What is redacted is in no output: words, segments, alternatives, originals, subtitles, rows, journals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.config import OUTPUT_FORMATS, Options
from fastscribe.errors import OptionError, UsageError
from fastscribe.readable.edits import TextEdits
from fastscribe.readable.number_words import NUMBERS
from fastscribe.readable.redact import Redactor
from fastscribe.results.formats.writers import render
from fastscribe.results.stored import to_result
from fastscribe.text.transcript import make_segment
from fastscribe.types import Alternative, Failure, Redaction, Token, Transcript
from tests.readable.test_fillers import AUDIO, transcript_of, words_of

NAMES = [
    "Mary Smith",
    "Mary",
    "O'Brien",
    "José",
    "山田",
    "Anne-Marie Le Pen",
    "J. R. Tolkien",
    "Ina",
    "Smith & Sons",
    "ลำดวน",
]
ALL = Options(redact=("numbers", "names"), redact_names=tuple(NAMES))


def redacted(text: str, language: str = "en") -> str:
    return Redactor.of(language, True, NAMES).redact_text(text)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("call me at five five five, one two. One more time.", "call me at [number] more time."),
        ("Room 12B costs $23.50!", "Room [number] costs [number]!"),
        ("twenty-three and a half, and go", "[number] and a half, and go"),
        ("no one is here, and the second time one of us", "no one is here, and the second time one of us"),
        ("one uh two", "[number]"),
        ("it is one point five", "it is [number]"),
        ("five oh one, double oh seven", "[number]"),
        ("my email is john dot smith at gmail dot com and that is it", "my email is [email] and that is it"),
        ("write to (john_doe@x.org), please", "write to ([email]), please"),
        ("reach john at x dot co dot uk.", "[email]."),
        ("it is peter at foo dot app now", "it is [email] now"),
        ("she is at home. com", "she is at home. com"),
        ("We saw mary-jane SMITH'S dog and Mary’s cat.", "We saw [name] dog and [name] cat."),
        ("Mary Smith, OBrien; Jose", "[name], [name]; [name]"),
        ("Marys maryland josephine", "[name] maryland josephine"),
        ("Mary'll say so—Mary…she (with *Mary*)", "[name] say [name] (with [name])"),
        ("Anne Marie LePen, JR Tolkien; J.R. Tolkien's", "[name], [name]; [name]. [name]"),
        ("Mary um Smith; Mary - Smith; Smith & Sons; Smith and Sons", "[name]; [name]; [name]; Smith and Sons"),
        ("ina is in a house", "[name] is in a house"),
        ("คุณลำดวนไป", "[name]"),
        (
            "a ten-year-old of the nineteen-seventies saw two's and ½; the sixtieth",
            "a [number] of the [number] saw [number]; the [number]",
        ),
        ("the ones with no-one, seconds later, a one-way road", "the ones with no-one, seconds later, a one-way road"),
        ("昨日山田さんに会った。", "[name]。"),
    ],
)
def test_english(said: str, read: str) -> None:
    assert redacted(said) == read


@pytest.mark.parametrize(
    ("language", "said", "read"),
    [
        ("de", "ein Test um acht, dreiundzwanzig und am zwanzigsten", "ein Test um [number] und am [number]"),
        ("de", "am achten Mai, eine Drei-Zimmer-Wohnung", "am [number] Mai, eine [number]"),
        ("es", "una casa y treinta y cinco veintitrés", "una casa y [number]"),
        ("fr", "un nouveau et trois, vingt-et-un", "un nouveau et [number]"),
        ("it", "sei bello e ventitré", "sei bello e [number]"),
        ("nl", "een huis en drieëntwintig", "een huis en [number]"),
        ("pt", "um carro e vinte e três", "um carro e [number]"),
        ("de", "ich bin max punkt muster at web punkt de", "ich bin [email]"),
        ("en", "it was one two", "it was [number]"),
    ],
)
def test_languages(language: str, said: str, read: str) -> None:
    assert redacted(said, language) == read
    assert {"de", "en", "es", "fr", "it", "nl", "pt"} == set(NUMBERS)


SECRETS = ["seven", "Ninety-nine", "4711", "zero", "Quentin", "XAVER", "x@y.org", "eleven"]
SAID = st.lists(st.sampled_from([*SECRETS, "we", "met.", "and", "um,", "the", '"dog"']), min_size=1, max_size=25)


@given(SAID, SAID, st.lists(st.integers(1, 6), min_size=1), st.booleans())
def test_no_format_has_a_secret(texts: list[str], other: list[str], lengths: list[int], has_speakers: bool) -> None:
    """Neither has a row that is read again, nor a manifest's own text."""
    words = [replace(word, original=word.text, speaker="ab"[at % 2] if has_speakers else None)
             for at, word in enumerate(words_of(" ".join(texts)))]  # fmt: skip
    segments, at = [], 0
    for length in lengths:
        if own := words[at : at + length]:
            segments.append(make_segment(own))
        at += length
    segments += [make_segment(words[at:])] if words[at:] else []
    best = Alternative(" ".join(other), -1.0, 0.0, 9.0, tuple(words_of(" ".join(other))))
    row = {"audio_filepath": "a.wav", "text": " ".join(other), "speaker": "Quentin Xaver", "n": 4}
    tokens = tuple(Token(1, word.text, word.start_s, word.end_s, 0.5) for word in words)
    speakers = ("a", "b") if has_speakers else ()
    transcript = Transcript(replace(AUDIO, row=row), " ".join(texts), tuple(segments), tokens, (), (best,), "en", speakers,
                            removed_words=tuple(words[:1]))  # fmt: skip
    listed = replace(ALL, redact_names=("Quentin", "Quentin Xaver", "Xaver"))
    found = TextEdits(listed, "en").apply(transcript)
    assert isinstance(found, Transcript) and found.redacted is not None
    secrets = [
        secret.lower() for secret in ("seven", "ninety", "nine", "4711", "zero", "quentin", "xaver", "x@y", "eleven")
    ]
    for format in OUTPUT_FORMATS:
        written = render(found, format, tokens=True).lower()
        assert not [secret for secret in secrets if secret in written], format
    row = json.loads(render(found, "jsonl"))
    assert render(to_result(row), "jsonl") == render(found, "jsonl")
    for word in words:  # all that is kept is kept with its times
        is_inside = any(one.start_s <= word.start_s and word.end_s <= one.end_s for one in found.redacted)
        assert is_inside or any(word.text == kept.text and word.start_s == kept.start_s for kept in found.words)


def test_long_lists_of_names_take_no_longer() -> None:
    """Each word is looked up: the names are never gone through for it."""
    names = [f"Ann{number} Smith{number}" for number in range(2000)]
    redactor = Redactor.of("en", False, names)

    class Once(frozenset):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("went through the names")

    found = replace(redactor, names=Once(redactor.names), beginnings=Once(redactor.beginnings))
    assert found.redact_text("we met Ann7 Smith7 and Ann8 Smith9") == "we met [name] and Ann8 Smith9"


def test_a_removed_filler_that_is_a_name_is_redacted() -> None:
    options = Options(remove_fillers=True, redact=("names",), redact_names=("Er",))
    found = TextEdits(options, "en").apply(transcript_of("So er, um we go."))
    assert isinstance(found, Transcript) and [word.text for word in found.removed_words] == ["um"]


def test_alternatives_lose_what_was_said_meanwhile() -> None:
    best = Alternative("call merry fife", -1.0, 0.0, 2.0, tuple(words_of("call merry fife")))
    found = TextEdits(ALL, "en").apply(replace(transcript_of("call Mary five"), nbest=(best,)))
    assert isinstance(found, Transcript)
    assert (found.text, found.nbest[0].text) == ("call [name] [number]", "call [name] [number]")
    assert found.redacted == (Redaction("name", 0.5, 0.9), Redaction("number", 1.0, 1.4))


def test_alternatives_of_unknown_times_are_redacted() -> None:
    best = Alternative("call merry now", -1.0, 0.0, 2.0, tuple(words_of("call merry now")))
    [segment] = transcript_of("call Mary now").segments
    untimed = replace(segment, words=tuple(replace(word, start_s=math.nan, end_s=math.nan) for word in segment.words))
    found = TextEdits(ALL, "en").apply(replace(transcript_of("call Mary now"), segments=(untimed,), nbest=(best,)))
    assert isinstance(found, Transcript) and "merry" not in found.nbest[0].text


def test_names_are_found_in_what_was_said_before_it_was_written_in_figures() -> None:
    words = [replace(words_of("21")[0], original="twenty one"), *words_of("pilots land")]
    redactor = Redactor.of("en", False, ["Twenty One Pilots"])
    assert redactor.kinds(words) == ["name", "name", None]


def test_texts_that_are_not_those_of_their_words_are_made_of_them() -> None:
    """Of a row that another program has written."""
    best = Alternative("call five", -1.0, 0.0, 2.0, tuple(words_of("call them")))
    found = TextEdits(ALL, "en").apply(replace(transcript_of("call them"), text="call Mary", nbest=(best,)))
    assert isinstance(found, Transcript)
    assert (found.text, found.nbest[0].text) == ("call them", "call them")


def test_without_times_nothing_is_listed() -> None:
    found = TextEdits(ALL, "en").apply(replace(transcript_of("five"), is_timed=False))
    assert isinstance(found, Transcript) and found.text == "[number]"
    assert found.redacted is None and "redacted" not in json.loads(render(found, "jsonl"))


def test_a_text_of_another_language_must_not_be_seen() -> None:
    edits = TextEdits(ALL)
    for language, problem in ((None, "no known language"), ("fi", "the language fi")):
        with pytest.raises(UsageError, match=problem):
            edits.apply(transcript_of("viisi Mary", language=language))
    failure = Failure(
        "a.wav", "a", "load", "AudioError", "no", {"text": "viisi Mary", "note": [{"a": "of Mary 5"}], "n": 1}
    )
    assert edits.apply(failure) == replace(failure, row={"text": "[redacted]", "note": [{"a": "of [name] 5"}], "n": 1})
    quoting = replace(failure, path="Mary.wav", message="Mary.wav: language is 'Mary 5', not a language", row=None)
    assert edits.apply(quoting) == replace(quoting, message="Mary.wav: language is '[name] 5', not a language")
    german = edits.apply(transcript_of("zwei fünf", language="de"))
    assert isinstance(german, Transcript) and german.text == "[number]"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"redact": ("names",)}, "no list of names"),
        ({"redact_names": ("Mary",)}, "redact has no names"),
        ({"redact": ("places",)}, "not one of names, numbers"),
        ({"redact": "numbers"}, "not a tuple"),
    ],
)
def test_options(options: dict, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        Options(**options)


def test_a_language_without_rules_is_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match="--redact numbers: has no rules for the language fi, only for de, en"):
        TextEdits.of_model(Options(redact=("numbers",), language="fi"), ("fi",), False)
    with pytest.raises(UsageError, match="--remove-fillers: this model does not say which language it writes: add"):
        TextEdits.of_model(Options(remove_fillers=True), ("en", "fi"), False)
    assert TextEdits.of_model(Options(), (), False) is None
    only_names = Options(redact=("names",), redact_names=("Mary",))
    assert TextEdits.of_model(only_names, (), False) is not None


def test_names_are_no_part_of_a_fingerprint() -> None:
    from fastscribe.config import OutputStyle
    from fastscribe.results.fingerprint import fingerprint

    def of(*names: str) -> dict:
        return fingerprint("m", {}, Options(redact=("names",), redact_names=names), OutputStyle())

    assert "Zebra" not in json.dumps(of("Zebra")) and of("Zebra") == of("Zebra") != of("Ann")
    assert of("Ann", "Zebra") == of("Zebra", "Ann") and "--redact-list" in of("Ann")
