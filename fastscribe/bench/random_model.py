"""A checkpoint of a published model's shape with random weights, for measuring where the real one may not go.

Its text means nothing, but its work is the real one's: the same products, and 3 to 4 labels a second of audio. A random
transducer does not do that by itself: it stays silent, or never stops, or says everything at a recording's first frames,
which look like no others. So its outputs are centred over frames and histories, and the blank's row is fitted to the best
label's logit, so that no frame and no history stands out. A switch then makes labels come one at a time: even ones where
a feature of the audio is high, odd ones where it is low, and never twice the same kind. The blank's bias sets the rate on a
few synthetic recordings. Of several draws the one that says the most different things is kept. CTC heads are centred and
set the same way, without history and switch. An attention decoder writes until its limit, which is as far as speech goes.

Shapes: B batch, T frames, D encoder width, H predictor width, U histories, J output layer's inputs, N samples, V outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastscribe.bench import synthetic
from fastscribe.bench.shapes import LETTERS, SHAPES
from fastscribe.bench.work import LABELS_PER_S
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import ModelConfig
from fastscribe.decode import ctc, label_looping
from fastscribe.model.aed import Attention, AttentionDecoder
from fastscribe.model.ctc import CtcHead
from fastscribe.model.features import LogMel
from fastscribe.model.jasper import JasperEncoder
from fastscribe.model.model import Model
from fastscribe.model.transducer import Transducer
from fastscribe.pipeline.recognizer import choose_device
from fastscribe.text.tokenizer import WORD_MARK, Tokenizer, from_characters, from_huggingface, from_pieces
from fastscribe.types import Features, Frames, Hypothesis

_HISTORY = 0.3  # how much the predictor sways the joint, the encoder being 1
_DRAWS, _BISECTIONS = 3, 7
_PAIRS = 4096  # of a frame and a history, by which the output layer is drawn
_RIDGE = 0.01
_HISTORIES, _HISTORY_LABELS = 256, 12
_KIND_SIZE = 3.0  # of the part of an embedding that tells even from odd labels, over the size of the rest
_SWITCH = (0, 1)  # units of the joint
_BLOCKING = 2.0  # standard deviations of the audio's feature that a last label of the wrong kind takes off
_SWITCH_SIZE = 14.0  # what the switch adds for one such deviation, in deviations of what else decides
_RECORDINGS, _RECORDING_S = 32, 8.0
_SETTLING = 4  # of them
_SWAY = 4.0  # how much more than at first what a decoder looks at sways what it writes
# fmt: off
_CONTROLS = tuple(f"<|{name}|>" for name in (
    "startofcontext", "startoftranscript", "endoftext", "emo:undefined", "en", "de", "transcribe", "translate",
    "pnc", "nopnc", "itn", "noitn", "timestamp", "notimestamp", "diarize", "nodiarize",
))
# fmt: on
_LETTERS = "etaoinshrdlucmfwygpbvkxqjz"


def random_checkpoint(shape: str, seed: int = 0, device: str = "cpu") -> Checkpoint:
    """A name from SHAPES -> a float32 checkpoint on the CPU. A GPU as `device` draws other numbers, much sooner."""
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
    """torch's own initialisation, with norms and position biases that are not 1 and 0."""
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
    """Gives norms the statistics of what reaches them: nothing else holds back a random stack of convolutions, which would
    make all frames alike."""
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum = 1.0
    encoder.train()
    encoder(Features(features.mel_BMT[:_SETTLING], features.lengths_B[:_SETTLING]))
    encoder.eval()


def _features(config: ModelConfig, device: torch.device) -> Features:
    """Of a few synthetic recordings."""
    waves = synthetic.waves([_RECORDING_S] * _RECORDINGS, seed=1)
    samples_BS = torch.stack([torch.from_numpy(wave) for wave in waves]).to(device)
    lengths_B = torch.full((len(waves),), samples_BS.shape[1], device=device)
    features: Features = LogMel(config.features).to(device)(samples_BS, lengths_B)
    return features


def _frames(model: Model, device: torch.device) -> Frames:
    """What the encoder makes of them."""
    features = _features(model.config, device)
    eights = zip(features.mel_BMT.split(8), features.lengths_B.split(8), strict=True)
    with sdpa_kernel(SDPBackend.MATH):  # the form that no GPU refuses
        parts = [model.encoder(Features(mel_BMT, lengths_B)) for mel_BMT, lengths_B in eights]
    return Frames(torch.cat([part.frames_BTD for part in parts]), torch.cat([part.lengths_B for part in parts]))


