"""The word encoder against SentencePiece and NeMo."""

from __future__ import annotations

import io
import json
import random
import unicodedata
from functools import cache

import pytest
import sentencepiece

from fastscribe.alignment.script import Speller
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import from_characters, from_huggingface, from_sentencepiece
from tests.conftest import DATA

BYTE_LEVEL = json.loads((DATA / "tokenizers" / "byte_level.json").read_text(encoding="utf-8"))
SENTENCE = "the harbour lay quiet before sunrise and only ferry lamps moved across water who would sail straße café"
WORDS = SENTENCE.split()


@cache
def model(rule: str, **settings: bool) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([SENTENCE, "It's 3.14, isn't it? ½ ﬁne…"] * 20),
        model_writer=written,
        model_type="bpe",
        vocab_size=90,
        normalization_rule_name=rule,
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
        **settings,
    )
    return written.getvalue()


def words(seed: int) -> list[str]:
    """Known words, and random strings of Unicode characters."""
    rng = random.Random(seed)
    blocks = (range(0x20, 0x7F), range(0xA0, 0x250), range(0x370, 0x400), range(0x2000, 0x2070), range(0xFB00, 0xFFEF))
    odd = []
    for _ in range(150):
        letters = [chr(rng.choice(rng.choice(blocks))) for _ in range(rng.randrange(1, 8))]
        odd += "".join(c for c in letters if unicodedata.category(c) not in ("Cs", "Cn")).split()
    return [*WORDS, "Straße", "CAFÉ", "ﬁne…", "½", "日本", *odd]


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf"])
@pytest.mark.parametrize("settings", [(), ("add_dummy_prefix",), ("remove_extra_whitespaces",)])
def test_encoder_equals_sentencepiece(rule: str, settings: tuple[str, ...]) -> None:
    content = model(rule, **dict.fromkeys(settings, False))
    trusted = sentencepiece.SentencePieceProcessor()
    trusted.LoadFromSerializedProto(content)
    encoder = WordEncoder.of(from_sentencepiece(content))
    assert encoder.space_ids == ()
    for word in words(1):
        assert list(encoder.encode(word).ids) == trusted.EncodeAsIds(word), word
        assert list(encoder.encode(word).texts) == trusted.EncodeAsPieces(word), word


def test_unknown_mark() -> None:
    encoder = WordEncoder.of(from_sentencepiece(model("identity")))
    assert encoder.encode("⁇") == ((0,), ("⁇",))
    assert encoder.encode("the⁇") == ((*encoder.encode("the").ids, 0), (*encoder.encode("the").texts, "⁇"))


def test_unknown_characters_are_blank() -> None:
    encoder = WordEncoder.of(from_characters([" ", "a", "b"]))
    assert encoder.space_ids == (0,)
    assert encoder.encode("aXb").ids == (1, 3, 2) and encoder.encode("aXb").texts == ("a", "X", "b")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (from_characters(["a", "b"]), "no space"),
        (from_huggingface(b'{"model": {"type": "WordLevel", "vocab": {"a": 0}}}', 1), "WordLevel"),
        (from_huggingface(b'{"model": {"type": "BPE", "vocab": {"a": 0}}}', 1), "lists no merges"),
    ],
)
def test_unusable_tokenizers(tokenizer, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WordEncoder.of(tokenizer)


def test_byte_level_bpe_equals_tokenizers() -> None:
    """With its space before it, and as the first word of a text."""
    content = json.dumps(BYTE_LEVEL["tokenizer"]).encode()
    tokenizer = from_huggingface(content, len(BYTE_LEVEL["tokenizer"]["model"]["vocab"]))
    encoder = WordEncoder.of(tokenizer)
    assert {word: list(encoder.at(word, False).ids) for word in BYTE_LEVEL["later"]} == BYTE_LEVEL["later"]
    assert {word: list(encoder.at(word, True).ids) for word in BYTE_LEVEL["first"]} == BYTE_LEVEL["first"]
    script = Speller(tokenizer).script("The harbour, the")
    expected = BYTE_LEVEL["first"]["the"], BYTE_LEVEL["later"]["harbour"], BYTE_LEVEL["later"]["the"]
    assert list(script.token_ids) == [token for tokens in expected for token in tokens]
    assert (
        tokenizer.text(script.token_ids) == "the harbour the"
    )  # it knows the bytes of T and the comma, but learnt neither
