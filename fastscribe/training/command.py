"""`fastscribe train`: train a model from scratch or fine-tune a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe._system.jit import runs_in_python
from fastscribe._system.text_layout import count_of
from fastscribe.audio.formats import is_audio_name
from fastscribe.checkpoint.location import locate
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli.app import MODEL_HELP, Stopped, app, option
from fastscribe.cli.job import check_output_dir
from fastscribe.cli.terminal import filter_mpg123_messages, say
from fastscribe.config import TrainDtypeChoice
from fastscribe.errors import UsageError
from fastscribe.families.indic import of_language
from fastscribe.training.corpus import first_left_out
from fastscribe.training.recipe import default_recipe, read_recipe
from fastscribe.training.scoring import METRIC_NAMES
from fastscribe.training.trackers import check_installed as check_trackers

if TYPE_CHECKING:
    from fastscribe.training.recipe import Recipe
    from fastscribe.training.scoring import Metric
    from fastscribe.training.trainer import Trainer
    from fastscribe.training.validation import Gain

_RECIPES = (".yaml", ".yml")
_BAR_WIDTH = 16
_EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@app.command(
    short_help="Train or fine-tune a FastConformer model, or fine-tune Canary.",
    epilog="Example: fastscribe train recipe.yaml -o run; fastscribe train clips.jsonl --init model.nemo -o tuned. "
    "Several GPUs: torchrun --nproc-per-node 8 -m fastscribe train recipe.yaml -o run",
)
def train(
    recipe: Annotated[
        Path,
        typer.Argument(
            help="YAML recipe; or a NeMo manifest, or a folder of recordings with a .txt beside each, to train on with "
            "the defaults.",
        ),
    ],
    output_dir: Annotated[
        Path,
        option("--output-dir", "-o", help="Folder for the models, the state and the log. Resumes a run that it holds."),
    ],
    init: Annotated[
        str | None,
        option(
            "--init",
            help=f"Fine-tune this model: default (the packaged one), {MODEL_HELP} It keeps its vocabulary unless the "
            "recipe has model.vocab_size or model.tokenizer.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        option("--epochs", min=0, help="Override the recipe's epochs or steps; 0 shows the plan and trains nothing."),
    ] = None,
    device: Annotated[str, option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[
        TrainDtypeChoice,
        option("--dtype", help="auto: bf16 with float32 copies of the weights if the device is fast at it."),
    ] = "auto",
    overwrite: Annotated[
        bool, option("--overwrite", help="Remove the files of a run from the folder, and start over.")
    ] = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="Print errors and the result only.")] = False,
) -> None:
    """Train or fine-tune a FastConformer model (RNN-T, TDT, CTC or hybrid), or fine-tune Canary."""
    from fastscribe.evaluation.scores import check_installed

    check_output_dir(output_dir)
    stated = _recipe(recipe, init is not None)  # before the import of torch, which is slow
    is_plan = not (stated.run.epochs if epochs is None else epochs)
    chosen = replace(stated, run=replace(stated.run, epochs=epochs, max_steps=None)) if epochs else stated
    check_installed("whisper-en", "train", "train")
    check_trackers(chosen.run.log_to)
    from fastscribe.training.data import prepare
    from fastscribe.training.distributed import DistributedContext, chosen_dtype_of
    from fastscribe.training.state import RunFolder
    from fastscribe.training.trainer import Trainer

    distributed = DistributedContext.from_torchrun()
    is_shown = distributed.rank == 0 and not quiet
    log: Callable[[str], None] = say if is_shown else lambda line: None
    is_recipe = recipe.suffix.lower() in _RECIPES
    folder, chosen_device = RunFolder(output_dir, is_plan and overwrite), distributed.device(device)
    with folder.locked() if distributed.rank == 0 else nullcontext(), filter_mpg123_messages():
        if distributed.rank == 0:
            folder.check()
            folder.recover()
        found = locate(init, log, show_progress=is_shown) if init is not None else None
        checkpoint = of_language(read_checkpoint(found, log), None) if found is not None else None
        distributed.join(chosen_device)
        where = recipe if is_recipe else "the default recipe"
        training_data = prepare(chosen, checkpoint, log, where)
        # After every rank has read its inputs, which may lie there, and before any looks for a state.
        if overwrite and not is_plan:
            if distributed.rank == 0:
                folder.clear()
            distributed.barrier()
        chosen_dtype = chosen_dtype_of(dtype, chosen_device)
        again = "the same command without --overwrite" if overwrite else "the same command"
        trainer = Trainer(chosen, training_data, folder, chosen_device, chosen_dtype, say, distributed, is_plan)
        if is_shown:
            _report_start(trainer)
        _run_and_report(trainer, is_shown, again)


def _run_and_report(trainer: Trainer, is_shown: bool, again: str) -> None:
    """Train and print the result; `again` names the command that resumes. Raise Stopped after a signal."""
    if trainer.is_plan:
        trainer.check_recordings()
        trainer.distributed.leave()
        if is_shown:
            _report_left_out(trainer)
        return
    _install_signal_handlers(trainer)
    display = _Display(trainer, is_shown)
    with display.bar or nullcontext():
        is_over = trainer.run(display.update)
    trainer.distributed.leave()
    if not is_over:
        if trainer.distributed.rank == 0:
            say(f"stopped after step {trainer.progress.step:,}; {again} goes on from there")
        raise Stopped(_EXIT_CODES[signal.Signals(trainer.stop_signal)])
    if trainer.distributed.rank == 0:
        _report_end(trainer)


def _report_left_out(trainer: Trainer) -> None:
    rows, loader = len(trainer.training_data.left_out), trainer.loader
    if rows or loader.num_unreadable:
        read = f", and {loader.num_unreadable:,} of the {count_of(loader.num_tried, 'recording')} read"
        at = f"; {trainer.folder.left_out} has them"
        say(f"left out: {count_of(rows, 'row')} of the manifests{read if loader.num_tried else ''}{at}")


def _report_end(trainer: Trainer) -> None:
    _report_left_out(trainer)
    progress, data = trainer.progress, trainer.training_data
    if trainer.is_stopped_early:
        stale, length = count_of(progress.num_stale, "validation"), trainer.recipe.run.length
        say(f"run.patience: {stale} without a better one ended the run after step {progress.step:,} of {length}")
    sets, is_start = data.validation_sets, progress.best_step == 0
    rate = (progress.start_rate if is_start else progress.best_rate) or 0.0
    num_recordings = sum(one.num_examples for one in sets if one.decides) if sets else len(data.validation)
    name = METRIC_NAMES[data.scoring.metric]
    what = "the model of --init, unchanged: " if is_start else ""
    fell = progress.gain is not None and progress.gain.fewer > 0
    trial = f"; try the trained model with --model {quote(str(trainer.folder.last))}" if is_start and fell else ""
    say(f"{trainer.folder.best}: {what}{name} {100 * rate:.2f} % on {count_of(num_recordings, 'recording')}{trial}")
    if (gain := progress.gain) is not None and progress.start_rate is not None:
        verdict = _verdict(gain, progress.start_rate, progress.best_rate or 0.0, data.scoring.metric)
        is_worse = not is_start and gain.fewer < 0
        say(f"{verdict}, and best is that step: run.keep_start: true would keep the start" if is_worse else verdict)
    if is_start:
        if note := _exact_note(trainer):
            say(note)
        say(
            f"{trainer.folder.last} is the trained model; run.keep_start: false has best be the step with the lowest rate"
        )


def _exact_note(trainer: Trainer) -> str:
    """Return that case and punctuation are clearly better in the trained model, if what decides is not."""
    start, gain = trainer.progress.start_exact_counts, trainer.progress.exact_gain
    if not start or gain is None or not gain.is_clear:
        return ""
    rate = sum(errors for errors, _ in start.values()) / gain.num_words
    fell = f"from {100 * rate:.2f} % of the words wrong to {100 * (rate - gain.fewer):.2f} %"
    return f"with case and punctuation training got clearly better, {fell}: data.normalizer: none has these decide"


def _verdict(gain: Gain, start: float, best: float, metric: Metric) -> str:
    """Return whether the best trained model is better than the start, and how sure that is."""
    unit, side = "words" if metric == "wer" else "characters", "below" if gain.fewer > 0 else "above"
    if not gain.fewer:
        return f"the best step of training has {100 * best:.2f} %, as --init has ({gain.num_words:,} {unit}): no better"
    line = (
        f"the best step of training has {100 * best:.2f} %, {100 * abs(gain.fewer):.2f} points {side} the {100 * start:.2f} % "
        f"of --init (standard error {100 * gain.standard_error:.2f}, {gain.num_words:,} {unit})"
    )
    if gain.fewer <= 0:
        return f"{line}: no better"
    if gain.is_clear:
        return line
    return f"{line}: too few {unit} to tell that from chance; about {gain.words_to_tell:,} would (data.validation)"


def _recipe(path: Path, is_tuning: bool) -> Recipe:
    if is_audio_name(path.name) and not path.is_dir():
        raise UsageError(
            f"{path}: is a recording; give a recipe, a manifest, or a folder of recordings with their texts"
        )
    return read_recipe(path, is_tuning) if path.suffix.lower() in _RECIPES else default_recipe(path, is_tuning)


def _report_start(trainer: Trainer) -> None:
    """Print what a run begins with, or the plan of one."""
    training_data, padding = trainer.training_data, trainer.planner.padding()
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    trained = "" if trainer.num_trained == parameters else f", {_millions(trainer.num_trained)} of them trained"
    epoch_s, corpus_s = trainer.planner.epoch_audio_s, training_data.corpus.duration_s
    drawn = f"; {epoch_s / 3600:.2f} h per epoch" if abs(epoch_s - corpus_s) > 0.005 * corpus_s else ""
    greedy = ", greedily: without the language model" if training_data.checkpoint.language_model is not None else ""
    say(f"{training_data.corpus}{drawn}; {len(training_data.validation):,} to validate with{greedy}")
    for line in first_left_out(training_data.left_out):
        say(f"left out, {line}")
    if rows := len(training_data.left_out):
        say(f"{trainer.folder.left_out} has {count_of(rows, 'row')} that {'is' if rows == 1 else 'are'} left out")
    about, run = _about(trainer), trainer.recipe.run
    num_steps = f"{about if run.max_steps is None else ''}{count_of(trainer.num_steps, 'step')}"
    in_all = "" if trainer.is_plan else f"{num_steps} in all, "
    say(
        f"{_millions(parameters)} parameters{trained}, {training_data.checkpoint.config.family}, {str(trainer.dtype)[6:]} on "
        f"{trainer.device}; {about}{count_of(trainer.planner.epoch_batches, 'batch')} per epoch, {in_all}"
        f"{100 * padding.frames:.1f} % padding "
        f"(random batches: {100 * trainer.planner.naive_padding().frames:.1f} %){_warm_up_note(trainer)}"
    )
    if trainer.learner.network.has_idle_head:
        weight = trainer.learner.network.ctc_weight
        idle, other = ("transducer", "; transcribe with --decoder ctc") if weight else ("CTC head", "")
        say(f"ctc_weight {weight:g}: the {idle} learns nothing{other}")
    if runs_in_python() and trainer.device.type == "cpu" and trainer.model.transducer is not None:
        say("NUMBA_DISABLE_JIT is set: the transducer loss runs in Python, which takes a thousand times as long")
    if trainer.progress.step:
        say(_going_on(trainer))
    if trainer.is_plan:
        if trainer.rates_start and (note := _least_gain_note(trainer)):
            say(note)
        if run.epochs:
            say(_planned_steps(trainer))
        most = count_of(max(trainer.planner.batch_sizes), "recording")
        num_bytes = trainer.weights.num_bytes
        size = f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
        say(
            f"this is the plan, and nothing is trained: weights, gradients and optimiser take {size}, and batches of "
            f"up to {most} come on top"
        )
    elif not trainer.progress.step and training_data.new_heads and not trainer.rates_start:
        say("no validation before the first step: the head that decodes has new outputs")


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 50_000 else f"{count:,}"


def _going_on(trainer: Trainer) -> str:
    run, progress, before = trainer.recipe.run, trainer.progress, trainer.former_length
    if run.epochs and trainer.is_over:
        further = f"--init {quote(str(trainer.folder.last))} in another folder trains its model further"
        if trainer.is_stopped_early:
            return f"finished after step {progress.step:,}; a larger run.patience, or none, goes on here; {further}"
        key = "epochs" if run.max_steps is None else "max_steps"
        return f"finished after {run.length}; more run.{key} go on here; {further}"
    changed = f": {run.length} instead of {before}, and the learning rate follows the new length"
    return f"going on after step {progress.step:,}{changed if run.epochs and run.length != before else ''}"


def _about(trainer: Trainer) -> str:
    """Return "about " before numbers of the first epoch if the run has epochs that may have others."""
    return "about " if trainer.planner.epochs_differ and trainer.recipe.run.epochs != 1 else ""


def _planned_steps(trainer: Trainer) -> str:
    run, optimiser, planner = trainer.recipe.run, trainer.recipe.optimiser, trainer.planner
    in_all = f"{_about(trainer)}{count_of(trainer.num_steps, 'step')}"
    if run.max_steps is not None:
        in_all = f"about {run.max_steps / planner.num_steps(1):.1f} epochs"
    warm_up = count_of(trainer.weights.warmup_steps, "warm-up step")
    capped = " (at most a tenth of the run)" if trainer.weights.warmup_steps < optimiser.warmup_steps else ""
    return f"{run.length}: {in_all} in all, {warm_up}{capped}, a learning rate of {optimiser.learning_rate:g}"


def _warm_up_note(trainer: Trainer) -> str:
    """Return a note if the warm-up is shorter than the recipe's."""
    num_steps = trainer.weights.warmup_steps
    is_capped = num_steps < trainer.recipe.optimiser.warmup_steps and not trainer.is_plan
    return f"; {count_of(num_steps, 'warm-up step')} (at most a tenth of the run)" if is_capped else ""


