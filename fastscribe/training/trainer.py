"""The training run: epochs of bucketed batches, steps of the optimiser, validations, and a state to go on from.

    plan -> feed -> augment -> log-mel -> mask -> network -> backward -> step

Every step draws from generators seeded by the run's seed and the step's number, so that a run that was killed and goes
on takes the very steps it would have taken. Under torchrun each rank takes its part of every step.

Shapes: B batch, S samples, U labels.
"""

from __future__ import annotations

import hashlib
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from fastscribe.checkpoint import Checkpoint
from fastscribe.checkpoint.validate import validate as check_config
from fastscribe.config import EncoderConfig, ModelConfig
from fastscribe.device import is_out_of_memory, launching
from fastscribe.errors import UsageError, first_line
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
    fitting_buckets,
    naive_batches,
    padding_share,
    plan_epoch,
)
from fastscribe.training.feed import Feed, Rows
from fastscribe.training.fingerprint import fingerprint
from fastscribe.training.log_window import LogWindow
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.manifest import (
    Corpus,
    Example,
    count_by_share,
    has_two_sentences,
    read_manifests,
    repeat_examples,
    split_validation,
    tokenise,
)
from fastscribe.training.network import Network, Targets, buffers_kept, new_model
from fastscribe.training.plot import plot_log
from fastscribe.training.ranks import Ranks, data_parallel
from fastscribe.training.recipe import Recipe
from fastscribe.training.state import RunFolder
from fastscribe.training.validation import Validated, validate, with_weights
from fastscribe.training.weights import Weights
from fastscribe.types import Features

_LOG_STEPS = 10  # of which a line in the log is the mean
_SMALL_BATCH_S = 120.0  # of audio: what a CPU takes at a time, and a GPU at least
_LEAST_STEPS = 50  # an epoch: of little data, what a GPU's memory holds would make a step or two of it
_LEAST_UNREADABLE, _MOST_UNREADABLE_SHARE = 20, 0.05  # of the recordings tried: more end the run
_ENOUGH_TO_VALIDATE = 10  # recordings
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_KEPT_DTYPE = torch.bfloat16  # of the models that are written


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


def prepare(
    recipe: Recipe,
    init: Checkpoint | None,
    say: Callable[[str], None] = lambda line: None,
    where: str | Path = "the recipe",
) -> Material:
    """Manifests read, a vocabulary learnt (without `init`), texts in tokens. Writes nothing.

    Raises UsageError; `where` the recipe comes from is named where a key of it is wrong.
    """
    if init is not None and not (isinstance(init.config.encoder, EncoderConfig) and init.config.aed is None):
        kinds = "FastConformer transducers and CTC models"
        raise UsageError(f"--init {init.path}: only {kinds} can be trained, not Canary, Jasper or QuartzNet ones")
    data, limits = recipe.data, recipe.data.limits
    corpus = read_manifests(data.train, limits)
    if data.validation:
        kept_apart = read_manifests(data.validation, limits, "validate with")
        if kept_apart.left_out:
            say(f"to validate with: {kept_apart}")
        validation = kept_apart.examples
    else:
        training, validation = _split(corpus.examples, recipe.run.seed, data.validation_share, say)
        corpus = Corpus(training, corpus.left_out)
    if len(validation) < _ENOUGH_TO_VALIDATE:
        say(f"{len(validation)} to validate with: the word error rate of so few says little")
    if init is None:
        init = _new(recipe, corpus.examples, where)
    loss_config(recipe, init.config)
    corpus = tokenise(corpus, TextEncoder(init.tokenizer), limits)
    return Material(Corpus(repeat_examples(corpus.examples), corpus.left_out), validation, init)