def make_transducer_speak_(transducer: Transducer, frames: Frames, frame_s: float) -> None:
    """Draws embeddings and joint so that frames like these, all of full length, yield LABELS_PER_S."""
    joint, (fitted_ND, others) = transducer.joint, _halves(frames)
    history_UH, kind_U = _histories(transducer)
    read_H, level = _reading(history_UH, kind_U)

    def draw() -> torch.Tensor:
        for layer, inputs_NI, size in ((joint.encoder, fitted_ND, 1.0), (joint.predictor, history_UH, _HISTORY)):
            layer.weight.normal_()
            layer.weight.mul_(size / layer(inputs_NI).std(0).mean())
            layer.bias.normal_(0.0, 0.3).sub_(layer(inputs_NI).mean(0))
        _make_switch_(transducer, fitted_ND, read_H, level)
        some_ND = fitted_ND[torch.randint(len(fitted_ND), (_PAIRS,), device=fitted_ND.device)]
        some_NH = history_UH[torch.randint(len(history_UH), (_PAIRS,), device=history_UH.device)]
        return joint.activation(joint.encoder(some_ND) + joint.predictor(some_NH))

    def decode() -> list[Hypothesis]:
        return label_looping.decode(transducer, others)

    wanted = LABELS_PER_S * frame_s * float(others.lengths_B.sum())
    durations = range(transducer.blank_id + 1, joint.output.out_features)
    seldom = [row for row, duration in zip(durations, transducer.durations, strict=True) if duration == 0]
    _tune_(list(joint.parameters()), joint.output, transducer.blank_id, draw, decode, wanted, _SWITCH, seldom)


def _histories(transducer: Transducer) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictor outputs [U, H] after labels of both kinds in turn, and the last label's kind [U], 1 or -1.

    Even and odd labels are told apart by a part that their embeddings share; a hypothesis begins as if after an odd one.
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


