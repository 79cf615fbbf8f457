"""Text to tokens and back: cleaning, training a vocabulary, and encoders for every kind of tokenizer."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.errors import UsageError
from fastscribe.text.tokenizer import Tokenizer, from_characters, from_huggingface, from_sentencepiece
from fastscribe.text.transcript import words_of
from fastscribe.training.bpe import TextEncoder, clean_text, train_vocabulary
from fastscribe.types import Token

TEXT = "the a singing ship, sails over Seven seas; and it's there. She said so! Where? Nowhere at all"
WORDS = TEXT.split()


def sentences(count: int = 400) -> list[str]:
    draw = random.Random(0)
    syllables = [a + b for a in "hlnprstvw" for b in ("a", "en", "ing", "er", "o", "us")]
    made_up = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)]
    return [" ".join(draw.choices(WORDS + made_up, k=draw.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> bytes:
    return train_vocabulary(sentences(), 80)


@pytest.fixture(scope="module")
def encoder(model) -> TextEncoder:
    return TextEncoder(from_sentencepiece(model))


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("  a\t b\u00a0c\n", "a b c"),
        ("‘It’s’ “so” `x´ ″", "'It's' \"so\" 'x' \""),
        ("ten‐fold − one—two", "ten-fold - one - two"),
        ("ﬁne … e\u0301", "fine... é"),
        ("Is it a threat ? No .", "Is it a threat? No."),
        ("a .5 b", "a .5 b"),
        ("a\u200bb\ufeff\u00adc\x07d", "abc d"),
        (" \u200b ", ""),
    ],
)
def test_cleaning(text, cleaned) -> None:
    assert clean_text(text) == cleaned


@given(st.text(max_size=60))
def test_cleaning_is_idempotent(text) -> None:
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert cleaned == " ".join(cleaned.split())


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vocabulary_size(kind) -> None:
    model = train_vocabulary(sentences(), 60, kind)
    assert model == train_vocabulary(iter(sentences()), 60, kind)
    assert len(model) < 5000  # no tables for normalising
    tokenizer = from_sentencepiece(model)
    assert len(tokenizer.pieces) == 60 and tokenizer.pieces[0] == "<unk>"
    assert tokenizer.unknown_ids == {0} and not tokenizer.silent_ids
    encode = TextEncoder(tokenizer)
    for text in sentences(50):
        ids = encode(text)
        assert ids is not None and tokenizer.sentence(ids) == text
        assert 0 not in ids


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_model_can_write_training_text(kind, tmp_path) -> None:
    """Sentences and words, whatever precedes a space."""
    texts = ['He said: "go" (now), - "go"!', "It rose 50 % & fell - twice.", "¿Qué? «Oui» , no / yes", "a 'b' c"] * 3
    tokenizer = replace(from_sentencepiece(train_vocabulary(texts, 42, kind)), attached="nowhere")
    encode = TextEncoder(tokenizer)
    for text in map(clean_text, texts):
        ids = encode(text)
        assert ids is not None and tokenizer.sentence(ids) == text
        words = words_of([Token(token_id, "", 0.0, 0.0, 1.0) for token_id in ids], tokenizer)
        assert " ".join(word.text for word in words) == text


def test_long_texts() -> None:
    assert "▁xylophone" in from_sentencepiece(train_vocabulary(["xylophone " * 5000], 20)).pieces


@pytest.mark.parametrize(
    ("texts", "size", "kind", "problem"),
    [
        ([], 50, "bpe", "no text to learn"),
        (["  "], 50, "bpe", "no text to learn"),
        (
            ["hello world"],
            5,
            "bpe",
            "no bpe vocabulary of 5 pieces: the characters of these texts alone take 9: set 9 or more",
        ),
        (
            ["hello world"],
            5000,
            "unigram",
            "unigram vocabulary of 5000 pieces: these texts yield 9 at most: set 9 or fewer",
        ),
        (["hello world"], 12, "magic", "no magic vocabulary"),
    ],
)
def test_impossible_vocabulary(texts, size, kind, problem) -> None:
    with pytest.raises(UsageError, match=problem):
        train_vocabulary(texts, size, kind)


def test_a_vocabulary_has_the_rarest_character() -> None:
    assert "Ж" in from_sentencepiece(train_vocabulary([*sentences(), "Ж"], 80)).pieces


def test_missing_characters(encoder) -> None:
    assert encoder.writable("the séa") == "the sea"  # accents go
    assert encoder.writable("The SEA") == "the Sea"  # the vocabulary has S, but no T, E or A
    assert encoder.writable('"the" [sea] ~') == "the sea"  # marks go
    assert encoder.writable("7 seas") is None and encoder("7 seas") is None
    assert encoder.writable("the Жea") is None
    assert encoder("~") == ()


def test_vocabulary_without_capitals() -> None:
    encoder = TextEncoder(from_sentencepiece(train_vocabulary(["the sea is at rest"], 16)))
    assert encoder.writable("The Sea! It's a tęst.") == "the sea its a test"


def trained(**options: object) -> bytes:
    """Return a model of the sentences with SentencePiece's own settings."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=written, minloglevel=2, **options
    )
    return written.getvalue()


