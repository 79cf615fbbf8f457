"""What an attention decoder (Canary) needs to be trained: its loss, its branches with dropout, and shared and fixed weights.

Every token is predicted from those before it in the transcript, not from those that the model would write (teacher forcing).

Shapes: B batch, U tokens after the first, C classes, P positions, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.canary.attention_decoder import Attention, AttentionDecoder, FeedForward
from fastscribe.families.canary.huggingface import positions

_IGNORED = -100  # a label that does not count
_ROUNDED = 4e-3  # largest difference of bf16's numbers below 1 from exact ones


@dataclass(frozen=True)
class AttentionLossConfig:
    """The loss of an attention decoder.

    Attributes:
        num_given: tokens at the beginning of each row that do not count, at least the first: nothing predicts it.
        label_smoothing: share of each token's probability that all other classes have together.
    """

    num_given: int = 1
    label_smoothing: float = 0.0


def attention_loss(
    logits_BUC: torch.Tensor, labels_BU: torch.Tensor, lengths_B: torch.Tensor, config: AttentionLossConfig
) -> torch.Tensor:
    """Return the mean cross-entropy of the tokens that count, in nats.

    Args:
        logits_BUC: after each token but the last.
        labels_BU: the tokens that follow.
        lengths_B: how many of them each row has.
        config: which of them count.

    Returns:
        The loss, as NeMo's SmoothedCrossEntropyLoss.
    """
    places_U = torch.arange(labels_BU.shape[1], device=labels_BU.device)
    counts_BU = (places_U < lengths_B[:, None]) & (places_U >= config.num_given - 1)
    num_classes = logits_BUC.shape[2]
    return F.cross_entropy(
        logits_BUC.float().flatten(0, 1),
        labels_BU.masked_fill(~counts_BU, _IGNORED).flatten(),
        ignore_index=_IGNORED,
        # torch spreads its share over all classes, with the right one.
        label_smoothing=min(1.0, config.label_smoothing * num_classes / max(1, num_classes - 1)),
    )


def dropped_branches(decoder: AttentionDecoder) -> Iterator[nn.Module]:
    """Yield the modules whose outputs have dropout: the embeddings' sum, and what each layer adds to its input."""
    yield decoder.norm
    for module in decoder.modules():
        if isinstance(module, (Attention, FeedForward)):
            yield module


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
