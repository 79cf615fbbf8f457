"""`joint_transducer_loss`: the loss without the logits of a whole batch (Apple's sample-wise training, arXiv 2211.16270).

The joint network's output for B utterances is B x T x (U+1) x V numbers, usually more than everything else in training.
Here a small group of utterances at a time goes through joint, loss and back: frames and labels are added, activated and
projected, the loss's gradient overwrites the logits, and from it come the gradients of the projection and of the group's
frames and labels. Only these outlive the group. Padding is never computed: a group's nodes are packed, one utterance after
the other.

Logits exist for one block of nodes at a time, which is the whole group, unless a single utterance is too large for that: its
group has several blocks of frames. From each block's logits the lattice takes a few numbers a node. Once it is complete, the
blocks come again, last one first (its logits are still there), for their gradients. So the work memory is that of the largest
block, and a lattice of at most 48 bytes a node.

Forward computes the gradients, because the logits exist only there. Backward multiplies them by the incoming gradient.

Shapes: B batch, T frames, U labels + 1, J joint width, C nodes of a block, W columns of the output (tokens, durations).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from fastscribe.config import whole_number
from fastscribe.errors import UsageError
from fastscribe.families.blocks.heads import Joint
from fastscribe.training.loss import cpu, layout
from fastscribe.training.loss.config import RNNT, TransducerLossConfig
from fastscribe.training.loss.logits import (
    OracleLosses,
    check_choices,
    check_integers,
    check_shapes,
    check_tensor,
    compiled_for,
    draw_config,
    finite_sum,
    reduce_losses,
)

# Sizes in lattice nodes and in bytes of their work memory. Groups are filled up to these. A longer utterance is a group by
# itself, in one block, because every further one costs a second pass through the joint, up to the bytes of the last line.
_NODES_PER_GROUP = {"cpu": 16384, "cuda": 262144}
_BYTES_PER_GROUP = {"cpu": 256 << 20, "cuda": 5 << 28}
_BYTES_PER_BLOCK = 5 << 28
_MAX_ELEMENTS = 2**31 - 1  # of a tensor: some kernels count in 32 bits
ROWS_WIDENED = 1024  # converted to float32 at a time
ROWS_SUMMED = {torch.float16: 16384}  # per product, whose sums have to fit in float16 (at most 65504)
ALIGNED_COLUMNS = 8  # a GPU's 16-bit products are fast for rows of whole 16 bytes


class _Activation(NamedTuple):
    """The module of an activation, and what computes it in place: forward, and from the gradient above and its output."""

    module: type[nn.Module]
    forward_: Callable[[torch.Tensor], torch.Tensor]
    backward_: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


_OPERATORS = torch.ops.aten
_ACTIVATIONS: dict[Callable[..., torch.Tensor], _Activation] = {
    torch.relu: _Activation(
        nn.ReLU, torch.relu_, lambda above, y: _OPERATORS.threshold_backward.grad_input(above, y, 0, grad_input=above)
    ),
    torch.tanh: _Activation(
        nn.Tanh, torch.tanh_, lambda above, y: _OPERATORS.tanh_backward.grad_input(above, y, grad_input=above)
    ),
    torch.sigmoid: _Activation(
        nn.Sigmoid, torch.sigmoid_, lambda above, y: _OPERATORS.sigmoid_backward.grad_input(above, y, grad_input=above)
    ),
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
    max_nodes: int | None = None,
    logits_dtype: torch.dtype | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    generator: torch.Generator | None = None,
    losses_out_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute transducer_loss of joint(encoded, predicted) without the logits of the whole batch.

    Gradients go to both inputs and to joint.output's weight and bias. Backward can be called once.

    Args:
        joint: the joint network, an object with two attributes, which alone are applied here: `activation`, one of
            torch.relu, torch.tanh and torch.sigmoid or a module of torch.nn for it, and `output`, a torch.nn.Linear with bias
            of J inputs; its outputs are tokens with blank, then durations.
        encoded_BTJ: [B, T, J], frames after joint.encoder.
        predicted_BUJ: [B, U+1, J], start symbol and labels after joint.predictor.
        labels_BU: as in transducer_loss.
        frame_lengths_B: as in transducer_loss.
        label_lengths_B: as in transducer_loss.
        blank_id: as in transducer_loss.
        config: as in transducer_loss.
        reduction: as in transducer_loss; "none" has no gradient and needs torch.no_grad().
        max_nodes: lattice nodes (frames times labels + 1) whose logits exist at a time, at least those of one frame; None
            chooses by memory (group_limits). A larger utterance is computed in blocks of frames, its joint nearly twice.
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
    activation = next((f for f, one in _ACTIVATIONS.items() if type(joint.activation) is one.module), joint.activation)
    max_nodes = whole_number(max_nodes)
    _check_options(activation, max_nodes, dropout, backend)
    spoken = layout.Spoken._make((*layout.on_host(labels_BU, frame_lengths_B, label_lengths_B), blank_id, config))
    check_shapes((*encoded_BTJ.shape[:2], predicted_BUJ.shape[1], joint.output.out_features), spoken)
    dtype = logits_dtype or encoded_BTJ.dtype
    if dtype not in cpu.DTYPES and backend != "oracle":
        raise UsageError(f"logits_dtype must be float32, float16 or bfloat16, not {dtype}")
    spoken = spoken._replace(config=draw_config(config, generator))
    if backend == "oracle":
        hidden_BTUJ = F.dropout(joint.activation(encoded_BTJ[:, :, None] + predicted_BUJ[:, None]), dropout)
        losses_B = OracleLosses.apply(joint.output(hidden_BTUJ), spoken)  # type: ignore[no-untyped-call]  # torch's own apply
        total = finite_sum(losses_B)
    else:
        tensors = (encoded_BTJ, predicted_BUJ, joint.output.weight, joint.output.bias)
        wants_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if wants_gradient and reduction == "none":
            raise UsageError('reduction "none" has no gradient here: reduce, or call it under torch.no_grad()')
        work = _Work(spoken, _ACTIVATIONS[activation], max_nodes, dtype, dropout, wants_gradient)
        total, losses_B = _JointLosses.apply(work, *tensors)  # type: ignore[no-untyped-call]
    if losses_out_B is not None:
        losses_out_B.copy_(losses_B.detach())
    return reduce_losses(total, losses_B, spoken, reduction)


def _check_inputs(joint: Joint, encoded_BTJ: torch.Tensor, predicted_BUJ: torch.Tensor) -> None:
    """Raise UsageError that names the first input that does not fit."""
    output = getattr(joint, "output", None)
    if not isinstance(output, nn.Linear) or output.bias is None or not hasattr(joint, "activation"):
        problem = "a torch.nn.Linear with bias as its output, and an activation"
        raise UsageError(f"the joint needs {problem}; its output is {output!r:.80}")
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


def _check_options(
    activation: Callable[..., torch.Tensor], max_nodes: int | None, dropout: float, backend: str
) -> None:
    """Raise UsageError for an option out of range."""
    if max_nodes is not None and (not isinstance(max_nodes, int) or max_nodes < 1):
        raise UsageError(f"max_nodes must be 1 or more lattice nodes, or None; not {max_nodes!r}")
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout must be 0 or more and below 1, not {dropout!r}")
    if activation not in _ACTIVATIONS and backend != "oracle":
        known = ", ".join(f"torch.{one.__name__}" for one in _ACTIVATIONS)
        raise UsageError(f"the joint's activation must be one of {known}, not {activation!r}")


@dataclass(frozen=True)
class _Work:
    """The groups' common inputs besides the four tensors."""

    spoken: layout.Spoken
    activation: _Activation
    max_nodes: int | None
    dtype: torch.dtype
    dropout: float
    wants_gradient: bool