def _reading(history_UH: torch.Tensor, kind_U: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Weights and constant by which a linear unit tells the kind."""
    weight_H = _fit(history_UH, kind_U)
    return weight_H, float(kind_U.mean() - (history_UH @ weight_H).mean())


def _make_switch_(transducer: Transducer, frames_ND: torch.Tensor, read_H: torch.Tensor, level: float) -> None:
    """Two units of the joint that make labels come one at a time: the first is active where a random feature of the audio
    is high and the last label was odd, the second where it is low and the last was even."""
    joint = transducer.joint
    feature_D = torch.randn_like(frames_ND[0])
    feature_N = frames_ND @ feature_D
    feature_D /= (
        1.5 * (feature_N - feature_N.median()).abs().median()
    )  # a deviation that a recording's odd ends don't move
    middle = (frames_ND @ feature_D).median()
    for unit, sign in zip(_SWITCH, (1.0, -1.0), strict=True):
        joint.encoder.weight[unit], joint.encoder.bias[unit] = sign * feature_D, -sign * middle - _BLOCKING
        joint.predictor.weight[unit], joint.predictor.bias[unit] = -sign * _BLOCKING * read_H, -sign * _BLOCKING * level


def _fit(inputs_NJ: torch.Tensor, wanted_N: torch.Tensor) -> torch.Tensor:
    """Ridge regression, without the constant: [J]."""
    centred_NJ = inputs_NJ - inputs_NJ.mean(0)
    gram_JJ = centred_NJ.t() @ centred_NJ
    gram_JJ.diagonal().add_(_RIDGE * gram_JJ.diagonal().mean())
    fitted_J: torch.Tensor = torch.linalg.solve(gram_JJ, centred_NJ.t() @ (wanted_N - wanted_N.mean()))
    return fitted_J


def _halves(frames: Frames) -> tuple[torch.Tensor, Frames]:
    """Every other row's frames [N, D], to fit to, and the other rows, to see what comes of it."""
    return frames.frames_BTD[::2].flatten(0, 1), Frames(frames.frames_BTD[1::2], frames.lengths_B[1::2])


def _some_history(transducer: Transducer) -> torch.Tensor:
    """Predictor outputs after random labels, [U, H]."""
    device = transducer.joint.output.weight.device
    state = transducer.predictor.initial_state(1)
    outputs = []
    for label_B in torch.randint(transducer.blank_id, (64, 1), device=device):
        output_BH, state = transducer.predictor.step(label_B, state)
        outputs.append(output_BH)
    return torch.cat(outputs)


def _make_ctc_speak_(head: CtcHead, frames: Frames, config: ModelConfig) -> None:
    fitted_ND, others = _halves(frames)

    def decode() -> list[Hypothesis]:
        return ctc.decode(head, others, config.blank_id)

    wanted = LABELS_PER_S * config.frame_s * float(others.lengths_B.sum())
    _tune_(list(head.parameters()), head.output, config.blank_id, lambda: fitted_ND, decode, wanted)


def _make_aed_speak_(model: AttentionDecoder) -> None:
    """It never writes a token of the prompt's kind, the end among them, and so goes on up to its limit."""
    for module in model.layers.modules():
        if isinstance(module, Attention):
            module.out.weight.mul_(_SWAY)
    model.head.weight.normal_(0.0, 3.0 / model.head.in_features**0.5)
    model.head.bias.zero_()
    model.head.bias[: len(_CONTROLS)] = -1e4


def _tune_(
    parameters: Sequence[torch.Tensor],
    output: nn.Linear,
    blank_id: int,
    draw: Callable[[], torch.Tensor],
    decode: Callable[[], list[Hypothesis]],
    wanted: float,
    switch: Sequence[int] = (),
    seldom: Sequence[int] = (),
) -> None:
    """`draw` draws what lies before the output layer and returns some of that layer's inputs [N, J], of
    which those in `switch` call for even and odd labels; the outputs in `seldom` are made unlikely."""
    best, best_score = [], -1.0
    for _ in range(_DRAWS):
        torch.manual_seed(torch.initial_seed() + 1)  # whatever decoding drew meanwhile
        margins_N = _draw_output_(output, blank_id, draw(), switch, seldom)
        found = _set_rate_(output, blank_id, margins_N, decode, wanted)
        score = _score([hypothesis.token_ids for hypothesis in found], wanted)
        if score > best_score:
            best, best_score = [parameter.clone() for parameter in parameters], score
    for parameter, value in zip(parameters, best, strict=True):
        parameter.copy_(value)


def _draw_output_(
    output: nn.Linear, blank_id: int, inputs_NJ: torch.Tensor, switch: Sequence[int], seldom: Sequence[int]
) -> torch.Tensor:
    """Random logits of mean zero, the blank's a fit of the best label's. Returns by how much the latter lies above, [N]."""
    output.weight.normal_(0.0, 3.0 / output.in_features**0.5)
    output.weight[:, list(switch)] = 0.0
    output.bias.zero_()
    logits_NV = output(inputs_NJ)
    output.bias.sub_(logits_NV.mean(0))
    output.bias[list(seldom)] -= 2.0 * logits_NV.std()
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
    margins_N: torch.Tensor,
    decode: Callable[[], list[Hypothesis]],
    wanted: float,
) -> list[Hypothesis]:
    """Sets the blank's bias so that a share of the margins is above it, bisecting the share for the labels wanted."""
    low, high, tried = 0.0, 0.6, []
    for _ in range(_BISECTIONS):
        share = (low + high) / 2
        output.bias[blank_id] = bias = float(margins_N.quantile(1.0 - share))
        found = decode()
        count = sum(len(hypothesis.token_ids) for hypothesis in found)
        tried.append((abs(count - wanted), bias, found))
        low, high = (low, share) if count > wanted else (share, high)
    _, bias, found = min(tried, key=lambda attempt: attempt[0])
    output.bias[blank_id] = bias
    return found


def _score(rows: Sequence[Sequence[int]], wanted: float) -> float:
    """High for many different labels, about as many as wanted, spread evenly over the recordings."""
    counts = [len(row) for row in rows]
    different = len({label for row in rows for label in row})
    off = abs(sum(counts) / wanted - 1.0)
    uneven = max(counts) * len(counts) / max(1, sum(counts)) - 1.0
    return different / (1.0 + 5.0 * off) / (1.0 + uneven)


def random_tokenizer(config: ModelConfig) -> Tokenizer:
    """Made-up pieces, two in five of which begin a word, and a little punctuation; the letters where there are so many.

    What a prompt is made of comes first in the vocabulary of a model that is given one.
    """
    if config.num_labels == len(LETTERS):
        return from_characters(LETTERS)
    controls = _CONTROLS if config.aed is not None else ()
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
