"""Estimate the memory of the losses, by part, from a batch's shape.

It counts the large tensors at the moment of the peak. It does not count the allocator's rounding (2 MB a tensor on a GPU),
the workspace of matrix products, dropout's random numbers (4 bytes an activation of a block, and 1 of a group), and the tables
of lengths and labels.

Shapes: B batch, T frames, U labels, J joint width, V tokens with blank, C lattice nodes (T x (U+1) an utterance).
"""

from __future__ import annotations

from dataclasses import dataclass

from fastscribe.training.loss.joint import ALIGNED_COLUMNS, ROWS_WIDENED, frames_per_block, group_limits

_WEIGHTS = 3 * 4  # normaliser, blank and label of a node, float32
_LATTICES = 2 * 8  # alpha and beta, float64
_DURATION = 4
_GRADIENT = 4  # the output layer's, summed in float32
_WEIGHT = 4  # one of the output layer


@dataclass(frozen=True)
class LossShape:
    """A batch of utterances of one length. num_tokens includes blank; item_bytes is the size of a logit, 2 or 4."""

    batch_size: int
    num_frames: int
    num_labels: int
    joint_width: int
    num_tokens: int
    num_durations: int = 0
    item_bytes: int = 2

    @property
    def nodes(self) -> int:
        """Lattice nodes of one utterance."""
        return self.num_frames * (self.num_labels + 1)

    @property
    def num_outputs(self) -> int:
        return self.num_tokens + self.num_durations


def loss_memory(shape: LossShape, device: str = "cuda") -> dict[str, int]:
    """Estimate the peak bytes of joint_transducer_loss by part, with its inputs and their gradients."""
    limits = group_limits(device, shape.joint_width, shape.num_outputs, shape.item_bytes)
    rows = min(shape.batch_size, max(1, limits.group // max(1, shape.nodes)))
    frames = frames_per_block(shape.num_frames, shape.num_labels + 1, limits)
    nodes = rows * min(frames, shape.num_frames) * (shape.num_labels + 1)
    inputs = shape.batch_size * (shape.num_frames + shape.num_labels + 1) * shape.joint_width * shape.item_bytes
    is_aligned = device == "cuda" and shape.item_bytes == 2
    columns = -(-shape.num_outputs // ALIGNED_COLUMNS) * ALIGNED_COLUMNS if is_aligned else shape.num_outputs
    weights = shape.num_outputs * (shape.joint_width + 1)
    copies = columns * (shape.joint_width + 1) * (shape.item_bytes if shape.item_bytes != _WEIGHT else 0)
    product = columns * shape.joint_width * shape.item_bytes if shape.item_bytes == 2 else 0
    widened = min(nodes, ROWS_WIDENED) if device == "cpu" and shape.item_bytes == 2 else 0
    return {
        "encoder and predictor outputs": inputs,
        "their gradients": inputs,
        "output layer, its copy and gradient": weights * (_WEIGHT + _GRADIENT) + copies + product,
        "activations and their gradient": 2 * nodes * shape.joint_width * shape.item_bytes,
        "logits, then their gradient": nodes * columns * shape.item_bytes,
        "float32 of a few rows": widened * shape.num_outputs * 4,
        "lattice": rows * shape.nodes * _node_bytes(shape),
    }


def logits_memory(shape: LossShape) -> dict[str, int]:
    """Estimate the peak bytes of transducer_loss by part: the given logits, and a gradient of their size."""
    nodes = shape.batch_size * shape.nodes
    logits = nodes * shape.num_outputs * shape.item_bytes
    return {"logits": logits, "their gradient": logits, "lattice": nodes * _node_bytes(shape)}


def materialised_memory(shape: LossShape, item_bytes: int = 4) -> dict[str, int]:
    """Estimate the minimum bytes, by part, of the usual way: a joint network followed by a loss over its logits.

    They are the activations and logits of the whole batch, which backward needs, and the logits' gradient.
    """
    inputs = shape.batch_size * (shape.num_frames + shape.num_labels + 1) * shape.joint_width * item_bytes
    nodes = shape.batch_size * shape.nodes
    logits = nodes * shape.num_outputs * item_bytes
    return {
        "encoder and predictor outputs": inputs,
        "activations": nodes * shape.joint_width * item_bytes,
        "logits": logits,
        "their gradient": logits,
    }


def _node_bytes(shape: LossShape) -> int:
    return _WEIGHTS + _LATTICES + _DURATION * shape.num_durations
