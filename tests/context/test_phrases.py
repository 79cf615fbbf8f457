"""Lists of phrases: what a line may be, spellings, and tokens of every kind of vocabulary."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fastscribe.context.phrases import (
    PhraseEncoder,
    PhraseError,
    digest,
    encode_all,
    given_phrases,
    read_phrases,
    remarks,
    spellings,
)
from fastscribe.errors import UsageError
from fastscribe.text.tokenizer import Tokenizer, from_characters, from_huggingface
from fastscribe.types import Phrase
from tests.conftest import MODELS, checkpoint


def tokenizer(name: str) -> Tokenizer:
    return checkpoint(MODELS / name).tokenizer


def written(tokenizer: Tokenizer, text: str) -> set[str]:
    """The texts of a phrase's token paths."""
    encoder = PhraseEncoder(tokenizer, "model")
    return {
        tokenizer.text(i for i in path.ids if i < encoder.num_labels).strip()
        for path in encoder.paths([Phrase(text)])[0]
    }


def test_the_option_takes_files_and_phrases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Rice Stadium").write_text("Zumthor\t2\nNorfolk\n", encoding="utf-8")
    Path("Kathleen").mkdir()
    assert given_phrases([], print) == ()
    assert given_phrases(["Rice Stadium"], print) == (Phrase("Zumthor", 2.0), Phrase("Norfolk"))
    assert given_phrases(["Rice Stadiums, Node.js", "Kathleen\t3"], print) == (
        Phrase("Rice Stadiums"),
        Phrase("Node.js"),
        Phrase("Kathleen", 3.0),
    )
    assert given_phrases(["Norfolk\t4", "Rice Stadium"], print) == (Phrase("Norfolk"), Phrase("Zumthor", 2.0))
    for value, problem in (
        ("words.TXT", "--boost words.TXT: no such file"),
        ("lists/words", "no such file"),
        ("./Kathleen", "--boost ./Kathleen: a folder"),
        ("#", "neither a file nor a phrase"),
        ("name\t11", "weight '11'"),
        ("x" * 5000, "5000 characters"),
    ):
        with pytest.raises(PhraseError, match=re.escape(problem)):
            given_phrases([value], print)


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeff# names\r\nJosé  Álvarez\r\n\r\n  \nZumthor\t2.5\nZumthor\t3\n C#  \t 0.5\n".encode())
    assert read_phrases(str(path)) == (Phrase("José Álvarez"), Phrase("Zumthor", 3.0), Phrase("C#", 0.5))


def test_odd_lines(tmp_path: Path) -> None:
    path, said = tmp_path / "words.txt", list[str]()
    path.write_text("Zumthor 5\n---\n\U0001f600\t2\nBoeing 747\nNV 2.5\nOtto:3\n# 1\n", encoding="utf-8")
    phrases = ["Zumthor 5", "Boeing 747", "NV 2.5", "Otto:3"]
    assert [phrase.text for phrase in read_phrases(str(path), said.append)] == phrases
    assert said == [
        f"{path}: 2 lines without a letter or a digit left out: line 2, ---",
        f"{path}: 3 lines end in a number that is part of the phrase (line 1, Zumthor 5): a weight stands behind a tab",
    ]


def test_a_weight_behind_a_colon_is_part_of_the_phrase() -> None:
    said = list[str]()
    assert given_phrases(["Boeing 747,Otto:3", "Anna: 2.5"], said.append)[1] == Phrase("Otto:3")
    why = "the number is part of the phrase: a weight stands behind a tab, as in a file"
    assert said == [f"--boost Otto:3: {why}", f"--boost Anna: 2.5: {why}"]


def test_unreadable_lists(tmp_path: Path) -> None:
    with pytest.raises(PhraseError, match=r"none\.txt: No such file"):
        read_phrases(str(tmp_path / "none.txt"))
    (tmp_path / "latin.txt").write_bytes(b"one\ntwo\ncaf\xe9\n")
    with pytest.raises(PhraseError, match=r"latin\.txt: line 3: not valid UTF-8"):
        read_phrases(str(tmp_path / "latin.txt"))


def test_line_ends_and_joiners(tmp_path: Path) -> None:
    """Joiners are invisible, but Persian and languages of India are written with them."""
    path = tmp_path / "words.txt"
    path.write_bytes("one\rtwo\r\nمی\u200cخواهم\nක්\u200dෂය".encode())
    assert [phrase.text for phrase in read_phrases(str(path))] == ["one", "two", "می\u200cخواهم", "ක්\u200dෂය"]


def test_digest_is_of_content() -> None:
    one, two = Phrase("one"), Phrase("two", 2.0)
    assert digest([one, two]) == digest([two, one]) != digest([one])
    assert digest([Phrase("two")]) != digest([two])


