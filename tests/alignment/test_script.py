"""The words and tokens of a known text, with vocabularies that write some of its characters only."""

from __future__ import annotations

import json
import unicodedata

from fastscribe.alignment.script import Counts, Speller
from fastscribe.text.tokenizer import Tokenizer, from_characters, from_huggingface, from_pieces
from fastscribe.types import Word
from tests.conftest import MODELS, checkpoint

SMALL = from_characters([" ", *"abcdefghijklmnopqrstuvwxyz'"])
UPPER = from_characters([" ", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"])


def spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    script = Speller(tokenizer).script(text)
    return ["".join(tokenizer.pieces[script.token_ids[i]] for i in tokens) for tokens in script.word_tokens]


def test_characters_become_those_that_the_model_writes() -> None:
    assert spelled(SMALL, "Don’t PANIC, café!") == ["don't", "panic", "cafe"]
    assert spelled(SMALL, "forty-two -- and/or -x") == ["forty two", "", "and or", "x"]
    assert spelled(UPPER, "go On") == ["GO", "ON"]
    assert spelled(SMALL, "— 42nd, ok") == ["", "nd", "ok"]


def test_what_is_not_written_is_counted() -> None:
    script = Speller(SMALL).script("In 1984, — 42nd!")
    assert script.words == ("In", "1984,", "—", "42nd!")
    assert script.unwritten == {"4": 2, "1": 1, "9": 1, "8": 1, "2": 1}
    assert script.num_untimed == 1
    counts = Counts(script.unwritten, 1, 1000)
    for path, text in (("a.wav", "it, _ The, old _ _"), ("b.wav", "_"), ("c.wav", "a b c d e f _ " + "g _ " * 8)):
        words = text.split()
        counts.add_words(path, [Word(word, 9.0 * at, 9.0 * at + 9, 0.5, word != "_") for at, word in enumerate(words)])
    unwritten, missing = counts.lines
    assert "4" in unwritten and "6 times" in unwritten and "1 word is" in unwritten
    assert (
        "17 words of the texts were" in missing
        and "1,030: a.wav: it (near 00:00), The, old (near 00:18); c.wav" in missing
    )
    assert ": a b c d .. (6 words, near 00:00), g (near 01:03), " in missing and "(near 02:15) ..; they" in missing


def test_a_word_has_tokens_if_a_letter_is_written() -> None:
    """A dash between words is not expected to be heard, and the comma of a word in another script says nothing of it."""
    tokenizer = from_characters([" ", *"abcdefghijklmnopqrstuvwxyz,-."])
    script = Speller(tokenizer).script("Ja - nein, -- ... привет, well-known 7.")
    assert spelled(tokenizer, "Ja - nein, -- ... привет, well-known 7.") == [
        "ja",
        "",
        "nein,",
        "",
        "",
        "",
        "well-known",
        "",
    ]
    assert script.num_untimed == 2
    assert not Speller(tokenizer).script("привет, 7 -").has_letters


def test_accents_that_are_written_apart() -> None:
    """macOS and some editors write a letter and its accent as two characters; a vocabulary has them as one."""
    tokenizer = from_characters([" ", *"abcdefghijklmnopqrstuvwxyzéếü한"])
    text = "café ế über 한"
    apart = unicodedata.normalize("NFD", text)
    assert apart != text and spelled(tokenizer, apart) == spelled(tokenizer, text) == text.split()
    single = from_characters([" ", "\u0958"])  # a letter that Unicode composes into two
    assert spelled(single, "\u0958") == ["\u0958"]


def test_spaces_between_words_belong_to_neither() -> None:
    script = Speller(SMALL).script("ab 1 c")
    assert script.token_ids == (1, 2, 0, 3)
    assert script.word_tokens[0] == range(2) and not script.word_tokens[1] and script.word_tokens[2] == range(3, 4)
    assert script.tokens_of(range(3)) == range(4) and script.tokens_of(range(2, 3)) == range(3, 4)
    assert script.tokens_of(range(1, 2)) == range(0)


def test_lines() -> None:
    script = Speller(SMALL).script("a b\r\n\n  \nc\n")
    assert [list(line) for line in script.lines] == [[0, 1], [], [], [2]]
    empty = Speller(SMALL).script(" \n")
    assert (empty.words, [*map(list, empty.lines)], empty.token_ids) == ((), [[]], ())


def test_capitals_alone_are_no_names() -> None:
    """A vocabulary with capitals spells names with them; a text in capitals is one that lost its small letters."""
    tokenizer = checkpoint(MODELS / "hybrid").tokenizer
    assert "".join(spelled(tokenizer, "RICE STADIUM")) == "".join(spelled(tokenizer, "rice stadium"))
    assert "".join(spelled(tokenizer, "Rice")) != "".join(spelled(tokenizer, "rice"))


def test_tokenizer_json_merges() -> None:
    """A piece is the result of its merges, so its own text has one token; this vocabulary has small letters only."""
    tokenizer = checkpoint(MODELS / "hf_ctc").tokenizer
    assert "".join(spelled(tokenizer, "At Rice Stadium,")) == "▁at▁rice▁stadium"
    model = json.loads(tokenizer.files["tokenizer.json"])["model"]
    longest = max(model["vocab"], key=len)
    script = Speller(tokenizer).script(longest.replace("▁", ""))
    assert [tokenizer.pieces[token_id] for token_id in script.token_ids] == [longest]


def test_unigram_takes_the_best_sum() -> None:
    vocabulary = [["<unk>", 0.0], ["▁", -2.0], ["▁a", -3.0], ["b", -3.0], ["▁ab", -7.0], ["c", -1.0], ["a", -9.0]]
    data = {
        "model": {"type": "Unigram", "vocab": vocabulary},
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}],
    }
    tokenizer = from_huggingface(json.dumps(data).encode(), len(vocabulary))
    script = Speller(tokenizer).script("abc x")
    assert [tokenizer.pieces[token_id] for token_id in script.token_ids] == ["▁a", "b", "c"]


def test_aggregate_takes_the_fewest_pieces() -> None:
    tokenizer = from_pieces(["▁a", "b", "▁ab", "▁", "a"])
    script = Speller(tokenizer).script("ab ba")
    assert [tokenizer.pieces[token_id] for token_id in script.token_ids] == ["▁ab", "▁", "b", "a"]
