"""A power cut during any write leaves the old content or the new one, and a later run completes it."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastscribe._system.safe_files import Barrier, sync_path, temp_path_for, write_atomic
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli import models
from fastscribe.config import ExportFormat
from fastscribe.report.files import GENERATOR, write_page
from fastscribe.results.merge import merge
from fastscribe.results.shards import Shard
from fastscribe.training.batch_search import cached_batch_sizes
from fastscribe.training.state import RunFolder
from tests.conftest import MODEL
from tests.fakes.killed_disk import run, sources
from tests.helpers.crash_scenes import fail_everywhere, scenes, stop_everywhere, stop_twice
from tests.helpers.power_cut import Disk, State, remake, watched

pytestmark = pytest.mark.linux


def states_of(folder: Path, change: Callable[[], object], has_syncfs: bool = True) -> list[State]:
    """Return all states that a power cut during `change` could leave. After it returns, only the final state is possible."""
    disk = Disk(folder)
    with watched(disk, has_syncfs):
        change()
    left, visible = (
        {path: state[path] for path in state if ".old" not in path}
        for state in (disk.durable_state, disk.visible_state)
    )
    assert left == visible  # but for a former model, which is removed last
    assert len(disk.states) > 2
    return disk.states


def write_one(path: Path, text: str) -> None:
    write_page(path, f"<!doctype html>{GENERATOR}{text}")


def write_json(path: Path, text: str) -> None:
    write_page(path, json.dumps({"text": text}), lambda path: True)


def write_report(path: Path, text: str) -> None:
    write_atomic(path, text.encode())


def write_by_function(path: Path, text: str) -> None:
    write_atomic(path, lambda file: [file.write(temp.encode()) for temp in text])


@pytest.mark.parametrize("write", [write_one, write_json, write_report, write_by_function])
def test_power_cut_while_a_page_or_result_is_written(tmp_path: Path, write: Callable[[Path, str], None]) -> None:
    path = tmp_path / "out" / "file"
    path.parent.mkdir()
    states = states_of(path.parent, lambda: write(path, "first"))
    first = path.read_bytes()
    assert {state.get("file") for state in states} == {None, first}
    states = states_of(path.parent, lambda: write(path, "the second"))
    assert {state["file"] for state in states} == {first, path.read_bytes()}
    assert all(set(state) <= {"file", ".file.fastscribe.part"} for state in states)
    for state in states:  # a temporary file that is left does no harm
        write(remake(tmp_path / "again", state) / "file", "the third")
        assert [path.name for path in (tmp_path / "again").iterdir()] == ["file"]


@pytest.mark.parametrize("has_syncfs", [False, True])
def test_power_cut_during_a_merge(tmp_path: Path, has_syncfs: bool) -> None:
    shards = tmp_path / "shards"
    for name in ("a.wav", "b.wav", "c.wav", "d.wav"):
        (tmp_path / name).write_text(name)
    inputs = sources(*sorted(tmp_path.glob("*.wav")))
    for index in range(2):
        run(shards, inputs, random.Random(index), shard=Shard(index, 2))
    out = tmp_path / "out"
    out.mkdir()

    def done(folder: Path) -> tuple[bytes, ...]:
        return tuple((folder / name).read_bytes() for name in ("transcripts.jsonl", "report.json", "journal.jsonl"))

    states = states_of(out, lambda: merge([shards], out, False), has_syncfs)
    unordered = done(out)
    states += states_of(out, lambda: merge([shards], out, True), has_syncfs)
    ordered = done(out)
    assert unordered != ordered
    for state in states:
        assert state.get("transcripts.jsonl") in (None, unordered[0], ordered[0])
        if journal := state.get("journal.jsonl"):  # it is of the rows beside it
            assert (state["transcripts.jsonl"], journal) in (unordered[::2], ordered[::2])
        again = remake(tmp_path / "again", state)
        merge([shards], again, True)
        assert done(again) == ordered
        assert {path.name for path in again.iterdir()} == {"transcripts.jsonl", "report.json", "journal.jsonl"}
        assert run(again, inputs, random.Random(3)) == []


def test_power_cut_during_training(tmp_path: Path) -> None:
    """A state is complete, and the log beside it has all rows up to it."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()

    def step(number: int) -> None:
        folder.append({"step": number, "loss": 1.0})
        folder.save_state({"step": number, "weights": torch.full((100,), float(number))})

    seen = set()
    for number in (1, 2, 3):
        for state in states_of(folder.path, lambda number=number: step(number)):
            found = RunFolder(remake(tmp_path / "again", state))
            found.check()
            values = found.load_state()
            at = 0 if values is None else int(values["step"])
            assert at in (number - 1, number)
            assert values is None or bool((values["weights"] == at).all())
            found.truncate_log(at)
            assert [row["step"] for row in found.rows()][:at] == list(range(1, at + 1))
            seen.add(at)
    assert seen == {0, 1, 2, 3}


