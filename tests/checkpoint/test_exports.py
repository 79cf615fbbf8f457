"""`convert --to`: NeMo's file and Hugging Face's folder of a model, against the files that NeMo and transformers wrote."""

from __future__ import annotations

import base64
import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe.checkpoint import exchange, hf_export, nemo_export
from fastscribe.checkpoint.hf_export import for_transformers
from fastscribe.checkpoint.hf_tokenizer import tokenizer_json
from fastscribe.checkpoint.lazy_weights import COUNTER_SUFFIX, LazyWeights
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.cli import models
from fastscribe.config import ChunkedAttention, LocalAttention, ModelConfig, PredictorConfig
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.families.blocks.heads import Transducer
from fastscribe.text.tokenizer import from_characters, from_huggingface, from_pieces, from_sentencepiece, is_bpe
from fastscribe.training.bpe import train_vocabulary
from tests.conftest import MODELS, checkpoint
from tests.helpers import quick_yaml
from tests.helpers.archives import members
from tests.helpers.processes import fastscribe, refused

NEMO = ("rnnt", "tdt_demo", "ctc", "hybrid", "canary", "canary2")
OTHER_PARTS = {
    f"transf_decoder._embedding.{last}"
    for last in ("position_embedding.pos_enc", "position_embedding.weight", "token_type_embedding.weight")
}
HF = ("hf_ctc", "hf_rnnt", "hf_tdt_demo")
TEXTS = ["the cat, the hat", "a cathedral at the station", "that is it: on and on, as it was"] * 3


def written_hf(made: Checkpoint, folder: Path) -> Path:
    folder.mkdir()
    hf_export.write(made, hf_export.files_of(made, "fp32"), folder, torch.float32)
    return folder


def assert_same_weights(found: Checkpoint, expected: Checkpoint) -> None:
    assert set(found.weights) == set(expected.weights)
    for name in expected.weights:
        assert torch.equal(found.weights[name], expected.weights[name].to(found.weights[name].dtype)), name


# --- NeMo -----------------------------------------------------------------------------------------------------------


