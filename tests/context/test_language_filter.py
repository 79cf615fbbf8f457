"""Alphabets, the tokens that a language leaves out, and the languages of rows."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fastscribe.checkpoint.reader import languages_by_name
from fastscribe.context import language_filter
from fastscribe.context.alphabets import find_alphabet
from fastscribe.context.language_filter import LanguageFilter, excluded_tokens
from fastscribe.errors import UsageError
from fastscribe.languages import _NAMES
from fastscribe.text.tokenizer import Tokenizer, from_huggingface
from fastscribe.types import Failure, Phrase, Source
from tests.conftest import MODELS, SHARED, checkpoint

# A sentence with many letters of each language of parakeet-tdt-0.6b-v3.
SENTENCES = {
    "bg": "Жълтата дюля беше щастлива, че пухът, който цъфна, замръзна като гьон.",
    "cs": "Příliš žluťoučký kůň úpěl ďábelské ódy, ňadra, écu.",
    "da": "Høj bly gom vandt fræk sexquiz på wc, én café.",
    "de": "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg, GROẞ.",
    "el": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, προϊόν, ύπνος, Άϋλος.",
    "en": "The quick brown fox jumps over the lazy dog; a naïve café in Zürich, São Paulo.",
    "es": "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia; añoró, éxito, índigo, ¿qué?",
    "et": "Põdur Zagrebi tšellomängija-följetonist Ciqo külmetas kehvas garaažis, šokk.",
    "fi": "Törkylempijävongahdus, Åbo, šakki ja džonkki, žargon.",
    "fr": "Portez ce vieux whisky au juge blond qui fume : œuf, à, â, ç, è, é, ê, ë, î, ï, ô, ù, û, ÿ, æ.",
    "hr": "Gojazni đačić s biciklom drži hmelj i finu vatu u džepu nošnje.",
    "hu": "Árvíztűrő tükörfúrógép.",
    "it": "Quel vituperabile xenofobo zelante: perché, città, così, però, più, è.",
    "lt": "Įlinkdama fechtuotojo špaga sublykčiojusi pragręžė apvalų arbūzą, žuvų ėdalą.",
    "lv": "Glāžšķūņa rūķīši dzērumā čiepj Baha koncertflīģeļu vākus, ģimene.",
    "mt": "Ġurdien għaraf żewġ ċirasi ħomor; libertà, università.",
    "nl": "Pa's wijze lynx bezag vroom het fikse aquaduct; coördinatie, één, geïnd.",
    "pl": "Zażółć gęślą jaźń, Ćma, Łódź, quiz, video, Max.",
    "pt": "Luís argüia à Júlia que «brações, fé, chá, óxido, pôr, zângão» eram palavras.",
    "ro": "Muzicologă în bej vând whisky și tequila, preț fix, ţară, vîrf.",
    "ru": "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "sk": "Kŕdeľ šťastných ďatľov učí pri ústí Váhu mĺkveho koňa obhrýzať kôru, mäso, ŕba, vôňa.",
    "sl": "V kožuščku hudobnega fanta stopiclja mizar.",
    "sv": "Flygande bäckasiner söka hwila på mjuka tuvor, idé.",
    "uk": "Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п’яне знаємо.",
}
PIECES = (
    "<unk>",
    "<|pl|>",
    "▁",
    "▁the",
    "li",
    "ła",
    "č",
    "д",
    "▁Д",
    "є",
    "λ",
    "7",
    "'",
    "—",
    "€",
    "ß",
    "é",
    "▁caf",
    "а1",
    "e\u0301",
)


def source(**row: object) -> Source:
    return Source("a.wav", "a.wav", "a.wav", row={"audio_filepath": "a.wav", **row})


def tokenizer(*pieces: str) -> Tokenizer:
    return Tokenizer(pieces, "subword", unknown_ids=frozenset((0,)))


def kept(tag: str, *pieces: str) -> str:
    excluded = excluded_tokens(tokenizer(*pieces), tag)
    assert excluded is not None
    return " ".join(piece for i, piece in enumerate(pieces) if i not in excluded)


@pytest.mark.parametrize("tag", SENTENCES)
def test_a_language_keeps_its_own_letters_and_capitals(tag: str) -> None:
    alphabet = find_alphabet(tag)
    assert alphabet is not None
    for text in (SENTENCES[tag], SENTENCES[tag].upper(), unicodedata.normalize("NFD", SENTENCES[tag])):
        assert alphabet.has_all(text), [letter for letter in text if not alphabet.has(letter)]


def test_sentences_are_of_all_languages_of_the_published_model() -> None:
    assert set(SENTENCES) == set(languages_by_name(Path("parakeet-tdt-0.6b-v3")))


@pytest.mark.parametrize(
    ("tag", "has", "lacks"),
    [
        ("en", "éüñœ’—1€ªº", "łčžőßжλ"),
        ("pl", "łóżqvé", "ñõřжλ"),
        ("de", "ßẞĞ", "łõж"),
        ("pt-BR", "ãõ", "ğж"),
        ("ru", "ёЁ", "aєіλ"),
        ("uk", "ґєіїҐ’", "aλў"),
        ("el", "άϊΰΏς", "aж"),
        ("tr", "ıİğş", "łж"),
        ("sr", "čшЂ", "щłλ"),
        ("sr-Latn", "čđ", "ш"),
        ("sr-latn-RS", "čđ", "ш"),
        ("uz-cyrl", "ўҳ", "o"),
        ("uz-Cyrl-UZ", "ўҳ", "o"),
        ("zh-Hant-TW", "臺", "a"),
        ("nb", "åæø", "ßж"),
        ("hi", "हिंदी।", "aжहи"[:2]),
        ("ja", "日本ーのカ々", "aж한"),
        ("ko", "한국漢", "のж"),
    ],
)
def test_letters(tag: str, has: str, lacks: str) -> None:
    alphabet = find_alphabet(tag)
    assert alphabet is not None
    assert [one for one in has if not alphabet.has(one)] == []
    assert [one for one in lacks if alphabet.has(one)] == []


def test_which_languages_have_letters() -> None:
    """All languages that an option names have, but for Latin, which CLDR does not list."""
    codes = [entry.split()[0] for entry in _NAMES.split(",")]
    assert [code for code in codes if find_alphabet(code) is None] == ["la"]
    assert find_alphabet("yue") is None


def test_tokens() -> None:
    always = "<unk> <|pl|> ▁"
    assert kept("pl", *PIECES) == f"{always} ▁the li ła 7 ' — € ß é ▁caf e\u0301"
    assert kept("en", *PIECES) == f"{always} ▁the li 7 ' — € é ▁caf e\u0301"
    assert kept("ru", *PIECES) == f"{always} д ▁Д 7 ' — € а1"
    assert kept("uk", *PIECES) == f"{always} д ▁Д є 7 ' — € а1"
    assert kept("el", *PIECES) == f"{always} λ 7 ' — €"
    assert excluded_tokens(tokenizer(*PIECES), "yue") is None


def test_bytes() -> None:
    """A byte stays if a letter of the language begins with it, or a sign; ж is D0 B6, ł C5 82, λ CE BB, é C3 A9, € E2 82 AC."""
    pieces = ("<unk>", "<0x41>", "<0xB6>", "<0xC3>", "<0xC5>", "<0xCE>", "<0xD0>", "<0xE2>", "▁<0xD0><0xB6>", "<0xE0>")
    assert kept("pl", *pieces) == "<unk> <0x41> <0xB6> <0xC3> <0xC5> <0xE2>"
    assert kept("ru", *pieces) == "<unk> <0x41> <0xB6> <0xD0> <0xE2> ▁<0xD0><0xB6>"
    assert kept("hi", *pieces) == "<unk> <0x41> <0xB6> <0xE2> <0xE0>"


def test_parts_of_an_aggregate() -> None:
    """Each language keeps its own part, also of letters that both have."""
    joined = checkpoint(MODELS / "published" / "stt_enes_conformer_ctc_large").tokenizer
    first = joined.pieces.index("<unk>", 1)  # the other part begins as the first one
    assert excluded_tokens(joined, "en") == frozenset(range(first, len(joined.pieces)))
    assert excluded_tokens(joined, "es-MX") == frozenset(range(first))
    assert excluded_tokens(joined, "de") is not None  # by its letters


def test_rows_name_their_languages() -> None:
    languages = LanguageFilter(tokenizer(*PIECES), ("en", "pl", "ru"), "pl")
    assert languages.language == "pl" and languages.num_excluded == 6
    for row, expected in (
        ({}, "pl"),
        ({"language": None, "lang": ""}, "pl"),
        ({"language": "ru"}, "ru"),
        ({"lang": "Russian"}, "ru"),
        ({"source_lang": "en-GB", "lang": "ru"}, "en-GB"),
        ({"language": "AUTO"}, None),
    ):
        found = languages.apply(source(**row))
        assert isinstance(found, Source) and found.language == expected
    outside = languages.apply(Source("a.wav", "a.wav", "a.wav"))
    assert isinstance(outside, Source) and outside.language == "pl"


@pytest.mark.parametrize(
    ("row", "known", "problem"),
    [
        ({"language": "de"}, ("en", "pl"), "language is de, and this model knows en, pl only"),
        ({"lang": "klingon"}, ("en", "pl"), "lang is 'klingon', not a language: a code such as en, or auto"),
        ({"language": 7}, ("en", "pl"), "language is 7, not a language"),
        ({"language": "yue"}, (), "language is yue, whose letters are not known here"),
    ],
)
def test_rows_with_unusable_languages_fail(row: dict[str, object], known: tuple[str, ...], problem: str) -> None:
    found = LanguageFilter(tokenizer(*PIECES), known, "en").apply(source(**row))
    assert isinstance(found, Failure) and problem in found.message and found.stage == "input" and found.row
    assert LanguageFilter(tokenizer(*PIECES), (), None).apply(source(**row)) == source(**row)  # rows do not count


def test_a_run_without_a_language_transcribes_rows_with_other_meanings() -> None:
    """Such as a speaker, or a language that the model does not know: as before there was a filter, and a line says so."""
    languages = LanguageFilter(tokenizer(*PIECES), ("en", "pl", "ru"), None)
    for value in ("speaker 12", ["en"], "de", 7):
        assert languages.apply(source(lang=value)) == source(lang=value)
    assert languages.apply(source(lang="pl")) != source(lang="pl")
    first, second = languages.take_lines()
    assert first.startswith(
        "4 rows name no language to keep to, so no token was left out there; the first is a.wav: lang is "
    )
    assert "rows name their language (pl 1)" in second and not languages.lines


def test_a_language_without_letters_is_refused() -> None:
    """Else its texts would be punctuation. Byte pieces can write every letter."""
    latin = tokenizer("<unk>", "<|ru|>", "▁a", ".", "7")
    with pytest.raises(UsageError, match="--language ru: this model writes no letter of ru"):
        LanguageFilter(latin, (), "ru")
    assert LanguageFilter(latin, (), "en").apply(source(language="ru")) == source(language="ru")  # "en" changes nothing
    found = LanguageFilter(tokenizer(*latin.pieces, "λ"), (), "en").apply(source(language="ru"))
    assert isinstance(found, Failure) and found.message == "language is ru, and this model writes no letter of it"
    assert LanguageFilter(tokenizer("<unk>", "▁a", "<0xD0>"), (), "ru").num_excluded == 1


def test_checked_phrases_of_rows_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_filter, "_MAX_KEPT_PHRASES", 100)
    languages = LanguageFilter(tokenizer(*PIECES), (), "en")
    for number in range(9):
        languages.apply(replace(source(), boost=tuple(Phrase(f"a{number} {one}") for one in range(30))))
        assert 30 <= sum(len(phrases) for phrases, _ in languages._checked) <= 80


def test_nothing_to_leave_out() -> None:
    """A vocabulary that has the language's letters alone is not kept to it, and says so by its number."""
    plain = tokenizer("<unk>", "▁a", "é")
    assert (LanguageFilter(plain, (), "en").language, LanguageFilter(plain, (), "en").num_excluded) == (None, 0)
    assert LanguageFilter(plain, (), "yue").num_excluded is None
    for language in (None, "auto"):
        assert (LanguageFilter(plain, (), language).language, LanguageFilter(plain, (), language).num_excluded) == (
            None,
            None,
        )
    found = LanguageFilter(plain, ("en", "pl"), None).apply(source(language="en"))
    assert isinstance(found, Source) and found.language is None


@cache
def published_tokenizer() -> Tokenizer:
    content = (SHARED / "published" / "parakeet-tdt-0.6b-v3" / "tokenizer.json").read_bytes()
    return from_huggingface(content, 8192)


@pytest.mark.skipif(not (SHARED / "published").is_dir(), reason="needs the published tokenizer of parakeet-tdt-0.6b-v3")
@pytest.mark.parametrize("tag", SENTENCES)
def test_the_published_vocabulary(tag: str) -> None:
    """A language can write its sentence with the tokens that it keeps wherever it could with all of them."""
    published = published_tokenizer()
    excluded = excluded_tokens(published, tag)
    assert excluded is not None
    written = set().union(*published.pieces)
    left = {letter for i, piece in enumerate(published.pieces) if i not in excluded for letter in piece}
    assert [letter for letter in SENTENCES[tag].replace(" ", "") if letter in written - left] == []
    assert len(excluded) > 1700  # of 8,192
