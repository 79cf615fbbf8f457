"""Plan the epochs of a run: which examples, at which speed, in which batches of this rank, with which noise and rooms.

All of it depends on the recipe, the data and the epoch's number alone, so a resumed run plans the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fastscribe.training.backgrounds import BackgroundCorpus, BackgroundDraw, draw_backgrounds
from fastscribe.training.buckets import (
    Bucket,
    Indices,
    PaddingShare,
    covering,
    draw_speeds,
    fitting_buckets,
    naive_batches,
    padding_share,
    plan_epoch,
    rows_of,
)
from fastscribe.training.data import TrainingData
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.example_choice import EpochDraw
from fastscribe.training.recipe import Recipe
from fastscribe.types import Float64Array, Int64Array

_SMALL_BATCH_S = 120.0  # of audio: a CPU's batch, and a GPU's minimum
_MIN_STEPS = 50  # an epoch, because a GPU's memory would hold a small corpus in one or two batches


class EpochPlan(NamedTuple):
    """The batches of an epoch on one rank.

    Attributes:
        batches: positions in `drawn`.
        speeds: playback speed at each position.
        drawn: index of the example at each position.
        backgrounds: the recorded noise and room of each position; None: there are none.
    """

    batches: list[Indices]
    speeds: Float64Array
    drawn: Indices
    backgrounds: BackgroundDraw | None = None


class EpochPlanner:
    """Plans epochs, once `batch_sizes` is set.

    Args:
        recipe: the run's settings.
        data: the examples to train on, and recorded noise and rooms.
        distributed: this rank, and how many there are.
        is_small: the batches of `batch.seconds: auto` are those of a CPU, not what a GPU's memory holds.

    Attributes:
        buckets: of durations and numbers of tokens.
        batch_sizes: of each bucket.

    Raises:
        UsageError: the shares of manifests leave nothing for the rest.
    """

    def __init__(self, recipe: Recipe, data: TrainingData, distributed: DistributedContext, is_small: bool) -> None:
        examples = data.corpus.examples
        self._recipe, self._backgrounds, self._distributed = recipe, data.backgrounds, distributed
        self._draw = EpochDraw(examples, recipe.run.seed)
        self._durations, self._tokens = examples.durations_s, examples.num_tokens
        seconds = recipe.batch.seconds
        # None: what memory holds.
        self._batch_s = seconds if seconds != "auto" else _SMALL_BATCH_S if is_small else None
        self.batch_sizes: tuple[int, ...] = ()
        drawn, speeds, batch = self._draw(0), recipe.augment.speeds, recipe.batch
        played = np.concatenate([self._durations[drawn] / speed for speed in speeds])
        tokens = np.tile(self._tokens[drawn], len(speeds))
        buckets = fitting_buckets(
            played,
            tokens,
            self._batch_s,
            batch.buckets,
            batch.token_buckets,
            times=len(speeds),
            world_size=distributed.world_size,
        )
        self.buckets = covering(buckets, self._durations / min(speeds), self._tokens)  # what later epochs draw

    def choose_batch_sizes(self, search: Callable[[tuple[Bucket, ...]], tuple[int, ...]]) -> None:
        """Set the batch sizes. `search` returns those that the device's memory holds; it is asked only if it matters."""
        if self._batch_s is not None:
            self.batch_sizes = rows_of(self.buckets, self._batch_s)
            return
        num_batches = _MIN_STEPS * self._distributed.world_size * self._recipe.batch.accumulate
        shared_s = self._durations[self._draw(0)].sum() / num_batches
        enough = rows_of(self.buckets, max(shared_s, _SMALL_BATCH_S))
        self.batch_sizes = tuple(map(min, search(self.buckets), enough))

    def plan(self, epoch: int) -> EpochPlan:
        """Draw the examples of an epoch and their speeds, and plan this rank's batches."""
        drawn, augment, seed = self._draw(epoch), self._recipe.augment, self._recipe.run.seed
        speeds = draw_speeds(len(drawn), augment.speeds, epoch, seed)
        batches = plan_epoch(
            self._durations[drawn] / speeds,
            self._tokens[drawn],
            self.buckets,
            self.batch_sizes,
            epoch=epoch,
            seed=seed,
            rank=self._distributed.rank,
            world_size=self._distributed.world_size,
        )
        has_backgrounds = self._backgrounds != BackgroundCorpus()
        backgrounds = draw_backgrounds(self._backgrounds, augment, len(drawn), epoch, seed) if has_backgrounds else None
        return EpochPlan(batches, speeds, drawn, backgrounds)

    @cached_property
    def _first_epoch(self) -> EpochPlan:
        return self.plan(0)

    def num_steps(self, epochs: int) -> int:
        """Return the steps of these epochs, by the first."""
        return math.ceil(self.epoch_batches / self._recipe.batch.accumulate) * epochs

    @property
    def epochs_differ(self) -> bool:
        """True if epochs after the first may have a few batches more or fewer: their speeds or their examples are drawn."""
        return len(set(self._recipe.augment.speeds)) > 1 or self._draw.has_fractions

    @property
    def epoch_batches(self) -> int:
        """Number of batches of the first epoch on this rank."""
        return len(self._first_epoch.batches)

    @property
    def epoch_audio_s(self) -> float:
        """Seconds of audio of the first epoch, of all ranks."""
        return float(self._durations[self._first_epoch.drawn].sum())

    def padding(self) -> PaddingShare:
        """Padding share of the first epoch."""
        batches, speeds, drawn, _ = self._first_epoch
        return padding_share(batches, self._durations[drawn] / speeds, self._tokens[drawn])

    def naive_padding(self) -> PaddingShare:
        """Padding share of random batches of the same mean size, in the first epoch."""
        _, speeds, drawn, _ = self._first_epoch
        mean_size = len(drawn) / max(1, self.epoch_batches * self._distributed.world_size)
        naive = naive_batches(len(drawn), mean_size, self._recipe.run.seed)
        return padding_share(naive, self._durations[drawn] / speeds, self._tokens[drawn])


def label_counts(num_tokens: Int64Array, durations_s: Float64Array, num_given: int = 0) -> Int64Array:
    """Return as how many labels each example counts [examples]: its tokens, less `num_given` that a decoder is given.

    Without tokens, it counts as many as speech of its length.

    The loss is a mean per label. A recording without speech has about as many frames per second to learn from as one with
    speech, so it weighs as much.
    """
    has_tokens = num_tokens > 0
    num_labels = np.where(has_tokens, num_tokens - num_given, 0)
    per_s = num_labels.sum() / max(1.0, durations_s[has_tokens].sum())
    return np.where(has_tokens, num_labels, np.maximum(1, np.rint(per_s * durations_s))).astype(np.int64)
