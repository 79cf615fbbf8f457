"""Language models of ARPA files: tables equal the slow reading of the file, token by token."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.context import backoff_model
from fastscribe.context.backoff_model import BackoffModel, read_language_model
from fastscribe.decode.decoder import FusedModel
from fastscribe.errors import UsageError
from fastscribe.pipeline.run_rooms import fused_model
from fastscribe.text.tokenizer import Tokenizer
from tests.context.arpa_files import SlowArpa, random_arpa

pytestmark = pytest.mark.usefixtures("one_thread")

PIECES = ("<unk>", "▁", "a", "b", "▁a", "▁ab", "ab", "c", ",", "▁ca", "'", "B")
SUBWORDS = Tokenizer(PIECES, "subword", unknown_ids=frozenset((0,)))
TOKENS = PIECES[2:8]
WEIGHT = 0.5


def read(tmp_path: Path, text: str, tokenizer: Tokenizer, weight: float | None = WEIGHT) -> BackoffModel:
    path = tmp_path / "model.arpa"
    path.write_text(text, encoding="utf-8")
    found = read_language_model(str(path), tokenizer, weight)
    assert isinstance(found, BackoffModel)
    return found


def tables_of(model: BackoffModel) -> FusedModel:
    found = fused_model(model, beam=2)
    assert found is not None
    return found


def sums(tables: FusedModel, tokens: list[int]) -> list[float]:
    """Return the score of each beginning of a text."""
    state_1, total, found = torch.tensor([tables.start]), 0.0, []
    for token in tokens:
        total += float(tables.scores(state_1)[0, token])
        state_1 = tables.after(state_1, torch.tensor([token]))
        found.append(total)
    return found


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    longest=st.integers(1, 4),
    is_pruned=st.booleans(),
    tokens=st.lists(st.integers(0, 5), max_size=10),
)
def test_tokens_equal_slow_reading(tmp_path_factory, seed, longest, is_pruned, tokens) -> None:
    """Units spelled as the tokenizer's, or as NeMo's characters; tokens that the file lacks share what <unk> has."""
    tokenizer = Tokenizer(("▁a", "b", "▁c", "d", "e", "▁f"), "subword")
    names = tokenizer.pieces if seed % 2 else tuple(chr(100 + i) for i in range(6))
    text = random_arpa(seed, names[:4], longest, is_pruned=is_pruned)
    slow = SlowArpa(text)
    tables = tables_of(read(tmp_path_factory.mktemp("lm"), text, tokenizer))
    context, total, expected = ["<s>"], 0.0, []
    for token in tokens:
        known = token < 4
        nats = slow.nats(context, names[token] if known else "<unk>") - (0.0 if known else np.log(2))
        total += WEIGHT * (nats + backoff_model._TOKEN_BONUS)
        expected.append(total)
        context.append(names[token])
    assert sums(tables, tokens) == pytest.approx(expected, abs=1e-4)


def test_weight_zero_is_no_model(tmp_path: Path) -> None:
    assert fused_model(read(tmp_path, random_arpa(0, TOKENS, 2), SUBWORDS, 0.0), beam=2) is None


def test_gzip(tmp_path: Path) -> None:
    text = random_arpa(1, TOKENS, 2)
    (tmp_path / "m.arpa.gz").write_bytes(gzip.compress(text.encode()))
    packed = read_language_model(str(tmp_path / "m.arpa.gz"), SUBWORDS)
    plain = read(tmp_path, text, SUBWORDS)
    assert isinstance(packed, BackoffModel) and np.array_equal(packed.graph.keys_A, plain.graph.keys_A)


@pytest.mark.parametrize(
    ("units", "problem"),
    [
        (("▁a", "▁xyz"), "1 of its 2 units are tokens of this one, but not '▁xyz'"),
        ((chr(100), chr(300)), "it has token 200 of NeMo's encoding, where this model has 12 tokens"),
    ],
)
def test_other_vocabulary_refused(tmp_path: Path, units: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read(tmp_path, random_arpa(0, units, 2), SUBWORDS)


def test_fewer_tokens_of_nemo_are_named(tmp_path: Path) -> None:
    """Their numbers fit any larger vocabulary."""
    path, lines = tmp_path / "m.arpa", []
    for last in (5, 11):
        path.write_text(random_arpa(0, [chr(100), chr(100 + last)], 1), encoding="utf-8")
        read_language_model(str(path), SUBWORDS, None, lines.append)
    assert lines == [f"--lm {path}: its last token is 5, where this model has 12: was it made for another model?"]


def test_a_file_of_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    path.write_text(random_arpa(0, ["xyz", "a"], 2), encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        read_language_model(str(path), SUBWORDS)
    needed = "a token-level ARPA as NeMo's train_kenlm makes is needed"
    assert str(refused.value) == f"--lm {path}: word-level; {needed}"


def test_a_file_without_tokens_is_refused(tmp_path: Path) -> None:
    """Also where the tokens are characters, among which all of no units would be."""
    path = tmp_path / "m.arpa"
    path.write_text(random_arpa(0, [], 1), encoding="utf-8")
    for tokenizer in (SUBWORDS, Tokenizer(("a", "b", " "), "character")):
        with pytest.raises(UsageError, match="it has no tokens"):
            read_language_model(str(path), tokenizer)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "m.bin",
            b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(100),
            "a binary file of KenLM: give",
        ),
        ("m.nemo", bytes(1000), "NeMo's archive of a language model: give the ARPA file"),
        ("m.arpa.gz", b"\x1f\x8b", "ended before"),
        ("m.arpa.gz", gzip.compress(bytes(100), mtime=0), "not a language model"),
        ("m.arpa", b"", "no ARPA file"),
    ],
)
def test_other_files_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=f"^--lm .*{name}: .*{problem}"):
        read_language_model(str(tmp_path / name), SUBWORDS)
