"""Copies of a run's log for TensorBoard and Weights & Biases. The log (state.py) stays the source of truth.

TensorBoard's file is written anew from the log when a run starts or goes on, so both hold the same. A run that goes on in W&B
is the same run there. A tracker that fails is reported once and then left.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeAlias

from fastscribe.errors import UsageError, first_line
from fastscribe.training.recipe import TrackerName

_SUFFIX = ".fastscribe"  # of the names of event files, which tells ours
_INIT_TIMEOUT_S = 60


def check_installed(names: Sequence[TrackerName]) -> None:
    """Raise UsageError for a tracker whose package is missing."""
    for name in names:
        if find_spec(name) is None:
            raise UsageError(f"run.log_to: {name} is not installed: pip install {name}, or leave it out")


def flatten(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a row of the log by name: train/loss, validation/wer, validation/news/wer."""
    if "validation" not in row:
        return {f"train/{name}": float(value) for name, value in row.items() if name != "step"}
    return dict(_named("validation", {"epoch": row.get("epoch"), **row["validation"]}))


def _named(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _named(prefix if name == "sets" else f"{prefix}/{name}", value)
        elif isinstance(value, (int, float)):
            yield f"{prefix}/{name}", float(value)


class TensorBoard:
    """Event files in `folder`. Removes those of earlier starts: `rows` has their values.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for path in event_files(folder):
            path.unlink()
        self._writer = SummaryWriter(str(folder), filename_suffix=_SUFFIX)
        for row in rows:
            self.add(row.get("step", 0), flatten(row))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, has_failed: bool) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of W&B's project, which WANDB_PROJECT names. Raises what wandb does if its server cannot be used."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        import wandb

        id_file = wandb_id_file(folder)
        id_file.parent.mkdir(exist_ok=True)
        if not id_file.exists():
            id_file.write_text(secrets.token_hex(8))
        self._run = wandb.init(
            dir=str(folder),
            id=id_file.read_text().strip(),
            name=folder.absolute().name,
            resume="allow",
            config=dict(recipe),
            settings=wandb.Settings(init_timeout=_INIT_TIMEOUT_S),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")  # a resumed run may repeat steps, which W&B's own may not

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self, has_failed: bool) -> None:
        self._run.finish(exit_code=int(has_failed))  # W&B marks a run with another code than 0 as failed


Tracker: TypeAlias = TensorBoard | WeightsAndBiases


def event_files(folder: Path) -> list[Path]:
    """Return TensorBoard's files that a run wrote."""
    return sorted(folder.glob(f"events.out.tfevents.*{_SUFFIX}"))


def wandb_id_file(folder: Path) -> Path:
    """Return the file with the run's id in W&B."""
    return folder / "wandb" / "fastscribe-run-id"


class Trackers:
    """The trackers of a run, which are closed at its end.

    Args:
        folder: the run's.
        rows: returns those of its log so far.
        recipe: settings to show in W&B.
        say: called with each line for the user.
    """

    def __init__(
        self,
        names: Sequence[TrackerName],
        folder: Path,
        rows: Callable[[], Sequence[Mapping[str, Any]]],
        recipe: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._say, self._trackers = say, dict[str, Tracker]()
        makers: dict[str, Callable[[], Tracker]] = {
            "tensorboard": lambda: TensorBoard(folder / "tensorboard", rows()),
            "wandb": lambda: WeightsAndBiases(folder, json.loads(json.dumps(recipe, default=str))),
        }
        for name in names:
            self._patiently(name, partial(self._open, name, makers[name]))

    def _open(self, name: str, make: Callable[[], Tracker]) -> None:
        self._trackers[name] = make()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of the log."""
        for name, tracker in list(self._trackers.items()):
            self._patiently(name, partial(tracker.add, row.get("step", 0), flatten(row)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        for name, tracker in list(self._trackers.items()):
            self._patiently(name, partial(tracker.close, error is not None))
        self._trackers.clear()

    def _patiently(self, name: str, work: Callable[[], object]) -> None:
        """Do the work of a tracker. If that fails, say so and go on without it."""
        try:
            work()
        except Exception as error:  # a server or a full disk; the packages raise anything
            self._trackers.pop(name, None)
            self._say(f"run.log_to: {name} fails, and the run goes on without it: {first_line(error)}")