def _split(
    examples: Sequence[Example], seed: int, share: float, say: Callable[[str], None]
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """By the share, but of few recordings a tenth, up to ten: fewer would decide by chance which model is the best."""
    if not has_two_sentences(examples):
        raise UsageError(
            f"{len(examples):,} recording{'s' * (len(examples) > 1)} of one sentence: too few to train on some and "
            "validate with others; give more, or others as data.validation"
        )
    by_share = count_by_share(examples, seed=seed, share=share)
    least = max(1, min(_ENOUGH_TO_VALIDATE, len(examples) // 10))
    if by_share >= least:
        return split_validation(examples, seed=seed, share=share)
    count = max(least, round(share * len(examples)))
    say(f"validation_share {share:g} gives {by_share:,} of {len(examples):,} recordings: {count:,} instead")
    try:
        return split_validation(examples, seed=seed, count=count)
    except UsageError:  # few sentences, each of many recordings
        return split_validation(examples, seed=seed, count=1)


def _new(recipe: Recipe, examples: Sequence[Example], where: str | Path) -> Checkpoint:
    """A vocabulary and a config, without weights."""
    texts = [example.text for example in examples]
    try:
        model = train_vocabulary(texts, recipe.model.vocab_size, recipe.model.vocabulary)
    except UsageError as error:
        raise UsageError(f"{where}: model.vocab_size: {error}") from error
    tokenizer = from_sentencepiece(model)
    config = recipe.model.config(len(tokenizer.pieces))
    check_config(config, f"{where}: model")
    return Checkpoint(Path("new"), "fastscribe", config, tokenizer, {})


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
        self.progress = Progress()
        self.stop = 0  # set to a signal's number, at any time, it makes the run stop
        self.stopped_by = 0  # and this is the one that all ranks have stopped for
        self.examples: Sequence[Example] = material.corpus.examples
        if len(self.examples) < ranks.count:
            raise UsageError(f"{len(self.examples)} examples are too few for {ranks.count} ranks")
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
        self.feed = Feed(self.examples, rate, cache_bytes, recipe.data.threads, say, self._least_s(), device)
        self._validation_feed = Feed(material.validation, rate, cache_bytes / 10, recipe.data.threads, say)
        self._durations = np.array([example.duration_s for example in self.examples])
        self._tokens = np.array([len(example.tokens) for example in self.examples])
        self._window = LogWindow()
        self._is_check_due = self._is_plot_lost = False
        self._fingerprint: dict[str, Any] = {
            **fingerprint(recipe, material.checkpoint, self.examples, material.validation),
            "number of ranks": ranks.count,
            "dtype": str(dtype),
        }
        state = self._former_state()
        if ranks.count > 1:
            self._agree(state)
        self.buckets = self._make_buckets()
        # A run keeps its batch sizes, whatever another search would find: they decide its steps.
        self.batch_sizes = tuple(state["batch_sizes"]) if state is not None else self._batch_sizes()
        self.weights.expect(self.num_steps)
        self._start(state)

    def _least_s(self) -> float:
        """Of a recording: enough for two of the encoder's frames at the highest speed; of one, BatchNorm has no variance."""
        config = self.material.checkpoint.config
        hops = config.encoder.subsampling_factor + 2
        return hops * config.features.hop_length / config.features.sample_rate * max(self.augment.speeds)

    # --- plans -------------------------------------------------------------------------------------------------------

    def _make_buckets(self) -> tuple[Bucket, ...]:
        speeds = self.augment.speeds
        played = np.concatenate([self._durations / speed for speed in speeds])
        tokens = np.tile(self._tokens, len(speeds))
        batch = self.recipe.batch
        return fitting_buckets(
            played,
            tokens,
            self._batch_s,
            batch.buckets,
            batch.token_buckets,
            times=len(speeds),
            world_size=self.ranks.count,
        )

    @property
    def _batch_s(self) -> float | None:
        """None: as much as the device's memory holds."""
        seconds = self.recipe.batch.seconds
        if seconds != "auto":
            return seconds
        return _SMALL_BATCH_S if self.device.type == "cpu" else None

    def _batch_sizes(self) -> tuple[int, ...]:
        if self._batch_s is not None:
            return MemoryModel(self._batch_s).batch_sizes(self.buckets)
        from fastscribe.training.memory_trial import searched_batch_sizes

        shared_s = self._durations.sum() / (_LEAST_STEPS * self.ranks.count * self.recipe.batch.accumulate)
        enough = MemoryModel(max(shared_s, _SMALL_BATCH_S)).batch_sizes(self.buckets)
        return tuple(map(min, searched_batch_sizes(self), enough))

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

    @property
    def num_steps(self) -> int:
        """Of the whole run, by its first epoch: those after it differ by a batch or two, as speeds are drawn."""
        return math.ceil(self.epoch_batches / self.recipe.batch.accumulate) * self.recipe.run.epochs

    @cached_property
    def _first_epoch(self) -> tuple[list[Indices], np.ndarray]:
        return self.plan(0)

    @property
    def epoch_batches(self) -> int:
        """Of the first epoch, on this rank."""
        return len(self._first_epoch[0])

    def padding(self) -> PaddingShare:
        """Of the first epoch."""
        batches, speeds = self._first_epoch
        return padding_share(batches, self._durations / speeds, self._tokens)

    def naive_padding(self) -> PaddingShare:
        """Of random batches of the same mean size."""
        mean_size = len(self.examples) / max(1, self.epoch_batches * self.ranks.count)
        naive = naive_batches(len(self.examples), mean_size, self.recipe.run.seed)
        return padding_share(naive, self._durations, self._tokens)

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self, update: Callable[[], None] = lambda: None) -> bool:
        """To the end, or until `stop` is set, after which the next step is saved. `update` is called after every batch.

        Returns whether the run is over. Raises UsageError where too many recordings cannot be read.
        """
        self._saved_at = perf_counter()
        while not self.is_over:
            if self._is_check_due:
                self.check()
                self._is_check_due = False
            else:
                with launching(self.device):
                    self._epoch(update)
                if self.progress.batches_done == self.progress.batches:
                    self._end_epoch()
            must_stop = not self.is_over and self._all_stop()
            if must_stop or self.is_over or self._is_save_due:
                self.save()
            if not self._is_check_due:
                update()
            if must_stop:
                self.ranks.wait()  # for the state: the first rank that ends may take the others with it
                return False
        return True

    @property
    def _is_save_due(self) -> bool:
        """Before the first models are written there is a state, without which they could not be told from others."""
        is_late = perf_counter() - self._saved_at > 60 * self.recipe.run.save_minutes
        return is_late or (self._is_check_due and not self.folder.state.exists())

    @property
    def is_over(self) -> bool:
        return self.progress.epoch >= self.recipe.run.epochs and not self._is_check_due

    def _end_epoch(self) -> None:
        self.progress.epoch += 1
        self.progress.batches_done = 0
        is_last = self.progress.epoch >= self.recipe.run.epochs
        self._is_check_due = is_last or self.progress.epoch % self.recipe.run.validate_epochs == 0

    def _epoch(self, update: Callable[[], None]) -> None:
        """To its end, or to the step after which the run stops."""
        batches, speeds = self.plan(self.progress.epoch)
        progress, accumulate = self.progress, self.recipe.batch.accumulate
        progress.batches = len(batches)
        num_labels, start, logged_s, logged_at = 0, perf_counter(), 0.0, perf_counter()
        self._parallel.train()
        for rows in self.feed.batches(batches[progress.batches_done :]):
            is_last = progress.batches_done + 1 == len(batches)
            is_step = (progress.batches_done + 1) % accumulate == 0 or is_last
            num_labels += self._batch(rows, speeds)
            progress.batches_done += 1
            if is_step:
                self._step(num_labels)
                num_labels = 0
            audio_s = sum(self.examples[index].duration_s / speeds[index] for index in rows.examples)
            progress.audio_s, logged_s = progress.audio_s + audio_s, logged_s + audio_s
            progress.examples += len(rows.examples)
            now = perf_counter()
            progress.busy_s, start = progress.busy_s + now - start, now
            if is_step and (progress.step % _LOG_STEPS == 0 or is_last):
                self._log(logged_s, now - logged_at)
                logged_s, logged_at = 0.0, now
            if is_step and self._is_save_due:
                self.save()
                start = perf_counter()
            update()
            if is_step and self._all_stop():
                return

    def _step(self, num_labels: int) -> None:
        """With the gradient of the mean loss of all labels of the step, whatever batches and ranks they came in.

        NeMo and Lightning take the mean of the batches' means instead, in which a label of a small batch counts more. Labels
        that CTC cannot align count too: how many these are is known only to the loss.
        """
        count = self.ranks.mean(num_labels, self.device)  # data_parallel has divided the sums by the number of ranks
        norm = self.weights.step(self._share, count)
        if count:
            self._window.add_norm(norm)
        self.progress.step = self.weights.num_steps

    def _all_stop(self) -> bool:
        """Whether any rank has been told to stop, so that none waits for another that has.

        Raises UsageError, on all of them, where too many recordings cannot be read.
        """
        stop, feed = self.stop, self.feed
        values: list[float] = [stop == number for number in _SIGNALS] + [feed.num_unreadable, feed.num_tried]
        if self.ranks.count > 1:
            sums = torch.tensor(values, dtype=torch.float64, device=self.device)
            dist.all_reduce(sums)
            values = sums.tolist()
        *asked, unreadable, tried = values
        least = min(_LEAST_UNREADABLE, feed.num_stretches)
        if unreadable >= least and unreadable > _MOST_UNREADABLE_SHARE * tried:
            raise UsageError(f"{unreadable:.0f} of the {tried:.0f} recordings tried so far cannot be used, see above")
        self.stopped_by = next((number for number, count in zip(_SIGNALS, asked, strict=True) if count), 0)
        return bool(self.stopped_by)

    @property
    def _share(self) -> float:
        """Of the run that is over."""
        done = self.progress.epoch + self.progress.batches_done / max(1, self.progress.batches)
        return done / self.recipe.run.epochs

    def _batch(self, rows: Rows, speeds: np.ndarray) -> int:
        """Forward and backward. Returns how many labels were learnt from: 0 where no row could be read."""
        number = self.progress.epoch, self.progress.batches_done, self.ranks.rank
        chance = np.random.default_rng([self.recipe.run.seed, *number[:2]]).random()
        if not len(rows.examples):
            if self.ranks.count > 1:
                self._zero_gradients(chance)
            return 0
        generator = batch_generator(self.recipe.run.seed, *number)
        torch.manual_seed(_seed(self.recipe.run.seed + 1, *number))  # dropout's
        return self._learn(rows, speeds, generator, chance)

    def _learn(self, rows: Rows, speeds: np.ndarray, generator: torch.Generator, chance: float) -> int:
        """Where memory runs out, in halves: the sums of gradients are the same. Raises UsageError where that cannot be."""
        tokens = [self.examples[index].tokens for index in rows.examples]
        num_labels = sum(map(len, tokens))
        try:
            losses = self._forward_backward(rows, tokens, speeds, generator, chance)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self.ranks.count > 1 or len(tokens) == 1:
                raise UsageError(self._no_memory(rows)) from error
        else:
            self.weights.gather()
            self._window.add_losses(losses)
            return num_labels
        self.network.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        middle = len(tokens) // 2
        return sum(
            self._learn(rows.part(half), speeds, generator, chance)
            for half in (slice(None, middle), slice(middle, None))
        )

    def _forward_backward(
        self,
        rows: Rows,
        tokens: Sequence[Sequence[int]],
        speeds: np.ndarray,
        generator: torch.Generator,
        chance: float,
    ) -> dict[str, torch.Tensor]:
        features = self._features(rows, torch.from_numpy(speeds[rows.examples]), generator)
        losses: dict[str, torch.Tensor] = self._parallel(features, targets_of(tokens, self.device), chance)
        (sum(map(len, tokens)) * losses["loss"]).backward()
        return {name: loss.detach() for name, loss in losses.items()}

    def _no_memory(self, rows: Rows) -> str:
        longest_s = max(self.examples[index].duration_s for index in rows.examples)
        known = f" with --init {self.folder.last}," if self.folder.last.exists() else ""
        return (
            f"no memory for {len(rows.examples):,} recordings of up to {longest_s:.1f} s; go on in another folder,{known} "
            "with a smaller batch.seconds or data.max_duration_s"
        )

    def _zero_gradients(self, chance: float) -> None:
        """Of a second of silence, for the other ranks, which wait for this one's."""
        num_samples = self.log_mel.config.sample_rate
        samples_BS = torch.zeros(1, num_samples, device=self.device)
        features = self.log_mel(samples_BS, torch.tensor([num_samples], device=self.device))
        with buffers_kept(self.model):
            losses = self._parallel(features, targets_of([(0,)], self.device), chance)
            (0 * losses["loss"]).backward()
        self.weights.gather()

    def _features(self, rows: Rows, speeds: torch.Tensor, generator: torch.Generator) -> Features:
        samples_BS = rows.samples_BS.to(self.device, non_blocking=True)
        rate = self.log_mel.config.sample_rate
        samples_BS, lengths_B = augment_samples(samples_BS, rows.lengths_B, rate, self.augment, generator, speeds)
        features = self.log_mel(samples_BS, lengths_B.to(self.device))
        frame_lengths_B = lengths_B // self.log_mel.config.hop_length
        is_normalised = self.log_mel.config.normalize != "none"
        mel_BMT = mask_features(features.mel_BMT, frame_lengths_B, self.augment, generator, is_normalised)
        return Features(mel_BMT, features.lengths_B.clone())

    def _log(self, audio_s: float, seconds: float) -> None:
        self.progress.losses = self._window.means() or self.progress.losses
        row, self._window = self._window.row(), LogWindow()
        if self.ranks.rank == 0 and row:
            self.folder.append(
                {
                    "step": self.progress.step,
                    "epoch": round(self._share * self.recipe.run.epochs, 4),
                    **row,
                    "learning_rate": self.weights.learning_rate(self._share),
                    "audio_s_per_s": round(audio_s * self.ranks.count / seconds, 1),
                }
            )

    # --- what is kept ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Validates the kept weights; they become `last`, and `best` if none were better."""
        if self.ranks.rank == 0:
            checkpoint = with_weights(self.material.checkpoint, self.weights.kept(), _KEPT_DTYPE)
            device, dtype = str(self.device), "fp32" if self.dtype == torch.float32 else "bf16"
            decoder = "ctc" if self.network.ctc_weight == 1 else None  # a transducer that learns nothing says nothing
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # training's blocks are of no use to it
            validated = validate(checkpoint, self.material.validation, self._validation_feed, device, dtype, decoder)
            self.progress.validated = validated
            self.folder.save_model(self.folder.last, checkpoint, _KEPT_DTYPE)
            if self.progress.best_wer is None or validated.wer < self.progress.best_wer:
                self.progress.best_wer = validated.wer
                self.folder.save_model(self.folder.best, checkpoint, _KEPT_DTYPE)
            self.folder.append(
                {"step": self.progress.step, "epoch": self.progress.epoch, "validation": validated.to_json()}
            )
            self._plot()
        self.ranks.wait()

    def _plot(self) -> None:
        """A picture is for those who have matplotlib, and no reason to end a run."""
        try:
            plot_log(self.folder.rows(), self.folder.plot)
        except ImportError:
            pass
        except (OSError, ValueError) as error:
            if not self._is_plot_lost:
                self._say(f"{self.folder.plot}: not drawn: {first_line(error)}")
            self._is_plot_lost = True

    def save(self) -> None:
        self._saved_at = perf_counter()
        if self.ranks.rank == 0:
            self.folder.save_state(
                {
                    "fingerprint": self._fingerprint,
                    "epoch": self.progress.epoch,
                    "batches_done": self.progress.batches_done,
                    "is_check_due": self._is_check_due,
                    "batch_sizes": list(self.batch_sizes),
                    "best_wer": self.progress.best_wer,
                    "window": self._window.state(),
                    "weights": self.weights.state(),
                }
            )

    def _former_state(self) -> dict[str, Any] | None:
        """Of the run in the folder, if any. Raises UsageError where it is another, or only its models are left."""
        state = self.folder.load_state(self.device)
        if state is None:
            self.folder.refuse_models()
            return None
        different = [name for name, value in self._fingerprint.items() if state["fingerprint"].get(name) != value]
        if different:
            raise UsageError(
                f"{self.folder.path}: holds a run with another {' and '.join(different)}; use another folder, or "
                "--overwrite to start over"
            )
        return state

    def _start(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self._go_on(state)
        elif self.ranks.rank == 0:
            self.folder.start_log()

    def _go_on(self, state: Mapping[str, Any]) -> None:
        self.weights.restore(state["weights"])
        self.progress.epoch, self.progress.batches_done = state["epoch"], state["batches_done"]
        self.progress.step, self.progress.best_wer = self.weights.num_steps, state["best_wer"]
        self._is_check_due, self._window = state["is_check_due"], LogWindow(state["window"])
        if self.ranks.rank == 0:
            self.folder.forget_after(self.progress.step, keep_validation=not self._is_check_due)

    def _agree(self, state: Mapping[str, Any] | None) -> None:
        """Raises UsageError where ranks have read another state or other data than others: they would wait for ever."""
        sizes, place = None, [0, 0, 0]
        if state is not None:
            sizes, place = state["batch_sizes"], [state["epoch"], state["batches_done"], state["weights"]["num_steps"]]
        digest = hashlib.blake2b(repr((self._fingerprint, sizes)).encode(), digest_size=7).digest()
        place.append(int.from_bytes(digest, "big"))
        ends = torch.tensor([place, [-number for number in place]], device=self.device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if ends.sum(0).any():
            raise UsageError(
                f"{self.folder.path}: ranks do not find the same state and data; all need the same folder and manifests"
            )


def loss_config(recipe: Recipe, config: ModelConfig) -> TransducerLossConfig:
    loss = recipe.loss
    if not config.durations:
        return TransducerLossConfig(fastemit=loss.fastemit, clamp=loss.clamp)
    return TransducerLossConfig(config.durations, loss.sigma, loss.omega, loss.fastemit, loss.clamp)


def _model(checkpoint: Checkpoint, recipe: Recipe) -> Model:
    if not checkpoint.weights:
        return new_model(checkpoint.config, recipe.run.seed)
    weights = {name: tensor.clone() for name, tensor in checkpoint.weights.items()}  # which the model learns in place
    return build_model(checkpoint.config, weights, checkpoint.path).train().requires_grad_(True)


def targets_of(tokens: Sequence[Sequence[int]], device: torch.device) -> Targets:
    lengths = [len(row) for row in tokens]
    labels_BU = torch.zeros(len(tokens), max(lengths), dtype=torch.long)
    for row_U, row in zip(labels_BU, tokens, strict=True):
        row_U[: len(row)] = torch.tensor(row)
    return Targets(labels_BU.to(device), torch.tensor(lengths).to(device))


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
