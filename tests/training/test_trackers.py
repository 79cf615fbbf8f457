"""TensorBoard and W&B hold what the log holds, also after a resumption, and never stop a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastscribe.errors import UsageError
from fastscribe.training import trackers as trackers_module
from fastscribe.training.state import RunFolder
from fastscribe.training.trackers import Trackers, check_installed, event_files, flatten, wandb_id_file
from tests.training.test_trainer import recipe_of, trainer_of

STEP = {"step": 10, "epoch": 0.5, "loss": 2.0, "learning_rate": 0.001}
CHECKED = {
    "step": 20,
    "epoch": 1,
    "validation": {"wer": 0.5, "sets": {"news": {"wer": 0.25}, "noise": {"words_per_min": 3.0}}},
}


class FakeRuns:
    """The package wandb, with a server that may fail."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.rows: list[Mapping[str, Any]] = []
        self.failing: set[str] = set()
        self.exit_codes: list[int] = []
        self.Settings = SimpleNamespace

    def init(self, **settings: Any) -> FakeRuns:
        self._fail("init")
        assert settings["resume"] == "allow" and settings["config"]["run"]["epochs"] == 2
        self.ids.append(settings["id"])
        return self

    def define_metric(self, name: str, **settings: str) -> None:
        pass

    def log(self, row: Mapping[str, Any]) -> None:
        self._fail("log")
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)
        self._fail("finish")

    def _fail(self, name: str) -> None:
        if name in self.failing:
            raise ConnectionError(f"no server for {name}\nand more")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    return fake


def trackers(folder: Path, name: Any, rows: Any = (), said: list[str] | None = None) -> Trackers:
    return Trackers((name,), folder, lambda: rows, {"run": {"epochs": 2}}, (said if said is not None else []).append)


def test_names() -> None:
    assert flatten(STEP) == {"train/epoch": 0.5, "train/loss": 2.0, "train/learning_rate": 0.001}
    assert flatten(CHECKED) == {
        "validation/epoch": 1.0,
        "validation/wer": 0.5,
        "validation/news/wer": 0.25,
        "validation/noise/words_per_min": 3.0,
    }


def test_a_resumed_run_is_the_same_in_wandb(tmp_path: Path, runs: FakeRuns) -> None:
    for _ in range(2):
        with trackers(tmp_path, "wandb") as tracker:
            tracker.add(STEP)
    assert len(set(runs.ids)) == 1 and runs.rows[0] == {"step": 10, **flatten(STEP)} and runs.exit_codes == [0, 0]
    RunFolder(tmp_path).clear()
    assert not wandb_id_file(tmp_path).exists()


@pytest.mark.parametrize("failing", ["init", "log", "finish"])
def test_a_failing_server_is_said_once(tmp_path: Path, runs: FakeRuns, failing: str) -> None:
    runs.failing, said = {failing}, []
    with trackers(tmp_path, "wandb", said=said) as tracker:
        for _ in range(2):
            tracker.add(STEP)
    assert said == [f"run.log_to: wandb fails, and the run goes on without it: no server for {failing}"]


def test_run_with_trackers(manifest: Path, tmp_path: Path, runs: FakeRuns) -> None:
    trainer = trainer_of(recipe_of(manifest, run={"epochs": 2, "log_to": ["wandb"]}), tmp_path / "run")
    runs.failing = {"finish"}
    assert trainer.run()
    assert runs.rows == [{"step": row["step"], **flatten(row)} for row in trainer.folder.rows()]
    other = trainer_of(recipe_of(manifest, run={"epochs": 2}), tmp_path / "run")  # the same run, without them
    assert other.run() and len(runs.ids) == 1


def test_an_error_marks_the_run_as_failed(manifest: Path, tmp_path: Path, runs: FakeRuns) -> None:
    trainer = trainer_of(recipe_of(manifest, run={"epochs": 2, "log_to": ["wandb"]}), tmp_path / "run")

    def fail() -> None:
        raise UsageError("too many recordings cannot be used")

    with pytest.raises(UsageError, match="too many"):
        trainer.run(fail)
    assert runs.exit_codes == [1]


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers_module, "find_spec", lambda name: None if name == "wandb" else name)
    check_installed(("tensorboard",))
    with pytest.raises(UsageError, match=r"^run\.log_to: wandb is not installed: pip install wandb, or leave it out$"):
        check_installed(("tensorboard", "wandb"))


def test_event_file_of_tensorboard(tmp_path: Path) -> None:
    """With the package itself. The state may be older than the log; another program's file stays."""
    reason = "needs tensorboard"
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=reason)
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    (folder / "events.out.tfevents.theirs").touch()
    for rows in ((), [STEP]):
        with trackers(tmp_path, "tensorboard", rows) as tracker:
            for row in (STEP, CHECKED)[len(rows) :]:
                tracker.add(row)
        events = reader.EventAccumulator(str(folder))
        events.Reload()
        assert set(events.Tags()["scalars"]) == {*flatten(STEP), *flatten(CHECKED)}
        assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(10, 2.0)]
        assert [(event.step, event.value) for event in events.Scalars("validation/news/wer")] == [(20, 0.25)]
        assert len(event_files(folder)) == 1
    RunFolder(tmp_path).clear()
    assert os.listdir(folder) == ["events.out.tfevents.theirs"]