class _JointLosses(torch.autograd.Function):
    """Sum of the finite losses, and all of them; the context keeps the four tensors' gradients of the sum."""

    @staticmethod
    def forward(ctx: Any, work: _Work, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encoded_BTJ, _, weight_WJ, bias_W = tensors
        losses_B = torch.zeros(len(encoded_BTJ), device=encoded_BTJ.device)
        gradients = _Gradients(*tensors) if work.wants_gradient else None
        sizes = (weight_WJ.shape[1], len(weight_WJ), work.dtype.itemsize, work.max_nodes)
        limits = group_limits(encoded_BTJ.device.type, *sizes)
        groups = _groups(work.spoken.frame_lengths_B.tolist(), work.spoken.label_lengths_B.tolist(), limits)
        most_nodes = max((block[-1].stop for group in groups for block in group), default=0)
        forward = _Forward(work, tensors, most_nodes)
        with torch.autocast(encoded_BTJ.device.type, enabled=False):
            for group in groups:
                rows = slice(group[0][0].row, group[-1][-1].row + 1)
                losses_B[rows] = _group_losses(work, group, rows, forward, gradients)
        if gradients is not None:
            output = gradients.weight_WJ.to(weight_WJ.dtype), gradients.bias_W.to(bias_W.dtype)
            ctx.gradients = (gradients.encoded_BTJ, gradients.predicted_BUJ, *output)
        ctx.mark_non_differentiable(losses_B)
        return finite_sum(losses_B), losses_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("joint_transducer_loss keeps its gradients for one backward only")
        gradients, ctx.gradients = ctx.gradients, None
        return (None, *(gradient.mul_(scale[0]) for gradient in gradients))


def _group_losses(
    work: _Work, group: _Group, rows: slice, forward: _Forward, gradients: _Gradients | None
) -> torch.Tensor:
    """Return the losses of a group's rows, and add their gradients if wanted. The lattice is freed with the call."""
    spoken, num_tokens = work.spoken.of(rows), forward.num_outputs - len(work.spoken.config.durations)
    lattice: layout.Lattice = compiled_for(forward.logits_CW.device).Lattice.of(
        layout.packed(spoken), spoken, forward.logits_CW, num_tokens, work.wants_gradient
    )
    parts, kept = [lattice], []
    if len(group) > 1:
        parts = [lattice.frames(span.first_frame, span.stop_frame) for (span,) in group]
    for block, part in zip(group, parts, strict=True):
        hidden, logits, mask = forward(block)
        kept.append(mask)
        part.read_arcs(logits)
    losses_B = lattice.losses()
    if gradients is None:
        return losses_B
    scale_B, labels_UJ = torch.ones(len(losses_B), device=losses_B.device), None
    for block, part, mask in zip(reversed(group), reversed(parts), reversed(kept), strict=True):
        if block is not group[-1]:
            hidden, logits, _ = forward(block, mask)
        part.write_gradient(logits, scale_B)
        gradients.add_output(logits, hidden)
        below = forward.backward(hidden, logits, mask)
        labels_UJ = gradients.add_inputs(block, below, labels_UJ)
    return losses_B


class GroupLimits(NamedTuple):
    """Lattice nodes: what groups are filled up to (and blocks), and the largest utterance that is one block."""

    group: int
    whole: int


def group_limits(
    device_type: str, joint_width: int, num_columns: int, item_bytes: int, max_nodes: int | None = None
) -> GroupLimits:
    """Return the sizes of groups: fewer nodes where the vocabulary makes each one large.

    Args:
        device_type: "cpu" or "cuda".
        joint_width: J.
        num_columns: W.
        item_bytes: of an activation and a logit.
        max_nodes: both sizes; None takes those of the device.
    """
    node_bytes = (2 * joint_width + num_columns) * item_bytes
    group = max_nodes or min(_NODES_PER_GROUP[device_type], _BYTES_PER_GROUP[device_type] // node_bytes)
    whole = max_nodes or max(group, _BYTES_PER_BLOCK // node_bytes)
    most = _MAX_ELEMENTS // max(joint_width, num_columns + ALIGNED_COLUMNS)
    return GroupLimits(*(max(1, min(nodes, most)) for nodes in (group, whole)))


def frames_per_block(num_frames: int, num_columns: int, limits: GroupLimits) -> int:
    """Return the frames of each of an utterance's blocks, all of about one size; at least 1.

    Args:
        num_frames: of the utterance.
        num_columns: its labels + 1.
    """
    if num_frames * num_columns <= limits.whole:
        return max(1, num_frames)
    num_blocks = -(-num_frames // max(1, limits.group // num_columns))
    return -(-num_frames // num_blocks)


def _pad_columns(x: torch.Tensor) -> torch.Tensor:
    """Pad 16-bit x on a GPU with rows of zeros: these outputs are never read and have zero gradients."""
    missing = -len(x) % ALIGNED_COLUMNS if x.device.type == "cuda" and x.itemsize == 2 else 0
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


@dataclass(frozen=True)
class _Span:
    """Frames of one utterance, as nodes in their block."""

    row: int
    start: int
    first_frame: int
    num_frames: int
    num_columns: int

    @property
    def stop(self) -> int:
        return self.start + self.num_frames * self.num_columns

    @property
    def stop_frame(self) -> int:
        return self.first_frame + self.num_frames

    def of(self, nodes_CJ: torch.Tensor) -> torch.Tensor:
        """View the span's nodes as [T, U, J]."""
        return nodes_CJ[self.start : self.stop].view(self.num_frames, self.num_columns, nodes_CJ.shape[1])


_Group = list[list[_Span]]  # blocks; where there are several, each is a span of the group's only utterance


def _groups(frames_B: list[int], labels_B: list[int], limits: GroupLimits) -> list[_Group]:
    """Split the batch, in order, into groups."""
    groups: list[_Group] = []
    for row, (num_frames, num_labels) in enumerate(zip(frames_B, labels_B, strict=True)):
        num_columns = num_labels + 1
        last = groups[-1][-1] if groups and len(groups[-1]) == 1 else None
        if last and last[-1].stop + num_frames * num_columns <= limits.group:
            last.append(_Span(row, last[-1].stop, 0, num_frames, num_columns))
            continue
        step = frames_per_block(num_frames, num_columns, limits)
        starts = range(0, max(1, num_frames), step)
        groups.append([[_Span(row, 0, start, min(step, num_frames - start), num_columns)] for start in starts])
    return groups


class _Forward:
    """The joint network on one block after the other, in buffers that all of them share.

    Args:
        work: the groups' common inputs.
        tensors: the frames, the labels, and the output layer's weight and bias, which are converted here.
        max_nodes: the largest block.
    """

    def __init__(self, work: _Work, tensors: tuple[torch.Tensor, ...], max_nodes: int) -> None:
        self.work = work
        self.encoded_BTJ, self.predicted_BUJ, weight_WJ, bias_W = tensors
        self.num_outputs, width = weight_WJ.shape  # without padding
        self.hidden_CJ, self.below_CJ = (weight_WJ.new_empty(max_nodes, width, dtype=work.dtype) for _ in range(2))
        self.weight_WJ, self.bias_W = (_pad_columns(x.to(work.dtype)) for x in (weight_WJ, bias_W))
        self.logits_CW = self.weight_WJ.new_empty(max_nodes, len(self.weight_WJ))

    def __call__(
        self, block: list[_Span], mask_CJ: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the input of the output layer, the logits, and the mask of kept activations (None without dropout).

        mask_CJ: the mask of an earlier call for this block; None draws one.
        """
        nodes, dropout = slice(0, block[-1].stop), self.work.dropout
        hidden_CJ, logits_CW = self.hidden_CJ[nodes], self.logits_CW[nodes]
        for span in block:
            frames, columns = slice(span.first_frame, span.stop_frame), slice(0, span.num_columns)
            encoded_T1J = self.encoded_BTJ[span.row, frames, None].to(self.work.dtype)
            predicted_UJ = self.predicted_BUJ[span.row, columns].to(self.work.dtype)
            torch.add(encoded_T1J, predicted_UJ, out=span.of(hidden_CJ))
        self.work.activation.forward_(hidden_CJ)
        if dropout:
            if mask_CJ is None:
                mask_CJ = torch.rand_like(hidden_CJ, dtype=torch.float32) >= dropout
            hidden_CJ.mul_(mask_CJ).mul_(1 / (1 - dropout))
        torch.addmm(self.bias_W, hidden_CJ, self.weight_WJ.t(), out=logits_CW)
        return hidden_CJ, logits_CW, mask_CJ

    def backward(
        self, hidden_CJ: torch.Tensor, gradient_CW: torch.Tensor, mask_CJ: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the gradient of the sums of frames and labels. Overwrites hidden_CJ."""
        below_CJ, dropout = (
            torch.mm(gradient_CW, self.weight_WJ, out=self.below_CJ[: len(hidden_CJ)]),
            self.work.dropout,
        )
        if mask_CJ is not None:
            below_CJ.mul_(mask_CJ).mul_(1 / (1 - dropout))
            hidden_CJ.mul_(1 - dropout)
        self.work.activation.backward_(below_CJ, hidden_CJ)
        return below_CJ


class _Gradients:
    """Sums over the groups; the output layer's in float32."""

    def __init__(self, encoded_BTJ: torch.Tensor, predicted_BUJ: torch.Tensor, *output: torch.Tensor) -> None:
        self.encoded_BTJ, self.predicted_BUJ = torch.zeros_like(encoded_BTJ), torch.zeros_like(predicted_BUJ)
        self.weight_WJ, self.bias_W = (torch.zeros_like(x, dtype=torch.float32) for x in output)

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

    def add_inputs(self, block: list[_Span], below_CJ: torch.Tensor, labels_UJ: torch.Tensor | None) -> torch.Tensor:
        """Write the gradients of a block's frames and labels.

        Args:
            labels_UJ: float32 sum over the utterance's other blocks so far; None for a group's first block.

        Returns:
            The same sum with this block.
        """
        for span in block:
            below_TUJ = span.of(below_CJ)
            self.encoded_BTJ[span.row, span.first_frame : span.stop_frame] = below_TUJ.sum(dim=1)
            summed_UJ = below_TUJ.sum(dim=0) if labels_UJ is None else labels_UJ + below_TUJ.sum(dim=0)
            self.predicted_BUJ[span.row, : span.num_columns] = summed_UJ
        return summed_UJ.float()
