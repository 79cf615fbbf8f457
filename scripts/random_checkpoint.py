"""Random checkpoints of a published model's shape, for measurements without the published weights.

    python -m scripts.random_checkpoint parakeet-tdt-0.6b FOLDER      # 0.6B: a minute on a CPU, seconds with --device cuda

FOLDER is a model of fastscribe's own format in bf16, for `fastscribe bench --model FOLDER`. With --sentencepiece,
`fastscribe convert FOLDER model.nemo --to nemo` makes the same FastConformer for NeMo of it.

The text means nothing, but the work is that of the published model: the same matrix products, and 3 to 4 labels per second
of audio. A plain random transducer emits nothing, never stops, or emits everything at a recording's unusual first frames. So
its outputs are centred over frames and histories, and the blank's row is fitted to the best label's logit. A switch spreads
the labels over time: even labels while a feature of the audio is high, odd ones while it is low, never two of a kind in
sequence. The blank's bias sets the rate on a few synthetic recordings. Of several draws, the one with the most different
labels is kept. CTC heads are centred and set the same way, without history and switch. An attention decoder writes up to its
length limit.

Shapes: B batch, T frames, D encoder width, H predictor width, U histories, J output layer's inputs, N samples, V outputs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastscribe.bench import synthetic
from fastscribe.bench.work import LABELS_PER_S
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import ModelConfig
from fastscribe.decode import ctc, label_looping
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.blocks.heads import CtcHead, Transducer
from fastscribe.families.canary.attention_decoder import Attention, AttentionDecoder
from fastscribe.families.jasper.encoder import JasperEncoder
from fastscribe.families.model import Model
from fastscribe.pipeline.model_building import choose_device
from fastscribe.text.tokenizer import (
    WORD_MARK,
    Tokenizer,
    from_characters,
    from_huggingface,
    from_pieces,
    from_sentencepiece,
)
from fastscribe.types import Features, Frames, Hypothesis
from scripts.shapes import LETTERS, SHAPES

_PREDICTOR_SCALE = 0.3  # the predictor's weight in the joint, relative to the encoder's
_DRAWS, _BISECTIONS = 3, 7
_PAIRS = 4096  # pairs of a frame and a history, for the output layer's statistics
_RIDGE = 0.01
_HISTORIES, _HISTORY_LABELS = 256, 12
_KIND_SIZE = 3.0  # size of the part of an embedding that separates even from odd labels, relative to the rest
_SWITCH = (0, 1)  # units of the joint
_BLOCKING = 2.0  # subtracted after a label of the wrong kind, in standard deviations of the audio's feature
_SWITCH_SIZE = 14.0  # added by the switch per such deviation, in deviations of the other units' sum
_RECORDINGS, _RECORDING_S = 32, 8.0
_NUM_SETTLING = 4  # recordings for the norms' statistics
_ATTENTION_GAIN = 4.0  # factor on the weights of attention outputs
# fmt: off
_CONTROLS = tuple(f"<|{name}|>" for name in (
    "startofcontext", "startoftranscript", "endoftext", "emo:undefined", "en", "de", "transcribe", "translate",
    "pnc", "nopnc", "itn", "noitn", "timestamp", "notimestamp", "diarize", "nodiarize",
))
# fmt: on
_LETTERS = "etaoinshrdlucmfwygpbvkxqjz"


def random_checkpoint(shape: str, seed: int = 0, device: str = "cpu") -> Checkpoint:
    """Make a float32 checkpoint on the CPU.

    Args:
        shape: A name from SHAPES.
        seed: Seed of the weights.
        device: Where the weights are drawn. A GPU is much faster, and draws other numbers.
    """
    config = SHAPES[shape]
    at = choose_device(device)
    with torch.random.fork_rng([at] if at.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(seed)
        model = random_model(config, at)
        if isinstance(model.encoder, JasperEncoder):
            _settle_norms_(model.encoder, _features(model.config, at))
        frames = _frames(model, at)
        if model.transducer is not None:
            make_transducer_speak_(model.transducer, frames, config.frame_s)
        if model.ctc is not None:
            _make_ctc_speak_(model.ctc, frames, config)
        if model.aed is not None:
            _make_aed_speak_(model.aed)
    weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    tokenizer = random_tokenizer(config)
    return Checkpoint(Path(shape), "fastscribe", config, tokenizer, weights, has_random_weights=True)


def random_model(config: ModelConfig, device: torch.device) -> Model:
    """Return a model with torch's initialisation, except for norms and position biases, which are random too."""
    with device:
        model = Model(config).eval().requires_grad_(False)
    for module in model.encoder.modules():
        if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d)):
            module.weight.normal_(1.0, 0.2)
            module.bias.normal_(0.0, 0.1)
        if isinstance(module, nn.BatchNorm1d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 2.0)
    for name, parameter in model.encoder.named_parameters():
        if name.endswith(("pos_bias_u", "pos_bias_v")):
            parameter.normal_(0.0, 0.3)
    return model


