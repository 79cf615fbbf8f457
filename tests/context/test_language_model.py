"""N-gram models: tables against a backoff reference, counts against a reference, and the file format."""

from __future__ import annotations

import gzip
import json
import math
import mmap
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from fastscribe import Options, Transcriber
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.native import LANGUAGE_MODEL_FILE
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint, read_for_run
from fastscribe.cli.describe import describe
from fastscribe.config import OutputStyle
from fastscribe.context import language_model
from fastscribe.context.language_model import Fusion, LanguageModel, LazyTables, Ngrams, parse, serialize
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.pipeline.run_rooms import fused_model
from fastscribe.training.data import prepare
from fastscribe.training.dataloader import AudioDataLoader
from fastscribe.training.recipe import parse_recipe
from fastscribe.training.validation import validate
from fastscribe.transcriber import run_fingerprint
from fastscribe.types import Batch
from scripts.default_model import ngrams
from tests.conftest import FIRST, MODELS, checkpoint
from tests.context import arpa_files

NUM_TOKENS = 4
FUSION = Fusion(weight=0.3, bonus=0.2, beam=5)
TEXTS = st.lists(st.lists(st.integers(0, NUM_TOKENS - 1), max_size=12), min_size=1, max_size=12)
GAINS = st.sampled_from((0.0, 0.5, 2.0, 8.0))


def kept(model: Ngrams) -> dict[tuple[int, ...], dict[int, float]]:
    found: dict[tuple[int, ...], dict[int, float]] = {}
    parents: list[tuple[int, ...]] = [()]
    for contexts in model.lengths:
        ends = np.cumsum(contexts.counts_C)
        names = [
            (*parents[parent], last) for parent, last in zip(contexts.parents_C, contexts.last_C.tolist(), strict=True)
        ]
        for context, count, end in zip(names, contexts.counts_C, ends, strict=True):
            own = slice(end - count, end)
            shares = np.exp(contexts.logprobs_A[own]).tolist()
            found[context] = dict(zip(contexts.tokens_A[own].tolist(), shares, strict=True))
        parents = names
    return found


def share(model: Ngrams, context: tuple[int, ...], token: int) -> float:
    """Reference: a stored probability, or the scaled one of the shorter context."""
    if not context:
        return math.exp(model.unigrams_V[token])
    own = kept(model).get(context, {})
    if token in own:
        return own[token]
    left = 1 - sum(own.values())
    shorter_left = 1 - sum(share(model, context[1:], other) for other in own)
    return share(model, context[1:], token) * max(left, 1e-6) / max(shorter_left, 1e-6)


@settings(max_examples=30, deadline=None)
@given(texts=TEXTS, least_gain=GAINS, written=st.lists(st.integers(0, NUM_TOKENS - 1), max_size=6))
def test_tables_equal_backoff(texts, least_gain, written) -> None:
    model = ngrams.counted(texts, NUM_TOKENS, 3, least_gain)
    tables = language_model.LazyTables(LanguageModel(model, FUSION)).filled()
    state, context = tables.start, (NUM_TOKENS,)
    for token in written:
        for other in range(NUM_TOKENS):
            expected = FUSION.weight * math.log(share(model, context[-3:], other)) + FUSION.bonus
            assert float(tables.added_SV[state, other]) == pytest.approx(expected, abs=0.02)
        state, context = int(tables.next_SV[state, token]), (*context, token)


@settings(max_examples=30, deadline=None)
@given(texts=TEXTS)
def test_counts(texts) -> None:
    """Without pruning: Witten-Bell smoothing, with counts of every context in the texts."""
    model = ngrams.counted(texts, NUM_TOKENS, 2, 0.0)
    counts = Counter(
        (tuple([NUM_TOKENS, *text][max(0, at + 1 - length) : at + 1]), token)
        for text in texts
        for at, token in enumerate(text)
        for length in (0, 1, 2)
        if length <= at + 1
    )
    total = sum(len(text) for text in texts)
    for token in range(NUM_TOKENS):
        expected = (counts[(), token] + 1) / (total + NUM_TOKENS)
        assert math.exp(model.unigrams_V[token]) == pytest.approx(expected, rel=1e-5)
    for context, own in kept(model).items():
        seen = {token: counts[context, token] for token in range(NUM_TOKENS) if counts[context, token]}
        for token, found in own.items():
            shorter = share(model, context[1:], token)
            expected = (seen.get(token, 0) + len(seen) * shorter) / (sum(seen.values()) + len(seen))
            assert found == pytest.approx(expected, rel=1e-3)


