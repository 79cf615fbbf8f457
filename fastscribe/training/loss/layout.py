"""A batch's lattice nodes in flat arrays: padded as [B, T, U+1], or packed one utterance after the other.

Losses and lattices are float64, because their sums run over hundreds of frames and they are small beside the logits. The
latter are computed in float32 whatever dtype they are stored in.

Shapes as in recursion.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch

from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.loss.recursion import Batch, Rules
from fastscribe.types import Int64Array


class Spoken(NamedTuple):
    """What a batch's losses depend on besides its logits: integers on the host, and a config after resolve_omega."""

    labels_BU: torch.Tensor
    frame_lengths_B: torch.Tensor
    label_lengths_B: torch.Tensor
    blank_id: int
    config: TransducerLossConfig

    def of(self, rows: slice) -> Spoken:
        """Return what is spoken in some of the utterances."""
        return Spoken._make(x[rows] if isinstance(x, torch.Tensor) else x for x in self)


def padded(spoken: Spoken, num_rows: int, num_columns: int) -> Batch:
    """Return the layout of a padded tensor [B, num_rows, num_columns, ..]."""
    return _batch(spoken, *(np.full(len(spoken.labels_BU), number, np.int64) for number in (num_rows, num_columns)))


def packed(spoken: Spoken) -> Batch:
    """Return the layout without padding: frames times labels + 1 of each utterance."""
    return _batch(spoken, _int64(spoken.frame_lengths_B), _int64(spoken.label_lengths_B) + 1)


def _batch(spoken: Spoken, rows_B: Int64Array, stride_B: Int64Array) -> Batch:
    first_line_B = np.cumsum(rows_B) - rows_B
    line_utterance_L = np.repeat(np.arange(len(rows_B)), rows_B)
    return Batch(
        first_cell_B=np.cumsum(rows_B * stride_B) - rows_B * stride_B,
        stride_B=stride_B,
        num_frames_B=_int64(spoken.frame_lengths_B),
        num_labels_B=_int64(spoken.label_lengths_B),
        labels_BU=_int64(spoken.labels_BU),
        line_utterance_L=line_utterance_L,
        line_frame_L=np.arange(len(line_utterance_L)) - first_line_B[line_utterance_L],
    )


@dataclass(frozen=True, eq=False)
class Lattice(ABC):
    """The values of a batch's lattice nodes on one device: a few numbers per cell, none of them W long.

    `read_arcs` fills the arcs from the logits, `losses` the sums, and `write_gradient` reads both. The logits may come in
    parts, each with a lattice of its own (`frames`), whose tensors are views.

    Attributes:
        dtype: the logits'.
        arcs: the first four tensors of recursion.Arcs.
        alpha_C: empty without gradient.
    """

    batch: Batch
    config: TransducerLossConfig
    rules: Rules
    dtype: torch.dtype
    arcs: tuple[torch.Tensor, ...]
    alpha_C: torch.Tensor
    beta_C: torch.Tensor
    log_likelihood_B: torch.Tensor

    @classmethod
    def of(
        cls, batch: Batch, spoken: Spoken, logits: torch.Tensor, num_tokens: int, wants_gradient: bool = True
    ) -> Self:
        """Allocate the lattice of a batch.

        Args:
            batch: from padded() or packed().
            spoken: of the batch.
            logits: any tensor with the logits' dtype and device.
            num_tokens: columns of tokens.
            wants_gradient: False leaves out alpha, which only write_gradient needs.
        """
        device, config = logits.device, spoken.config
        num_cells = int(batch.stride_B[batch.line_utterance_L].sum())
        shapes = ((), (), (), (0 if config.as_rnnt else len(config.durations),))
        arcs = tuple(torch.empty(num_cells, *shape, dtype=torch.float32, device=device) for shape in shapes)
        sizes = (num_cells if wants_gradient else 0, num_cells, len(batch.num_frames_B))
        sums = (torch.empty(size, dtype=torch.float64, device=device) for size in sizes)
        rules = Rules(
            num_tokens=num_tokens,
            blank_id=spoken.blank_id,
            sigma=np.float32(0.0 if config.as_rnnt else config.sigma),
            fastemit=np.float32(config.fastemit),
            clamp=np.float32(np.inf if config.clamp is None else config.clamp),
        )
        return cls(batch, config, rules, logits.dtype, arcs, *sums)

    def frames(self, start: int, stop: int) -> Self:
        """View the frames [start, stop) of a packed lattice of one utterance, for logits of these frames alone.

        The layout's lines are these frames. Its number of frames goes on to the utterance's end, which arcs may reach.
        """
        line_frame_L = np.arange(stop - start)
        batch = self.batch._replace(
            num_frames_B=self.batch.num_frames_B - start,
            line_utterance_L=np.zeros_like(line_frame_L),
            line_frame_L=line_frame_L,
        )
        cells = slice(start * int(batch.stride_B[0]), None)
        arcs = tuple(x[cells] for x in self.arcs)
        return replace(self, batch=batch, arcs=arcs, alpha_C=self.alpha_C[cells], beta_C=self.beta_C[cells])

    @abstractmethod
    def read_arcs(self, logits_CW: torch.Tensor) -> None:
        """Read the arcs' weights from contiguous logits.

        Args:
            logits_CW: [C, W]; the durations follow num_tokens token columns. Later columns are ignored.
        """

    @abstractmethod
    def sum_paths(self) -> None:
        """Fill beta and the log-likelihoods, and alpha if it has cells."""

    @abstractmethod
    def write_gradient(self, logits_CW: torch.Tensor, scale_B: torch.Tensor) -> None:
        """Overwrite the logits with each loss's gradient, clamped and then scaled; zero for infinite losses."""

    def losses(self) -> torch.Tensor:
        """Sum over the paths. Returns float32 losses [B], infinite without a path."""
        self.sum_paths()
        return (self.log_likelihood_B * -(1.0 + self.config.fastemit)).float()


def steps_of(config: TransducerLossConfig) -> tuple[Int64Array, Int64Array]:
    """Return the frames that a blank takes and those that a label takes, by kind of arc."""
    steps_K = np.array(config.durations, np.int64)
    return (np.ones(1, np.int64), np.zeros(1, np.int64)) if config.as_rnnt else (steps_K, steps_K)


def on_host(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return integer tensors as int64 on the CPU. From a GPU they come in one copy, with one synchronisation."""
    away = [x.detach().to(torch.int64) for x in tensors if x.device.type != "cpu"]
    if not away:
        return tuple(x.to(torch.int64) for x in tensors)
    parts = iter(torch.cat([x.flatten() for x in away]).cpu().split([x.numel() for x in away]))
    return tuple(x.to(torch.int64) if x.device.type == "cpu" else next(parts).view(x.shape) for x in tensors)


def _int64(x: torch.Tensor) -> Int64Array:
    return x.detach().to(torch.int64).contiguous().numpy()
