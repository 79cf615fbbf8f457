"""Whether a batch trains in the device's memory: one is made of noise, as large as its bucket allows, and tried.

Shapes: B batch, M mels, T mel frames, U labels.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from fastscribe.cuda.device import is_out_of_memory
from fastscribe.training.batch_search import stored_or_searched
from fastscribe.training.buckets import Bucket
from fastscribe.training.network import Targets, buffers_kept
from fastscribe.types import Features

if TYPE_CHECKING:
    from fastscribe.training.trainer import Trainer

_OPTIMISER_BYTES = 8  # a parameter: AdamW's two averages, which the first step makes
_SUM_BYTES = 4  # a parameter: gradients of the batches before this one, where a step takes several


def searched_batch_sizes(trainer: Trainer) -> tuple[int, ...]:
    """For a GPU, kept in the run's folder. Ranks search by themselves and take what all of them can hold."""
    properties = torch.cuda.get_device_properties(trainer.device)
    holds_for = {
        "model": trainer.material.checkpoint.config.to_json(),
        "loss": repr(trainer.learner.network.loss),
        "dtype": str(trainer.dtype),
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "accumulate": trainer.recipe.batch.accumulate > 1,
        "ctc_weight": trainer.learner.network.ctc_weight,
        "dropout": trainer.learner.network.dropout > 0,
        "averages": bool(trainer.weights.averages),
    }
    path = trainer.folder.batch_sizes
    if trainer.ranks.count > 1:
        path = path.with_name(f"batch_sizes-{trainer.ranks.rank}.json")
    sizes = stored_or_searched(path, holds_for, trainer.buckets, partial(fits, trainer))
    if trainer.ranks.count > 1:
        least = torch.tensor(sizes, device=trainer.device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        sizes = tuple(least.tolist())
    return sizes


def fits(trainer: Trainer, bucket: Bucket, batch_size: int) -> bool:
    """One forward and backward pass beside the optimiser's memory; nothing is learnt and nothing kept."""
    reserve = None
    try:
        num_parameters = sum(parameter.numel() for parameter in trainer.learner.network.parameters())
        num_bytes = _OPTIMISER_BYTES + (_SUM_BYTES if trainer.recipe.batch.accumulate > 1 else 0)
        reserve = torch.empty(num_bytes * num_parameters, dtype=torch.uint8, device=trainer.device)
        trainer.learner.network.train()
        with buffers_kept(trainer.learner.network):
            losses = trainer.learner.network(*_noise(trainer, bucket, batch_size), chance=1.0)
            losses["loss"].backward()
        return True
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        del reserve
        trainer.learner.network.zero_grad(set_to_none=True)
        if trainer.device.type == "cuda":
            torch.cuda.empty_cache()


def _noise(trainer: Trainer, bucket: Bucket, batch_size: int) -> tuple[Features, Targets]:
    config, device = trainer.material.checkpoint.config, trainer.device
    num_frames = int(bucket.max_duration_s * config.features.sample_rate) // config.features.hop_length
    mel_BMT = torch.randn(batch_size, config.features.num_mels, num_frames, device=device)
    labels_BU = torch.randint(config.num_labels, (batch_size, bucket.max_tokens), device=device)
    lengths_B = torch.full((batch_size,), num_frames, device=device)
    return Features(mel_BMT, lengths_B), Targets(labels_BU, torch.full((batch_size,), bucket.max_tokens, device=device))
