"""The reference: the losses written from the papers, in float64, one lattice node after another.

RNN-T: Graves 2012, section 2.3. TDT: Xu et al. 2023, equations 4 to 7, with the duration rules of recursion.py. FastEmit
and the clamp change the gradient alone: FastEmit scales the gradient through the token probability of every label's arc by
1 + lambda; the clamp bounds the gradient of each utterance's loss, one logit at a time. Slow: for tests and
`backend="oracle"` only.

Shapes: T frames, U labels, W columns of the logits (tokens with blank, then durations).
"""

from __future__ import annotations

import math

import torch

from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.loss.layout import Spoken


def losses_and_gradient(logits_BTUW: torch.Tensor, spoken: Spoken) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute float64 losses [B] and the gradient of their sum [B, T, U+1, W].

    An utterance without a path of a probability above 0 has an infinite loss and a zero gradient.

    Args:
        logits_BTUW: [B, T, U+1, W].
        spoken: in these frames.
    """
    losses, config = [], spoken.config
    gradient_BTUW = torch.zeros_like(logits_BTUW, dtype=torch.float64)
    for row in range(len(logits_BTUW)):
        num_frames, num_labels = int(spoken.frame_lengths_B[row]), int(spoken.label_lengths_B[row])
        with torch.enable_grad():
            logits_TUW = logits_BTUW[row, :num_frames, : num_labels + 1].detach().double().requires_grad_()
            labels = spoken.labels_BU[row, :num_labels].tolist()
            loss = utterance_loss(logits_TUW, labels, spoken.blank_id, config)
        if loss.isfinite():
            (gradient_TUW,) = torch.autograd.grad(loss, logits_TUW)
            bound = math.inf if config.clamp is None else config.clamp
            gradient_BTUW[row, :num_frames, : num_labels + 1] = gradient_TUW.clamp(-bound, bound)
        losses.append(loss.detach() * (1 + config.fastemit))
    return torch.stack(losses) if losses else logits_BTUW.new_zeros(0, dtype=torch.float64), gradient_BTUW


def utterance_loss(
    logits_TUW: torch.Tensor, labels: list[int], blank_id: int, config: TransducerLossConfig
) -> torch.Tensor:
    """Return -log of the sum over all paths. Only its gradient has FastEmit's factor."""
    num_frames, num_tokens = len(logits_TUW), logits_TUW.shape[2] - len(config.durations)
    tokens_TUV = logits_TUW[..., :num_tokens].log_softmax(dim=2) - (0.0 if config.as_rnnt else config.sigma)
    durations_TUN = logits_TUW[..., num_tokens:].log_softmax(dim=2)
    # Frames that a label takes, and column of its duration, for every kind of arc; RNN-T has one without a column.
    arc_kinds: dict[int, int | None] = {step: column for column, step in enumerate(config.durations)}
    arc_kinds = {0: None} if config.as_rnnt else arc_kinds
    arriving: dict[tuple[int, int], list[torch.Tensor]] = {(0, 0): [logits_TUW.new_zeros(())]}
    for t in range(num_frames):
        for u in range(len(labels) + 1):
            if (t, u) not in arriving:
                continue
            alpha = torch.logsumexp(torch.stack(arriving[t, u]), dim=0)
            for step, duration in arc_kinds.items():
                weight = durations_TUN[t, u, duration] if duration is not None else alpha.new_zeros(())
                blank_step = 1 if config.as_rnnt else step
                is_last = t + blank_step == num_frames and u == len(labels)
                if blank_step > 0 and (t + blank_step < num_frames or is_last):
                    _arrive(arriving, (t + blank_step, u), alpha, tokens_TUV[t, u, blank_id] + weight)
                if u < len(labels) and t + step < num_frames:
                    token = _scale_gradient(tokens_TUV[t, u, labels[u]], 1 + config.fastemit)
                    _arrive(arriving, (t + step, u + 1), alpha, token + weight)
    if num_frames == 0 or (num_frames, len(labels)) not in arriving:
        return logits_TUW.new_tensor(math.inf)
    return -torch.logsumexp(torch.stack(arriving[num_frames, len(labels)]), dim=0)


def _arrive(
    arriving: dict[tuple[int, int], list[torch.Tensor]], node: tuple[int, int], alpha: torch.Tensor, arc: torch.Tensor
) -> None:
    """Add an arc to a node. An arc of probability 0 is dropped: autograd would compute infinity - infinity."""
    if not arc.isneginf():
        arriving.setdefault(node, []).append(alpha + arc)


def _scale_gradient(x: torch.Tensor, factor: float) -> torch.Tensor:
    """x, with `factor` times its gradient."""
    return x if x.isinf() else x.detach() + factor * (x - x.detach())