def _install_signal_handlers(trainer: Trainer) -> None:
    """The first signal stops the run after the step and saves it, the second ends the process.

    With several ranks any may receive the signal, and torchrun repeats it and later kills slow ranks, so repeats are
    ignored. A signal that the shell has made the process ignore stays ignored.
    """

    def note(number: int, frame: FrameType | None) -> None:
        if not trainer.requested_signal:
            trainer.requested_signal = number
        elif trainer.distributed.world_size == 1:
            os._exit(_EXIT_CODES[signal.Signals(number)])

    for number in _EXIT_CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            with suppress(ValueError):  # not the main thread
                signal.signal(number, note)


class _Display:
    """A bar on a terminal, else one line per epoch."""

    def __init__(self, trainer: Trainer, is_shown: bool) -> None:
        self._trainer, self._is_shown = trainer, is_shown
        self._last_said = trainer.progress.epoch, trainer.is_over
        self._is_start_shown = trainer.progress.start_rate is not None
        self.bar: Any = None
        if is_shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.table import Column

            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # the width that the other columns leave
            text = TextColumn("{task.fields[said]}", markup=False, table_column=rest)
            columns = (
                BarColumn(_BAR_WIDTH),
                TextColumn("{task.percentage:.1f} %"),
                text,
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
            self._task = self.bar.add_task("", total=1.0, said="starting")

    def update(self) -> None:
        progress = self._trainer.progress
        if self.bar is not None:
            with suppress(OSError):
                self.bar.update(self._task, completed=self._trainer.share_done, said=_short_status(self._trainer))
        if self._is_shown and not self._is_start_shown and progress.start_rate is not None:
            self._is_start_shown = True
            say(f"before the first step: {', '.join(_validated(self._trainer))}", self.bar)
            if note := _least_gain_note(self._trainer):
                say(note, self.bar)
        now = progress.epoch, self._trainer.is_over  # the last of run.max_steps may end no epoch
        if self._is_shown and now != self._last_said:
            self._last_said = now
            if status := _status(self._trainer):
                say(f"epoch {round(progress.epochs_done, 1)}: step {progress.step:,}, {status}", self.bar)


def _least_gain_note(trainer: Trainer) -> str:
    """Return how small a gain the validation set can show; nothing of a start without errors."""
    from fastscribe.training.validation import ASSUMED_RATE, assumed_counts, least_gain, num_words

    counts: Mapping[int, tuple[float, int]] | None = trainer.progress.start_counts
    data, assumed = trainer.training_data, ""
    if counts is None:
        counts = assumed_counts(data.validation, data.scoring, data.validation_sets)
        assumed = f" if --init has {100 * ASSUMED_RATE:.0f} % of them wrong,"
    if not (least := least_gain(counts)):
        return ""
    unit = "word" if data.scoring.metric == "wer" else "character"
    kept = "; until then best stays the model of --init" if trainer.recipe.run.keep_start else ""
    own = "" if trainer.recipe.data.validation else " kept from those to train on"
    return (
        f"{count_of(num_words(counts), unit)} to validate with{own}:{assumed} a gain of less than about {100 * least:.1f} "
        f"points will not show{kept}; more recordings in data.validation show smaller ones"
    )


def _short_status(trainer: Trainer) -> str:
    """Return a short status that fits beside the bar in 80 columns."""
    progress = trainer.progress
    parts = [f"step {progress.step:,}"]
    if "loss" in progress.losses:
        parts.append(f"loss {progress.losses['loss']:.3f}")
    if progress.validated is not None:
        parts.append(_rate(trainer, progress.validated.deciding))
    return ", ".join(parts)


def _rate(trainer: Trainer, rate: float) -> str:
    return f"{trainer.training_data.scoring.metric.upper()} {100 * rate:.2f} %"


def _validated(trainer: Trainer) -> list[str]:
    """Return the rate that decides and that of each validation set, once there are any."""
    if (validated := trainer.progress.validated) is None:
        return []
    metric = trainer.training_data.scoring.metric
    sets = [_set_status(name, rates, metric) for name, rates in validated.sets.items()]
    return [_rate(trainer, validated.deciding), *sets]


def _set_status(name: str, rates: Mapping[str, float], metric: Metric) -> str:
    """Return the error rate of a validation set; of one without speech, what is written for it."""
    if metric in rates:
        return f"{name} {100 * rates[metric]:.2f} %"
    unit = "words" if metric == "wer" else "characters"
    return f"{name} {rates[f'{unit}_per_min']:.2f} {unit}/min"


def _status(trainer: Trainer) -> str:
    """Return what was measured since the last step that an epoch ended with; empty: nothing."""
    progress = trainer.progress
    losses = ", ".join(f"{name} {value:.3f}" for name, value in progress.losses.items())
    parts = [losses, *_validated(trainer)]
    if progress.busy_s:
        speed = progress.audio_s * trainer.distributed.world_size / progress.busy_s
        parts.append(f"{speed:.0f} s of audio per second")
    return ", ".join(part for part in parts if part)
