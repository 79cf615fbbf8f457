"""A model in training: dropout, the predictor or the attention decoder over whole transcripts, and the loss.

The parameters are those of model.Model under the same names; this module adds none, and has no effect after training.
Augmentation of the audio and SpecAugment come before.

An attention decoder (Canary) predicts every token from those before it in the transcript, not from those that the model would
write (teacher forcing). Its loss, its branches with dropout, and its shared and fixed weights are here.

Shapes: B batch, C classes, P positions, T frames, U labels of the longest row (U+1 with the start), D width, H predictor width,
J joint width.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import ModelConfig
from fastscribe.families.blocks.heads import Predictor
from fastscribe.families.canary.attention_decoder import Attention, AttentionDecoder, FeedForward
from fastscribe.families.canary.huggingface import positions
from fastscribe.families.conformer.encoder import ConformerLayer, Encoder
from fastscribe.families.model import Model
from fastscribe.training.loss import joint_transducer_loss
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.recipe import LossRecipe
from fastscribe.types import Features

_IGNORED = -100  # a label that does not count
_ROUNDED = 4e-3  # largest difference of bf16's numbers below 1 from exact ones


def attention_loss(
    logits_BUC: torch.Tensor, labels_BU: torch.Tensor, lengths_B: torch.Tensor, num_given: int, label_smoothing: float
) -> torch.Tensor:
    """Return the mean cross-entropy of the tokens that count, in nats.

    Args:
        logits_BUC: after each token but the last.
        labels_BU: the tokens that follow.
        lengths_B: how many of them each row has.
        num_given: tokens at the beginning of each row that do not count, at least the first: nothing predicts it.
        label_smoothing: share of each token's probability that all other classes have together.

    Returns:
        The loss, as NeMo's SmoothedCrossEntropyLoss.
    """
    places_U = torch.arange(labels_BU.shape[1], device=labels_BU.device)
    counts_BU = (places_U < lengths_B[:, None]) & (places_U >= num_given - 1)
    num_classes = logits_BUC.shape[2]
    return F.cross_entropy(
        logits_BUC.float().flatten(0, 1),
        labels_BU.masked_fill(~counts_BU, _IGNORED).flatten(),
        ignore_index=_IGNORED,
        # torch spreads its share over all classes, with the right one.
        label_smoothing=min(1.0, label_smoothing * num_classes / max(1, num_classes - 1)),
    )


def prepare_weights_(decoder: AttentionDecoder) -> None:
    """Let equal embeddings and output weights be one parameter, and computed positions have no gradient, as in NeMo.

    A checkpoint stores both, whether the model shared and computed them or not. If their values are equal, it did.
    """
    if torch.equal(decoder.embedding.weight, decoder.head.weight):
        decoder.head.weight = decoder.embedding.weight
    decoder.positions.requires_grad_(not _is_computed(decoder.positions.weight.detach()))


def _is_computed(table_PD: torch.Tensor) -> bool:
    """Return True if the positions are sines and cosines: by turns, as NeMo's, or the cosines last, as transformers'."""
    num_positions, width = table_PD.shape
    if width % 2 or width < 4:
        return False
    last_PD = positions(num_positions, width).to(table_PD)
    by_turns_PD = last_PD.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)
    differences = [(table_PD - computed_PD).abs().max() * width**0.5 for computed_PD in (last_PD, by_turns_PD)]
    return bool(min(differences) <= _ROUNDED)


@dataclass(frozen=True)
class Targets:
    """Labels [B, U], zero beyond each row's length, and their lengths [B]. An attention decoder's begin with a prompt.

    Attributes:
        counts_B: as how many labels each row counts in a mean per label, for rows without labels; None: its own.
    """

    labels_BU: torch.Tensor
    lengths_B: torch.Tensor
    counts_B: torch.Tensor | None = None

    def per_label(self, total: torch.Tensor, has_path_B: torch.Tensor) -> torch.Tensor:
        """Divide a sum over the rows that have a path by the labels that these count as; infinite if none has one."""
        counts_B = self.lengths_B if self.counts_B is None else self.counts_B
        return (total / (counts_B * has_path_B).sum().clamp(min=1)).masked_fill(~has_path_B.any(), math.inf)


def new_model(config: ModelConfig, seed: int) -> Model:
    """Return a model with torch's random initialisation and a zero embedding of the start symbol."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Model(config)
        for layer in _layers(model):
            nn.init.xavier_uniform_(layer.self_attn.pos_bias_u)
            nn.init.xavier_uniform_(layer.self_attn.pos_bias_v)
    if model.transducer is not None:
        with torch.no_grad():
            model.transducer.predictor.embedding.weight[config.blank_id].zero_()
    return model


