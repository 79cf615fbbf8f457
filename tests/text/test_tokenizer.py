from __future__ import annotations

import io
import itertools
import json
from functools import cache

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.text.tokenizer import (
    Tokenizer,
    _join,
    from_characters,
    from_folder,
    from_huggingface,
    from_sentencepiece,
)
from tests.conftest import MODELS, checkpoint

TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "Say 'no' - then (perhaps) yes; isn't it?",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich!",
] * 5


def trained(**options) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=options.pop("vocab_size", 120),
        normalization_rule_name="identity",
        minloglevel=2,
        **options,
    )
    return model.getvalue()


KEEPS_SPACES = {"remove_extra_whitespaces": False}  # as NeMo trains its tokenizers
MODELS_OF = {
    "bpe": {},
    "unigram": {"model_type": "unigram"},
    "bytes": {"vocab_size": 400, "byte_fallback": True},
    "spaces": KEEPS_SPACES,
    "bytes and spaces": KEEPS_SPACES | {"vocab_size": 400, "byte_fallback": True, "control_symbols": ["<c>"]},
    "no prefix": {"add_dummy_prefix": False},
    "no prefix, spaces": KEEPS_SPACES | {"add_dummy_prefix": False},
}


@pytest.fixture(scope="module", params=MODELS_OF)
def sentencepiece_model(request: pytest.FixtureRequest) -> bytes:
    return trained(**{"model_type": "bpe", "hard_vocab_limit": False} | MODELS_OF[request.param])


@cache
def both(model: bytes) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor, from_sentencepiece(model)


@settings(max_examples=100, deadline=None)
@given(draws=st.lists(st.integers(0, 10_000), max_size=12))
def test_text_equals_sentencepiece(sentencepiece_model: bytes, draws: list[int]) -> None:
    processor, tokenizer = both(sentencepiece_model)
    ids = [draw % len(tokenizer.pieces) for draw in draws]
    marks = [i for i in range(len(tokenizer.pieces)) if tokenizer.pieces[i].startswith("▁")][-3:]
    for leading in ([], marks[:1], [marks[0], marks[0]], marks):
        assert tokenizer.text(leading + ids) == processor.DecodeIds(leading + ids)


@pytest.mark.parametrize("dropped_marks", ["all", "one", "none"])
def test_tables_equal_join(dropped_marks) -> None:
    pieces = ("▁", "▁a", "b", "▁▁", "<unk>", "<s>", "▁c▁d", "<0x41>", "<0xC3>", "<0xBC>")
    kinds = {"unknown_ids": frozenset({4}), "silent_ids": frozenset({5})}
    tokenizer = Tokenizer(pieces, kind="subword", dropped_marks=dropped_marks, **kinds)
    for length in range(4):
        for ids in itertools.product(range(len(pieces)), repeat=length):
            assert tokenizer.text(ids) == _join((tokenizer._surface(i) for i in ids), dropped_marks), ids


@pytest.mark.parametrize("sentence", TEXT[:3])
def test_round_trip(sentencepiece_model: bytes, sentence: str) -> None:
    processor, tokenizer = both(sentencepiece_model)
    assert tokenizer.text(processor.EncodeAsIds(sentence)) == sentence


def test_huggingface_same_pieces() -> None:
    assert checkpoint(MODELS / "hf_tdt_demo").tokenizer.pieces == checkpoint(MODELS / "tdt_demo").tokenizer.pieces


def test_huggingface_drops_first_word_mark() -> None:
    vocabulary = {"▁": 0, "▁a": 1, "b": 2}
    data = {"model": {"vocab": vocabulary}, "decoder": {"type": "Metaspace", "prepend_scheme": "always"}}
    tokenizer = from_huggingface(json.dumps(data).encode(), 3)
    assert [tokenizer.text(ids) for ids in ([0, 1, 2], [0, 0, 1], [1, 0], [2, 0])] == [" ab", "  a", "a ", "b "]


def test_huggingface_unigram_and_special_tokens() -> None:
    data = {
        "model": {"vocab": [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0]]},
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}],
    }
    tokenizer = from_huggingface(json.dumps(data).encode(), 3)
    assert tokenizer.text([1, 0, 2]) == "ab"
    with pytest.raises(ValueError, match="no piece for ids"):
        from_huggingface(json.dumps(data).encode(), 4)


def test_characters() -> None:
    tokenizer = from_characters([" ", "a", "b", "."])
    assert tokenizer.text([1, 0, 2, 3]) == "a b."
    assert tokenizer.sentence([1, 0, 3]) == "a."
    assert tokenizer.punctuation == {"."}


def test_punctuation_characters() -> None:
    tokenizer = Tokenizer(pieces=("<unk>", "▁-", "##!", "[x]", "?", "a,b", "▁"), kind="subword")
    assert tokenizer.punctuation == {"?", ","}


@pytest.mark.parametrize("attached", ["sentences and words", "words", "nowhere"])
def test_punctuation_attachment(attached) -> None:
    tokenizer = Tokenizer(pieces=("▁say", "▁", "'", "no", ".", "▁'"), kind="subword", attached=attached)
    is_there = attached == "sentences and words"
    assert tokenizer.sentence([0, 1, 2, 3, 4]) == ("say'no." if is_there else "say 'no.")
    assert tokenizer.remove_spaces_before_punctuation("oh , no 'no'") == ("oh , no'no'" if is_there else "oh , no 'no'")
    roles = tokenizer.roles
    assert roles[0] == roles[1] == "starts word" and roles[3] == "inside"
    marks = ("inside", "inside", "starts word") if attached == "nowhere" else ("punctuation",) * 3
    assert (roles[2], roles[4], roles[5]) == marks
    assert tokenizer.punctuation_ids == {2, 4, 5} and tokenizer.marks == {"'", "."}


def test_folder_without_tokenizer(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        from_folder(tmp_path, 3)
