"""What the choice of batches does to the speed of training: padding, size, steps and memory.

The four ways are those of Zelasko et al. 2025 ("Training and inference efficiency of encoder-decoder speech models"): random
batches; batches by duration; by duration and number of tokens; and the last with as many rows in each bucket as fit in memory.
The first has as many rows as fit if all were the longest recording with the most tokens, because one such batch must not end
the run. The second and third hold as many seconds as that batch, padding included.

A step is forward, loss, backward and optimiser, over noise of the lengths of recordings; reading and augmenting are left out.
The steps that are measured are drawn at random from an epoch's, so `audio_s_per_s` is that of the epoch, but for the draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from fastscribe.bench import synthetic
from fastscribe.bench.machine import gpu_samples, release, reset_peak
from fastscribe.bench.roofline import wall_ms
from fastscribe.bench.work import LABELS_PER_S
from fastscribe.config import ModelConfig
from fastscribe.training import batch_search
from fastscribe.training.batch_search import search_batch_sizes
from fastscribe.training.buckets import (
    Bucket,
    Indices,
    make_buckets,
    naive_batches,
    padding_share,
    plan_epoch,
    rows_of,
)
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.network import Network, Targets, new_model, prepare_weights_
from fastscribe.training.recipe import OptimiserRecipe
from fastscribe.training.weights import Weights
from fastscribe.types import Features, Float64Array, Int64Array

WAYS = ("random", "by duration", "by duration and tokens", "by what fits in memory")
_TOKEN_BUCKETS = 2
_SPREAD = 0.35  # of the logarithm of labels a second
_WARM_UPS = 2  # steps
_CTC_WEIGHT = 0.3  # of a hybrid's loss


class Trainee:
    """A new model of a shape in training: `step` is a whole step on one batch."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: str) -> None:
        with device:  # a large model is drawn on a GPU in a second
            model = new_model(config, seed=0)
        if model.aed is not None:
            prepare_weights_(model.aed)
        self.config = config
        self._weights = Weights(model, torch.bfloat16 if dtype == "bf16" else torch.float32, OptimiserRecipe())
        loss = TransducerLossConfig(config.durations)
        self.network = Network(model, loss, _CTC_WEIGHT, dropout=0.1).train()

    def step(self, features: Features, targets: Targets) -> None:
        self.network(features, targets, 1.0)["loss"].backward()
        self._weights.accumulate_gradients()
        self._weights.step(0.0)


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


@dataclass(frozen=True)
class Corpus:
    """Lengths of recordings, and numbers of their tokens."""

    durations_s: Float64Array
    tokens: Int64Array

    @classmethod
    def of(cls, count: int, seed: int = 7) -> Corpus:
        """Return lengths as the leaderboard's, and texts as fast and as slow as people speak."""
        durations_s = synthetic.leaderboard_lengths_s(count, seed)
        rates = LABELS_PER_S * np.exp(_SPREAD * np.random.default_rng(seed).standard_normal(count))
        return cls(durations_s, np.maximum(1, np.rint(durations_s * rates)).astype(np.int64))

    @property
    def largest(self) -> Bucket:
        return Bucket(float(self.durations_s.max()), int(self.tokens.max()))


class Plan(NamedTuple):
    """An epoch.

    Attributes:
        batches: Its batches.
        sizes: The most rows of each bucket.
        seconds: What planning took, with the search.
    """

    batches: list[Indices]
    sizes: tuple[int, ...]
    seconds: float