def test_other_models_equal_sentencepiece() -> None:
    """Published checkpoints store a normalisation of their own; it leaves clean text unchanged."""
    content = trained(model_type="bpe", vocab_size=80, character_coverage=1.0)
    reference = sentencepiece.SentencePieceProcessor(model_proto=content)
    encoder = TextEncoder(from_sentencepiece(content))
    for text in sentences(100):
        assert list(encoder(text) or ()) == reference.EncodeAsIds(text)


def huggingface(model: bytes, kind: str) -> Tokenizer:
    """The same vocabulary in the form that transformers' converter writes."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.IdToPiece(i) for i in range(len(processor))]
    scores = dict(zip(pieces, map(processor.GetScore, range(len(pieces))), strict=True))
    if kind == "unigram":
        vocabulary: dict = {"vocab": list(scores.items()), "unk_id": 0}
    else:
        splits = [(p[:i], p[i:]) for p in pieces for i in range(1, len(p)) if {p[:i], p[i:]} <= set(pieces)]
        merges = sorted(splits, key=lambda split: -scores["".join(split)])
        written = list(map(list, merges)) if kind == "bpe with pairs" else [" ".join(merge) for merge in merges]
        vocabulary = {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": written}
    added = [{"id": 0, "content": "<unk>", "special": True}, {"id": len(pieces), "content": "<pad>", "special": True}]
    return from_huggingface(json.dumps({"model": vocabulary, "added_tokens": added}).encode(), len(pieces))


@pytest.mark.parametrize("kind", ["bpe", "bpe with pairs", "unigram"])
def test_tokenizer_json(kind) -> None:
    model = train_vocabulary(sentences(), 70, kind.split()[0])
    original, converted = TextEncoder(from_sentencepiece(model)), TextEncoder(huggingface(model, kind))
    for text in [*sentences(100), "the Ж", "The Sea"]:
        assert converted(text) == original(text)


def test_byte_fallback() -> None:
    tokenizer = from_sentencepiece(
        trained(model_type="bpe", vocab_size=340, byte_fallback=True, hard_vocab_limit=False)
    )
    ids = TextEncoder(tokenizer)("the Ж 7")
    assert ids is not None and tokenizer.text(ids) == "the Ж 7"


def test_character_within_piece_only() -> None:
    content = trained(vocab_size=80, user_defined_symbols=["<|en|>"])
    assert TextEncoder(from_sentencepiece(content))("the | sea") is None


@pytest.mark.parametrize("length", [1, 118, 119, 120, 500])
def test_piece_lengths(length) -> None:
    vocabulary = [["<unk>", 0.0], ["▁", -1.0], ["x" * length, -2.0]]
    added = [{"id": 0, "content": "<unk>", "special": True}]
    written = json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}).encode()
    assert TextEncoder(from_huggingface(written, 3))("x" * length) == (1, 2)


def test_character_vocabulary() -> None:
    encoder = TextEncoder(from_characters([" ", "a", "b", "'"]))
    assert encoder("A b'a!") == (1, 0, 2, 3, 1)
    assert encoder("abc") is None


def test_unusable_tokenizer() -> None:
    without_unk = Tokenizer(
        ("a", "b"), "subword", files={"tokenizer.json": b'{"model": {"vocab": {"a": 0}, "merges": []}}'}
    )
    with pytest.raises(UsageError, match="cannot encode with this checkpoint's tokenizer"):
        TextEncoder(without_unk)
    with pytest.raises(UsageError, match="cannot encode"):
        TextEncoder(Tokenizer(("a",), "subword"))
