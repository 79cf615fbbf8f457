"""Faults in long runs: each one costs its own file only.

This is a sample of scripts/faults. Damaged recordings come from damaged_audio.py, killed runs from kill_runs.py.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fastscribe import Failure
from fastscribe.audio.inputs import expand
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.errors import AudioError
from fastscribe.types import Source
from tests.conftest import AUDIO, RATE
from tests.helpers.damaged_audio import damaged, examine
from tests.helpers.forked_runs import Runs
from tests.helpers.kill_runs import arguments, compare, kill_runs, make_clips, rows_of

pytestmark = pytest.mark.linux

FILES = sorted(AUDIO.glob("0*.flac"))[:5]
SPARSE_BYTES = 2_000_000_000


def source(path: Path) -> Source:
    return Source(str(path), str(path), path.name)


def whole(path: Path) -> np.ndarray:
    audio = probe(source(path))
    return read(audio, 0, audio.num_samples, sample_rate=RATE)


def problem(path: Path) -> str:
    with pytest.raises(AudioError) as caught:
        whole(path)
    assert "\n" not in str(caught.value)
    return caught.value.problem


# --- damaged recordings ----------------------------------------------------------------------------------------------


def test_damaged_recordings_are_refused_or_read_whole() -> None:
    found = examine(0, 250)
    assert found.problems == []
    assert found.tried == 250
    assert found.outcomes["read"] > 25 and found.outcomes["refused"] > 125


def test_crash_and_hang_are_detected(monkeypatch) -> None:
    monkeypatch.setattr("tests.helpers.damaged_audio.PATIENCE_S", 3)
    monkeypatch.setenv("DAMAGED_AUDIO_DIES_AT", "2")
    monkeypatch.setenv("DAMAGED_AUDIO_HANGS_AT", "4")
    found = examine(0, 6)
    assert found.tried == 6
    assert [text.split()[0] for text in found.problems] == ["2", "4"]
    assert "crash: exit code -11" in found.problems[0] and "hang" in found.problems[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("runs"))
    yield runs
    runs.close()


def test_damaged_recordings_leave_their_neighbours_alone(run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for path in FILES:
        shutil.copy(path, folder)
    for number in range(60):
        item = damaged(number)
        (folder / item.file_name).write_bytes(item.content)
    assert run(arguments(folder, tmp_path / "all")) == 1, run.said()
    rows = {Path(path).name: row for path, row in rows_of(tmp_path / "all").items()}
    assert rows.keys() == {path.name for path in folder.iterdir()}
    for path in folder.glob("damaged*"):
        path.unlink()
    assert run(arguments(folder, tmp_path / "healthy")) == 0, run.said()
    for path, row in rows_of(tmp_path / "healthy").items():
        assert rows[Path(path).name]["text"] == row["text"] != ""


@pytest.mark.parametrize("extension", ["wav", "mp3", "ogg", "flac"])
@pytest.mark.parametrize("begin", [b"", b"RIFF\xff\xff\xff\x7fWAVE", b"ID3\4\0\0\0\0\0\0", b"OggS", b"fLaC"])
def test_two_gigabytes_of_zeros(tmp_path: Path, extension: str, begin: bytes) -> None:
    path = tmp_path / f"a.{extension}"
    path.write_bytes(begin)
    os.truncate(path, SPARSE_BYTES)
    start = time.process_time()
    assert problem(path)
    assert time.process_time() - start < 3


# --- files that change -----------------------------------------------------------------------------------------------


def test_a_folder_that_vanishes_while_it_is_walked(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        shutil.copy(FILES[0], tmp_path / name / f"{name}.flac")
    walk = expand([str(tmp_path)])
    found = [next(walk)]
    shutil.rmtree(tmp_path / "b")
    shutil.rmtree(tmp_path / "c")
    found += walk
    assert all("b" in item.path or "c" in item.path for item in found if isinstance(item, Failure))
    assert [item.id for item in found if isinstance(item, Source)][:1] == ["a/a.flac"]


# --- the place for results --------------------------------------------------------------------------------------------


NO_ROOM = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
"""


@pytest.fixture(scope="module")
def clips(run, tmp_path_factory) -> tuple[Path, Path]:
    """Return the recordings and the output folder of a run over them."""
    folder = tmp_path_factory.mktemp("clips")
    make_clips(folder / "in", 12)
    assert run(arguments(folder / "in", folder / "expected")) == 0, run.said()
    return folder / "in", folder / "expected"


@pytest.mark.parametrize("limit", [3_000, 700])
def test_results_exceed_the_file_size_limit(run, clips, tmp_path: Path, limit: int) -> None:
    recordings, expected = clips
    assert run(arguments(recordings, tmp_path / "out"), NO_ROOM.format(limit=limit)) in (1, 2)
    assert "File too large" in run.said()
    for line in (tmp_path / "out" / "transcripts.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line)
    assert run(arguments(recordings, tmp_path / "out", "--retry-failed")) == 0, run.said()
    assert compare(tmp_path / "out", expected)[0] == []


# The folder is renamed before it is removed: files that the committer renames meanwhile would stop rmtree half way.
REMOVED = """
import os, shutil
from fastscribe.results import output
original, calls = output.JournaledOutput.write, []
def write(self, result):
    calls.append(result)
    if len(calls) == 5:
        os.rename({out!r}, {out!r} + ".removed")
        shutil.rmtree({out!r} + ".removed")
    return original(self, result)
output.JournaledOutput.write = write
"""


def test_output_folder_removed_during_the_run(run, clips, tmp_path: Path) -> None:
    """The run reports a failure, and the same command afterwards completes everything.

    A file that the first run wrote after the removal is in no journal, so it stays, and the recording's has another name.
    """
    recordings, expected = clips
    assert run(arguments(recordings, tmp_path / "out"), REMOVED.format(out=str(tmp_path / "out"))) in (1, 2)
    assert run(arguments(recordings, tmp_path / "out")) == 0, run.said()
    problems, counts = compare(tmp_path / "out", expected)
    assert counts["lost"] == counts["doubled"] == 0
    assert all(problem.endswith(": missing or too many") for problem in problems), problems


def test_killed_runs_resume_completely(run, tmp_path: Path) -> None:
    found = kill_runs(run, tmp_path, 12, kills=8)
    assert found["problems"] == []
    assert found["points"] == 8
    assert found["lost"] == found["doubled"] == found["different"] == 0
