"""`joint_transducer_loss`: the loss without the logits of a whole batch (Apple's sample-wise training, arXiv 2211.16270).

The joint network's output for B utterances is B x T x (U+1) x V numbers, usually more than everything else in training.
Here a small group of utterances at a time goes through joint, loss and back: frames and labels are added, activated and
projected, the loss's gradient overwrites the logits, and from it come the gradients of the projection and of the group's
frames and labels. Only these outlive the group, so the work memory is that of the largest group. Padding is never computed:
a group's nodes are packed, one utterance after the other.

Forward computes the gradients, because the logits exist only there. Backward multiplies them by the incoming gradient.

Shapes: B batch, T frames, U labels + 1, J joint width, C nodes of a group, W columns of the output (tokens, durations).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from fastscribe.errors import UsageError
from fastscribe.model.transducer import Joint
from fastscribe.training.loss import cpu, layout
from fastscribe.training.loss.config import RNNT, TransducerLossConfig
from fastscribe.training.loss.logits import (
    check_choices,
    check_integers,
    check_shapes,
    check_tensor,
    compiled_for,
    divide_by_count,
    draw_config,
    finite_sum,
    reduce_losses,
    transducer_loss,
)

# Default group size, in lattice nodes and in bytes of their work memory; a longer utterance is a group by itself.
_NODES_PER_GROUP = {"cpu": 16384, "cuda": 262144}
_BYTES_PER_GROUP = {"cpu": 256 << 20, "cuda": 5 << 28}
ROWS_WIDENED = 1024  # converted to float32 at a time
ROWS_SUMMED = {torch.float16: 16384}  # per product, whose sums have to fit in float16 (at most 65504)
ALIGNED_COLUMNS = 8  # a GPU's 16-bit products are fast for rows of whole 16 bytes
_ACTIVATE_: dict[Callable[..., torch.Tensor], Callable[..., torch.Tensor]] = {
    torch.relu: torch.relu_,
    torch.tanh: torch.tanh_,
    torch.sigmoid: torch.sigmoid_,
}
_ACTIVATION_BACKWARD_: dict[
    Callable[..., torch.Tensor], Callable[..., torch.Tensor]
] = {  # in place: gradient above, output of the activation -> gradient below
    torch.relu: lambda above, y: torch.ops.aten.threshold_backward.grad_input(above, y, 0, grad_input=above),
    torch.tanh: lambda above, y: torch.ops.aten.tanh_backward.grad_input(above, y, grad_input=above),
    torch.sigmoid: lambda above, y: torch.ops.aten.sigmoid_backward.grad_input(above, y, grad_input=above),
}


def joint_transducer_loss(
    joint: Joint,
    encoded_BTJ: torch.Tensor,
    predicted_BUJ: torch.Tensor,
    labels_BU: torch.Tensor,
    frame_lengths_B: torch.Tensor,
    label_lengths_B: torch.Tensor,
    *,
    blank_id: int,
    config: TransducerLossConfig = RNNT,
    reduction: str = "mean",
    group: int | None = None,
    logits_dtype: torch.dtype | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    generator: torch.Generator | None = None,
    losses_out_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute transducer_loss of joint(encoded, predicted) without the logits of the whole batch.

    Gradients go to both inputs and to joint.output's weight and bias. Backward can be called once.

    Args:
        joint: the joint network; only its activation and output layer are applied here.
        encoded_BTJ: [B, T, J], frames after joint.encoder.
        predicted_BUJ: [B, U+1, J], start symbol and labels after joint.predictor.
        labels_BU: as in transducer_loss.
        frame_lengths_B: as in transducer_loss.
        label_lengths_B: as in transducer_loss.
        blank_id: as in transducer_loss.
        config: as in transducer_loss.
        reduction: as in transducer_loss; "none" has no gradient and needs torch.no_grad().
        group: utterances per group; None fills groups up to nodes_per_group() lattice nodes.
        logits_dtype: float32, float16 or bfloat16 of activations and logits; None takes that of encoded_BTJ, even under
            autocast. Weights are cast to it; their gradients are summed in float32.
        dropout: probability, below 1, of dropping an activation; torch's default generator draws.
        backend: as in transducer_loss.
        generator: as in transducer_loss.
        losses_out_B: [B], receives the losses of the utterances; None for no such output.

    Returns:
        float32, as transducer_loss.

    Raises:
        UsageError: The arguments do not fit together, or reduction "none" is used with gradients.
    """
    check_choices(reduction, backend)
    check_integers(labels_BU, frame_lengths_B, label_lengths_B)
    _check_inputs(joint, encoded_BTJ, predicted_BUJ)
    _check_options(joint, group, dropout, backend)
    labels_BU, frame_lengths_B, label_lengths_B = layout.on_host(labels_BU, frame_lengths_B, label_lengths_B)
    shape = (*encoded_BTJ.shape[:2], predicted_BUJ.shape[1], joint.output.out_features)
    check_shapes(shape, labels_BU, frame_lengths_B, label_lengths_B, blank_id, config)
    dtype = logits_dtype or encoded_BTJ.dtype
    if dtype not in cpu.DTYPES and backend != "oracle":
        raise UsageError(f"logits_dtype must be float32, float16 or bfloat16, not {dtype}")
    config = draw_config(config, generator)
    if backend == "oracle":
        hidden_BTUJ = F.dropout(joint.activation(encoded_BTJ[:, :, None] + predicted_BUJ[:, None]), dropout)
        targets = (labels_BU, frame_lengths_B, label_lengths_B)
        losses_B = transducer_loss(
            joint.output(hidden_BTUJ), *targets, blank_id=blank_id, config=config, reduction="none", backend=backend
        )
        return _with_losses_out(losses_out_B, losses_B, reduce_losses(losses_B, label_lengths_B, reduction))
    work = _GroupInputs(
        labels_BU, frame_lengths_B, label_lengths_B, blank_id, config, joint.activation, group, dtype, dropout
    )
    tensors = (encoded_BTJ, predicted_BUJ, joint.output.weight, joint.output.bias)
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        losses_B = _losses_and_gradients(work, tensors, wants_gradient=False)[0]
        return _with_losses_out(losses_out_B, losses_B, reduce_losses(losses_B, label_lengths_B, reduction))
    if reduction == "none":
        raise UsageError('reduction "none" has no gradient here: reduce, or call it under torch.no_grad()')
    total, losses_B = _JointLosses.apply(work, *tensors)  # type: ignore[no-untyped-call]  # torch's own apply
    return _with_losses_out(losses_out_B, losses_B, divide_by_count(total, losses_B, label_lengths_B, reduction))


