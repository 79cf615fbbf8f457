"""Offsets of a batch's lattice nodes in flat arrays: padded as [B, T, U+1], or packed one utterance after the other."""

from __future__ import annotations

import numpy as np
import torch

from fastscribe.training.loss.recursion import Batch
from fastscribe.types import Int64Array


def padded(
    frame_lengths_B: torch.Tensor,
    label_lengths_B: torch.Tensor,
    labels_BU: torch.Tensor,
    num_rows: int,
    num_columns: int,
) -> Batch:
    """Return the layout of a padded tensor [B, num_rows, num_columns, ..]."""
    rows_B, stride_B = (np.full(len(labels_BU), number, np.int64) for number in (num_rows, num_columns))
    return _batch(frame_lengths_B, label_lengths_B, labels_BU, rows_B, stride_B)


def packed(frame_lengths_B: torch.Tensor, label_lengths_B: torch.Tensor, labels_BU: torch.Tensor) -> Batch:
    """Return the layout without padding: frames times labels + 1 of each utterance."""
    rows_B, stride_B = _int64(frame_lengths_B), _int64(label_lengths_B) + 1
    return _batch(frame_lengths_B, label_lengths_B, labels_BU, rows_B, stride_B)


def _batch(
    frame_lengths_B: torch.Tensor,
    label_lengths_B: torch.Tensor,
    labels_BU: torch.Tensor,
    rows_B: Int64Array,
    stride_B: Int64Array,
) -> Batch:
    first_line_B = np.cumsum(rows_B) - rows_B
    line_utterance_L = np.repeat(np.arange(len(rows_B)), rows_B)
    return Batch(
        first_cell_B=np.cumsum(rows_B * stride_B) - rows_B * stride_B,
        stride_B=stride_B,
        num_frames_B=_int64(frame_lengths_B),
        num_labels_B=_int64(label_lengths_B),
        labels_BU=_int64(labels_BU),
        line_utterance_L=line_utterance_L,
        line_frame_L=np.arange(len(line_utterance_L)) - first_line_B[line_utterance_L],
    )


def num_cells(batch: Batch) -> int:
    """Return the number of cells of a batch, padding included."""
    return int(batch.stride_B[batch.line_utterance_L].sum())


def frames_of(batch: Batch, start: int, stop: int) -> tuple[int, Batch]:
    """Return the first cell of the frames [start, stop) of a packed batch of one utterance, and their layout from it.

    The layout's lines are these frames. Its number of frames goes on to the utterance's end, which arcs may reach.
    """
    line_frame_L = np.arange(stop - start)
    layout = batch._replace(
        num_frames_B=batch.num_frames_B - start, line_utterance_L=np.zeros_like(line_frame_L), line_frame_L=line_frame_L
    )
    return start * int(batch.stride_B[0]), layout


def on_host(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return integer tensors as int64 on the CPU. From a GPU they come in one copy, with one synchronisation."""
    away = [x.detach().to(torch.int64) for x in tensors if x.device.type != "cpu"]
    if not away:
        return tuple(x.to(torch.int64) for x in tensors)
    parts = iter(torch.cat([x.flatten() for x in away]).cpu().split([x.numel() for x in away]))
    return tuple(x.to(torch.int64) if x.device.type == "cpu" else next(parts).view(x.shape) for x in tensors)


def _int64(x: torch.Tensor) -> Int64Array:
    return x.detach().to(torch.int64).contiguous().numpy()