def test_spellings() -> None:
    assert set(spellings("Zumthor")) == {"Zumthor", "zumthor", "ZUMTHOR"}
    assert set(spellings("iPhone")) == {"iPhone", "iphone", "IPhone", "Iphone", "IPHONE"}
    new_york = set(spellings("New York"))
    assert {"New York", "new york", "NEW YORK", "New york", "New-York"} <= new_york
    assert not {"NewYork", "newyork"} & new_york
    assert {"e-mail", "e mail", "email", "E-mail", "E-Mail"} <= set(spellings("e-mail"))
    assert not any("-" in text for text in spellings("as soon as possible"))
    assert spellings("-5 grad")[0] == "-5 grad"
    assert {"e\u0301te\u0301", "\u00e9t\u00e9", "\u00c9T\u00c9"} <= set(spellings("e\u0301te\u0301"))


@pytest.mark.parametrize("name", ["tdt_demo", "hf_tdt_demo", "canary", "canary2", "hf_canary", "quartznet", "ctc"])
def test_tokens_write_the_phrase(name: str) -> None:
    """Subwords of SentencePiece, tokenizer.json and aggregates; characters."""
    texts = written(tokenizer(name), "the wave")
    assert "the wave" in texts
    assert {text.lower().replace(" ", "").replace("-", "") for text in texts} == {"thewave"}


def test_gains_count_characters() -> None:
    encoder = PhraseEncoder(tokenizer("tdt_demo"), "model")
    for path in encoder.paths([Phrase("the wave", 2.0)])[0]:
        text = tokenizer("tdt_demo").text(path.ids)
        assert sum(path.gains) == 2.0 * len(text.replace(" ", ""))


@pytest.mark.parametrize(("size", "without"), [(100, 0.0), (1000, 1.15), (10_000, 4.6)])
def test_first_characters_of_long_lists_gain_nothing(size: int, without: float) -> None:
    letters = from_characters([" ", "a", "c", "t"])
    encoder = PhraseEncoder(letters, "model")
    phrases = [Phrase("cattac", 2.0), Phrase("cat", 2.0), *[Phrase("a")] * (size - 2)]
    [(long,), (short,), *_] = encoder.paths(phrases)
    assert sum(long.gains) == pytest.approx(2 * (6 - without)) and sum(short.gains) == pytest.approx(
        2 * max(0, 3 - without)
    )
    assert min(long.gains) == 0 and long.gains[-1] == pytest.approx(2 * min(1, 6 - without))


def test_characters_begin_at_a_space() -> None:
    letters = from_characters([" ", "a", "c", "t"])
    encoder = PhraseEncoder(letters, "model")
    ((path,),) = encoder.paths([Phrase("cat")])
    assert path == ((0, 2, 1, 3), (0.0, 1.0, 1.0, 1.0))
    assert encoder.start_id == 0


def test_byte_level_words_at_the_beginning_of_a_text() -> None:
    """A byte-level BPE writes a text's first word without a space: this spelling only begins a text."""
    vocabulary = {piece: i for i, piece in enumerate(["a", "b", "Ġ", "ab", "Ġab"])}
    content = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b", "Ġ ab"]},
        "decoder": {"type": "ByteLevel"},
    }
    encoder = PhraseEncoder(from_huggingface(json.dumps(content).encode(), 5), "model")
    assert [path.ids for path in encoder.paths([Phrase("ab")])[0]] == [(4,), (encoder.start_id, 3)]
    assert encoder.start_id > 5


def test_unknown_phrases_are_named_once() -> None:
    encoder = PhraseEncoder(from_characters([" ", "a", "b"]), "model")
    lines: list[str] = []
    given = [Phrase("ab"), *(Phrase("x" * n) for n in range(1, 8))]
    encoded = encode_all(given, encoder, lines.append)
    assert len(lines) == 1 and "the model does not write x: x, xx, xxx, xxxx, xxxxx and 2 more" in lines[0]
    assert [bool(paths) for paths in encoded] == [True] + [False] * 7
    with pytest.raises(UsageError, match=r"not used, because the model does not write x: x; no phrase is left"):
        encode_all([Phrase("x")], encoder, lines.append)


def test_letters_of_unknown_phrases_are_encoded_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, calls = PhraseEncoder(from_characters([" ", "a", "b"]), "model"), []
    paths = encoder.paths
    monkeypatch.setattr(encoder, "paths", lambda phrases: (calls.append(len(phrases)), paths(phrases))[1])
    phrases = [Phrase("東a"), Phrase("京b")]
    found = remarks(phrases, [[], []], encoder)
    assert found == ["not used, because the model does not write 東, 京: 東a, 京b"] and calls == [4]