def made(num_tokens: int = NUM_TOKENS) -> LanguageModel:
    texts = np.random.default_rng(0).integers(0, num_tokens, (200, 9)).tolist()
    return LanguageModel(ngrams.counted(texts, num_tokens, 3, 1.0), FUSION)


@pytest.mark.parametrize("num_tokens", [2, NUM_TOKENS, 254, 255, 300])
def test_round_trip_precision(num_tokens: int) -> None:
    model = made(num_tokens)
    content = serialize(model)
    found = parse(content, Path("model"), num_tokens)
    assert found.fusion == FUSION and kept(found.ngrams).keys() == kept(model.ngrams).keys()
    for context, own in kept(model.ngrams).items():
        assert kept(found.ngrams)[context] == pytest.approx(own, rel=1 / 30)
    assert serialize(found) == content
    tables, expected = LazyTables(found).filled(), LazyTables(model).filled()
    assert tables.start == expected.start > 0
    assert torch.equal(tables.next_SV, expected.next_SV)


def test_rows_sum_to_one() -> None:
    """Three tokens take nearly all the probability, and log-probabilities are rounded as in a file."""
    rng = np.random.default_rng(0)
    shares = [0.5, 0.3, 0.1994, *[0.0006 / 77] * 77]
    model = LanguageModel(ngrams.counted(rng.choice(80, (4000, 12), p=shares).tolist(), 80, 4, 0.1), FUSION)
    tables = LazyTables(parse(serialize(model), Path("model"), 80)).filled()
    sums_S = ((tables.added_SV.float() - FUSION.bonus) / FUSION.weight).exp().sum(1)
    torch.testing.assert_close(sums_S, torch.ones_like(sums_S), atol=0.05, rtol=0)


def test_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    reference = LazyTables(model).filled()
    monkeypatch.setattr(language_model, "_BLOCK", 3)
    found = LazyTables(model).filled()
    assert torch.equal(found.added_SV, reference.added_SV) and torch.equal(found.next_SV, reference.next_SV)