def _settle_norms_(encoder: JasperEncoder, features: Features) -> None:
    """Set batch norms to the statistics of real inputs; otherwise a random stack of convolutions makes all frames alike."""
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum = 1.0
    encoder.train()
    encoder(Features(features.mel_BMT[:_NUM_SETTLING], features.lengths_B[:_NUM_SETTLING]))
    encoder.eval()


def _features(config: ModelConfig, device: torch.device) -> Features:
    """Return the features of a few synthetic recordings."""
    waves = synthetic.waves([_RECORDING_S] * _RECORDINGS, seed=1)
    samples_BS = torch.stack([torch.from_numpy(wave) for wave in waves]).to(device)
    lengths_B = torch.full((len(waves),), samples_BS.shape[1], device=device)
    features: Features = LogMel(config.features).to(device)(samples_BS, lengths_B)
    return features


def _frames(model: Model, device: torch.device) -> Frames:
    """Return the encoder output of a few synthetic recordings."""
    features = _features(model.config, device)
    eights = zip(features.mel_BMT.split(8), features.lengths_B.split(8), strict=True)
    with sdpa_kernel(SDPBackend.MATH):  # runs on every GPU
        parts = [model.encoder(Features(mel_BMT, lengths_B)) for mel_BMT, lengths_B in eights]
    return Frames(torch.cat([part.frames_BTD for part in parts]), torch.cat([part.lengths_B for part in parts]))


def make_transducer_speak_(transducer: Transducer, frames: Frames, frame_s: float) -> None:
    """Draw embeddings and joint so that frames like these, all of full length, yield LABELS_PER_S."""
    joint, (fitted_ND, held_out) = transducer.joint, _halves(frames)
    history_UH, kind_U = _histories(transducer)
    read_H, level = _fit_kind(history_UH, kind_U)

    def draw() -> torch.Tensor:
        for layer, inputs_NI, size in (
            (joint.encoder, fitted_ND, 1.0),
            (joint.predictor, history_UH, _PREDICTOR_SCALE),
        ):
            layer.weight.normal_()
            layer.weight.mul_(size / layer(inputs_NI).std(0).mean())
            layer.bias.normal_(0.0, 0.3).sub_(layer(inputs_NI).mean(0))
        _make_switch_(transducer, fitted_ND, read_H, level)
        some_ND = fitted_ND[torch.randint(len(fitted_ND), (_PAIRS,), device=fitted_ND.device)]
        some_NH = history_UH[torch.randint(len(history_UH), (_PAIRS,), device=history_UH.device)]
        return joint.activation(joint.encoder(some_ND) + joint.predictor(some_NH))

    def decode() -> list[Hypothesis]:
        return list(label_looping.decode(transducer, held_out))

    target_labels = LABELS_PER_S * frame_s * float(held_out.lengths_B.sum())
    durations = range(transducer.blank_id + 1, joint.output.out_features)
    unlikely = [row for row, duration in zip(durations, transducer.durations, strict=True) if duration == 0]
    _tune_(list(joint.parameters()), joint.output, transducer.blank_id, draw, decode, target_labels, _SWITCH, unlikely)


