"""The training run: epochs of bucketed batches, optimiser steps, validations, and a state to resume from.

    plan -> loader -> learner -> optimiser step

The run's seed and the batch's index seed the generators of every batch, so a killed run that resumes takes the same steps
as an uninterrupted one. Under torchrun each rank takes its part of every step.
"""

from __future__ import annotations

import dataclasses
import hashlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from fastscribe._system.process_settings import disable_malloc_trim
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import DecoderName
from fastscribe.cuda.device import short_switch_interval
from fastscribe.errors import AudioError, OutputError, UsageError, first_line
from fastscribe.families.model import Model, build_model
from fastscribe.training.backgrounds import KINDS, BackgroundReader, LostFiles, shown_name
from fastscribe.training.batch_search import cached_batch_sizes, fits
from fastscribe.training.buckets import Bucket, Indices
from fastscribe.training.corpus import Example, Examples, LeftOutRow, ManifestPart
from fastscribe.training.data import TrainingData
from fastscribe.training.dataloader import AudioBatch, AudioDataLoader, is_cut_short
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.fingerprint import fingerprint, named_difference
from fastscribe.training.learner import BatchIndex, BatchTooLarge, Learner, TrainBatch
from fastscribe.training.log_window import LogWindow
from fastscribe.training.loss.cuda import check_usable
from fastscribe.training.network import new_model, prepare_weights_
from fastscribe.training.planner import EpochPlan, EpochPlanner, label_counts
from fastscribe.training.recipe import Recipe
from fastscribe.training.scoring import rating_of
from fastscribe.training.state import RunFolder, plot_log
from fastscribe.training.trackers import Trackers
from fastscribe.training.validation import Counts, Gain, ValidationResult, validate, with_weights
from fastscribe.training.weights import Weights, choose_trained, num_trained

_LOG_STEPS = 10  # steps that a log line averages
# Of the recordings tried; more end the run, and so does more than half.
_MIN_UNREADABLE, _MAX_UNREADABLE_SHARE = 20, 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKGROUNDS = "noise and rooms"  # in the fingerprint
# Of a run's progress.
_RATES = ("start_rate", "start_counts", "start_exact_counts", "best_rate", "best_step", "num_stale")
_KEPT_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Progress:
    """Read by a progress display while the run writes it."""

    epoch: int = 0
    step: int = 0
    batches_done: int = 0  # of this epoch
    batches: int = 0
    audio_s: float = 0.0  # seconds of audio that this process trained on, at playback speed
    busy_s: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    start_rate: float | None = None  # the deciding error rate of --init, before the first step
    start_counts: Counts | None = None  # its errors by recording
    best_rate: float | None = None  # of the models since
    gain: Gain | None = None  # of the one with best_rate over the start
    start_exact_counts: Counts | None = None  # as start_counts, with case and punctuation
    exact_gain: Gain | None = None  # of the last validation over the start, with case and punctuation
    best_step: int | None = None  # whose weights `best` holds; 0: those of the start
    num_stale: int = 0  # validations since the one with best_rate
    validated: ValidationResult | None = None

    @property
    def epochs_done(self) -> float:
        """With the part of this one that is over. States of older versions do not say how many batches it has."""
        is_within = self.batches_done and self.batches
        return self.epoch + self.batches_done / self.batches if is_within else self.epoch


