"""`transducer_loss`: the loss of given logits, as an autograd function over the backends.

Forward sums over the lattice. Backward overwrites one copy of the logits with the gradient and allocates nothing else of
that size. If the logits do not fit into memory, see joint.py.

Shapes: B batch, T frames, U labels, V tokens with blank (and then durations).
"""

from __future__ import annotations

import math
from numbers import Integral
from types import ModuleType
from typing import Any

import torch

from fastscribe.cuda.device import small_to_device
from fastscribe.errors import UsageError
from fastscribe.training.loss import cpu, cuda, definition, layout
from fastscribe.training.loss.config import REDUCTIONS, RNNT, TransducerLossConfig

BACKENDS = ("auto", "oracle", "numba")


def transducer_loss(
    logits_BTUV: torch.Tensor,
    labels_BU: torch.Tensor,
    frame_lengths_B: torch.Tensor,
    label_lengths_B: torch.Tensor,
    *,
    blank_id: int,
    config: TransducerLossConfig = RNNT,
    reduction: str = "mean",
    backend: str = "auto",
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Compute the RNN-T (Graves 2012) or TDT (Xu et al. 2023) loss, -log P(labels | frames), in nats.

    Args:
        logits_BTUV: [B, T, U+1, V] before any softmax, float32, float16 or bfloat16. V counts the tokens with blank, then
            one column per duration of the config. Sums are float32 or wider for every dtype.
        labels_BU: [B, U], integer token ids without blank; entries beyond a row's length are ignored.
        frame_lengths_B: [B], integer number of frames of each utterance.
        label_lengths_B: [B], integer number of labels of each utterance.
        blank_id: column of blank among the tokens.
        config: kind of loss, regularisation and gradient clamp.
        reduction: "none", "sum", "mean" (over utterances; NeMo's mean_batch) or "mean_volume" (sum / all labels, as NeMo).
        backend: "numba" compiles for the logits' device, CPU or CUDA; "oracle" is definition.py; "auto" is "numba".
        generator: draws the loss of the batch if the config has an omega; None uses torch's default generator.

    Returns:
        float32: [B] for reduction "none", else a scalar. An utterance without a path has an infinite loss and a zero
        gradient: one without frames, and for TDT one with too few frames or with no sum of durations that ends on the
        last frame. Reductions leave out such utterances and their labels, and are infinite only if no other is left.

    Raises:
        UsageError: The arguments do not fit together.
    """
    check_choices(reduction, backend)
    check_tensor("logits", logits_BTUV)
    check_integers(labels_BU, frame_lengths_B, label_lengths_B)
    spoken = layout.Spoken._make((*layout.on_host(labels_BU, frame_lengths_B, label_lengths_B), blank_id, config))
    check_shapes(logits_BTUV.shape, spoken)
    if logits_BTUV.dtype not in cpu.DTYPES and not (backend == "oracle" and logits_BTUV.is_floating_point()):
        raise UsageError(f"logits must be float32, float16 or bfloat16, not {logits_BTUV.dtype}")
    losses: type[Any] = OracleLosses if backend == "oracle" else _NumbaLosses
    losses_B = losses.apply(logits_BTUV, spoken._replace(config=draw_config(config, generator)))
    return reduce_losses(finite_sum(losses_B), losses_B, spoken, reduction)


def draw_config(config: TransducerLossConfig, generator: torch.Generator | None) -> TransducerLossConfig:
    """Return the config of this batch; draw between RNN-T and TDT if it has an omega."""
    return config.resolve_omega(float(torch.rand((), generator=generator))) if config.omega else config


def finite_sum(losses_B: torch.Tensor) -> torch.Tensor:
    """Sum of the losses that are not infinite. NaN propagates."""
    return losses_B.masked_fill(losses_B.isposinf(), 0.0).sum()


def reduce_losses(total: torch.Tensor, losses_B: torch.Tensor, spoken: layout.Spoken, reduction: str) -> torch.Tensor:
    """Return the losses [B] for "none", else `total` (finite_sum), divided by the utterances or labels that have a path.

    Infinite if no utterance of a batch has a path. Lengths are on the host; nothing waits for a GPU.
    """
    if reduction == "none":
        return losses_B
    has_path_B = ~losses_B.detach().isposinf()
    if reduction == "mean":
        total = total / has_path_B.sum().clamp(min=1)
    elif reduction == "mean_volume":
        lengths_B = small_to_device(spoken.label_lengths_B, losses_B.device)
        total = total / (lengths_B * has_path_B).sum().clamp(min=1)
    return total.masked_fill(~has_path_B.any(), math.inf) if len(losses_B) else total


def compiled_for(device: torch.device) -> ModuleType:
    """Return cpu.py or cuda.py, each with its Lattice. Raises UsageError for another device."""
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"the transducer loss runs on a CPU or a CUDA GPU, not on {device.type}")
    return cuda if device.type == "cuda" else cpu


def check_choices(reduction: str, backend: str) -> None:
    """Raise UsageError for an unknown choice."""
    if reduction not in REDUCTIONS:
        raise UsageError(f"reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    if backend not in BACKENDS:
        raise UsageError(f"backend is one of {', '.join(BACKENDS)}, not {backend!r}")


def check_tensor(name: str, x: object) -> None:
    """Raise UsageError unless x is a tensor."""
    if not isinstance(x, torch.Tensor):
        raise UsageError(f"{name} must be a torch.Tensor, not {type(x).__module__}.{type(x).__qualname__}")


def check_integers(labels_BU: torch.Tensor, frame_lengths_B: torch.Tensor, label_lengths_B: torch.Tensor) -> None:
    """Raise UsageError unless these are tensors of integers."""
    for name, x in (("labels", labels_BU), ("frame lengths", frame_lengths_B), ("label lengths", label_lengths_B)):
        check_tensor(name, x)
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise UsageError(f"{name} must be integers, not {x.dtype}")


def check_shapes(shape_BTUW: torch.Size | tuple[int, int, int, int], spoken: layout.Spoken) -> None:
    """Raise UsageError that names the first argument that does not fit."""
    labels_BU, frame_lengths_B, label_lengths_B, blank_id, config = spoken
    if len(shape_BTUW) != 4:
        raise UsageError(f"logits must be [batch, frames, labels + 1, tokens], not of shape {tuple(shape_BTUW)}")
    batch_size, num_frames, num_columns, width = shape_BTUW
    num_tokens = width - len(config.durations)
    if not isinstance(blank_id, Integral) or not 0 <= blank_id < num_tokens:
        raise UsageError(f"blank_id {blank_id} is not among the logits' {num_tokens} tokens (durations not counted)")
    for name, lengths_B, longest in (
        ("frame", frame_lengths_B, num_frames),
        ("label", label_lengths_B, num_columns - 1),
    ):
        if lengths_B.shape != (batch_size,):
            raise UsageError(f"{name} lengths must be [{batch_size}], not of shape {tuple(lengths_B.shape)}")
        if batch_size and not 0 <= int(lengths_B.min()) <= int(lengths_B.max()) <= longest:
            raise UsageError(f"{name} lengths must be between 0 and {longest}, not {lengths_B.tolist()}")
    max_labels = int(label_lengths_B.max()) if batch_size else 0
    if labels_BU.ndim != 2 or len(labels_BU) != batch_size or labels_BU.shape[1] < max_labels:
        raise UsageError(f"labels must be [{batch_size}, {max_labels} or more], not of shape {tuple(labels_BU.shape)}")
    is_label_BU = (
        torch.arange(labels_BU.shape[1], device=labels_BU.device) < label_lengths_B.to(labels_BU.device)[:, None]
    )
    given = labels_BU[is_label_BU]
    if given.numel() and (int(given.min()) < 0 or int(given.max()) >= num_tokens or bool((given == blank_id).any())):
        raise UsageError(f"labels must be among {num_tokens} tokens and not blank ({blank_id})")


class OracleLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BTUV: torch.Tensor, spoken: layout.Spoken) -> torch.Tensor:
        losses_B, gradient_BTUV = definition.losses_and_gradient(logits_BTUV, spoken)
        ctx.save_for_backward(gradient_BTUV)
        ctx.dtype = logits_BTUV.dtype
        return losses_B.to(torch.float64 if logits_BTUV.dtype == torch.float64 else torch.float32)

    @staticmethod
    def backward(ctx: Any, *scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient_BTUV,) = ctx.saved_tensors
        return (gradient_BTUV * scale[0].double()[:, None, None, None]).to(ctx.dtype), None


class _NumbaLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BTUV: torch.Tensor, spoken: layout.Spoken) -> torch.Tensor:
        _, num_rows, num_columns, width = logits_BTUV.shape
        batch, logits_BTUV = layout.padded(spoken, num_rows, num_columns), logits_BTUV.contiguous()
        num_tokens, wants_gradient = width - len(spoken.config.durations), ctx.needs_input_grad[0]
        lattice: layout.Lattice = compiled_for(logits_BTUV.device).Lattice.of(
            batch, spoken, logits_BTUV, num_tokens, wants_gradient
        )
        lattice.read_arcs(logits_BTUV.view(-1, width))
        ctx.lattice = lattice
        ctx.save_for_backward(logits_BTUV)
        return lattice.losses()

    @staticmethod
    def backward(ctx: Any, *scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (logits_BTUV,) = ctx.saved_tensors
        gradient_BTUV = logits_BTUV.clone(memory_format=torch.contiguous_format)
        ctx.lattice.write_gradient(gradient_BTUV.view(-1, gradient_BTUV.shape[3]), scale[0])
        return gradient_BTUV, None
