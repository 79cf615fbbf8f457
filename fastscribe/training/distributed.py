"""The processes of a data-parallel run, as torchrun starts them."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from fastscribe.training.network import Network


@dataclass(frozen=True)
class DistributedContext:
    """Rank and world size of this process in a data-parallel run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # rank on this machine

    def barrier(self) -> None:
        """Wait until all ranks arrive."""
        if self.world_size > 1:
            dist.barrier()

    def all_reduce_mean(self, value: float, device: torch.device) -> float:
        """Return the mean of the value over all ranks."""
        if self.world_size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total) / self.world_size

    @classmethod
    def from_torchrun(cls) -> DistributedContext:
        values = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        rank, count, local = (
            int(value) if value else default for value, default in zip(values, (0, 1, 0), strict=True)
        )
        return cls(rank, count, local)


def data_parallel(network: Network, device: torch.device) -> nn.parallel.DistributedDataParallel:
    """Wrap the network in DistributedDataParallel, which must not wait for the gradient of an idle head."""
    # Depthwise convolutions have gradients of a few kilobytes in another memory order, which does not matter.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    return nn.parallel.DistributedDataParallel(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=network.has_idle_head,
    )