class Trainer:
    """One run into `folder`, new or resumed. The constructor loads and plans; `run` trains.

    Raises:
        UsageError: the folder holds another run, or the data are too few for the ranks.
        OutputError: the folder cannot be written.
    """

    def __init__(
        self,
        recipe: Recipe,
        training_data: TrainingData,
        folder: RunFolder,
        device: torch.device,
        dtype: torch.dtype,
        say: Callable[[str], None],
        distributed: DistributedContext = DistributedContext(),  # noqa: B008 - frozen
        is_plan: bool = False,
    ) -> None:
        self.is_plan = is_plan  # it is not run, and changes no run of the folder
        self.former_length = ""  # of the run that goes on here
        self.recipe, self.training_data, self.folder, self.distributed = recipe, training_data, folder, distributed
        self.device, self.dtype, self._say = device, dtype, say
        self.progress = Progress()
        self.requested_signal = 0  # set to a signal's number at any time to stop the run
        self.stop_signal = 0  # the signal that all ranks have stopped for
        self.examples: Examples = training_data.corpus.examples
        if len(self.examples) < distributed.world_size:
            raise UsageError(f"{len(self.examples)} examples are too few for {distributed.world_size} ranks")
        self.augment = recipe.augment
        self._init = str(training_data.checkpoint.path) if training_data.checkpoint.weights else ""  # empty: none
        config = training_data.checkpoint.config
        self.model = _model(training_data.checkpoint, recipe)
        choose_trained(self.model, recipe, training_data.new_heads)
        self.model.to(device)
        if device.type == "cuda" and self.model.transducer is not None:
            check_usable()  # now, not at the first step
        distributed.spread(self.model.state_dict().values())
        self.weights = Weights(self.model, dtype, recipe.optimiser)
        num_prompt = training_data.num_prompt
        self.learner = Learner(self.model, self.weights, recipe, config, device, distributed, num_prompt)
        rate = config.features.sample_rate
        cache_bytes = recipe.data.cache_gb * 1e9
        if device.type == "cpu":
            disable_malloc_trim()
        self.loader = AudioDataLoader(
            *(self.examples, rate, cache_bytes, recipe.data.threads, say, self._min_duration_s(), device),
            note=partial(self._note_unusable, self.examples.parts),
        )
        self._validation_loader = AudioDataLoader(
            *(training_data.validation, rate, cache_bytes / 10, recipe.data.threads, say),
            note=partial(self._note_unusable, recipe.data.validation or self.examples.parts),
        )
        self._durations = self.examples.durations_s
        self._label_counts = label_counts(self.examples.num_tokens, self._durations, self.learner.network.num_given)
        self._lost = LostFiles(training_data.backgrounds, say)
        self._trackers: Trackers | None = None  # while it runs
        self._window = LogWindow()
        self._is_validation_due = self._is_plot_lost = False
        self._rated_by = rating_of(training_data.scoring, training_data.validation_sets)
        self._fingerprint: dict[str, Any] = {
            **fingerprint(recipe, training_data.checkpoint, self.examples.digest(), training_data.validation),
            _BACKGROUNDS: training_data.backgrounds.digest(),
            "number of ranks": distributed.world_size,
            "dtype": str(dtype),
        }
        state = self._load_matching_state()
        if distributed.world_size > 1:
            self._check_same_on_all_ranks(state)
        self.planner = EpochPlanner(recipe, training_data, distributed, device.type == "cpu")
        if state is None:
            self.planner.choose_batch_sizes(self._searched_batch_sizes)
        else:  # a resumed run keeps its batch sizes, because they decide its steps
            self.planner.batch_sizes = tuple(state["batch_sizes"])
        self._start(state)
        self.weights.set_total_steps(self.num_steps)

    def _note_unusable(self, parts: Sequence[ManifestPart], example: Example, error: AudioError) -> None:
        if self.distributed.rank:
            return
        try:
            self.folder.add_left_out(LeftOutRow.of(example, parts, error.problem))
        except OutputError as full:  # a line has named the recording already
            self._say(str(full))

    def _min_duration_s(self) -> float:
        """Minimum duration of a recording: two encoder frames at the highest speed; of one, BatchNorm has no variance."""
        config = self.training_data.checkpoint.config
        hops = config.encoder.subsampling_factor + 2
        return hops * config.features.hop_length / config.features.sample_rate * max(self.augment.speeds)

    def _searched_batch_sizes(self, buckets: tuple[Bucket, ...]) -> tuple[int, ...]:
        """Batch sizes of a GPU, cached in the run's folder. Ranks search separately and take the smallest."""
        properties = torch.cuda.get_device_properties(self.device)
        holds_for = {
            "model": self.training_data.checkpoint.config.to_json(),
            "loss": repr(self.learner.network.loss),
            "dtype": str(self.dtype),
            "device": properties.name,
            "memory_bytes": properties.total_memory,
            "accumulate": self.recipe.batch.accumulate > 1,
            "ctc_weight": self.learner.network.ctc_weight,
            "dropout": self.learner.network.dropout > 0,
            "averages": bool(self.weights.averages),
            "freeze": list(self.recipe.optimiser.freeze),
            "lora": repr(self.recipe.optimiser.lora),
            "gradient_checkpointing": self.recipe.batch.gradient_checkpointing,
        }
        path = self.folder.batch_sizes
        if self.distributed.world_size > 1:
            path = path.with_name(f"batch_sizes-{self.distributed.rank}.json")
        config, accumulates = self.training_data.checkpoint.config, self.recipe.batch.accumulate > 1
        sizes = cached_batch_sizes(path, holds_for, buckets, partial(fits, self.learner.network, config, accumulates))
        if self.distributed.world_size > 1:
            min_count = torch.tensor(sizes, device=self.device)
            dist.all_reduce(min_count, dist.ReduceOp.MIN)
            sizes = tuple(map(int, min_count.tolist()))
        return sizes

    def _background_reader(self, plan: EpochPlan) -> BackgroundReader | None:
        if plan.backgrounds is None:
            return None
        rate = self.training_data.checkpoint.config.features.sample_rate
        return BackgroundReader(self.training_data.backgrounds, plan.backgrounds, self.augment, rate, self._lost)

    @property
    def num_steps(self) -> int:
        """Number of steps of the whole run, by those of its first epoch if its length is a number of epochs."""
        return self.recipe.run.max_steps or self.planner.num_steps(self.recipe.run.epochs)

    @property
    def num_trained(self) -> int:
        """Number of weights that learn."""
        return num_trained(self.model, self.recipe.loss.ctc_weight)

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self, update: Callable[[], None] = lambda: None) -> bool:
        """Train to the end, or until `requested_signal` is set; then save after the next step.

        Args:
            update: called after every batch.

        Returns:
            True if the run is over, False if a signal stopped it.

        Raises:
            UsageError: too many recordings cannot be read.
        """
        names = () if self.distributed.rank else self.recipe.run.log_to
        shown = dataclasses.asdict(self.recipe)
        with Trackers(names, self.folder.path, self.folder.rows, shown, self._say) as self._trackers:
            return self._run(update)

    def _run(self, update: Callable[[], None]) -> bool:
        self._saved_at = perf_counter()
        if not self.is_over:
            self.check_recordings()
        if self.rates_start and self.progress.start_counts is None and not self.is_over:
            self._validate_start()
            update()
        while not self.is_over:
            if self._is_validation_due:
                self.run_validation()
                self._is_validation_due = False
            else:
                with short_switch_interval(self.device):
                    self._train_epoch(update)
                if self.progress.batches_done == self.progress.batches:
                    self._end_epoch()
            must_stop = not self.is_over and self._synchronize_stop()
            if must_stop or self.is_over or self._is_save_due:
                self.save()
            if not self._is_validation_due:
                update()
            if must_stop:
                self.distributed.barrier()  # wait for the saved state: the first rank that exits may end the others
                return False
        return True

    @property
    def rates_start(self) -> bool:
        """True if the model is validated before the first step: it was trained, and so was the head that decodes."""
        head = "ctc" if self.learner.network.ctc_weight == 1 else "transducer"
        return bool(self.training_data.checkpoint.weights) and head not in self.training_data.new_heads

    @property
    def _is_save_due(self) -> bool:
        """True after save_minutes, and before the first models: a folder with models and no state is refused later."""
        is_late = perf_counter() - self._saved_at > 60 * self.recipe.run.save_minutes
        return is_late or (self._is_validation_due and not self.folder.state.exists())

    @property
    def is_over(self) -> bool:
        return (self._is_long_enough or self.is_stopped_early) and not self._is_validation_due

    @property
    def _is_long_enough(self) -> bool:
        run, progress = self.recipe.run, self.progress
        return progress.epoch >= run.epochs if run.max_steps is None else progress.step >= run.max_steps

    @property
    def is_stopped_early(self) -> bool:
        """True if `run.patience` validations in a row were no better than one before, and ended the run."""
        patience = self.recipe.run.patience
        return patience is not None and self.progress.num_stale >= patience and not self._is_long_enough

    def _end_epoch(self) -> None:
        self.progress.epoch += 1
        self.progress.batches_done = 0
        is_chosen = self.progress.epoch % self.recipe.run.validate_epochs == 0
        self._is_validation_due = is_chosen or self._is_long_enough
        self.progress.validated = None  # until it is validated again

    def _train_epoch(self, update: Callable[[], None]) -> None:
        """Train to the epoch's end, or to the step after which the run stops."""
        plan = self.planner.plan(self.progress.epoch)
        batches = plan.batches
        progress, accumulate = self.progress, self.recipe.batch.accumulate
        progress.batches = len(batches)
        num_labels, start, logged_s, logged_at = 0, perf_counter(), 0.0, perf_counter()
        self.learner.network.train()
        backgrounds = self._background_reader(plan)
        for rows in self.loader.batches(batches[progress.batches_done :], plan.drawn, backgrounds):
            is_last = progress.batches_done + 1 == len(batches)
            is_step = (progress.batches_done + 1) % accumulate == 0 or is_last
            num_labels += self._train_batch(rows, plan)
            progress.batches_done += 1
            if is_step:
                self._optimiser_step(num_labels)
                num_labels = 0
            audio_s = float((self._durations[plan.drawn[rows.examples]] / plan.speeds[rows.examples]).sum())
            progress.audio_s, logged_s = progress.audio_s + audio_s, logged_s + audio_s
            now = perf_counter()
            progress.busy_s, start = progress.busy_s + now - start, now
            if is_step and (progress.step % _LOG_STEPS == 0 or is_last or self._is_validation_due):
                self._log(logged_s, now - logged_at)
                logged_s, logged_at = 0.0, now
            if is_step and self._is_save_due:
                self.save()
                start = perf_counter()
            update()
            if is_step and (self._synchronize_stop() or self._is_validation_due):
                return

    def _optimiser_step(self, num_labels: int) -> None:
        """Apply the gradient of the mean loss over all labels of the step, from all its batches and ranks.

        NeMo and Lightning average the batches' means instead, so a label of a small batch counts more. Labels that CTC
        cannot align count too, because only the loss knows their number.
        """
        self.distributed.sum_gradients(self.weights.masters.values())
        [count] = self.distributed.sums([num_labels], self.device)
        self.progress.step += 1
        norm = self.weights.step(self.share_done, count)
        if count:
            self._window.add_norm(norm)
        self._is_validation_due = self._is_long_enough  # the last of run.max_steps, which may end no epoch

    def check_recordings(self) -> None:
        """Read some recordings of both sets. Raises UsageError, on all ranks, if too many of these cannot be used."""
        for what, loader, examples in (
            ("recordings", self.loader, self.examples),
            ("recordings to validate with", self._validation_loader, self.training_data.validation),
        ):
            read = loader.try_some()
            _check_readable(what, len(examples), loader.num_unreadable, loader.num_tried)
            if self.distributed.rank == 0:
                self._say_cut_short(what, read)

    def _say_cut_short(self, what: str, read: Sequence[Example]) -> None:
        """Count the recordings that go on after their stated duration, unless another row may have the rest."""
        short = [one for one in read if not one.non_speech and is_cut_short(one)]
        if short:
            data, others = self.training_data, self.examples.continued_paths()
            others |= {row.path for row in data.left_out} | {one.path for one in data.validation if one.offset_s}
            short = [one for one in short if one.path not in others]
        if short:
            goes_on = f"{len(short):,} of {len(read):,} that were read go on long after the duration stated"
            self._say(f"{what}: {goes_on}, and no other row has the rest: the first is {shown_name(short[0])}")

    def _synchronize_stop(self) -> bool:
        """Return True if any rank received a signal, so that all ranks stop together.

        Raises:
            UsageError: on all ranks, if too many recordings cannot be read.
        """
        requested_signal, loader, lost = self.requested_signal, self.loader, self._lost
        values: list[float] = [requested_signal == number for number in _SIGNALS]
        values += [loader.num_unreadable, loader.num_tried]
        values += [count for kind in KINDS for count in (lost.num_lost(kind), lost.num_tried(kind))]
        values = self.distributed.sums(values, self.device)
        requested, counts = values[: len(_SIGNALS)], values[len(_SIGNALS) :]
        _check_readable("recordings", len(self.examples), *counts[:2])
        for number, kind in enumerate(KINDS, 1):
            size = self.training_data.backgrounds.size(kind)
            _check_readable(f"recordings of augment.{kind}_manifest", size, *counts[2 * number : 2 * number + 2])
        self.stop_signal = next((number for number, count in zip(_SIGNALS, requested, strict=True) if count), 0)
        return bool(self.stop_signal)

    @property
    def share_done(self) -> float:
        """Share of the run that is over, from 0 to 1."""
        run, progress = self.recipe.run, self.progress
        return progress.epochs_done / run.epochs if run.max_steps is None else progress.step / run.max_steps

    def _train_batch(self, rows: AudioBatch, plan: EpochPlan) -> int:
        """Run forward and backward. Returns the number of labels that the rows count as; 0 if none could be read."""
        indices, counts_B = plan.drawn[rows.examples], self._label_counts[plan.drawn[rows.examples]]
        tokens, speeds_B = list(map(self.examples.tokens, indices)), torch.from_numpy(plan.speeds[rows.examples])
        batch_index = BatchIndex(self.progress.epoch, self.progress.batches_done, self.distributed.rank)
        try:
            losses = self.learner.forward_backward(TrainBatch(rows, tokens, counts_B.tolist(), speeds_B), batch_index)
        except BatchTooLarge as error:
            raise UsageError(self._too_large_message(plan.drawn[error.examples])) from error
        for part in losses:
            self._window.add_losses(part)
        return int(counts_B.sum())

    def _too_large_message(self, examples: Indices) -> str:
        longest_s = self._durations[examples].max()
        known = f" with --init {self.folder.last}," if self.folder.last.exists() else ""
        is_checkpointing = self.recipe.batch.gradient_checkpointing
        cure = "" if is_checkpointing else "go on here with batch.gradient_checkpointing: true, or "
        return (
            f"no memory for {len(examples):,} recordings of up to {longest_s:.1f} s; {cure}go on in another folder,{known} "
            "with a smaller batch.seconds or data.max_duration_s"
        )

    def _log(self, audio_s: float, seconds: float) -> None:
        self.progress.losses = self._window.means() or self.progress.losses
        row, self._window = self._window.row(), LogWindow()
        if self.distributed.rank == 0 and row:
            self._append(
                {
                    "step": self.progress.step,
                    "epoch": round(self.progress.epochs_done, 4),
                    **row,
                    "learning_rate": self.weights.learning_rate(self.share_done),
                    "audio_s_per_s": round(audio_s * self.distributed.world_size / seconds, 1),
                }
            )

    # --- what is kept ------------------------------------------------------------------------------------------------

    def run_validation(self) -> None:
        """Validate the averaged weights and save them as `last`, and as `best` if they are."""
        if self.distributed.rank == 0:
            kept_dtype = _KEPT_DTYPES[self.recipe.run.kept_dtype]
            checkpoint = with_weights(self.training_data.checkpoint, self.weights.export(), kept_dtype)
            validated = self._validate(checkpoint)
            self.folder.save_model(self.folder.last, checkpoint, kept_dtype)
            gain = self._keep_best(checkpoint, validated, kept_dtype)
            self._log_validation(validated, gain)
            self._plot()
        num_stale = 0 if self.distributed.rank else self.progress.num_stale
        self.progress.num_stale = int(*self.distributed.sums([num_stale], self.device))  # the others wait here

    def _keep_best(self, checkpoint: Checkpoint, validated: ValidationResult, dtype: torch.dtype) -> Gain | None:
        """Save a model as `best` if none was better: the start, while no trained model is clearly better than it.

        Returns:
            The gain over the start; None without one.
        """
        progress, start, exact = self.progress, self.progress.start_counts, self.progress.start_exact_counts
        gain = None if start is None else Gain.between(start, validated.counts)
        progress.exact_gain = None if exact is None else Gain.between(exact, validated.exact_counts)
        rank = self._keeps_start(gain), validated.deciding
        progress.num_stale += 1
        if progress.best_rate is not None and rank >= (self._keeps_start(progress.gain), progress.best_rate):
            return gain
        progress.best_rate, progress.gain, progress.num_stale = validated.deciding, gain, 0
        if not self._keeps_start(gain):
            self.folder.save_model(self.folder.best, checkpoint, dtype)
            progress.best_step = progress.step
        elif progress.best_step is None:
            begun = self.training_data.checkpoint
            config = replace(begun.config, trained_utterance_s=self.training_data.start_utterance_s)
            self.folder.save_model(self.folder.best, replace(begun, config=config), dtype)
            progress.best_step = 0
        return gain

    def _keeps_start(self, gain: Gain | None) -> bool:
        """True if a trained model with this gain does not replace the start."""
        return self.recipe.run.keep_start and gain is not None and not gain.is_clear

    def _validate_start(self) -> None:
        """Log the error rates of the model that the run starts from; a run that was rated in another way lacks them."""
        if self.distributed.rank == 0:
            validated = self._validate(self.training_data.checkpoint)
            self.progress.start_rate, self.progress.start_counts = validated.deciding, validated.counts
            self.progress.start_exact_counts = validated.exact_counts
            if self.progress.step == 0:
                self._log_validation(validated)
        self.distributed.barrier()

    def _validate(self, checkpoint: Checkpoint) -> ValidationResult:
        device, dtype = str(self.device), "fp32" if self.dtype == torch.float32 else "bf16"
        # An untrained transducer emits nothing, so validate with the head that trains.
        decoder: DecoderName | None = "ctc" if self.learner.network.ctc_weight == 1 else None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # validation cannot use training's blocks
        data = self.training_data
        self.progress.validated = validate(
            checkpoint,
            data.validation,
            self._validation_loader,
            device,
            dtype,
            decoder,
            data.scoring,
            data.validation_sets,
        )
        return self.progress.validated

    def _log_validation(self, validated: ValidationResult, gain: Gain | None = None) -> None:
        progress = self.progress
        row = {"step": progress.step, "epoch": round(progress.epochs_done, 4), "validation": validated.to_json()}
        row |= {} if gain is None else {"gain": gain.to_json()}
        self._append(row if progress.best_step is None else row | {"best_step": progress.best_step})

    def _append(self, row: Mapping[str, Any]) -> None:
        """Add a row to the log and its copies."""
        self.folder.append(row)
        if self._trackers is not None:
            self._trackers.add(row)

    def _plot(self) -> None:
        """Draw the log. A missing matplotlib or a failure does not end the run."""
        try:
            plot_log(self.folder.rows(), self.folder.plot, self.training_data.scoring.metric)
        except ImportError:
            pass
        except (OSError, ValueError) as error:
            if not self._is_plot_lost:
                self._say(f"{self.folder.plot}: not drawn: {first_line(error)}")
            self._is_plot_lost = True

    def save(self) -> None:
        self._saved_at = perf_counter()
        if self.distributed.rank == 0:
            self.folder.save_state(
                {
                    "fingerprint": self._fingerprint,
                    "init": self._init,
                    "epochs": self.recipe.run.epochs,
                    "max_steps": self.recipe.run.max_steps,
                    "epoch": self.progress.epoch,
                    "batches_done": self.progress.batches_done,
                    "batches": self.progress.batches,
                    "is_check_due": self._is_validation_due,
                    "batch_sizes": list(self.planner.batch_sizes),
                    **{name: getattr(self.progress, name) for name in _RATES},
                    "gains": [
                        one and dataclasses.asdict(one) for one in (self.progress.gain, self.progress.exact_gain)
                    ],
                    "rated_by": self._rated_by,
                    "window": self._window.state(),
                    "weights": self.weights.state(),
                }
            )

    def _load_matching_state(self) -> dict[str, Any] | None:
        """Load the folder's state, if any. Raises UsageError if it is another run's, or if only models are left."""
        state = self.folder.load_state()
        if state is None:
            self.folder.check_no_models()
            return None
        if bool(state["init"]) != bool(self._init):
            how = f"with --init {state['init']}" if state["init"] else "without --init"
            raise UsageError(f"{self.folder.path}: this run was started {how}: give the same, or use another folder")
        stored = state["fingerprint"]
        changed = {name: value for name, value in self._fingerprint.items() if stored[name] != value}
        if "vocabulary" in changed:
            changed.pop("data", None)  # whose texts are in the vocabulary's pieces, and may be the same
        if changed:
            held = {"recipe": self.recipe, "model": self.training_data.checkpoint.config}
            different = [named_difference(name, stored[name], changed[name], held.get(name)) for name in changed]
            raise UsageError(
                f"{self.folder.path}: holds a run that differs in {' and '.join(different)}; {self.folder.ways_out}"
            )
        return state

    def _start(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self._restore_state(state)
        elif self.distributed.rank == 0 and not self.is_plan:
            self.folder.start_log()
        # A run that goes on keeps those that it found when it read recordings.
        if self.distributed.rank == 0 and (state is None or not self.folder.left_out.exists()):
            self.folder.write_left_out(self.training_data.left_out)
        self.distributed.barrier()  # ranks add to it

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        self.weights.restore(state["weights"])
        self.progress.epoch, self.progress.batches_done = state["epoch"], state["batches_done"]
        self.progress.step = self.weights.num_steps
        self._check_length(state)
        if state["rated_by"] == self._rated_by:  # rates of another kind cannot be compared
            for name in _RATES:
                setattr(self.progress, name, state.get(name, 0))  # older versions did not count stale validations
            self.progress.gain, self.progress.exact_gain = (one and Gain(**one) for one in state["gains"])
        self._is_validation_due, self._window = state["is_check_due"], LogWindow(state["window"])
        self.progress.batches = state.get("batches", 0)  # older versions did not say how many
        if 0 < self.progress.batches == self.progress.batches_done:
            self._end_epoch()
        if self.distributed.rank == 0 and not self.is_plan:
            self.folder.truncate_log(self.progress.step, keep_validation=not self._is_validation_due)

    def _check_length(self, state: Mapping[str, Any]) -> None:
        """Raise UsageError for another length that the run has had already. A plan is of the one that it had then."""
        run = self.recipe.run
        former = replace(run, epochs=state["epochs"], max_steps=state.get("max_steps"))  # older versions: epochs alone
        self.former_length = former.length
        if self.is_plan and run.epochs and self._is_long_enough:
            self.recipe = replace(self.recipe, run=former)  # it was longer by --epochs
        elif not self.is_plan and run.length != former.length and self._is_long_enough:
            epochs, steps = ("epochs", self.progress.epoch), ("max_steps", self.progress.step)
            key, done = epochs if run.max_steps is None else steps
            given = f"{self.folder.path}: run.{key} {getattr(run, key)}"
            raise UsageError(f"{given}: this run has had {done} already, of {former.length}: give more")

    def _check_same_on_all_ranks(self, state: Mapping[str, Any] | None) -> None:
        """Raise UsageError if ranks have read different states or data: they would wait for each other for ever."""
        names = ("batch_sizes", "epoch", "batches_done")
        position = state and ([state[name] for name in names], state["weights"]["num_steps"])
        run = self.recipe.run  # which decides when ranks wait for each other
        decisive = self._fingerprint, position, run.length, run.validate_epochs, run.patience
        digest = int.from_bytes(hashlib.blake2b(repr(decisive).encode(), digest_size=7).digest(), "big")
        ends = torch.tensor([digest, -digest], device=self.device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        if ends.sum():
            raise UsageError(
                f"{self.folder.path}: ranks do not find the same state and data; all need the same folder and manifests"
            )


def _check_readable(what: str, total: int, unreadable: float, tried: float) -> None:
    """Raise UsageError if too many recordings of a kind could not be read."""
    enough = max(1, min(_MIN_UNREADABLE, total))
    if (unreadable >= enough and unreadable > _MAX_UNREADABLE_SHARE * tried) or 2 * unreadable > tried >= enough:
        raise UsageError(f"{unreadable:.0f} of the {tried:.0f} {what} tried so far cannot be used, see above")


def _model(checkpoint: Checkpoint, recipe: Recipe) -> Model:
    if not checkpoint.weights:
        return new_model(checkpoint.config, recipe.run.seed)
    # Copies, because training changes them in place.
    weights = {name: tensor.clone() for name, tensor in checkpoint.weights.items()}
    model = build_model(checkpoint.config, weights, checkpoint.path).train().requires_grad_(True)
    if model.aed is not None:
        prepare_weights_(model.aed)
    return model
