"""Sequences per second in training: whole steps (forward, loss, backward, optimiser) over noise.

As in NVIDIA's Jasper tables, all sequences have the same length, so nothing is padding, and the efficiency of several ranks
is their speed divided by that of as many single ones. Reading and augmenting audio is excluded. Ranks are processes of this
machine: gloo on CPUs, with the cores divided among them, NCCL on GPUs, one each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from fastscribe._system.malloc_tuning import disable_malloc_trim
from fastscribe._system.processors import usable_processors
from fastscribe.bench.timing import time_call
from fastscribe.config import ModelConfig
from fastscribe.cuda.device import is_out_of_memory
from fastscribe.training.attention_decoder import prepare_weights_
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.network import Network, Targets, new_model
from fastscribe.training.recipe import OptimiserRecipe
from fastscribe.training.sync_norm import synchronise_norms
from fastscribe.training.weights import Weights
from fastscribe.types import Features

_CTC_WEIGHT = 0.3  # of a hybrid's loss
_LABELS_PER_S = 5.0
_TIMED_S = 3.0  # of steps, for each case


@dataclass(frozen=True)
class Case:
    batch_size: int  # sequences a rank
    dtype: str  # bf16 or fp32
    ranks: int
    sequence_s: float


@dataclass(frozen=True)
class Speed:
    """The speed of a case; None if the batch does not fit in memory. `efficiency` is a rank's speed relative to one alone."""

    case: Case
    step_ms: float | None
    peak_bytes: int | None  # of a GPU's memory, the first rank's
    efficiency: float | None = None

    @property
    def sequences_per_s(self) -> float | None:
        return None if self.step_ms is None else 1000 * self.case.batch_size * self.case.ranks / self.step_ms

    def row(self) -> dict[str, Any]:
        speed = self.sequences_per_s
        return {
            **asdict(self.case),
            "step_ms": self.step_ms and round(self.step_ms, 2),
            "sequences_per_s": speed and round(speed, 2),
            "audio_s_per_s": speed and round(speed * self.case.sequence_s, 1),
            "scaling_efficiency": self.efficiency and round(self.efficiency, 3),
            "peak_gpu_bytes": self.peak_bytes,
        }


def measure(
    config: ModelConfig,
    device: torch.device,
    batch_sizes: Sequence[int],
    dtypes: Sequence[str],
    ranks: Sequence[int],
    sequence_s: float,
) -> Iterator[Speed]:
    """Yield each case when it is measured, fewest ranks first."""
    alone: dict[tuple[int, str], float] = {}
    for count in sorted(ranks):
        for dtype in dtypes:
            for batch_size in batch_sizes:
                speed = _measured(config, device, Case(batch_size, dtype, count, sequence_s))
                if speed.step_ms is not None:
                    single_ms = alone.setdefault((batch_size, dtype), speed.step_ms) if count == 1 else None
                    single_ms = alone.get((batch_size, dtype), single_ms)
                    if single_ms is not None:
                        speed = replace(speed, efficiency=single_ms / speed.step_ms)
                yield speed


def _measured(config: ModelConfig, device: torch.device, case: Case) -> Speed:
    if case.ranks == 1:
        return _timed(config, device, case)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (config, device.type, case, folder), case.ranks)
        found = torch.load(Path(folder) / "0.pt", weights_only=True)
    return Speed(case, found["step_ms"], found["peak_bytes"])


def _rank(rank: int, config: ModelConfig, device_type: str, case: Case, folder: str) -> None:
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, usable_processors() // case.ranks))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=case.ranks,
        timeout=timedelta(minutes=10),
    )
    try:
        speed = _timed(config, device, case)
        torch.save({"step_ms": speed.step_ms, "peak_bytes": speed.peak_bytes}, Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _timed(config: ModelConfig, device: torch.device, case: Case) -> Speed:
    if device.type == "cpu":
        disable_malloc_trim()
    else:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        step = _step(config, device, case)
        step_ms = median(_durations_ms(step, device, case))
    except RuntimeError as error:
        if not is_out_of_memory(error) or case.ranks > 1:  # of several ranks the others would wait for this one
            raise
        torch.cuda.empty_cache()
        return Speed(case, None, None)
    peak_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Speed(case, step_ms, peak_bytes)


def _durations_ms(step: Any, device: torch.device, case: Case) -> list[float]:
    """Return step times. All ranks take the same number of steps, because they wait for each other."""
    if case.ranks == 1:
        return [time_call(step, device, seconds=_TIMED_S).median_ms]
    return [time_call(step, device, seconds=0.0, least=5).median_ms]


def _step(config: ModelConfig, device: torch.device, case: Case) -> Any:
    return partial(Trainee(config, device, case.dtype, case.ranks).step, *_noise(config, device, case))


class Trainee:
    """A new model of a shape in training: `step` is a whole step on one batch."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: str, ranks: int = 1) -> None:
        with device:  # a large model is drawn on a GPU in a second
            model = new_model(config, seed=0)
        if model.aed is not None:
            prepare_weights_(model.aed)
        self.config, self._ranks = config, DistributedContext(0, ranks)
        self._weights = Weights(model, torch.bfloat16 if dtype == "bf16" else torch.float32, OptimiserRecipe())
        loss = TransducerLossConfig(config.durations)
        self.network = Network(model, loss, _CTC_WEIGHT, dropout=0.1).train()
        if ranks > 1:
            synchronise_norms(model)

    def step(self, features: Features, targets: Targets) -> None:
        self.network(features, targets, 1.0)["loss"].backward()
        self._weights.accumulate_gradients()
        self._ranks.sum_gradients(self._weights.masters.values())
        self._weights.step(0.0)


def _noise(config: ModelConfig, device: torch.device, case: Case) -> tuple[Features, Targets]:
    num_labels = max(1, int(case.sequence_s * _LABELS_PER_S))
    return noise(config, device, [case.sequence_s] * case.batch_size, [num_labels] * case.batch_size)


def noise(
    config: ModelConfig, device: torch.device, durations_s: Sequence[float], num_labels: Sequence[int]
) -> tuple[Features, Targets]:
    """Return a batch of rows of these lengths, padded to the longest."""
    generator = torch.Generator(device).manual_seed(0)  # a CPU would take longer than a GPU's step
    frames = [int(length_s * config.features.sample_rate) // config.features.hop_length for length_s in durations_s]
    mel_BMT = torch.randn(len(frames), config.features.num_mels, max(frames), generator=generator, device=device)
    size = (len(frames), max(num_labels))
    labels_BU = torch.randint(config.num_labels, size, generator=generator, device=device)
    lengths_B, labels_B = torch.tensor(frames, device=device), torch.tensor(num_labels, device=device)
    return Features(mel_BMT, lengths_B), Targets(labels_BU, labels_B)