def _histories(transducer: Transducer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return predictor outputs [U, H] after labels of alternating kinds, and the last label's kind [U], 1 or -1.

    A shared part of the embeddings separates even from odd labels; a hypothesis begins as if after an odd one.
    """
    embedding = transducer.predictor.embedding.weight
    kind_V = 1.0 - 2.0 * (torch.arange(len(embedding), device=embedding.device) % 2)
    kind_V[transducer.blank_id] = -1.0
    embedding.normal_()
    embedding.add_(_KIND_SIZE * kind_V[:, None] * torch.randn_like(embedding[0]))
    state = transducer.predictor.initial_state(_HISTORIES)
    labels_B = torch.full((_HISTORIES,), transducer.blank_id, device=embedding.device)
    outputs, kinds = [], []
    for turn in range(_HISTORY_LABELS):
        output_BH, state = transducer.predictor.step(labels_B, state)
        outputs.append(output_BH)
        kinds.append(kind_V[labels_B])
        labels_B = 2 * torch.randint_like(labels_B, transducer.blank_id // 2) + turn % 2
    return torch.cat(outputs), torch.cat(kinds)


def _fit_kind(history_UH: torch.Tensor, kind_U: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the weights and the constant of a linear unit that predicts the kind."""
    weight_H = _fit(history_UH, kind_U)
    return weight_H, float(kind_U.mean() - (history_UH @ weight_H).mean())


def _make_switch_(transducer: Transducer, frames_ND: torch.Tensor, read_H: torch.Tensor, level: float) -> None:
    """Set two units of the joint so that labels come one at a time.

    The first is active while a random feature of the audio is high and the last label was odd; the second while the feature
    is low and the last label was even.
    """
    joint = transducer.joint
    feature_D = torch.randn_like(frames_ND[0])
    feature_N = frames_ND @ feature_D
    # A robust deviation: the unusual ends of recordings do not count.
    feature_D /= 1.5 * (feature_N - feature_N.median()).abs().median()
    middle = (frames_ND @ feature_D).median()
    for unit, sign in zip(_SWITCH, (1.0, -1.0), strict=True):
        joint.encoder.weight[unit], joint.encoder.bias[unit] = sign * feature_D, -sign * middle - _BLOCKING
        joint.predictor.weight[unit], joint.predictor.bias[unit] = -sign * _BLOCKING * read_H, -sign * _BLOCKING * level


def _fit(inputs_NJ: torch.Tensor, wanted_N: torch.Tensor) -> torch.Tensor:
    """Return the weights [J] of a ridge regression, without the constant."""
    centred_NJ = inputs_NJ - inputs_NJ.mean(0)
    gram_JJ = centred_NJ.t() @ centred_NJ
    gram_JJ.diagonal().add_(_RIDGE * gram_JJ.diagonal().mean())
    fitted_J: torch.Tensor = torch.linalg.solve(gram_JJ, centred_NJ.t() @ (wanted_N - wanted_N.mean()))
    return fitted_J


def _halves(frames: Frames) -> tuple[torch.Tensor, Frames]:
    """Return the frames [N, D] of every other row, for fitting, and the other rows, for testing."""
    return frames.frames_BTD[::2].flatten(0, 1), Frames(frames.frames_BTD[1::2], frames.lengths_B[1::2])


def _make_ctc_speak_(head: CtcHead, frames: Frames, config: ModelConfig) -> None:
    fitted_ND, held_out = _halves(frames)

    def decode() -> list[Hypothesis]:
        return ctc.decode(head, held_out, config.blank_id)

    target_labels = LABELS_PER_S * config.frame_s * float(held_out.lengths_B.sum())
    _tune_(list(head.parameters()), head.output, config.blank_id, lambda: fitted_ND, decode, target_labels)


def _make_aed_speak_(model: AttentionDecoder) -> None:
    """Draw the output layer so that control tokens, the end included, never win and rows run up to their limit."""
    for module in model.layers.modules():
        if isinstance(module, Attention):
            module.out.weight.mul_(_ATTENTION_GAIN)
    model.head.weight.normal_(0.0, 3.0 / model.head.in_features**0.5)
    model.head.bias.zero_()
    model.head.bias[: len(_CONTROLS)] = -1e4


def _tune_(
    parameters: Sequence[torch.Tensor],
    output: nn.Linear,
    blank_id: int,
    draw: Callable[[], torch.Tensor],
    decode: Callable[[], list[Hypothesis]],
    target_labels: float,
    switch: Sequence[int] = (),
    unlikely: Sequence[int] = (),
) -> None:
    """Draw the parameters several times and keep the best draw.

    Args:
        parameters: All parameters that change.
        output: The output layer.
        blank_id: The blank's output.
        draw: Draws the layers before the output layer and returns some of its inputs [N, J].
        decode: Decodes the held-out recordings.
        target_labels: Number of labels to aim for.
        switch: Units of the input that select even and odd labels.
        unlikely: Outputs to make unlikely.
    """
    best, best_score = [], -1.0
    for _ in range(_DRAWS):
        torch.manual_seed(torch.initial_seed() + 1)  # independent of random numbers that decoding draws
        margin_N = _draw_output_(output, blank_id, draw(), switch, unlikely)
        hypotheses = _set_rate_(output, blank_id, margin_N, decode, target_labels)
        score = _score([hypothesis.token_ids for hypothesis in hypotheses], target_labels)
        if score > best_score:
            best, best_score = [parameter.clone() for parameter in parameters], score
    for parameter, value in zip(parameters, best, strict=True):
        parameter.copy_(value)


def _draw_output_(
    output: nn.Linear, blank_id: int, inputs_NJ: torch.Tensor, switch: Sequence[int], unlikely: Sequence[int]
) -> torch.Tensor:
    """Draw logits of mean zero and fit the blank's to the best label's. Return the best label's margin over blank [N]."""
    output.weight.normal_(0.0, 3.0 / output.in_features**0.5)
    output.weight[:, list(switch)] = 0.0
    output.bias.zero_()
    logits_NV = output(inputs_NJ)
    output.bias.sub_(logits_NV.mean(0))
    output.bias[list(unlikely)] -= 2.0 * logits_NV.std()
    best_N = output(inputs_NJ)[:, :blank_id].amax(1)
    output.weight[blank_id] = _fit(inputs_NJ, best_N)
    output.weight[blank_id, list(switch)] = 0.0
    output.bias[blank_id] = 0.0
    spread = (best_N - output(inputs_NJ)[:, blank_id]).std()
    for kind, unit in enumerate(switch):
        output.weight[kind:blank_id:2, unit] = _SWITCH_SIZE * spread
    logits_NV = output(inputs_NJ)
    margin_N: torch.Tensor = logits_NV[:, :blank_id].amax(1) - logits_NV[:, blank_id]
    return margin_N


def _set_rate_(
    output: nn.Linear,
    blank_id: int,
    margin_N: torch.Tensor,
    decode: Callable[[], list[Hypothesis]],
    target_labels: float,
) -> list[Hypothesis]:
    """Bisect the share of margins above the blank's bias until decoding gives about `target_labels` labels."""
    low, high, tried = 0.0, 0.6, []
    for _ in range(_BISECTIONS):
        share = (low + high) / 2
        output.bias[blank_id] = bias = float(margin_N.quantile(1.0 - share))
        hypotheses = decode()
        count = sum(len(hypothesis.token_ids) for hypothesis in hypotheses)
        tried.append((abs(count - target_labels), bias, hypotheses))
        low, high = (low, share) if count > target_labels else (share, high)
    _, bias, hypotheses = min(tried, key=lambda attempt: attempt[0])
    output.bias[blank_id] = bias
    return hypotheses


def _score(rows: Sequence[Sequence[int]], target_labels: float) -> float:
    """Return a score: high for many different labels, near the target number, spread evenly over the recordings."""
    counts = [len(row) for row in rows]
    different = len({label for row in rows for label in row})
    off = abs(sum(counts) / target_labels - 1.0)
    uneven = max(counts) * len(counts) / max(1, sum(counts)) - 1.0
    return different / (1.0 + 5.0 * off) / (1.0 + uneven)


def random_tokenizer(config: ModelConfig) -> Tokenizer:
    """Return a tokenizer of made-up pieces, two in five of which begin a word, and some punctuation.

    A vocabulary of the alphabet's size gets the letters. A model with prompts has its control tokens first.
    """
    if config.num_labels == len(LETTERS):
        return from_characters(LETTERS)
    controls = _CONTROLS if config.aed is not None else ()
    if config.aed is not None and config.aed.prompt == "cohere":
        controls = (*controls, WORD_MARK)
    punctuation = [".", ",", "?"]
    made_up = [_piece(number) for number in range(config.num_labels - len(controls) - len(punctuation))]
    pieces = [*controls, *made_up, *punctuation]
    assert len(set(pieces)) == config.num_labels
    if controls:
        return replace(from_pieces(pieces), attached="words")
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return from_huggingface(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}).encode(), config.num_labels)


