"""The training run: epochs of bucketed batches, steps of the optimiser, validations, and a state to go on from.

    plan -> feed -> augment -> log-mel -> mask -> network -> backward -> step

Every step draws from generators seeded by the run's seed and the step's number, so that a run that was killed and goes
on takes the very steps it would have taken. Under torchrun each rank takes its part of every step.

Shapes: B batch, S samples, U labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from fastscribe.checkpoint import Checkpoint
from fastscribe.config import ModelConfig
from fastscribe.errors import UsageError
from fastscribe.features import LogMel
from fastscribe.freed_memory import keep_freed_memory
from fastscribe.model.model import Model, build_model
from fastscribe.tokenizer import from_sentencepiece
from fastscribe.training.augment import augment_samples, batch_generator, mask_features
from fastscribe.training.bpe import TextEncoder, train_vocabulary
from fastscribe.training.buckets import (
    Bucket,
    Indices,
    MemoryModel,
    PaddingShare,
    draw_speeds,
    make_buckets,
    naive_batches,
    padding_share,
    plan_epoch,
)
from fastscribe.training.feed import Feed, Rows
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.manifest import (
    Corpus,
    Example,
    read_manifests,
    repeat_examples,
    split_validation,
    tokenise,
)
from fastscribe.training.network import Network, Targets, new_model
from fastscribe.training.plot import plot_log
from fastscribe.training.ranks import Ranks, data_parallel
from fastscribe.training.recipe import Recipe
from fastscribe.training.state import RunFolder
from fastscribe.training.validation import Validated, validate, with_weights
from fastscribe.training.weights import Weights
from fastscribe.types import Features

_LOG_STEPS = 10  # of which a line in the log is the mean
_CPU_BATCH_S = 120.0


@dataclass
class Progress:
    """Read by a progress display while the run writes it."""

    epoch: int = 0
    step: int = 0
    batches_done: int = 0  # of this epoch
    batches: int = 0
    audio_s: float = 0.0  # learnt from in this process, as it was played
    examples: int = 0
    busy_s: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    best_wer: float | None = None
    validated: Validated | None = None


@dataclass(frozen=True)
class Material:
    """What a run learns from and checks itself with, in tokens."""

    corpus: Corpus
    validation: tuple[Example, ...]
    checkpoint: Checkpoint  # config and tokenizer; weights where the run starts from some


def prepare(recipe: Recipe, init: Checkpoint | None) -> Material:
    """Manifests read, a vocabulary learnt (without `init`), texts in tokens. Raises UsageError."""
    data, limits = recipe.data, recipe.data.limits
    corpus = read_manifests(data.train, limits)
    if data.validation:
        validation = read_manifests(data.validation, limits).examples
    else:
        training, validation = split_validation(corpus.examples, seed=recipe.run.seed, share=data.validation_share)
        corpus = Corpus(training, corpus.left_out)
    if init is None:
        texts = [example.text for example in corpus.examples]
        tokenizer = from_sentencepiece(train_vocabulary(texts, recipe.model.vocab_size, recipe.model.vocabulary))
        config = recipe.model.config(len(tokenizer.pieces))
        init = Checkpoint(Path("new"), "fastscribe", config, tokenizer, {})
    corpus = tokenise(corpus, TextEncoder(init.tokenizer), limits)
    return Material(Corpus(repeat_examples(corpus.examples), corpus.left_out), validation, init)


class Trainer:
    """One run into `folder`, from its beginning or from where it stopped. `run` does the rest."""

    def __init__(
        self,
        recipe: Recipe,
        material: Material,
        folder: RunFolder,
        device: torch.device,
        dtype: torch.dtype,
        say: Callable[[str], None],
        ranks: Ranks = Ranks(),  # noqa: B008 - frozen
    ) -> None:
        self.recipe, self.material, self.folder, self.ranks = recipe, material, folder, ranks
        self.device, self.dtype, self._say = device, dtype, say
        self.progress, self.stop = Progress(), False
        self.examples: Sequence[Example] = material.corpus.examples
        self.augment = recipe.augment
        config = material.checkpoint.config
        self.model = _model(material.checkpoint, recipe).to(device)
        self.weights = Weights(self.model, dtype, recipe.optimiser)
        self.log_mel = LogMel(config.features).to(device)
        loss = loss_config(recipe, config)
        self.network = Network(self.model, loss, recipe.loss.ctc_weight, recipe.optimiser.dropout)
        self._parallel: nn.Module = self.network
        if ranks.count > 1:
            self._parallel = data_parallel(self.network, device)
        rate = config.features.sample_rate
        cache_bytes = recipe.data.cache_gb * 1e9
        if device.type == "cpu":
            keep_freed_memory()
        self.feed = Feed(self.examples, rate, cache_bytes, recipe.data.threads, say)
        self._validation_feed = Feed(material.validation, rate, cache_bytes / 10, recipe.data.threads, say)
        self._durations = np.array([example.duration_s for example in self.examples])
        self._tokens = np.array([len(example.tokens) for example in self.examples])
        self.buckets = self._make_buckets()
        self.batch_sizes = self._batch_sizes()
        self._restore()

    # --- plans -------------------------------------------------------------------------------------------------------

    def _make_buckets(self) -> tuple[Bucket, ...]:
        speeds = self.augment.speeds
        played = np.concatenate([self._durations / speed for speed in speeds])
        tokens = np.tile(self._tokens, len(speeds))
        return make_buckets(played, tokens, self.recipe.batch.buckets, self.recipe.batch.token_buckets)

    def _batch_sizes(self) -> tuple[int, ...]:
        seconds = self.recipe.batch.seconds
        if seconds != "auto":
            return MemoryModel(seconds).batch_sizes(self.buckets)
        if self.device.type == "cpu":
            return MemoryModel(_CPU_BATCH_S).batch_sizes(self.buckets)
        from fastscribe.training.memory_trial import searched_batch_sizes

        return searched_batch_sizes(self)

    def plan(self, epoch: int) -> tuple[list[Indices], np.ndarray]:
        """This rank's batches, and the speed of each example."""
        speeds = draw_speeds(len(self.examples), self.augment.speeds, epoch, self.recipe.run.seed)
        batches = plan_epoch(
            self._durations / speeds,
            self._tokens,
            self.buckets,
            self.batch_sizes,
            epoch=epoch,
            seed=self.recipe.run.seed,
            rank=self.ranks.rank,
            world_size=self.ranks.count,
        )
        return batches, speeds

    def padding(self) -> PaddingShare:
        """Of the first epoch."""
        batches, speeds = self.plan(0)
        return padding_share(batches, self._durations / speeds, self._tokens)

    def naive_padding(self) -> PaddingShare:
        """Of random batches of the same mean size."""
        mean_size = len(self.examples) / max(1, len(self.plan(0)[0]) * self.ranks.count)
        naive = naive_batches(len(self.examples), mean_size, self.recipe.run.seed)
        return padding_share(naive, self._durations, self._tokens)

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self, update: Callable[[], None] = lambda: None) -> bool:
        """To the end, or until `stop` is set, after which the next step is saved. `update` is called after every batch.

        Returns whether the run is over.
        """
        self._saved_at = perf_counter()
        while not self.is_over:
            self._epoch(update)
            if self.stop and self.progress.batches_done < self.progress.batches:
                self.save()
                return False
            self.progress.epoch += 1
            self.progress.batches_done = 0
            if self.progress.epoch % self.recipe.run.validate_epochs == 0 or self.is_over:
                self.check()
            self.save()
            update()
        return True

    @property
    def is_over(self) -> bool:
        return self.progress.epoch >= self.recipe.run.epochs

    def _epoch(self, update: Callable[[], None]) -> None:
        batches, speeds = self.plan(self.progress.epoch)
        progress, accumulate = self.progress, self.recipe.batch.accumulate
        progress.batches = len(batches)
        kept: list[dict[str, torch.Tensor]] = []
        norms: list[float] = []
        start, logged_s, logged_at = perf_counter(), 0.0, perf_counter()
        self._parallel.train()
        for rows in self.feed.batches(batches[progress.batches_done :]):
            is_last = progress.batches_done + 1 == len(batches)
            is_step = (progress.batches_done + 1) % accumulate == 0 or is_last
            losses = self._batch(rows, speeds, is_step)
            if losses is not None:
                kept.append(losses)
            progress.batches_done += 1
            if is_step:
                count = (progress.batches_done - 1) % accumulate + 1
                norms.append(self.weights.step(self._share, count))
                progress.step = self.weights.num_steps
            audio_s = sum(self.examples[index].duration_s / speeds[index] for index in rows.examples)
            progress.audio_s, logged_s = progress.audio_s + audio_s, logged_s + audio_s
            progress.examples += len(rows.examples)
            now = perf_counter()
            progress.busy_s, start = progress.busy_s + now - start, now
            if is_step and (progress.step % _LOG_STEPS == 0 or is_last):
                self._log(kept, norms, logged_s, now - logged_at)
                kept, norms, logged_s, logged_at = [], [], 0.0, now
            if is_step and now - self._saved_at > 60 * self.recipe.run.save_minutes:
                self.save()
                start = perf_counter()
            update()
            if is_step and self._all_stop():
                return

    def _all_stop(self) -> bool:
        """Whether any rank has been told to stop, so that none waits for another that has."""
        if self.ranks.count > 1:
            asked = torch.tensor([float(self.stop)], device=self.device)
            dist.all_reduce(asked, dist.ReduceOp.MAX)
            self.stop = bool(asked)
        return self.stop

    @property
    def _share(self) -> float:
        """Of the run that is over."""
        done = self.progress.epoch + self.progress.batches_done / max(1, self.progress.batches)
        return done / self.recipe.run.epochs

    def _batch(self, rows: Rows, speeds: np.ndarray, is_step: bool) -> dict[str, torch.Tensor] | None:
        """Forward and backward; None where no row could be read, which on several ranks is a row of silence."""
        if not len(rows.examples):
            if self.ranks.count == 1:
                return None
            rows = Rows(np.array([0]), torch.zeros(1, 16_000, dtype=torch.int16), torch.tensor([16_000]))
        number = self.progress.epoch, self.progress.batches_done, self.ranks.rank
        generator = batch_generator(self.recipe.run.seed, *number)
        torch.manual_seed(_seed(self.recipe.run.seed + 1, *number))  # dropout's
        features = self._features(rows, torch.from_numpy(speeds[rows.examples]), generator)
        targets = targets_of([self.examples[index].tokens for index in rows.examples], self.device)
        chance = np.random.default_rng([self.recipe.run.seed, *number[:2]]).random()
        with self._without_exchange(is_step):
            losses = self._parallel(features, targets, chance)
            losses["loss"].backward()
        return {name: loss.detach() for name, loss in losses.items()}

    def _without_exchange(self, is_step: bool) -> AbstractContextManager[Any]:
        if is_step or not isinstance(self._parallel, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return self._parallel.no_sync()

    def _features(self, rows: Rows, speeds: torch.Tensor, generator: torch.Generator) -> Features:
        samples_BS = rows.samples_BS.to(self.device, non_blocking=True)
        rate = self.log_mel.config.sample_rate
        samples_BS, lengths_B = augment_samples(samples_BS, rows.lengths_B, rate, self.augment, generator, speeds)
        features = self.log_mel(samples_BS, lengths_B.to(self.device))
        frame_lengths_B = lengths_B // self.log_mel.config.hop_length
        mel_BMT = mask_features(features.mel_BMT, frame_lengths_B, self.augment, generator)
        return Features(mel_BMT, features.lengths_B.clone())

    def _log(self, kept: list[dict[str, torch.Tensor]], norms: list[float], audio_s: float, seconds: float) -> None:
        if not kept:
            return
        means = {name: float(torch.stack([losses[name] for losses in kept]).mean()) for name in kept[0]}
        self.progress.losses = means
        if self.ranks.rank == 0:
            self.folder.append(
                {
                    "step": self.progress.step,
                    "epoch": round(self._share * self.recipe.run.epochs, 4),
                    **{name: round(value, 5) for name, value in means.items()},
                    "gradient_norm": round(float(np.mean(norms)), 4),
                    "learning_rate": self.weights.learning_rate(self._share),
                    "audio_s_per_s": round(audio_s * self.ranks.count / seconds, 1),
                }
            )

    # --- what is kept ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Validates the kept weights; they become `last`, and `best` if none were better."""
        if self.ranks.rank == 0:
            checkpoint = with_weights(self.material.checkpoint, self.weights.kept())
            device, dtype = str(self.device), "fp32" if self.dtype == torch.float32 else "bf16"
            decoder = "ctc" if self.network.ctc_weight == 1 else None  # a transducer that learns nothing says nothing
            validated = validate(checkpoint, self.material.validation, self._validation_feed, device, dtype, decoder)
            self.progress.validated = validated
            self.folder.save_model(self.folder.last, checkpoint, torch.bfloat16)
            if self.progress.best_wer is None or validated.wer < self.progress.best_wer:
                self.progress.best_wer = validated.wer
                self.folder.save_model(self.folder.best, checkpoint, torch.bfloat16)
            self.folder.append(
                {"step": self.progress.step, "epoch": self.progress.epoch, "validation": validated.to_json()}
            )
            with suppress(ImportError):  # a picture is for those who have matplotlib
                plot_log(self.folder.rows(), self.folder.plot)
        if self.ranks.count > 1:
            dist.barrier()

    def save(self) -> None:
        self._saved_at = perf_counter()
        if self.ranks.rank == 0:
            self.folder.save_state(
                {
                    "fingerprint": self._fingerprint(),
                    "epoch": self.progress.epoch,
                    "batches_done": self.progress.batches_done,
                    "best_wer": self.progress.best_wer,
                    "weights": self.weights.state(),
                }
            )

    def _restore(self) -> None:
        state = self.folder.load_state(self.device)
        if state is None:
            return
        different = [name for name, value in self._fingerprint().items() if state["fingerprint"].get(name) != value]
        if different:
            raise UsageError(
                f"{self.folder.path}: holds a run with another {' and '.join(different)}; use another folder, or "
                "--overwrite to start over"
            )
        self.weights.restore(state["weights"])
        self.progress.epoch, self.progress.batches_done = state["epoch"], state["batches_done"]
        self.progress.step, self.progress.best_wer = self.weights.num_steps, state["best_wer"]
        if self.ranks.rank == 0:
            self.folder.forget_after(self.progress.step)

    def _fingerprint(self) -> dict[str, Any]:
        """What must be the same for a run to go on exactly."""
        recipe = self.recipe.to_json()
        recipe["run"].pop("save_minutes")
        recipe["data"].pop("threads")
        recipe["data"].pop("cache_gb")
        return {
            "recipe": repr(recipe),
            "model": repr(self.material.checkpoint.config),
            "data": repr((len(self.examples), float(self._durations.sum()), int(self._tokens.sum()))),
            "number of ranks": self.ranks.count,
            "dtype": str(self.dtype),
            "batch sizes": repr(self.batch_sizes),
        }


def loss_config(recipe: Recipe, config: ModelConfig) -> TransducerLossConfig:
    loss = recipe.loss
    if not config.durations:
        return TransducerLossConfig(fastemit=loss.fastemit, clamp=loss.clamp)
    return TransducerLossConfig(config.durations, loss.sigma, loss.omega, loss.fastemit, loss.clamp)


def _model(checkpoint: Checkpoint, recipe: Recipe) -> Model:
    if not checkpoint.weights:
        return new_model(checkpoint.config, recipe.run.seed)
    return build_model(checkpoint.config, checkpoint.weights, checkpoint.path).train().requires_grad_(True)


def targets_of(tokens: Sequence[Sequence[int]], device: torch.device) -> Targets:
    lengths = [len(row) for row in tokens]
    labels_BU = torch.zeros(len(tokens), max(lengths), dtype=torch.long)
    for row_U, row in zip(labels_BU, tokens, strict=True):
        row_U[: len(row)] = torch.tensor(row)
    return Targets(labels_BU.to(device), torch.tensor(lengths).to(device))


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