def state_dict(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(io.BytesIO(members(path)["model_weights.ckpt"]), weights_only=True)
    return state


@pytest.mark.parametrize("name", [*NEMO, "canary_unified", "canary_transf"])
def test_nemo_file_comes_back(name: str, tmp_path: Path) -> None:
    """torch reads the state dict that NeMo wrote, bit for bit, with its window and mel filters.

    Positions that were learnt are stored as those that were not, and unused types of tokens not at all.
    """
    original, path = checkpoint(MODELS / name), tmp_path / "new" / "model.nemo"
    nemo_export.write(original, path, torch.float32)
    back = read_checkpoint(path)
    assert (back.config, back.tokenizer, back.languages) == (original.config, original.tokenizer, original.languages)
    assert back.tokenizer.files == original.tokenizer.files
    assert_same_weights(back, original)
    found, expected = state_dict(path), state_dict(MODELS / name / "model.nemo")
    assert set(found) ^ set(expected) <= (set() if name in NEMO else OTHER_PARTS)
    for key in found.keys() & expected.keys():
        assert found[key].dtype == expected[key].dtype and torch.equal(found[key], expected[key]), key
    nemo_export.write(original, tmp_path / "again.nemo", torch.float32)
    assert (tmp_path / "again.nemo").read_bytes() == path.read_bytes()


def test_a_vocabulary_of_languages_that_is_not_whole(tmp_path: Path) -> None:
    made = checkpoint(MODELS / "canary")
    files = dict(made.tokenizer.files)
    damaged = {**files, "pieces-01-en.model": b"?"}
    del files["pieces-01-en.model"]
    for held, said in ((damaged, "pieces-01-en.model is not a SentencePiece model"), (files, "has no vocabularies")):
        with pytest.raises(UsageError, match=f"--to nemo: {said}"):
            nemo_export.files_of(replace(made, tokenizer=replace(made.tokenizer, files=held)))


def leaves(values: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {name: values}
    return {key: leaf for part, value in values.items() for key, leaf in leaves(value, f"{name}.{part}").items()}


@pytest.mark.parametrize("name", NEMO)
def test_nemo_config_has_nemos_values(name: str, tmp_path: Path) -> None:
    theirs = leaves(quick_yaml.load(members(MODELS / name / "model.nemo")["model_config.yaml"]))
    ours = leaves(quick_yaml.load(nemo_export.files_of(checkpoint(MODELS / name))["model_config.yaml"]))
    differing = {key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]}
    differing = {key for key in differing if not key.startswith(".tokenizer.") or key.endswith("type")}
    assert differing <= {".decoder.vocabulary", ".transf_encoder.inner_size"} | {  # without layers it has no meaning
        ".aux_ctc.decoder.vocabulary",
        ".aux_ctc.decoding.strategy",
    }
    assert len(ours.keys() & theirs.keys()) > 40


def test_weights_of_bfloat16_keep_counters(tmp_path: Path) -> None:
    original = checkpoint(MODELS / "tdt_demo")
    without = {name: value for name, value in original.weights.items() if not name.endswith(COUNTER_SUFFIX)}
    nemo_export.write(replace(original, weights=without), tmp_path / "model.nemo", torch.bfloat16)
    state = state_dict(tmp_path / "model.nemo")
    counters = [key for key in state if key.endswith(COUNTER_SUFFIX)]
    assert len(counters) == 3 and all(state[key].dtype == torch.int64 and state[key] == 0 for key in counters)
    tables = {key for key, value in state.items() if value.dtype == torch.float32}
    assert tables == {"preprocessor.featurizer.window", "preprocessor.featurizer.fb"}
    assert_same_weights(read_checkpoint(tmp_path / "model.nemo"), replace(original, weights=dict(_counted(without))))


def _counted(weights: dict[str, torch.Tensor]) -> Any:
    yield from weights.items()
    for name in weights:
        if name.endswith(".running_mean"):
            yield name.removesuffix(".running_mean") + COUNTER_SUFFIX, torch.zeros((), dtype=torch.int64)


# --- Hugging Face ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HF)
def test_huggingface_folder_comes_back(name: str, tmp_path: Path) -> None:
    """The new files hold no value that differs from transformers' own."""
    original = checkpoint(MODELS / name)
    folder = written_hf(original, tmp_path / "new")
    back = read_checkpoint(folder)
    assert (back.config, back.tokenizer) == (original.config, original.tokenizer)
    assert_same_weights(back, original)
    for file in ("config.json", "generation_config.json", "processor_config.json", "tokenizer_config.json"):
        found, theirs = (json.loads((place / file).read_text()) for place in (folder, MODELS / name))
        left_out = {"dtype", "_from_model_config", "output_attentions", "output_hidden_states", "model_max_length"}
        assert {**theirs, **found, "dtype": 0} == {**theirs, "dtype": 0} and set(theirs) - set(found) <= left_out, file


@pytest.mark.parametrize(("name", "theirs"), [("ctc", "hf_ctc"), ("rnnt", "hf_rnnt"), ("tdt_demo", "hf_tdt_demo")])
def test_nemo_to_huggingface(name: str, theirs: str, tmp_path: Path) -> None:
    """The vocabularies of these pairs are the same, and transformers' converter made the second of the first."""
    original = checkpoint(MODELS / name)
    back = read_checkpoint(written_hf(original, tmp_path / "new"))
    assert back.config == original.config
    assert_same_weights(back, original)
    draw = random.Random(1)
    for _ in range(200):
        ids = [draw.randrange(1, original.config.num_labels) for _ in range(draw.randrange(8))]
        assert back.tokenizer.text(ids) == original.tokenizer.text(ids)
    new, expected = (json.loads((place / "tokenizer.json").read_text()) for place in (back.path, MODELS / theirs))
    assert new["model"]["vocab"] == expected["model"]["vocab"]
    merged = [["".join(pair) for pair in content["model"]["merges"]] for content in (new, expected)]
    assert merged[0] == merged[1]
    assert sorted(new["model"]["merges"]) == sorted(expected["model"]["merges"])
    assert {token["id"] for token in new["added_tokens"]} == {token["id"] for token in expected["added_tokens"]}
    tables = [
        base64.b64decode(rule["precompiled_charsmap"])
        for content in (new, expected)
        for rule in content["normalizer"]["normalizers"]
        if rule["type"] == "Precompiled"
    ]
    assert len(tables) in (0, 2) and len(set(tables)) <= 1


@pytest.mark.parametrize("hidden", [(6, 10), (10, 6)], ids=["wider joint", "wider predictor"])
def test_hybrid_of_two_widths_becomes_a_transducer_of_one(hidden: tuple[int, int]) -> None:
    """Zeros widen the narrower part. Outputs stay, and the CTC head goes."""
    made = checkpoint(MODELS / "hybrid")
    predictor, joint = PredictorConfig(hidden[0], 2), replace(made.config.joint, hidden=hidden[1])
    config = replace(made.config, predictor=predictor, joint=joint)
    torch.manual_seed(4)
    before = transducer_of(config)
    found = for_transformers(replace(made, config=config, weights={**made.weights, **named(before)}))
    assert (found.config.predictor.hidden, found.config.joint.hidden, found.config.has_ctc) == (10, 10, False)
    assert not any(name.startswith("ctc.") for name in found.weights)
    after = transducer_of(found.config)
    after.load_state_dict({name.removeprefix("transducer."): found.weights[name] for name in named(after)})
    frames = torch.randn(3, config.encoder.d_model)
    assert torch.allclose(logits(before, frames), logits(after, frames), atol=1e-6)


def transducer_of(config: ModelConfig) -> Transducer:
    assert config.predictor is not None and config.joint is not None
    width = config.encoder.d_model
    return Transducer(config.predictor, config.joint, config.durations, width, config.blank_id).requires_grad_(False)


def named(transducer: Transducer) -> dict[str, torch.Tensor]:
    return {f"transducer.{name}": tensor for name, tensor in transducer.state_dict().items()}


def logits(transducer: Transducer, frames: torch.Tensor) -> torch.Tensor:
    joint, state = transducer.joint, transducer.predictor.initial_state(3)
    for labels in ([transducer.blank_id] * 3, [3, 1, 2], [5, 5, 0]):
        predicted, state = transducer.predictor.step(torch.tensor(labels), state)
    return joint(joint.encoder(frames), joint.predictor(predicted))


def test_unigram_vocabulary() -> None:
    model = train_vocabulary(TEXTS, 24, "unigram")
    tokenizer = from_sentencepiece(model)
    content = tokenizer_json(tokenizer)
    assert not is_bpe(model) and is_bpe(train_vocabulary(TEXTS, 24, "bpe"))
    assert content["model"]["type"] == "Unigram" and content["model"]["unk_id"] == 0
    assert all(score < 0 for _, score in content["model"]["vocab"][1:])
    back = from_huggingface(json.dumps(content).encode(), 24)
    assert (back.pieces, back.dropped_marks) == (tokenizer.pieces, tokenizer.dropped_marks)


# --- what is refused, and the command -------------------------------------------------------------------------------


def _with_encoder(**changes: Any) -> Checkpoint:
    made = checkpoint(MODELS / "rnnt")
    return replace(made, config=replace(made.config, encoder=replace(made.config.encoder, **changes)))


def _with_prompt(form: Any) -> Checkpoint:
    made = checkpoint(MODELS / "canary")
    assert made.config.aed is not None
    return replace(made, config=replace(made.config, aed=replace(made.config.aed, prompt=form)))


def _with_tokenizer(tokenizer: Any) -> Checkpoint:
    return replace(checkpoint(MODELS / "rnnt"), tokenizer=tokenizer)


LETTERS = [chr(0x4E00 + i) for i in range(192)]
REFUSED = {
    "cohere": (lambda: _with_prompt("cohere"), "attention decoder"),
    "jasper": (lambda: checkpoint(MODELS / "jasper"), r"a convolutional encoder \(Jasper, .*, Citrinet\)"),
    "streaming": (lambda: _with_encoder(attention=ChunkedAttention(70, 13)), "a streaming model"),
    "local attention": (lambda: _with_encoder(attention=LocalAttention(8, 8)), "encoder.attention"),
    "two settings": (lambda: _with_encoder(ff_hidden=50, conv_norm="layer_norm"), r"encoder\."),
    "letters": (lambda: _with_tokenizer(from_characters(LETTERS)), "a vocabulary of letters"),
    "languages": (lambda: _with_tokenizer(from_pieces(LETTERS)), "a vocabulary joined from several languages'"),
}


@pytest.mark.parametrize("to", ["nemo", "hf"])
@pytest.mark.parametrize("name", list(REFUSED))
def test_models_that_a_format_cannot_hold(name: str, to: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(UsageError, match=f"--to {to}: .*{reason}.*; without --to"):
        nemo_export.files_of(make()) if to == "nemo" else hf_export.files_of(make(), "fp32")


def test_canary_is_not_for_transformers() -> None:
    with pytest.raises(UsageError, match=r"--to hf: .*attention decoder.*; without --to"):
        hf_export.files_of(checkpoint(MODELS / "canary"), "fp32")


def test_reader_decides_what_a_format_holds() -> None:
    """Settings that the writer does not know of are no silent change."""
    made = checkpoint(MODELS / "rnnt")
    changed = replace(made, config=replace(made.config, features=replace(made.config.features, mel_scale="htk")))
    with pytest.raises(UsageError, match=r"no place for features\.mel_scale 'htk'"):
        nemo_export.files_of(changed)
    guarded = replace(made, config=replace(made.config, features=replace(made.config.features, log_guard="clamp")))
    nemo_export.files_of(guarded)
    with pytest.raises(UsageError, match=r"no place for features\.log_guard 'clamp'"):
        hf_export.files_of(guarded, "fp32")


@pytest.mark.parametrize(
    ("model", "out", "to", "said"),
    [
        (MODELS / "hf_ctc", "out.nemo", "nemo", "a SentencePiece vocabulary"),
        (MODELS / "rnnt" / "model.nemo", "out", "nemo", "ends in .nemo"),
        (MODELS / "rnnt" / "model.nemo", "out.nemo", "hf", "--to hf writes a folder"),
    ],
    ids=["tokenizer.json", "name", "name of a file"],
)
def test_refusal_writes_nothing(model: Path, out: str, to: str, said: str, tmp_path: Path) -> None:
    done = fastscribe("convert", model, tmp_path / "deep" / out, "--to", to)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "to", "out", "parts", "dtype"),
    [
        ("default", "hf", "out", "does not hold the CTC head beside a transducer, the language model, ", "fp32"),
        (MODELS / "hf_rnnt", "hf", "out", None, "bf16"),
        (MODELS / "ctc" / "model.nemo", "nemo", "out.nemo", None, "fp32"),
        (MODELS / "ctc" / "model.nemo", None, "out.nemo", None, "fp32"),
    ],
    ids=["8 bits", "hf", "fp32", "by name"],
)
def test_command(model: str | Path, to: str | None, out: str, parts: str | None, dtype: str, tmp_path: Path) -> None:
    """The model's dtype by default; what the format does not hold is named; nothing is overwritten."""
    command = ("convert", model, tmp_path / out, *(("--to", to) if to else ()))
    done = fastscribe(*command)
    assert done.returncode == 0 and f"as {dtype}" in done.stderr
    assert parts in done.stderr if parts else "does not hold" not in done.stderr
    assert ("--lm takes the language_model.safetensors.gz of default" in done.stderr) == (model == "default")
    assert f" {read_checkpoint(tmp_path / out).num_parameters:,} parameters" in done.stderr
    assert read_checkpoint(tmp_path / out).dtypes == ("float32" if dtype == "fp32" else "bfloat16",)
    assert [path.name for path in tmp_path.iterdir()] == [out] and (tmp_path / out).is_file() == (out == "out.nemo")
    assert "exists" in refused(*command)
    assert ".onnx is not written; name a new folder" in refused("convert", model, tmp_path / "a.onnx")


@pytest.mark.parametrize("to", ["nemo", "hf"])
def test_damaged_weights_leave_nothing(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(MODELS / "rnnt")
    sources = exchange.sources_with_counters(made)
    name = "transducer.joint.output.bias"

    def fail() -> torch.Tensor:
        raise CheckpointError("model", "holds NaN")

    spoilt = replace(made, weights=LazyWeights({**sources, name: replace(sources[name], read=fail)}))
    monkeypatch.setattr(models, "_read_model", lambda path: spoilt)
    with pytest.raises(CheckpointError, match="holds NaN"):
        models.convert("model", tmp_path / f"out.{to}", "fp32", None, to)
    assert list(tmp_path.iterdir()) == []