def _piece(number: int) -> str:
    letters, rest = "", number
    while rest or not letters:
        rest, digit = divmod(rest, len(_LETTERS))
        letters += _LETTERS[digit]
    return (WORD_MARK if number % 5 < 2 else "") + letters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path, help="must not exist")
    parser.add_argument("--device", default="cpu", help="where the weights are drawn: another one draws other numbers")
    parser.add_argument("--sentencepiece", action="store_true", help="a vocabulary of the kind that NeMo needs")
    given = parser.parse_args()
    if given.folder.exists():
        parser.error(f"{given.folder} exists")
    made = random_checkpoint(given.shape, device=given.device)
    if given.sentencepiece:
        made = with_sentencepiece(made)
    native_writer.write(made, given.folder, torch.bfloat16)


def with_sentencepiece(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with a vocabulary of the kind that NeMo needs, of as many pieces."""
    from fastscribe.training.bpe import train_vocabulary

    num_labels = checkpoint.config.num_labels
    words = list(map("".join, np.random.default_rng(0).choice(list(_LETTERS), (20 * num_labels, 6))))
    sentences = [" ".join(words[first : first + 100]) for first in range(0, len(words), 100)]
    return replace(checkpoint, tokenizer=from_sentencepiece(train_vocabulary(sentences, num_labels, "bpe")))


if __name__ == "__main__":
    main()
