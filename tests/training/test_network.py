"""Training's forward pass equals the decoder's model: checkpoints that NeMo overtrained on these clips have nearly no loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fastscribe.errors import UsageError
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.model import Model, build_model
from fastscribe.training.bpe import TextEncoder, clean_text
from fastscribe.training.data import check_trainable
from fastscribe.training.learner import targets_of
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.model_recipe import ModelRecipe
from fastscribe.training.network import Network, Targets, ctc_loss, new_model, unroll
from fastscribe.types import Features
from tests.conftest import DATA, MODELS, checkpoint, waveform

CPU = torch.device("cpu")


def tiny(**changes: object) -> Model:
    recipe = ModelRecipe(
        num_layers=2, d_model=32, num_mels=16, subsampling_channels=8, predictor_hidden=16, joint_hidden=16, **changes
    )
    return new_model(recipe.config(20), seed=1)


def noise(batch: int = 3, frames: int = 160, num_mels: int = 16) -> Features:
    generator = torch.Generator().manual_seed(0)
    lengths_B = torch.tensor([frames, frames - 37, frames // 2][:batch])
    return Features(torch.randn(batch, num_mels, frames, generator=generator), lengths_B)


@pytest.mark.parametrize("name", ["tdt_demo", "rnnt", "ctc", "hybrid"])
def test_loss_of_trained_models(name: str) -> None:
    known = checkpoint(MODELS / name)
    model = build_model(known.config, known.weights, name)
    rows = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row.get("text")][:8]
    encode = TextEncoder(known.tokenizer)
    tokens = [encode(clean_text(row["text"])) or () for row in rows]
    waves = [waveform(DATA / row["audio_filepath"]) for row in rows]
    samples_BS = torch.zeros(len(waves), max(map(len, waves)))
    for row_S, wave_S in zip(samples_BS, waves, strict=True):
        row_S[: len(wave_S)] = torch.from_numpy(wave_S / 32768 if wave_S.dtype == np.int16 else wave_S)
    features = LogMel(known.config.features)(samples_BS, torch.tensor([len(wave_S) for wave_S in waves]))
    network = Network(model, TransducerLossConfig(known.config.durations), 0.5, 0.0).eval()
    losses = network(features, targets_of(tokens, CPU), 1.0)
    assert all(0 <= float(loss) < 0.25 for loss in losses.values())
    wrong = targets_of(tokens[1:] + tokens[:1], CPU)
    assert float(network(features, wrong, 1.0)["loss"]) > 3 * float(losses["loss"])


def test_unrolled_predictor() -> None:
    transducer = tiny(predictor_layers=2).transducer
    assert transducer is not None
    labels_BU = torch.tensor([[3, 1, 19], [0, 0, 7]])
    with torch.no_grad():
        unrolled_BUH = unroll(transducer.predictor, labels_BU, transducer.blank_id)
        state = transducer.predictor.initial_state(2)
        for index in range(4):
            before_B = labels_BU[:, index - 1] if index else torch.full((2,), transducer.blank_id)
            out_BH, state = transducer.predictor.step(before_B, state)
            torch.testing.assert_close(unrolled_BUH[:, index], out_BH, atol=1e-6, rtol=1e-5)


def test_start_symbol_stays_zero() -> None:
    model = tiny()
    network = Network(model, TransducerLossConfig((0, 1, 2, 3, 4)), 0.3, 0.0)
    network(noise(), targets_of([(1, 2), (3,), (4, 5, 6)], CPU), 1.0)["loss"].backward()
    assert model.transducer is not None
    row_H = model.transducer.predictor.embedding.weight[20]
    gradient_VH = model.transducer.predictor.embedding.weight.grad
    assert gradient_VH is not None
    assert row_H.eq(0).all() and gradient_VH[20].eq(0).all() and gradient_VH[[1, 3, 4]].ne(0).any(1).all()


@pytest.mark.parametrize("subsampling", ["dw_striding", "striding"])
def test_encoder_in_training(subsampling: str) -> None:
    """Other operators, and copies for gradients; except BatchNorm, which depends on the batch."""
    config = EncoderConfig(16, 2, 32, 4, 64, 9, "layer_norm", False, False, subsampling, 8, 8)
    encoder, features = Encoder(config), noise()
    trained = encoder.train()(features)
    assert trained.frames_BTD.requires_grad
    with torch.no_grad():
        plain = encoder.eval()(features)
    for row, length in enumerate(plain.lengths_B.tolist()):
        torch.testing.assert_close(
            trained.frames_BTD[row, :length], plain.frames_BTD[row, :length], atol=1e-5, rtol=1e-5
        )


def test_no_row_is_long_enough_for_its_labels() -> None:
    targets = Targets(torch.tensor([[0, 1, 0], [2, 2, 2]]), torch.tensor([3, 3]))
    assert ctc_loss(torch.zeros(2, 6, 5), torch.tensor([2, 4]), targets, blank_id=4).isposinf()


@pytest.mark.parametrize("durations", [(2, 4), (0, 1, 2)])
def test_unaligned_rows(durations: tuple[int, ...]) -> None:
    """20 and 10 frames are sums of 2 and 4, 15 are not; and 10 frames are too few for CTC's 19 with ten equal labels."""
    model = tiny(conv_norm="layer_norm", durations=durations)
    network = Network(model, TransducerLossConfig(durations), 0.5, 0.0).eval()
    features = Features(noise().mel_BMT, torch.tensor([160, 120, 80]))
    tokens = [(1, 2, 3), (4, 5), (7,) * 10]
    losses = network(features, targets_of(tokens, CPU), 1.0)
    left_out = {"transducer": [1, 2] if durations[0] else [], "ctc": [2]}
    assert int(losses["unaligned"]) == len({*left_out["transducer"], *left_out["ctc"]})
    for name, rows in left_out.items():
        rest = [row for row in range(3) if row not in rows]
        some = Features(features.mel_BMT[rest], features.lengths_B[rest])
        expected = network(some, targets_of([tokens[row] for row in rest], CPU), 1.0)
        torch.testing.assert_close(losses[name], expected[name], rtol=1e-4, atol=1e-4)
    losses["loss"].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_streaming_models_are_not_trained() -> None:
    with pytest.raises(UsageError, match="model: a streaming model, which learns several contexts at once"):
        check_trainable(checkpoint(MODELS / "published" / "nemotron-3.5-asr-streaming-0.6b").config, "model")
    check_trainable(checkpoint(MODELS / "tdt_demo").config, "model")