def _layers(model: Model) -> list[ConformerLayer]:
    assert isinstance(model.encoder, Encoder)
    return [layer for layer in model.encoder.layers.children() if isinstance(layer, ConformerLayer)]


def loss_of(recipe: LossRecipe, config: ModelConfig) -> TransducerLossConfig:
    """Return the loss config. Raises UsageError if the recipe's values do not suit the model."""
    if not config.durations:
        return TransducerLossConfig(fastemit=recipe.fastemit, clamp=recipe.clamp)
    return TransducerLossConfig(config.durations, recipe.sigma, recipe.omega, recipe.fastemit, recipe.clamp)


class Network(nn.Module):
    """Map features and targets to losses. `ctc_weight` counts only if the model has both heads.

    `num_given` and `label_smoothing` are for a model with an attention decoder, whose loss is then the only one.

    Attributes:
        num_given: tokens at the beginning of each row that the model is given and does not learn.
    """

    def __init__(
        self,
        model: Model,
        loss: TransducerLossConfig,
        ctc_weight: float,
        dropout: float,
        num_given: int = 1,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.loss, self.dropout, self.label_smoothing = model, loss, dropout, label_smoothing
        self.num_given = 0 if model.aed is None else num_given
        heads = (model.transducer is not None, model.ctc is not None)
        self.ctc_weight = {(True, True): ctc_weight, (False, True): 1.0}.get(heads, 0.0)
        branches: list[nn.Module] = []
        for layer in _layers(model):
            branches += [layer.feed_forward1, layer.self_attn, layer.conv, layer.feed_forward2]
        if model.aed is not None:  # the embeddings' sum, and what each layer adds to its input
            added = [part for part in model.aed.modules() if isinstance(part, (Attention, FeedForward))]
            branches += [model.aed.norm, *added]
        for branch in branches:
            branch.register_forward_hook(self._drop)

    @property
    def has_idle_head(self) -> bool:
        """True if the model has a head that the loss does not use."""
        has_both = self.model.transducer is not None and self.model.ctc is not None
        return has_both and self.ctc_weight in (0, 1)

    def _drop(self, branch: nn.Module, inputs: Any, out_BTD: torch.Tensor) -> torch.Tensor:
        """Apply dropout to a branch's output before it is added to the residual stream."""
        return F.dropout(out_BTD, self.dropout, branch.training) if self.dropout else out_BTD

    def forward(self, features: Features, targets: Targets, omega_draw: float) -> dict[str, torch.Tensor]:
        """Compute the losses of a batch, in nats per label.

        Args:
            omega_draw: number from [0, 1) that decides on the RNN-T loss, see TransducerLossConfig.

        Returns:
            "loss" (the weighted sum, with gradient), each head's loss, and "unaligned", the number of rows that a loss
            skipped because their frames cannot hold their labels.
        """
        frames = self.model.encoder(features)
        losses: dict[str, torch.Tensor] = {}
        unaligned_B = torch.zeros(len(targets.lengths_B), dtype=torch.bool, device=frames.frames_BTD.device)
        if self.model.ctc is not None and self.ctc_weight > 0:
            logits_BTV = self.model.ctc(frames.frames_BTD)
            losses["ctc"] = ctc_loss(logits_BTV, frames.lengths_B, targets, self.model.config.blank_id)
            unaligned_B |= ~has_ctc_path(frames.lengths_B, targets)
        if self.model.transducer is not None and self.ctc_weight < 1:
            losses["transducer"], losses_B = self._transducer_loss(
                frames.frames_BTD, frames.lengths_B, targets, omega_draw
            )
            unaligned_B |= losses_B.isposinf()
        if self.model.aed is not None:
            logits_BUC = self.model.aed.logits_after_each(targets.labels_BU[:, :-1], frames)
            predicted = (logits_BUC, targets.labels_BU[:, 1:], targets.lengths_B - 1)
            losses["attention"] = attention_loss(*predicted, self.num_given, self.label_smoothing)
        weights = {"ctc": self.ctc_weight, "transducer": 1 - self.ctc_weight, "attention": 1.0}
        total = sum(weights[name] * loss for name, loss in losses.items())
        assert isinstance(total, torch.Tensor)
        parts = {name: loss.detach() for name, loss in losses.items()}
        return {"loss": total, **parts, "unaligned": unaligned_B.sum()}

    def _transducer_loss(
        self, frames_BTD: torch.Tensor, lengths_B: torch.Tensor, targets: Targets, omega_draw: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean per label and the rows' losses [B]."""
        transducer = self.model.transducer
        assert transducer is not None
        predicted_BUH = unroll(transducer.predictor, targets.labels_BU, transducer.blank_id)
        if self.dropout:
            predicted_BUH = F.dropout(predicted_BUH, self.dropout, transducer.predictor.training)
        losses_B = torch.empty(len(predicted_BUH), device=predicted_BUH.device)
        total = joint_transducer_loss(
            transducer.joint,
            transducer.joint.encoder(frames_BTD),
            transducer.joint.predictor(predicted_BUH),
            targets.labels_BU,
            lengths_B,
            targets.lengths_B,
            blank_id=transducer.blank_id,
            config=self.loss.resolve_omega(omega_draw),
            reduction="sum",
            losses_out_B=losses_B,
        )
        return targets.per_label(total, ~losses_B.isposinf()), losses_B


@contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Restore BatchNorm's running statistics on exit."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def unroll(predictor: Predictor, labels_BU: torch.Tensor, blank_id: int) -> torch.Tensor:
    """Return predictor outputs [B, U+1, H] for the start symbol and every label, without gradient for the start symbol."""
    start_B1 = labels_BU.new_full((len(labels_BU), 1), blank_id)
    inputs_BU = torch.cat([start_B1, labels_BU], dim=1)
    embedded_BUH = F.embedding(inputs_BU, predictor.embedding.weight, padding_idx=blank_id)
    with warnings.catch_warnings():  # a step's weights are copies in its dtype, which cuDNN puts together at each call
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        outputs_UBH, _ = predictor.lstm(embedded_BUH.transpose(0, 1))
    return torch.transpose(outputs_UBH, 0, 1)


def ctc_loss(logits_BTV: torch.Tensor, lengths_B: torch.Tensor, targets: Targets, blank_id: int) -> torch.Tensor:
    """Return the CTC loss per label (Graves et al. 2006) over the rows that have a path; infinite if none has.

    Rows without a path count in neither sum and get no gradient.
    """
    log_probs_TBV = F.log_softmax(logits_BTV.float(), dim=2).transpose(0, 1)
    total = F.ctc_loss(
        log_probs_TBV,
        targets.labels_BU,
        lengths_B,
        targets.lengths_B,
        blank=blank_id,
        reduction="sum",
        zero_infinity=True,
    )
    return targets.per_label(total, has_ctc_path(lengths_B, targets))


def has_ctc_path(lengths_B: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Return [B], True if there are enough frames: one a label, and one for the blank between two equal labels."""
    labels_BU = targets.labels_BU
    positions_U = torch.arange(labels_BU.shape[1], device=labels_BU.device)[1:]
    is_repeat_BU = (labels_BU[:, 1:] == labels_BU[:, :-1]) & (positions_U < targets.lengths_B[:, None])
    return lengths_B >= targets.lengths_B + is_repeat_BU.sum(1)
