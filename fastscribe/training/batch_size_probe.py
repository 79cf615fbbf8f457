"""Test whether a batch fits into the device's memory: train on noise of the bucket's largest shape.

Shapes: B batch, M mels, T mel frames, U labels.
"""

from __future__ import annotations

import torch

from fastscribe.config import ModelConfig
from fastscribe.cuda.device import is_out_of_memory
from fastscribe.training.buckets import Bucket
from fastscribe.training.network import Network, Targets, preserve_buffers
from fastscribe.training.sync_norm import alone
from fastscribe.types import Features

_OPTIMISER_BYTES = 8  # a parameter that learns: AdamW's two averages, which the first step allocates
_SUM_BYTES = 4  # as well: gradients of earlier batches, if a step sums several


def fits(network: Network, config: ModelConfig, accumulates: bool, bucket: Bucket, batch_size: int) -> bool:
    """Try one forward and backward pass beside the optimiser's memory. No weight changes.

    Args:
        network: the network that trains, on its device.
        config: the model's.
        accumulates: whether a step sums the gradients of several batches.
        bucket: the longest example and the most tokens of the batch.
        batch_size: examples of the batch.

    Returns:
        False if the device's memory is too small.
    """
    device = next(network.parameters()).device
    reserve = None
    try:
        num_parameters = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
        num_bytes = _OPTIMISER_BYTES + (_SUM_BYTES if accumulates else 0)
        reserve = torch.empty(num_bytes * num_parameters, dtype=torch.uint8, device=device)
        network.train()
        with preserve_buffers(network), alone(network):
            losses = network(*_noise(config, device, bucket, batch_size), omega_draw=1.0)
            losses["loss"].backward()
        return True
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        del reserve
        network.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _noise(config: ModelConfig, device: torch.device, bucket: Bucket, batch_size: int) -> tuple[Features, Targets]:
    num_frames = int(bucket.max_duration_s * config.features.sample_rate) // config.features.hop_length
    mel_BMT = torch.randn(batch_size, config.features.num_mels, num_frames, device=device)
    labels_BU = torch.randint(config.num_labels, (batch_size, max(1, bucket.max_tokens)), device=device)
    lengths_B = torch.full((batch_size,), num_frames, device=device)
    return Features(mel_BMT, lengths_B), Targets(labels_BU, torch.full((batch_size,), bucket.max_tokens, device=device))