@pytest.mark.parametrize("many", [20, 10_000])
def test_rows_on_demand(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """States in any order have the rows of the whole tables; few states make few rows, and many states make all."""
    monkeypatch.setattr(language_model, "_MANY_ROWS", many)
    reference, tables = LazyTables(made()).filled(), LazyTables(made())
    assert tables.start == reference.start
    states = np.random.default_rng(0).permutation(len(reference.next_SV))
    for number, state_N in enumerate(torch.from_numpy(states[: 3 * (len(states) // 3)]).view(-1, 3)):
        labels_N = torch.arange(3)
        assert torch.equal(tables.after(state_N, labels_N), reference.next_SV[state_N, labels_N])
        assert torch.equal(tables.scores(state_N), reference.added_SV[state_N])
        assert number or tables.num_rows < len(states) / 4
    assert tables.num_rows == len(states)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm")
def test_a_table_takes_memory_as_rows_are_written() -> None:
    """And gives it back at its end: all rows of the packaged model are 226 MB, of which 400 short clips need 7 %."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    table = language_model._table(1 << 20, 64, torch.int32)  # 268 MB
    table[: 1 << 14] = 1
    assert (table[1 << 14 :: 1 << 16] == 0).all()
    assert 4e6 < resident_bytes() - before < 40e6
    del table
    assert resident_bytes() - before < 20e6


def test_default_model_makes_few_rows() -> None:
    """A search that begins makes rows for its states alone."""
    model = read_checkpoint(PACKAGED).language_model
    assert model is not None
    tables = fused_model(model, beam=2)
    assert isinstance(tables, LazyTables)
    tables.scores(torch.full((4,), tables.start))
    assert tables.num_rows < 100
    assert tables.to(torch.device("cpu")) is tables


def test_other_vocabulary_refused() -> None:
    with pytest.raises(CheckpointError, match=r"model.*for 4 tokens, where the model has 5"):
        parse(serialize(made()), Path("model"), 5)


def without_end(content: bytes) -> bytes:
    return content[:-9]


def twice(content: bytes) -> bytes:
    return content * 2


def something_else(content: bytes) -> bytes:
    return gzip.compress(b"nothing of the kind")


def changed(**values: object) -> Callable[[bytes], bytes]:
    """Serialize a model with some tensors replaced."""

    def change(content: bytes) -> bytes:
        tensors = load(gzip.decompress(content)) | {
            name.replace("_", "."): np.array(new) for name, new in values.items()
        }
        return gzip.compress(save(tensors))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        without_end,
        twice,
        something_else,
        changed(unigrams=np.array([0.0, 0.0, 0.0, np.nan], np.float32)),
        changed(unigrams=np.array([0.0, 0.0, 0.0, 1.0], np.float32)),
        changed(unigrams=[0.0, 0.0, 0.0, 0.0]),  # float64
        changed(fusion=[0.3, 0.2, 1.0]),
        changed(fusion=[0.3, 0.2, 65.0]),
        changed(fusion=[0.3, 0.2, 1.5]),
        changed(fusion=[np.inf, 0.2, 4.0]),
        changed(fusion=[0.3, np.nan, 4.0]),
        changed(fusion=[-0.1, 0.2, 4.0]),
        changed(fusion=[0.3, 0.2]),
        changed(children_1=[4]),
        changed(children_1=[-5]),
        changed(children_1=[2.5]),
        changed(last_1=[0, 1, 2, 3, 5]),
        changed(last_1=[0, 2, 1, 3, 4]),
        changed(counts_1=[0, 0, 0, 0, 0]),
        changed(tokens_1=[[0]]),
        changed(logprobs_1=[1, 2, 3]),
    ],
)
def test_damage_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CheckpointError, match="not a language model"):
        parse(damage(serialize(made())), Path("model"), NUM_TOKENS)


@given(st.binary(min_size=1, max_size=8), st.integers(0, 10_000))
def test_random_damage(stain: bytes, at: int) -> None:
    """Any content yields an error that names the file, or a model that can be expanded."""
    inside = gzip.decompress(serialize(made()))
    at %= len(inside)
    content = gzip.compress(inside[:at] + stain + inside[at + len(stain) :])
    with suppress(CheckpointError):
        tables = LazyTables(parse(content, Path("model"), NUM_TOKENS)).filled()
        assert 0 <= tables.next_SV.min() <= tables.next_SV.max() < len(tables.next_SV)


def test_gzip_bomb_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match="or too large"):
        parse(gzip.compress(bytes(5000)), Path("model"), NUM_TOKENS)


@pytest.mark.parametrize(("limit", "value"), [("MAX_ENTRIES", 100), ("MAX_NGRAMS", 50), ("MAX_LENGTHS", 2)])
def test_large_tables_refused(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    content = serialize(made())
    monkeypatch.setattr(language_model, limit, value)
    monkeypatch.setattr(language_model, "_contexts", None)
    with pytest.raises(CheckpointError, match="too large"):
        parse(content, Path("model"), NUM_TOKENS)


@pytest.fixture
def hybrid() -> Checkpoint:
    """RNN-T and CTC with a uniform language model whose bonus penalizes every token."""
    found = checkpoint(MODELS / "hybrid")
    silent = LanguageModel(made(found.config.num_labels).ngrams, Fusion(weight=0.0, bonus=-1000.0, beam=3))
    return replace(found, language_model=silent)


def test_model_folder_round_trip(tmp_path: Path, hybrid: Checkpoint) -> None:
    native_writer.write(hybrid, tmp_path, torch.bfloat16)
    found = read_checkpoint(tmp_path).language_model
    assert found is not None and found.fusion == Fusion(0.0, -1000.0, 3)
    assert serialize(found) == (tmp_path / LANGUAGE_MODEL_FILE).read_bytes()


def test_damaged_file_in_model_folder(tmp_path: Path, hybrid: Checkpoint) -> None:
    native_writer.write(hybrid, tmp_path, torch.bfloat16)
    (tmp_path / LANGUAGE_MODEL_FILE).write_bytes(serialize(made(3)))
    with pytest.raises(CheckpointError, match=r"language_model.*for 3 tokens"):
        read_checkpoint(tmp_path)
    (tmp_path / LANGUAGE_MODEL_FILE).unlink()
    (tmp_path / LANGUAGE_MODEL_FILE).mkdir()
    with pytest.raises(CheckpointError, match=r"language_model.*cannot be read"):
        read_checkpoint(tmp_path)
    (tmp_path / LANGUAGE_MODEL_FILE).rmdir()
    (tmp_path / LANGUAGE_MODEL_FILE).symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"language_model.*cannot be read"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("options", "beam", "is_used"),
    [
        (Options(), 3, True),
        (Options(beam=2), 2, True),
        (Options(beam=1), 1, False),
        (Options(decoder="ctc"), 1, False),
    ],
)
def test_used_by_default(hybrid: Checkpoint, options: Options, beam: int, is_used: bool) -> None:
    recognizer = Recognizer.build(hybrid, "cpu", "fp32", options)
    assert recognizer.beam == beam
    samples = torch.from_numpy(soundfile.read(FIRST, dtype="float32")[0])
    [found] = recognizer.transcribe(Batch((), samples[None].numpy(), np.array([len(samples)])))
    assert bool(found.token_ids) is not is_used


def transcribed(options: Options) -> tuple[Recognizer, tuple[int, ...]]:
    recognizer = Recognizer.build(read_for_run(MODELS / "hybrid", options), "cpu", "fp32", options)
    samples = torch.from_numpy(soundfile.read(FIRST, dtype="float32")[0])
    [found] = recognizer.transcribe(Batch((), samples[None].numpy(), np.array([len(samples)])))
    return recognizer, found.token_ids


def unlikely_tokens(folder: Path) -> str:
    """An ARPA file in which every token of the model is very unlikely."""
    units = (*checkpoint(MODELS / "hybrid").tokenizer.pieces, "<s>", "</s>")
    path = folder / "tokens.arpa"
    path.write_text(
        arpa_files.written([[(-90.0, (unit,), 0.0) for unit in units if unit != "<unk>"]]), encoding="utf-8"
    )
    return str(path)


def test_file_of_the_lm_option(tmp_path: Path, hybrid: Checkpoint) -> None:
    """It is used with its own beam; a weight of 0 is a search without it; fastscribe's own files are read, too."""
    path = unlikely_tokens(tmp_path)
    recognizer, tokens = transcribed(Options(lm=path, lm_weight=1.0))
    assert recognizer.beam == 8 and tokens == ()
    plain = transcribed(Options(beam=8))[1]
    assert transcribed(Options(lm=path, lm_weight=0.0))[1] == plain != ()
    assert hybrid.language_model is not None
    own = replace(hybrid.language_model, fusion=Fusion(1.0, -1000.0, 3))
    (tmp_path / LANGUAGE_MODEL_FILE).write_bytes(serialize(own))
    recognizer, tokens = transcribed(Options(lm=str(tmp_path / LANGUAGE_MODEL_FILE)))
    assert recognizer.beam == 3 and tokens == ()
    assert transcribed(Options(lm=str(tmp_path / LANGUAGE_MODEL_FILE), lm_weight=0.0, beam=8))[1] == plain


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(lm_weight=0.5), "--lm-weight 0.5: this model has no language model; --lm names one"),
        (Options(lm="no.arpa"), "--lm no.arpa: No such file"),
        (Options(lm="tokens.arpa", beam=1), "--lm: greedy decoding uses no language model: give --beam 2 or more"),
        (Options(lm="tokens.arpa", decoder="ctc"), "--lm: only RNN-T and TDT models search with a beam, not ctc ones"),
    ],
)
def test_unusable_lm_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Options, problem: str) -> None:
    unlikely_tokens(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=problem):
        transcribed(options)


def test_digest_of_the_lm_option(tmp_path: Path) -> None:
    """A run that resumes tells files of one name apart by their content."""
    options = Options(lm=unlikely_tokens(tmp_path))
    transcriber = Transcriber.load(MODELS / "hybrid", "cpu", "fp32", options)
    first = run_fingerprint(transcriber, "model", options, OutputStyle())
    assert options.lm is not None
    with open(options.lm, "a", encoding="utf-8") as file:
        file.write("\n")
    second = run_fingerprint(transcriber, "model", options, OutputStyle())
    assert [name for name in first if first[name] != second[name]] == ["--lm"]


def test_inspect(hybrid: Checkpoint) -> None:
    facts = describe(hybrid)
    assert facts["default_beam"] == 3 and facts["language_model_ngrams"] > 0
    assert not {"default_beam", "language_model_ngrams"} & describe(checkpoint(MODELS / "hybrid")).keys()


def test_training_keeps_language_model(tmp_path: Path, hybrid: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels stay. Validation is greedy: it measures the weights."""
    rows = [{"audio_filepath": str(FIRST), "duration": 4.0, "text": f"a {word}"} for word in ("bed", "sea", "tree")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = parse_recipe({"data": {"train": str(tmp_path / "train.jsonl")}}, tmp_path)
    data = prepare(recipe, hybrid)
    assert data.checkpoint.language_model is hybrid.language_model is not None
    built: list[Checkpoint] = []
    build = Recognizer.build

    def keep(checkpoint: Checkpoint, *arguments: Any, **more: Any) -> Recognizer:
        built.append(checkpoint)
        return build(checkpoint, *arguments, **more)

    monkeypatch.setattr(Recognizer, "build", keep)
    validate(data.checkpoint, data.validation, AudioDataLoader(data.validation, 16_000, 0.0, 1, print), "cpu", "fp32")
    assert built[0].language_model is None
