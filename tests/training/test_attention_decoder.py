"""Training of attention decoders: losses and gradients are NeMo's, and runs learn, resume and write models that transcribe."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fastscribe.checkpoint.lazy_weights import TensorSource
from fastscribe.checkpoint.names import from_nemo
from fastscribe.model.features import LogMel
from fastscribe.model.model import Model, build_model
from fastscribe.training.attention_decoder import AttentionLossConfig, attention_loss, prepare_weights_
from fastscribe.training.learner import targets_of
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.manifest import Example
from fastscribe.training.network import Network
from fastscribe.training.prompts import PromptedEncoder, PromptReader
from fastscribe.types import Features
from tests.conftest import DATA, MODELS, checkpoint, waveform

CPU = torch.device("cpu")
GOLDEN = json.loads((DATA / "canary_training.json").read_text(encoding="utf-8"))
SETTINGS = {
    "text": (False, 0.0),
    "prompt and text": (True, 0.0),
    "smoothed": (False, 0.1),
}  # loss.prompt, label_smoothing
NAMES = tuple(GOLDEN["models"])


def in_training(name: str) -> Model:
    known = checkpoint(MODELS / name)
    weights = {name: tensor.clone() for name, tensor in known.weights.items()}
    model = build_model(known.config, weights, name).train().requires_grad_(True)
    assert model.aed is not None
    prepare_weights_(model.aed)
    return model


@cache
def features(name: str) -> Features:
    """The golden's three recordings."""
    waves = [waveform(DATA / row["audio_filepath"]) for row in GOLDEN["models"][name]["recordings"]]
    samples_BS = torch.zeros(len(waves), max(map(len, waves)))
    for row_S, wave_S in zip(samples_BS, waves, strict=True):
        row_S[: len(wave_S)] = torch.from_numpy(wave_S / 32768 if wave_S.dtype == np.int16 else wave_S)
    found = LogMel(checkpoint(MODELS / name).config.features)(
        samples_BS, torch.tensor([len(wave_S) for wave_S in waves])
    )
    return Features(found.mel_BMT.clone(), found.lengths_B.clone())


def network_of(model: Model, setting: str, num_prompt: int, dropout: float = 0.0) -> Network:
    learns_prompt, smoothing = SETTINGS[setting]
    config = AttentionLossConfig(1 if learns_prompt else num_prompt, smoothing)
    return Network(model, TransducerLossConfig(), 0.3, dropout, config)


def loss_of(name: str, setting: str, model: Model) -> torch.Tensor:
    rows = GOLDEN["models"][name]["recordings"]
    network = network_of(model, setting, rows[0]["num_prompt"])
    loss: torch.Tensor = network(features(name), targets_of([row["tokens"] for row in rows], CPU), 1.0)["loss"]
    return loss


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_nemos(name: str) -> None:
    known = checkpoint(MODELS / name)
    read, encode = PromptReader.of(known, None), PromptedEncoder(known)
    for row, (source, target, pnc) in zip(GOLDEN["models"][name]["recordings"], GOLDEN["requests"], strict=True):
        request = read({"source_lang": source, "target_lang": target, "pnc": pnc, "text": row["text"]})
        assert list(encode(Example("a.wav", row["text"], 1.0, request=request)) or ()) == row["tokens"]
        assert encode.num_prompt == row["num_prompt"]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_nemos(name: str, setting: str) -> None:
    wanted = GOLDEN["models"][name]["losses"][setting]["loss"]
    assert loss_of(name, setting, in_training(name)).item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if "gradients" in GOLDEN["models"][name]["losses"]["text"]])
def test_gradients_are_nemos(name: str) -> None:
    """In float64, as the golden: in float32, rounding errors reach a thousandth of some gradients."""
    model = in_training(name).double()
    loss_of(name, "text", model).backward()
    stored = GOLDEN["models"][name]["losses"]["text"]["gradients"]
    nothing: Any = TensorSource("float32", (1, 1, 1), lambda: torch.zeros(1, 1, 1))
    wanted = {next(iter(from_nemo({old: nothing}, model.config.encoder))): numbers for old, numbers in stored.items()}
    found = {}
    for new, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            gradient = parameter.grad.double().flatten()
            probe = torch.cos(0.7 * torch.arange(len(gradient), dtype=torch.float64))
            found[new] = [float(gradient.norm()), float(gradient @ probe)]
    assert found.keys() == wanted.keys()
    largest = max(norm for norm, _ in wanted.values())
    for new, numbers in wanted.items():
        # A bias before BatchNorm has a gradient of nothing but rounding errors.
        assert found[new] == pytest.approx(numbers, rel=3e-4, abs=1e-6 * largest), new


def test_loss_by_hand() -> None:
    logits_BUC = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    labels_BU, lengths_B = torch.tensor([[1, 2, 3, 4], [4, 0, 0, 0]]), torch.tensor([4, 2])
    for num_given, smoothing in ((1, 0.0), (2, 0.0), (1, 0.3), (2, 0.3)):
        total = count = 0.0
        for row in range(2):
            for place in range(num_given - 1, int(lengths_B[row])):
                probabilities = logits_BUC[row, place].softmax(0).tolist()
                for label, probability in enumerate(probabilities):
                    share = 1 - smoothing if label == int(labels_BU[row, place]) else smoothing / 4
                    total -= share * float(np.log(probability))
                count += 1
        found = attention_loss(logits_BUC, labels_BU, lengths_B, AttentionLossConfig(num_given, smoothing))
        assert float(found) == pytest.approx(total / count, rel=1e-5)