def _with_losses_out(losses_out_B: torch.Tensor | None, losses_B: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
    """Return the loss, and copy the utterances' losses to the caller's tensor."""
    if losses_out_B is not None:
        losses_out_B.copy_(losses_B.detach())
    return loss


def _check_inputs(joint: Joint, encoded_BTJ: torch.Tensor, predicted_BUJ: torch.Tensor) -> None:
    """Raise UsageError that names the first input that does not fit."""
    width, device = joint.output.in_features, joint.output.weight.device
    for name, x, axis in (("encoded", encoded_BTJ, "frames"), ("predicted", predicted_BUJ, "labels + 1")):
        check_tensor(name, x)
        if x.ndim != 3 or x.shape[2] != width:
            raise UsageError(f"{name} must be [batch, {axis}, {width}] as the joint is wide, not {tuple(x.shape)}")
        if x.device != device:
            raise UsageError(f"{name} is on {x.device}, but the joint on {device}")
    shapes = f"{tuple(encoded_BTJ.shape)} and {tuple(predicted_BUJ.shape)}"
    if len(encoded_BTJ) != len(predicted_BUJ):
        raise UsageError(f"encoded and predicted must have the same batch size, not the shapes {shapes}")
    if encoded_BTJ.dtype != predicted_BUJ.dtype:
        raise UsageError(
            f"encoded and predicted must have the same dtype, not {encoded_BTJ.dtype} and {predicted_BUJ.dtype}"
        )


def _check_options(joint: Joint, group: int | None, dropout: float, backend: str) -> None:
    """Raise UsageError for an option out of range."""
    if group is not None and (not isinstance(group, int) or group < 1):
        raise UsageError(f"group must be 1 or more utterances, or None; not {group!r}")
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout must be 0 or more and below 1, not {dropout!r}")
    if joint.activation not in _ACTIVATE_ and backend != "oracle":
        known = ", ".join(f"torch.{activation.__name__}" for activation in _ACTIVATE_)
        raise UsageError(f"the joint's activation must be one of {known}, not {joint.activation!r}")


@dataclass(frozen=True)
class _GroupInputs:
    """The groups' common inputs besides the four tensors."""

    labels_BU: torch.Tensor
    frame_lengths_B: torch.Tensor
    label_lengths_B: torch.Tensor
    blank_id: int
    config: TransducerLossConfig
    activation: Callable[[torch.Tensor], torch.Tensor]
    group: int | None
    dtype: torch.dtype
    dropout: float


class _JointLosses(torch.autograd.Function):
    """Sum of the finite losses, and all of them; the context keeps the four tensors' gradients of the sum."""

    @staticmethod
    def forward(ctx: Any, work: _GroupInputs, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        losses_B, ctx.gradients = _losses_and_gradients(work, tensors, wants_gradient=True)
        ctx.mark_non_differentiable(losses_B)
        return finite_sum(losses_B), losses_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("joint_transducer_loss keeps its gradients for one backward only")
        gradients, ctx.gradients = ctx.gradients, None
        return (None, *(gradient.mul_(scale[0]) for gradient in gradients))


@torch.no_grad()
def _losses_and_gradients(
    work: _GroupInputs, tensors: tuple[torch.Tensor, ...], wants_gradient: bool
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return losses [B] and the gradients of their sum, each in its tensor's dtype; no gradients if not wanted."""
    encoded_BTJ, predicted_BUJ, weight_WJ, bias_W = tensors
    compiled = compiled_for(encoded_BTJ.device)
    losses_B = torch.zeros(len(encoded_BTJ), device=encoded_BTJ.device)
    gradients = _Gradients.zeros(encoded_BTJ, predicted_BUJ, weight_WJ, bias_W) if wants_gradient else None
    default = nodes_per_group(encoded_BTJ.device.type, weight_WJ.shape[1], len(weight_WJ), work.dtype.itemsize)
    groups = _groups(work, default)
    max_nodes = max((blocks[-1].stop for blocks in groups), default=0)
    hidden_CJ, below_CJ = (weight_WJ.new_empty(max_nodes, weight_WJ.shape[1], dtype=work.dtype) for _ in range(2))
    weight, bias = _pad_columns(weight_WJ.to(work.dtype)), _pad_columns(bias_W.to(work.dtype))
    logits_CW = weight.new_empty(max_nodes, len(weight))
    options = {"num_tokens": len(weight_WJ) - len(work.config.durations), "blank_id": work.blank_id}
    with torch.autocast(encoded_BTJ.device.type, enabled=False):
        for blocks in groups:
            rows, nodes = slice(blocks[0].row, blocks[-1].row + 1), slice(0, blocks[-1].stop)
            hidden, logits = hidden_CJ[nodes], logits_CW[nodes]
            kept = _activate(work, blocks, encoded_BTJ, predicted_BUJ, hidden)
            torch.addmm(bias, hidden, weight.t(), out=logits)
            batch = layout.packed(work.frame_lengths_B[rows], work.label_lengths_B[rows], work.labels_BU[rows])
            losses_B[rows], lattice = compiled.losses(
                logits, batch, config=work.config, wants_gradient=wants_gradient, **options
            )
            if gradients is None:
                continue
            compiled.write_gradient(lattice, logits, torch.ones(len(blocks), device=losses_B.device))
            gradients.add_output(logits, hidden)
            below = torch.mm(logits, weight, out=below_CJ[nodes])
            _backward_activation_(work, hidden, kept, below)
            gradients.add_inputs(blocks, below)
    return losses_B, () if gradients is None else gradients.to_input_dtypes(weight_WJ, bias_W)


def nodes_per_group(device_type: str, joint_width: int, num_columns: int, item_bytes: int) -> int:
    """Return the lattice nodes of a group: fewer where the vocabulary makes each one large.

    Args:
        device_type: "cpu" or "cuda".
        joint_width: J.
        num_columns: W.
        item_bytes: of an activation and a logit.
    """
    node_bytes = (2 * joint_width + num_columns) * item_bytes
    return max(1, min(_NODES_PER_GROUP[device_type], _BYTES_PER_GROUP[device_type] // node_bytes))


def _pad_columns(x: torch.Tensor) -> torch.Tensor:
    """Pad 16-bit x on a GPU with rows of zeros: these outputs are never read and have zero gradients."""
    missing = -len(x) % ALIGNED_COLUMNS if x.device.type == "cuda" and x.itemsize == 2 else 0
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


@dataclass(frozen=True)
class _Block:
    """One utterance's nodes in its group."""

    row: int
    start: int
    num_frames: int
    num_columns: int

    @property
    def stop(self) -> int:
        return self.start + self.num_frames * self.num_columns

    def of(self, nodes_CJ: torch.Tensor) -> torch.Tensor:
        """View the block's nodes as [T, U, J]."""
        return nodes_CJ[self.start : self.stop].view(self.num_frames, self.num_columns, nodes_CJ.shape[1])


def _groups(work: _GroupInputs, max_nodes: int) -> list[list[_Block]]:
    """Split the batch, in order, into groups of at most `max_nodes` or `work.group` utterances."""
    groups: list[list[_Block]] = []
    lengths = zip(work.frame_lengths_B.tolist(), work.label_lengths_B.tolist(), strict=True)
    for row, (frames, labels) in enumerate(lengths):
        block = _Block(row, groups[-1][-1].stop if groups else 0, frames, labels + 1)
        fits = block.stop <= max_nodes if work.group is None else bool(groups) and len(groups[-1]) < work.group
        if groups and fits:
            groups[-1].append(block)
        else:
            groups.append([replace(block, start=0)])
    return groups


def _activate(
    work: _GroupInputs,
    blocks: list[_Block],
    encoded_BTJ: torch.Tensor,
    predicted_BUJ: torch.Tensor,
    hidden_CJ: torch.Tensor,
) -> torch.Tensor | None:
    """Fill hidden_CJ with the input of the output layer; return the mask of kept activations, None without dropout."""
    for block in blocks:
        encoded_T1J = encoded_BTJ[block.row, : block.num_frames, None].to(work.dtype)
        predicted_UJ = predicted_BUJ[block.row, : block.num_columns].to(work.dtype)
        torch.add(encoded_T1J, predicted_UJ, out=block.of(hidden_CJ))
    _ACTIVATE_[work.activation](hidden_CJ)
    if not work.dropout:
        return None
    kept_CJ = torch.rand_like(hidden_CJ, dtype=torch.float32) >= work.dropout
    hidden_CJ.mul_(kept_CJ).mul_(1 / (1 - work.dropout))
    return kept_CJ


def _backward_activation_(
    work: _GroupInputs, hidden_CJ: torch.Tensor, kept_CJ: torch.Tensor | None, below_CJ: torch.Tensor
) -> None:
    """Replace the gradient after the activation, in below_CJ, by the one before it. Overwrites hidden_CJ."""
    if kept_CJ is not None:
        below_CJ.mul_(kept_CJ).mul_(1 / (1 - work.dropout))
        hidden_CJ.mul_(1 - work.dropout)
    _ACTIVATION_BACKWARD_[work.activation](below_CJ, hidden_CJ)


@dataclass(frozen=True)
class _Gradients:
    """Sums over the groups; the output layer's in float32."""

    encoded_BTJ: torch.Tensor
    predicted_BUJ: torch.Tensor
    weight_WJ: torch.Tensor
    bias_W: torch.Tensor

    @classmethod
    def zeros(cls, encoded_BTJ: torch.Tensor, predicted_BUJ: torch.Tensor, *output: torch.Tensor) -> _Gradients:
        inputs = (torch.zeros_like(x) for x in (encoded_BTJ, predicted_BUJ))
        return cls(*inputs, *(torch.zeros_like(x, dtype=torch.float32) for x in output))

    def add_output(self, gradient_CW: torch.Tensor, hidden_CJ: torch.Tensor) -> None:
        num_outputs = len(self.bias_W)
        summed = max(1, ROWS_SUMMED.get(gradient_CW.dtype, len(gradient_CW)))
        for rows_CW, rows_CJ in zip(gradient_CW.split(summed), hidden_CJ.split(summed), strict=True):
            if rows_CW.dtype == torch.float32:
                self.weight_WJ.addmm_(rows_CW[:, :num_outputs].t(), rows_CJ)
            else:
                self.weight_WJ.add_((rows_CW.t() @ rows_CJ)[:num_outputs])
        widened = len(gradient_CW) if gradient_CW.is_cuda else ROWS_WIDENED  # a CPU makes a float32 copy before it sums
        for rows_CW in gradient_CW.split(max(1, widened)):
            self.bias_W.add_(rows_CW.sum(dim=0, dtype=torch.float32)[:num_outputs])

    def add_inputs(self, blocks: list[_Block], below_CJ: torch.Tensor) -> None:
        for block in blocks:
            below_TUJ = block.of(below_CJ)
            self.encoded_BTJ[block.row, : block.num_frames] = below_TUJ.sum(dim=1)
            self.predicted_BUJ[block.row, : block.num_columns] = below_TUJ.sum(dim=0)

    def to_input_dtypes(self, weight_WJ: torch.Tensor, bias_W: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the four gradients in the order and dtypes of the input tensors."""
        return (self.encoded_BTJ, self.predicted_BUJ, self.weight_WJ.to(weight_WJ.dtype), self.bias_W.to(bias_W.dtype))