@dataclass
class Comparison:
    """A model in training, and the batches of each way.

    Attributes:
        trainee: The model.
        device: Its device.
        corpus: The recordings.
        num_buckets: Of durations.
        num_steps: Measured, of each way.
        most_rows: Of any batch.
    """

    trainee: Trainee
    device: torch.device
    corpus: Corpus
    num_buckets: int
    num_steps: int
    most_rows: int

    def search(self, buckets: Sequence[Bucket]) -> tuple[int, ...]:
        """Return how many rows of each bucket fit in memory."""
        fits = partial(batch_search.fits, self.trainee.network, self.trainee.config, False)
        return search_batch_sizes(buckets, fits, self.most_rows)

    @cached_property
    def largest_rows(self) -> int:
        """Number of the largest recordings that fit."""
        return self.search([self.corpus.largest])[0]

    def plan(self, way: str) -> Plan:
        """Plan an epoch. The search is for a model that has made no step, whose optimiser has no memory yet: plan all first."""
        start = perf_counter()
        batches, sizes = self._batches(way)
        return Plan(batches, sizes, perf_counter() - start)

    def row(self, plan: Plan) -> dict[str, Any]:
        """Measure some steps of an epoch."""
        about = {"plan_s": plan.seconds, "batch_sizes": list(plan.sizes)}
        return about | self._facts(plan.batches) | self._speed(plan.batches)

    def _batches(self, way: str) -> tuple[list[Indices], tuple[int, ...]]:
        """Return the batches of an epoch, and the most rows of each bucket."""
        durations_s, tokens = self.corpus.durations_s, self.corpus.tokens
        if way == WAYS[0]:
            num_batches = -(-len(durations_s) // self.largest_rows)
            return naive_batches(len(durations_s), len(durations_s) / num_batches, seed=0), (self.largest_rows,)
        buckets = make_buckets(durations_s, tokens, self.num_buckets, 1 if way == WAYS[1] else _TOKEN_BUCKETS)
        if way == WAYS[3]:
            sizes = self.search(buckets)
        else:
            sizes = rows_of(buckets, self.largest_rows * self.corpus.largest.max_duration_s)
        return plan_epoch(durations_s, tokens, buckets, sizes, epoch=0, seed=0), sizes

    def _facts(self, batches: Sequence[Indices]) -> dict[str, Any]:
        durations_s, tokens = self.corpus.durations_s, self.corpus.tokens
        padding = padding_share(batches, durations_s, tokens)
        return {
            "padding_share": padding.frames,
            "padding_share_with_tokens": padding.lattice,
            "batch_audio_s": float(durations_s.sum() / len(batches)),
            "batch_rows": len(durations_s) / len(batches),
            "steps_of_epoch": len(batches),
            "recordings": len(durations_s),
        }

    def _speed(self, batches: Sequence[Indices]) -> dict[str, Any]:
        release(self.device)
        random = np.random.default_rng(1)
        chosen = [batches[number] for number in random.permutation(len(batches))[: self.num_steps]]
        for batch in sorted(chosen, key=lambda one: -self._padded_s(one))[:_WARM_UPS]:
            self._step_ms(batch)
        reset_peak(self.device)
        with gpu_samples(self.device) as samples:
            times_ms = [self._step_ms(batch) for batch in chosen]
        audio_s = sum(float(self.corpus.durations_s[batch].sum()) for batch in chosen)
        is_gpu = self.device.type == "cuda"
        return {
            "steps": len(chosen),
            "step_ms": sum(times_ms) / len(times_ms),
            "slowest_step_ms": max(times_ms),
            "audio_s_per_s": 1000 * audio_s / sum(times_ms),
            "epoch_s": sum(times_ms) / 1000 * float(self.corpus.durations_s.sum()) / audio_s,
            "peak_bytes": torch.cuda.max_memory_allocated(self.device) if is_gpu else None,
            "device_bytes": torch.cuda.get_device_properties(self.device).total_memory if is_gpu else None,
            **samples,
        }

    def _padded_s(self, batch: Indices) -> float:
        return len(batch) * float(self.corpus.durations_s[batch].max())

    def _step_ms(self, batch: Indices) -> float:
        """Return the milliseconds of a step; making the noise does not count."""
        lengths = self.corpus.durations_s[batch].tolist(), self.corpus.tokens[batch].tolist()
        given = noise(self.trainee.config, self.device, *lengths)
        return wall_ms(lambda: self.trainee.step(*given), self.device)
