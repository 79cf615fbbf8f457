"""The state of a run on disk, written atomically. A run that is resumed from it equals an uninterrupted one.

`state.pt` has everything that decides the steps to come; randomness is none of it, because each step draws from
generators seeded by its own number. `train.jsonl` is the log: a line every few steps and one a validation; its plot shows
losses, error rates and the learning rate by step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from fastscribe._system.file_kinds import InTheWay, is_regular, starts_with, status_of
from fastscribe._system.safe_files import open_append, remove, sync_folder, sync_path, temp_path_for, write_atomic
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.native import ALIGNER_FOLDER
from fastscribe.checkpoint.native_writer import new_model, remove_model
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.errors import OutputError, UsageError, first_line
from fastscribe.results.folder_lock import FolderLock
from fastscribe.training.corpus import LeftOutRow
from fastscribe.training.scoring import Metric
from fastscribe.training.trackers import event_files, wandb_id_file

FORMAT_VERSION = 6
_STATE_START = re.compile(rb"PK\x03\x04.*format_version", re.DOTALL)  # torch.save's archive, and our first key
_MODEL_SUFFIXES = (".json", ".safetensors", ".model", ".gz")
_LOG_START = b'{"step": '
_LEFT_OUT_START = re.compile(rb'\{"left_out": ')
_MODEL_START = re.compile(rb'\{\s*"format": "fastscribe"')
_PLOT_START = re.compile(rb"\x89PNG\r\n\x1a\n.*Software\0fastscribe", re.DOTALL)
_TABLE_START = re.compile(rb'\{\s*"format_version": ')


class RunFolder:
    """The files of a run: `best` and `last` (models that transcribe reads), the state, the log, a plot."""

    def __init__(self, path: Path, is_ignored: bool = False) -> None:
        self.path = path
        self._is_ignored = is_ignored  # the run that the folder holds: a plan would start over
        self.state, self.log, self.plot = path / "state.pt", path / "train.jsonl", path / "train.png"
        self.best, self.last = path / "best", path / "last"
        self.batch_sizes, self.left_out = path / "batch_sizes.json", path / "left_out.jsonl"
        self._left_out_lock = Lock()
        self._in_left_out: set[bytes] | None = None  # its lines, once one was added

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, and create it if needed; remove the lock of a new one that gets no run, and it if it is empty.

        Raises:
            UsageError: another run writes there, or none can.
        """
        path, is_new = self.path / "train.lock", not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(path)
        except OSError as error:
            raise UsageError(f"--output-dir {self.path}: cannot be written: {error.strerror or error}") from error
        try:
            with closing(lock):
                yield
        finally:
            if is_new and (held := set(self.path.iterdir())) <= {path, self.left_out}:
                path.unlink()
                if self.left_out not in held:
                    self.path.rmdir()

    def check(self) -> None:
        """Raise UsageError if a file or folder that no training run wrote has the name of one that this run writes."""
        foreign = [str(path) for path, is_ours in self._written() if status_of(path) is not None and not is_ours(path)]
        if foreign:
            others = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
            raise UsageError(
                f"{foreign[0]}{others}: no training run wrote this: move it away, or name another folder with --output-dir"
            )

    def recover(self) -> None:
        """Give a model its name back, if the last run stopped between taking it and giving it to the next one.

        Raises:
            OutputError: The folder cannot be written.
        """
        with _written_at(self.path):
            for folder in (self.best, self.last):
                if status_of(folder) is None and _is_model(_previous(folder)):
                    _previous(folder).rename(folder)
                    sync_folder(self.path)

    def clear(self) -> None:
        """Remove the files of a run and nothing else. Raises UsageError as `check` does, OutputError."""
        self.check()
        with _written_at(self.path):
            for folder in (self.best, self.last):
                for each in (temp_path_for(folder), _previous(folder)):
                    remove_model(each)
                for path in folder.glob("*"):
                    if path.suffix in _MODEL_SUFFIXES:
                        remove(path)
                remove_model(folder / ALIGNER_FOLDER)
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
            remove(self.state)  # first, because a run refuses a folder with models and no state
            unfinished = map(temp_path_for, (self.state, self.log))
            for path in (self.log, self.plot, self.left_out, *unfinished, *self._tables()):
                remove(path)
            for path in (*event_files(self.path / "tensorboard"), wandb_id_file(self.path)):
                path.unlink(missing_ok=True)
            sync_folder(self.path)

    def _tables(self) -> list[Path]:
        return [*self.path.glob("batch_sizes*.json"), *self.path.glob(".batch_sizes*.json.fastscribe.part")]

    def _written(self) -> list[tuple[Path, Callable[[Path], bool]]]:
        """Each path that a run writes, with the check that a run wrote it."""
        models, tables = (self.best, self.last), self._tables()
        return [
            (self.state, _begins_with(_STATE_START)),
            (self.log, _is_log),
            (self.plot, _begins_with(_PLOT_START)),
            (self.left_out, _begins_with(_LEFT_OUT_START)),
            *((path, _is_model) for path in models),
            *((path, _begins_with(_TABLE_START)) for path in tables),
        ]

    def check_no_models(self) -> None:
        """Raise UsageError if the folder has models but no state: a new run would replace them."""
        if not self._is_ignored and (self.best.exists() or self.last.exists()):
            raise UsageError(
                f"{self.path}: holds models but no state to go on from; use another folder, or --overwrite to replace them"
            )

    @property
    def ways_out(self) -> str:
        """What a command may do that cannot go on with the run of the folder."""
        further = f"; --init {self.last} in another folder trains its model further" if self.last.exists() else ""
        return f"use another folder, or --overwrite to start over{further}"

    def save_state(self, values: Mapping[str, Any]) -> None:
        """Replace the state; it, and the log up to here, are durable on return. Raises OutputError."""
        try:
            if is_regular(self.log):
                sync_path(self.log)
                sync_folder(self.path)
            write_atomic(self.state, lambda file: torch.save({"format_version": FORMAT_VERSION, **values}, file))
        except (OSError, RuntimeError) as error:
            raise OutputError(str(self.state), _disk_error(error)) from error

    def load_state(self) -> dict[str, Any] | None:
        """Return the state, or None without one. Raise UsageError for a damaged or foreign file.

        Tensors are on the CPU: what takes them over copies them to the device one by one.
        """
        if self._is_ignored or not self.state.exists():
            return None
        try:
            values = torch.load(self.state, map_location="cpu", weights_only=True)
            right = values["format_version"] == FORMAT_VERSION
        except Exception as error:  # torch and pickle raise anything for damaged bytes
            raise UsageError(f"{self.state}: cannot be read ({type(error).__name__}); use another folder") from error
        if not right:
            raise UsageError(f"{self.state}: of another version, whose runs do not go on; {self.ways_out}")
        return dict(values)

    def save_model(self, folder: Path, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        """Replace the model folder; a complete model exists at every moment. Raise OutputError."""
        old = _previous(folder)
        with _written_at(folder):
            with new_model(folder) as new:
                native_writer.write(checkpoint, new, dtype)
            remove_model(old)
            if folder.exists():
                folder.rename(old)
            temp_path_for(folder).rename(folder)
            for path in old.glob("*"):
                if path.suffix not in _MODEL_SUFFIXES and path.name != ALIGNER_FOLDER:
                    path.rename(folder / path.name)  # somebody's notes
            sync_folder(self.path)
            remove_model(old)

    def append(self, row: Mapping[str, Any]) -> None:
        with _written_at(self.log), open_append(self.log) as file:
            file.write((json.dumps(row, allow_nan=False) + "\n").encode())

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the log without a half-written last one."""
        if not self.log.exists():
            return []
        rows = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def start_log(self) -> None:
        """Remove the log and the plot of a run that ended before its first state. Raise OutputError."""
        with _written_at(self.log):
            remove(self.log)
            remove(self.plot)

    def write_left_out(self, rows: Sequence[LeftOutRow]) -> None:
        """Write the rows of manifests that a run does not use; without any, no file. Raise OutputError."""
        with _written_at(self.left_out):
            if rows:
                write_atomic(self.left_out, b"".join(map(_line_of, rows)))
            else:
                remove(self.left_out)

    def add_left_out(self, row: LeftOutRow) -> None:
        """Add a row whose recording was read and cannot be used, unless an earlier part of the run did. Raise OutputError."""
        with self._left_out_lock, _written_at(self.left_out):
            if self._in_left_out is None:
                self._in_left_out = set(self.left_out.read_bytes().splitlines(True) if self.left_out.exists() else ())
            if (line := _line_of(row)) not in self._in_left_out:
                with open(self.left_out, "ab") as file:
                    file.write(line)
                self._in_left_out.add(line)

    def truncate_log(self, step: int, keep_validation: bool = True) -> None:
        """Drop log rows after `step`; drop the validation of `step` too unless `keep_validation`."""
        kept = [
            row
            for row in self.rows()
            if row.get("step", 0) < step or (row.get("step") == step and (keep_validation or "validation" not in row))
        ]
        with _written_at(self.log):
            write_atomic(self.log, "".join(json.dumps(row) + "\n" for row in kept).encode())


def _line_of(row: LeftOutRow) -> bytes:
    return (json.dumps(row.to_json(), ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")


@contextmanager
def _written_at(path: Path) -> Iterator[None]:
    """Raise OutputError where a file or folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(str(path), error) from error


def _disk_error(error: BaseException) -> OSError:
    """Return what the disk said: after a failed write torch raises a RuntimeError about its place in the archive."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__context__
    return found or OSError(first_line(error))


def _previous(folder: Path) -> Path:
    """Name of the old model while the new one takes its place."""
    return folder.with_name(f".{folder.name}.fastscribe.old")


def _is_model(folder: Path) -> bool:
    """True for a model that fastscribe wrote, or an empty folder."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or ("config.json" in names and starts_with(folder / "config.json", _MODEL_START))


def _begins_with(pattern: re.Pattern[bytes]) -> Callable[[Path], bool]:
    """Return the check of a regular file whose start matches."""
    return lambda path: is_regular(path) and starts_with(path, pattern)


def _is_log(path: Path) -> bool:
    """True for a log, or for the start of one after a power cut."""
    if is_regular(path) and path.stat().st_size < len(_LOG_START):
        return _LOG_START.startswith(path.read_bytes())
    return _begins_with(re.compile(re.escape(_LOG_START)))(path)


_LOSSES = ("loss", "transducer", "ctc")
_MAX_DRAWN_RATE = 105.0  # %


def plot_log(rows: Sequence[Mapping[str, Any]], path: Path, metric: Metric = "wer") -> None:
    """Draw the log as a PNG. Raises ImportError without matplotlib, InTheWay, OSError.

    Args:
        metric: the rate to draw of each validation set, if there are several.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    losses, errors, rates = figure.subplots(1, 3)
    for name in _LOSSES:
        _draw(losses, even_means([(row["step"], row[name]) for row in rows if name in row]), name, linewidth=1)
    validations = [(row["step"], row["validation"]) for row in rows if "validation" in row]
    for name, label in (
        ("wer", "words, normalised"),
        ("exact_wer", "words with case and punctuation"),
        ("cer", "characters"),
    ):
        _draw(errors, [(step, 100 * scores[name]) for step, scores in validations], label, marker=".")
    for name in dict.fromkeys(name for _, scores in validations for name in scores.get("sets", ())):
        found = [(step, scores["sets"][name]) for step, scores in validations if name in scores.get("sets", ())]
        _draw(errors, [(step, 100 * rates[metric]) for step, rates in found if metric in rates], name, linewidth=0.8)
    if (best := next((row["best_step"] for row in reversed(rows) if "best_step" in row), None)) is not None:
        errors.axvline(best, label=f"best: step {best:,}" if best else "best: the start", color="grey", linestyle=":")
    _draw(rates, [(row["step"], row["learning_rate"]) for row in rows if "learning_rate" in row], "", linewidth=1)
    losses.set(ylabel="loss, nats a label", yscale="log")
    low, high = losses.get_ylim()
    losses.yaxis.set_major_formatter("{x:g}")
    losses.yaxis.set_minor_formatter("{x:g}" if high < 10 * low else "")  # where a power of ten may not be in sight
    # What a model writes that has learnt nothing would press the rest flat.
    errors.set(ylabel="error rate, %", ylim=(0, min(_MAX_DRAWN_RATE, errors.get_ylim()[1])))
    rates.set(ylabel="learning rate", ylim=(0, None))
    for axes in (losses, errors, rates):
        axes.set(xlabel="step", xlim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small", frameon=False)
    if path.exists() and not _begins_with(_PLOT_START)(path):
        raise InTheWay(path)
    canvas: Any = FigureCanvasAgg(figure)
    write_atomic(path, lambda file: canvas.print_png(file, metadata={"Software": "fastscribe"}))


def _draw(axes: Any, points: Sequence[tuple[int, float]], label: str, **style: Any) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def even_means(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return means over equal numbers of steps. Those at the end of an epoch are over fewer, and noisier.

    Args:
        points: The step of each mean, and the mean over the steps since the one before.

    >>> even_means([(10, 3.0), (12, 1.0), (20, 2.0)])
    [(10, 3.0), (12, 2.6), (20, 1.8)]
    """
    if not points:
        return []
    ends, means = np.array([(0, 0.0), *points]).T
    sums = np.cumsum(means * np.diff(ends, prepend=0.0))
    begins = np.maximum(ends - np.diff(ends).max(), 0.0)[1:]
    even = (sums[1:] - np.interp(begins, ends, sums)) / (ends[1:] - begins)
    return [(step, mean) for (step, _), mean in zip(points, even.tolist(), strict=True)]
