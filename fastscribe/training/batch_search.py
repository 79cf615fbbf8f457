"""Search the largest batch size of each bucket that fits into the device's memory, and cache the result in a file.

As in "Training and inference efficiency of encoder-decoder speech models" (arXiv 2503.05931): a batch of a bucket's
extreme shape goes forward and backward, with twice the rows each time until memory runs out, then by bisection. `fits` is the
trial: it trains on noise.

Shapes: B batch, M mels, T mel frames, U labels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.safe_files import write_atomic
from fastscribe.config import ModelConfig
from fastscribe.errors import OutputError, UsageError, is_out_of_memory
from fastscribe.training.buckets import Bucket
from fastscribe.training.network import Network, Targets, preserve_buffers
from fastscribe.training.sync_norm import alone
from fastscribe.types import Features

# (bucket, rows) -> True if a batch of `rows` rows of the bucket's largest shape fits into memory.
Fits = Callable[[Bucket, int], bool]
_FORMAT_VERSION = 1
_MAX_TABLE_BYTES = 1 << 20
_MARGIN = 0.1  # share of the rows found that stays free for other kernels, fragmentation and a later EMA
_PRECISION = 0.05  # share of the rows found at which bisection stops


def search_batch_sizes(buckets: Sequence[Bucket], fits: Fits, max_rows: int = 1024) -> tuple[int, ...]:
    """Search the number of rows for each bucket, at most `max_rows`, with a margin below what fits.

    A bucket that is smaller in both dimensions starts from the result of the larger one.

    Raises:
        UsageError: a single row of some bucket does not fit.
    """
    found: dict[int, int] = {}
    for index in sorted(range(len(buckets)), key=lambda index: buckets[index], reverse=True):
        bucket = buckets[index]  # those before are as long
        larger = [rows for other, rows in found.items() if buckets[other].max_tokens >= bucket.max_tokens]
        known = max(larger, default=0)
        found[index] = _largest(bucket, fits, known, max_rows)
    return tuple(max(1, int(found[index] * (1 - _MARGIN))) for index in range(len(buckets)))


def _largest(bucket: Bucket, fits: Fits, known: int, max_rows: int) -> int:
    """The most rows that fit, or a little less; `known` rows do."""
    low = high = max(1, known)
    if known == 0 and not fits(bucket, 1):
        seconds, tokens = bucket
        raise UsageError(
            f"no memory for one recording of {seconds:g} s with {tokens} tokens; set a smaller max_duration_s or model"
        )
    while low < max_rows:  # doubling
        high = min(2 * low, max_rows)
        if not fits(bucket, high):
            break
        low = high
    while high - low > max(1, _PRECISION * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(bucket, middle) else (low, middle)
    return low


def cached_batch_sizes(
    path: Path, holds_for: Mapping[str, Any], buckets: Sequence[Bucket], fits: Fits
) -> tuple[int, ...]:
    """Return the cached batch sizes if they hold; otherwise search and cache them in a file of a folder that exists.

    Args:
        holds_for: everything besides the buckets that the result depends on (the model's config, the device's name and
            memory, the dtype), as JSON values.

    Raises:
        UsageError: as search_batch_sizes().
        OutputError: the file cannot be written.
    """
    held = {"format_version": _FORMAT_VERSION, "holds_for": holds_for, "margin": _MARGIN, "buckets": buckets}
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):  # missing or damaged
        table = json.loads(safe_read(path, _MAX_TABLE_BYTES))
        sizes = table["batch_sizes"]
        right = len(sizes) == len(buckets) and all(type(size) is int and size >= 1 for size in sizes)
        if right and table == json.loads(json.dumps({**held, "batch_sizes": sizes})):
            return tuple(sizes)
    batch_sizes = search_batch_sizes(buckets, fits)
    try:
        write_atomic(path, (json.dumps({**held, "batch_sizes": batch_sizes}, indent=1) + "\n").encode())
    except OSError as error:
        raise OutputError(str(path), error) from error
    return batch_sizes


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
