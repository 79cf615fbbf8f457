"""BatchNorm over the batches of all ranks, so that a run on several devices learns what one device with the same rows would.

torch's SyncBatchNorm needs a GPU, so nothing could compare it with one process on a CPU. A rank whose recordings cannot be read
takes part without being counted: the others wait for it.

Shapes: B batch, C channels, T frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # mean [C], biased variance [C], number of frames


class SyncedBatchNorm1d(nn.BatchNorm1d):
    """A BatchNorm1d whose batch statistics are those of all ranks. Parameters and buffers are BatchNorm1d's."""

    is_counted = True
    is_alone = False  # this rank computes what the others do not
    recorded: dict[nn.Module, Statistics] | None = None  # see recorded_statistics

    def forward(self, x_BCT: torch.Tensor) -> torch.Tensor:
        """Normalise [B, C, T]; every rank has to call it the same number of times."""
        if not self.training:
            return super().forward(x_BCT)
        known = None if self.recorded is None else self.recorded.get(self)
        out_BCT: torch.Tensor
        out_BCT, *statistics = _Normalise.apply(  # type: ignore[no-untyped-call]
            x_BCT, self.weight, self.bias, self.eps, self.is_counted, self.is_alone, known
        )
        if known is None:
            mean_C, variance_C, count = statistics
            self._track(mean_C, variance_C, count)
            if self.recorded is not None:
                self.recorded[self] = mean_C, variance_C, count
        return out_BCT

    @torch.no_grad()
    def _track(self, mean_C: torch.Tensor, variance_C: torch.Tensor, count: torch.Tensor) -> None:
        """Update the running statistics, which are then the same on all ranks; without counted frames they stay."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        share = self.momentum * (count > 1)
        unbiased_C = variance_C * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean_C, share)
        self.running_var.lerp_(unbiased_C, share)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += count > 1


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BCT: torch.Tensor,
        weight_C: torch.Tensor,
        bias_C: torch.Tensor,
        eps: float,
        is_counted: bool,
        is_alone: bool,
        known: Statistics | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        wide_BCT = x_BCT.float()
        mean_C, variance_C, count = _statistics(wide_BCT, is_counted, is_alone) if known is None else known
        centred_BCT = wide_BCT - mean_C[:, None]
        inverse_C = torch.rsqrt(variance_C + eps)
        ctx.save_for_backward(x_BCT, mean_C, inverse_C, weight_C, count)
        ctx.is_counted, ctx.is_alone = is_counted, is_alone
        out_BCT = centred_BCT * (inverse_C * weight_C)[:, None] + bias_C[:, None]
        ctx.mark_non_differentiable(mean_C, variance_C, count)
        return out_BCT.to(x_BCT.dtype), mean_C, variance_C, count

    @staticmethod
    def backward(ctx: Any, grad_BCT: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        x_BCT, mean_C, inverse_C, weight_C, count = ctx.saved_tensors
        wide_BCT = grad_BCT.float()
        normed_BCT = (x_BCT.float() - mean_C[:, None]) * inverse_C[:, None]
        bias_grad_C, weight_grad_C = wide_BCT.sum((0, 2)), (wide_BCT * normed_BCT).sum((0, 2))
        sums = torch.stack([bias_grad_C, weight_grad_C]) * ctx.is_counted
        _sum_over_ranks(sums, ctx.is_alone)
        level_C, slope_C = sums / count.clamp(min=1)
        x_grad_BCT = (wide_BCT - level_C[:, None] - normed_BCT * slope_C[:, None]) * (inverse_C * weight_C)[:, None]
        return x_grad_BCT.to(grad_BCT.dtype), weight_grad_C, bias_grad_C, None, None, None, None


def _statistics(wide_BCT: torch.Tensor, is_counted: bool, is_alone: bool) -> Statistics:
    num_frames = float(wide_BCT.shape[0] * wide_BCT.shape[2] * is_counted)
    sums = torch.cat([wide_BCT.sum((0, 2)) * is_counted, wide_BCT.new_tensor([num_frames])])
    _sum_over_ranks(sums, is_alone)
    count = sums[-1]
    mean_C = sums[:-1] / count.clamp(min=1)
    variance_C = (wide_BCT - mean_C[:, None]).square().sum((0, 2)) * is_counted
    _sum_over_ranks(variance_C, is_alone)
    variance_C /= count.clamp(min=1)
    return mean_C, variance_C, count


def _sum_over_ranks(tensor: torch.Tensor, is_alone: bool) -> None:
    if not is_alone:
        dist.all_reduce(tensor)


def synchronise_norms(model: nn.Module) -> bool:
    """Let the BatchNorms of a model take the statistics of all ranks, in place. Return True if there is one."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.__class__ = SyncedBatchNorm1d
    return bool(norms)


def uncounted(model: nn.Module) -> AbstractContextManager[None]:
    """Let this rank's frames not count in the statistics; its gradients are of no use."""
    return _with_flags(_synced(model), is_counted=False)


def alone(model: nn.Module) -> AbstractContextManager[None]:
    """Let this rank take its own statistics, which no other rank waits for."""
    return _with_flags(_synced(model), is_alone=True)


def recorded_statistics(norms: Sequence[SyncedBatchNorm1d]) -> Callable[[], AbstractContextManager[None]]:
    """Return a context of two forward passes over the same batch: the second uses and tracks no statistics of its own."""
    return partial(_with_flags, norms, recorded={})


def _synced(model: nn.Module) -> list[SyncedBatchNorm1d]:
    return [module for module in model.modules() if isinstance(module, SyncedBatchNorm1d)]


@contextmanager
def _with_flags(norms: Sequence[SyncedBatchNorm1d], **flags: Any) -> Iterator[None]:
    for norm in norms:
        norm.__dict__.update(flags)
    try:
        yield
    finally:
        for norm in norms:
            for flag in flags:
                del norm.__dict__[flag]
