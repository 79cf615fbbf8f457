"""transformers' Canary: results equal those of its `generate`, and damaged folders are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import Options
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint, UsageError, WeightsMismatch
from fastscribe.families.model import build_model
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.text.transcript import assemble
from fastscribe.types import Hypothesis
from tests.conftest import AUDIO, MODELS, checkpoint, golden, recognizer, refusal, waveform
from tests.helpers.collate import batch_of, utterance

FOLDER = MODELS / "hf_canary"
NAMES = sorted(golden(FOLDER)["files"])
HEAD, EMBEDDING = "proj_out.weight", "model.decoder.embed_tokens.weight"


def text(hypothesis: Hypothesis) -> str:
    loaded, whole = checkpoint(FOLDER), utterance(np.zeros(16000))
    return assemble(whole.audio, [(whole, hypothesis)], loaded.tokenizer, loaded.config.frame_s, False).text


@pytest.mark.parametrize("batch_size", [1, 4, 1000], ids=["one by one", "four", "all at once"])
def test_tokens_and_text(batch_size: int) -> None:
    """Each in batches of one of the sizes."""
    model, entries = recognizer(FOLDER), golden(FOLDER)["files"]
    files = NAMES[(1, 4, 1000).index(batch_size) :: 3]
    for first in range(0, len(files), batch_size):
        names = files[first : first + batch_size]
        hypotheses = model.transcribe(batch_of([waveform(AUDIO / name) for name in names]))
        for name, hypothesis in zip(names, hypotheses, strict=True):
            assert (name, list(hypothesis.token_ids)) == (name, entries[name]["ids"])
            assert text(hypothesis) == entries[name]["text"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "canary"))


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    edit(values)
    path.write_text(json.dumps(values), encoding="utf-8")


def change_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("decoder_config.head_dim", 16, "decoder_config.head_dim: 16 (supported: 8, null)"),
        ("decoder_config.num_key_value_heads", 2, "num_key_value_heads: 2 (supported: 4, null)"),
        ("decoder_config.hidden_size", 48, "decoder_config.hidden_size: 48 (supported: the encoder's 32)"),
        ("encoder_config.hidden_size", 64, "decoder_config.hidden_size: 32 (supported: the encoder's 64)"),
        ("decoder_config.attention_bias", False, "attention_bias: False (supported: True)"),
        ("decoder_config.hidden_act", "silu", "hidden_act: 'silu' (supported: relu)"),
        (
            "decoder_config.max_position_embeddings",
            10**7,
            "max_position_embeddings: 10000000 (supported: up to 8192)",
        ),
        ("decoder_config.vocab_size", 128, "decoder_config.vocab_size: 128 (supported: 136)"),
        ("decoder_config.new_switch", "on", "decoder_config.new_switch: 'on'"),
        ("decoder_config", None, "no section config.decoder_config"),
        ("encoder_config", None, "no section config.encoder_config"),
        ("tie_word_embeddings", False, "tie_word_embeddings: False (supported: True)"),
        ("decoder_start_token_id", 4, "decoder_start_token_id: 4 (supported: the id of <|startofcontext|>"),
        ("eos_token_id", 2, "eos_token_id: 2 (supported: the id of <|endoftext|>"),
        ("eos_token_id", [3], "eos_token_id: [3]"),
    ],
)
def test_unsupported_settings(folder: Path, key: str, value: object, message: str) -> None:
    *parts, last = key.split(".")

    def edit(config: dict[str, Any]) -> None:
        for part in parts:
            config = config[part]
        config[last] = value

    change(folder / "config.json", edit)
    with refusal(CheckpointError, message):
        read_checkpoint(folder)


def test_defaults(folder: Path) -> None:
    """transformers omits keys of the outer config that equal the defaults of its class."""
    keys = ("decoder_start_token_id", "eos_token_id", "tie_word_embeddings")
    change(folder / "config.json", lambda config: [config.pop(key, None) for key in keys])
    for key in ("head_dim", "num_key_value_heads"):
        change(folder / "config.json", lambda config, key=key: config["decoder_config"].update({key: None}))
    assert read_checkpoint(folder).config == checkpoint(FOLDER).config
    for key in ("head_dim", "num_key_value_heads"):
        change(folder / "config.json", lambda config, key=key: config["decoder_config"].pop(key))
    with pytest.raises(UnsupportedCheckpoint, match="num_key_value_heads: 8"):  # the default of the class
        read_checkpoint(folder)


def rename_token(folder: Path, old: str, new: str) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace(json.dumps(old), json.dumps(new)), encoding="utf-8")


def test_vocabulary_without_prompt_token(folder: Path) -> None:
    rename_token(folder, "<|pnc|>", "<|something|>")
    with pytest.raises(UsageError, match=r"vocabulary has no <\|pnc\|>"):
        Recognizer.build(read_checkpoint(folder), "cpu", "fp32", Options())
    Recognizer.build(read_checkpoint(folder), "cpu", "fp32", Options(pnc=False))
    rename_token(folder, "<|startofcontext|>", "<|else|>")
    with pytest.raises(UnsupportedCheckpoint, match=r"decoder_start_token_id: 7 .*<\|startofcontext\|>"):
        read_checkpoint(folder)


def test_vocabulary_of_another_size(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(vocab_size=144))
    change(folder / "config.json", lambda config: config["decoder_config"].update(vocab_size=144))
    with pytest.raises(CheckpointError, match=r"no piece for ids \[136, "):
        read_checkpoint(folder)


def test_tied_or_stored_output_layer(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    assert HEAD not in stored and EMBEDDING in stored
    loaded = read_checkpoint(folder)
    torch.testing.assert_close(loaded.weights["aed.head.weight"], stored[EMBEDDING], rtol=0, atol=0)
    own = torch.randn(stored[EMBEDDING].shape)
    change_weights(folder, lambda weights: weights.update({HEAD: own}))
    torch.testing.assert_close(read_checkpoint(folder).weights["aed.head.weight"], own, rtol=0, atol=0)


def test_missing_and_unexpected_weights(folder: Path) -> None:
    change_weights(folder, lambda weights: [weights.pop(EMBEDDING), weights.update(surplus=torch.zeros(1))])
    loaded = read_checkpoint(folder)
    with pytest.raises(WeightsMismatch, match=r"missing: aed.embedding.weight, aed.head.weight; unexpected: surplus"):
        build_model(loaded.config, loaded.weights, folder)
