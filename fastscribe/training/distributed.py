"""The processes of a data-parallel run, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, groupby

import torch
import torch.distributed as dist

from fastscribe._system.processors import has_native_bf16
from fastscribe._system.signals import HAS_NATIVE_THREADS
from fastscribe.config import TrainDtypeChoice
from fastscribe.pipeline.model_building import choose_device

_CHUNK = 1 << 24  # gradients that travel at a time, about: 64 MB


@dataclass(frozen=True)
class DistributedContext:
    """Rank and world size of this process in a data-parallel run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # rank on this machine

    def device(self, name: str) -> torch.device:
        """Return this rank's device. Raises UsageError if it cannot be used."""
        if self.world_size > 1 and name in ("auto", "cuda"):
            name = f"cuda:{self.local_rank}" if torch.cuda.is_available() else "cpu"
        return choose_device(name)

    def join(self, device: torch.device) -> None:
        """Join the process group, and wait for all ranks."""
        if self.world_size > 1:
            if device.type == "cuda":
                torch.cuda.set_device(device)
            HAS_NATIVE_THREADS.set()
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=2))
            dist.barrier()

    def leave(self) -> None:
        """Leave the group together: gloo's threads would abort a rank that left while others validate."""
        if self.world_size > 1:
            self.barrier()
            dist.destroy_process_group()

    def barrier(self) -> None:
        """Wait until all ranks arrive."""
        if self.world_size > 1:
            dist.barrier()

    def sums(self, values: list[float], device: torch.device) -> list[float]:
        """Return the sum of each value over all ranks."""
        if self.world_size == 1:
            return values
        totals = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(totals)
        return totals.tolist()

    def sum_gradients(self, tensors: Collection[torch.Tensor]) -> None:
        """Sum the gradients over all ranks, in their own dtype. A tensor that has none on any rank keeps none."""
        if self.world_size == 1:
            return
        device = next(iter(tensors)).device
        is_used = torch.tensor([tensor.grad is not None for tensor in tensors], dtype=torch.int32, device=device)
        dist.all_reduce(is_used, dist.ReduceOp.MAX)
        gradients = []
        for tensor, used in zip(tensors, is_used.tolist(), strict=True):
            if used:
                tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                gradients.append(tensor.grad)
        ends = accumulate(gradient.numel() for gradient in gradients)
        for _, pairs in groupby(zip(gradients, ends, strict=True), lambda pair: pair[1] // _CHUNK):
            chunk = [gradient for gradient, _ in pairs]
            flat = torch.cat([gradient.reshape(-1) for gradient in chunk])
            dist.all_reduce(flat)
            summed = flat.split([gradient.numel() for gradient in chunk])
            for gradient, total in zip(chunk, summed, strict=True):
                gradient.copy_(total.view_as(gradient))

    def spread(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every rank the tensors of the first."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    @classmethod
    def from_torchrun(cls) -> DistributedContext:
        values = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        rank, count, local = (
            int(value) if value else default for value, default in zip(values, (0, 1, 0), strict=True)
        )
        return cls(rank, count, local)


def chosen_dtype_of(name: TrainDtypeChoice, device: torch.device) -> torch.dtype:
    """Return the dtype that a name means on a device: auto is bf16 where the device computes in it."""
    is_fast = device.type == "cuda" or has_native_bf16()
    return torch.bfloat16 if name == "bf16" or (name == "auto" and is_fast) else torch.float32