def test_power_cut_while_a_model_is_saved(tmp_path: Path) -> None:
    """The old or the new model is complete once the next run has opened the folder."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    checkpoint = read_checkpoint(MODEL)
    names = [name for name, tensor in checkpoint.weights.items() if tensor.is_floating_point()][:2]
    found = set()

    def small(value: float) -> Any:
        from dataclasses import replace

        return replace(checkpoint, weights={name: torch.full((8,), value) for name in names})

    for value in (1.0, 2.0):
        for state in states_of(
            folder.path, lambda value=value: folder.save_model(folder.best, small(value), torch.float32)
        ):
            again = RunFolder(remake(tmp_path / "again", state))
            again.recover()
            if again.best.exists():
                from safetensors.torch import load_file

                values = {float(tensor[0]) for tensor in load_file(again.best / "model.safetensors").values()}
                assert len(values) == 1 and values <= {value, value - 1}
                assert json.loads((again.best / "config.json").read_text())["format"] == "fastscribe"
                found |= values
            else:
                assert value == 1.0
            again.check()
            again.save_model(again.best, small(3.0), torch.float32)  # leftovers do no harm
            assert [path.name for path in again.path.iterdir()] == ["best"]
    assert found == {1.0, 2.0}


@pytest.mark.parametrize(("to", "name"), [(None, "model"), ("nemo", "model.nemo"), ("hf", "model")])
def test_power_cut_during_a_conversion(
    to: ExportFormat | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = read_checkpoint(MODEL)
    monkeypatch.setattr(models, "_read_model", lambda path: checkpoint)
    root = tmp_path / "root"
    root.mkdir()
    states = states_of(root, lambda: models.convert(str(MODEL), root / name, "bf16", None, to))
    whole = {path: content for path, content in states[-1].items() if path.startswith("model")}
    assert whole and read_checkpoint(root / name).config == checkpoint.config
    assert all((root / path).read_bytes() == content for path, content in whole.items() if content is not None)
    for state in states:
        model = {path: content for path, content in state.items() if path.startswith("model")}
        assert model in ({}, whole)
    again = remake(tmp_path / "again", states[len(states) // 2])
    if not (again / name).is_file():
        models.convert(str(MODEL), again / name, "bf16", None, to)
    assert [path.name for path in again.iterdir()] == [name]


def test_power_cut_while_batch_sizes_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "run" / "batch_sizes.json"
    path.parent.mkdir()
    from fastscribe.training.buckets import Bucket

    buckets = [Bucket(1.0, 10)]
    before, after = ((lambda bucket, rows, most=most: rows <= most) for most in (5, 9))
    for state in states_of(path.parent, lambda: cached_batch_sizes(path, {}, buckets, before)):
        again = remake(tmp_path / "again", state)
        assert cached_batch_sizes(again / path.name, {}, buckets, after) in ((4,), (8,))
    shutil.rmtree(tmp_path / "again")


def test_disk_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """syncfs reports that some file failed; fsync identifies it."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for path in (good, bad):
        path.write_text("content")
    barrier = Barrier()
    barrier.watch(tmp_path)
    monkeypatch.setattr("fastscribe._system.safe_files._syncfs", lambda: lambda descriptor: -1)
    barrier.wait([good, bad], [tmp_path])  # another program's file

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve() == bad.resolve():
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("fastscribe._system.safe_files.sync_descriptor", fail)
    with pytest.raises(OSError, match=str(bad)):
        barrier.wait([good, bad], [tmp_path])
    barrier.close()
    sync_path(good)
    assert not temp_path_for(good).exists()


# --- an output folder ------------------------------------------------------------------------------------------------

SCENES = (
    "first",
    "ordered",
    "changed",
    "changed, ordered",
    "other formats",
    "lost files",
    "overwritten",
    "corrected list",
    "deleted row",
)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder that waits for no disk; in memory where the system has one there."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("fastscribe._system.safe_files._syncfs", lambda: lambda descriptor: 0)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", SCENES)
def test_kill_or_power_cut_at_every_step_of_a_run(name: str, in_memory: Path) -> None:
    tried = stop_everywhere(scenes(in_memory)[name](), 30)
    assert tried.problems == ()
    assert tried.states > 30


@pytest.mark.parametrize(("name", "has_syncfs"), [("changed", True), ("first", False), ("lost files", True)])
def test_power_cut_while_a_killed_run_is_repeated(name: str, has_syncfs: bool, in_memory: Path) -> None:
    """What the killed run wrote may not be on the disk yet."""
    tried = stop_twice(scenes(in_memory)[name](), has_syncfs, 6, 8)
    assert tried.problems == ()
    assert tried.states > 30


@pytest.mark.parametrize("name", ["changed, ordered", "other formats"])
def test_each_call_of_a_run_fails(name: str, in_memory: Path) -> None:
    """A full or broken disk, a folder without permission, a name that is too long: the run says so, the next one completes."""
    tried = fail_everywhere(scenes(in_memory)[name](), 30)
    assert tried.problems == ()
    assert tried.states == 30
