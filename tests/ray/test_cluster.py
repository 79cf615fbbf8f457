"""Runs on a real Ray cluster: nothing is lost or comes twice, whatever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import fastscribe
import fastscribe.ray
from fastscribe import Failure, Options, Transcript
from fastscribe.errors import UsageError
from fastscribe.results.journal import read_entries
from tests.conftest import AUDIO, MODELS
from tests.helpers import worker_faults
from tests.helpers.processes import command as in_fresh_process
from tests.helpers.processes import fastscribe as command
from tests.helpers.schemas import check_schema

pytest.importorskip("ray", reason="needs the extra ray")

from fastscribe.ray import run as ray_run
from fastscribe.ray.library import connected
from fastscribe.ray.run import RayTranscriber
from fastscribe.ray.worker import BLOCK, NUMBER, Setup

pytestmark = [
    pytest.mark.linux,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MODEL = str(MODELS / "ctc" / "model.nemo")
STORE_BYTES = 80 << 20  # about the least that Ray takes
SETUP = Setup(MODEL, "cpu", "fp32", Options(threads=1))


@contextmanager
def cluster() -> Iterator[Any]:
    """Start a node with two processors, and two GPUs by name alone, and connect."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_DISABLE_MEMORY_MONITOR": "1", "RAY_memory_monitor_refresh_ms": "0"}
    given = {"num_cpus": 2, "num_gpus": 2, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    for is_last in (False, False, True):
        try:
            nodes = Cluster(initialize_head=True, head_node_args=given)
            break
        except Exception:  # what Ray raises where a busy machine takes 30 s to start a node
            if is_last:
                raise
    try:
        with connected(nodes.address):
            yield nodes
    finally:
        nodes.shutdown()


def manifest(path: Path, number: int, extra: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a manifest that lists the clips again and again, each row with a `key` of its own and nested fields."""
    clips = sorted(clip for clip in AUDIO.iterdir() if clip.stat().st_size < 150_000)
    rows = [{"audio_filepath": str(clips[index % len(clips)]), "key": index} for index in range(number)]
    rows += [{"key": number + index} | row for index, row in enumerate(extra)]
    path.write_text("".join(json.dumps(row | nested(row["key"])) + "\n" for row in rows), encoding="utf-8")
    return path


def nested(key: int) -> dict[str, Any]:
    """Fields whose types differ from row to row, which no column of Arrow could hold."""
    kinds: list[Any] = [[], [1, "b", None], {"a": [{"b": 0.25}]}, "text", None]
    return {"speakers": kinds[key % len(kinds)], "tags": [{"name": "x", "parts": [[key], []]}]}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster. Reading a recording whose name begins with "crashread" ends the process that reads it."""
    with pytest.MonkeyPatch.context() as patch:
        worker_faults.install(tmp_path_factory.mktemp("faults"), patch)
        with cluster() as found:
            patch.setenv("RAY_ADDRESS", found.address)
            yield found


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """The text of each clip, from one process."""
    loaded = fastscribe.Transcriber.load(MODEL, device="cpu", dtype="fp32")
    return {result.audio.path: result.text for result in loaded.transcribe(AUDIO) if isinstance(result, Transcript)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]


def test_nothing_is_lost_whatever_dies(
    nodes: Any, expected: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An actor is killed; a corrupt file fails, and one that ends each process that reads it fails alone."""
    (tmp_path / "crashread.flac").symlink_to(next(AUDIO.glob("01*.flac")))
    (tmp_path / "corrupt.flac").write_bytes(b"fLaC" + bytes(1000))
    extra = [{"audio_filepath": str(tmp_path / name)} for name in ("crashread.flac", "corrupt.flac")]
    path, said = manifest(tmp_path / "list.jsonl", 60, extra), list[str]()
    results: list[Transcript | Failure] = []
    with RayTranscriber.start(SETUP, said.append, workers=2) as found:
        with closing(found.results([str(path)])) as stream:
            for result in stream:
                if not results:
                    os.kill(int(found.shares()[0].name.split()[-1]), signal.SIGKILL)
                results.append(result)
        places = [share.name for share in found.shares()]
    audios = [result if isinstance(result, Failure) else result.audio for result in results]
    assert Counter(audio.row and audio.row["key"] for audio in audios) == Counter(range(62))
    assert sorted(result.index for result in results) == list(range(62))
    assert all(audio.row and audio.row | nested(audio.row["key"]) == audio.row for audio in audios)
    done = [result for result in results if isinstance(result, Transcript)]
    assert [result.text for result in done] == [expected[result.audio.path] for result in done]
    failures = [result for result in results if isinstance(result, Failure)]
    assert sorted(Path(failure.path).stem for failure in failures) == ["corrupt", "crashread"]
    killer = next(failure for failure in failures if "crashread" in failure.path)
    assert killer.error_type == "RecordingKilledProcess", killer
    assert len(places) >= 2  # one was killed; those that start again may come too late to get work
    assert capfd.readouterr() == ("", "")  # Ray's own lines would be among the transcripts


def test_the_command_gives_the_same_files(nodes: Any, tmp_path: Path) -> None:
    """Rows, subtitles, journal rules and exit codes are those of a run without Ray, with nested fields of a manifest too."""
    path = manifest(tmp_path / "list.jsonl", 10, [{"audio_filepath": "gone.wav"}])
    common = ["transcribe", path, "-m", MODEL, "-f", "jsonl,srt", "--ordered", "--dtype", "fp32", "--no-progress"]
    engine = ["--engine", "ray", "--device", "cpu"]
    local = command(*common, "-o", tmp_path / "local")
    done = command(*common, "-o", tmp_path / "ray", *engine)
    assert (local.returncode, done.returncode) == (1, 1), done.stderr
    names = sorted(file.name for file in (tmp_path / "local").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "ray").iterdir())
    for name in names:
        if name == "transcripts.jsonl" or name.endswith(".srt"):
            assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    report = json.loads((tmp_path / "ray" / "report.json").read_text())
    assert (report["files"], report["failed"]) == (11, 1)
    check_schema("report", [report])
    assert sum(share["audio_s"] for share in report["devices"]) == pytest.approx(report["audio_s"], abs=0.01)
    # Each engine goes on with the other's folder: the fingerprint is the same.
    again = command(*common, "-o", tmp_path / "ray", "--dry-run")
    assert json.loads(again.stdout)["skipped"] == 11
    to_stdout = command("transcribe", path, "-m", tmp_path / "gone.nemo", *engine)
    assert (to_stdout.returncode, to_stdout.stdout) == (2, "")
    assert to_stdout.stderr.count("\n") == 1 and "gone.nemo: no such file or folder" in to_stdout.stderr


def test_interrupted_and_killed_runs_go_on(nodes: Any, tmp_path: Path) -> None:
    """Ctrl-C ends the command in order; a driver that is killed leaves its rows; no later run does one of them again."""
    path, out = manifest(tmp_path / "list.jsonl", 240), tmp_path / "out"
    arguments = ["transcribe", path, "-m", MODEL, "-o", out, "-q", "--engine", "ray", "--device", "cpu"]
    rows, before = out / "transcripts.jsonl", 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(in_fresh_process(*arguments), stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not (rows.exists() and rows.stat().st_size > before):
            time.sleep(0.05)
        process.send_signal(number)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == code, said
        assert said.count("\n") == (number == signal.SIGINT) and re.search("interrupt|^$", said), said
        before = rows.stat().st_size
    num_done = sum(1 for _ in read_entries(out / "journal.jsonl"))
    assert 0 < num_done <= 240  # a fast machine may have ended before the signal came
    last = fastscribe.ray.transcribe(str(path), MODEL, out, device="cpu", workers=1)
    assert last.skipped >= num_done and (last.files + last.skipped, last.failed) == (240, 0)
    assert sorted(row["key"] for row in rows_of(out)) == list(range(240))


def test_a_dataset(nodes: Any, expected: dict[str, str], tmp_path: Path) -> None:
    """The dataset's columns are in the rows, a second call has nothing to do, and bytes are refused."""
    import ray

    clips = sorted(expected)[:6]
    items = [{"path": clip, "key": key, "tags": nested(0)["tags"]} for key, clip in enumerate([*clips, None])]
    dataset = ray.data.from_items(items)
    settings: dict[str, Any] = {"model": MODEL, "output": tmp_path / "out", "device": "cpu", "dtype": "fp32"}
    said: list[str] = []
    stats = fastscribe.ray.transcribe(dataset, **settings, say=said.append)
    assert (stats.files, stats.failed, stats.skipped) == (7, 1, 0)
    assert any("no path or URL in column path" in line for line in said)
    rows = rows_of(tmp_path / "out")
    assert Counter(row["key"] for row in rows) == Counter(range(7))
    assert all(row["pred_text"] == expected[row["audio_filepath"]] for row in rows if "error" not in row)
    assert all(row["tags"] == nested(0)["tags"] for row in rows)
    stats = fastscribe.ray.transcribe(dataset, **settings, say=said.append)
    assert (stats.files, stats.skipped, stats.failed_before) == (0, 7, 1)
    with pytest.raises(UsageError, match="column bytes holds bytes"):
        fastscribe.ray.transcribe(ray.data.from_items([{"path": "a.wav", "bytes": b"x"}]), MODEL, tmp_path / "other")


class _Placed:
    """Tells which devices Ray gives an actor."""

    def __init__(self, setup: Setup, expected: object, begin: object) -> None:
        from fastscribe.ray.worker import _place, given_by_ray

        self._found = _place(), os.environ["CUDA_VISIBLE_DEVICES"], *given_by_ray()

    def __call__(self, batch: Any) -> Any:
        import pickle

        import pyarrow as pa

        time.sleep(1.0)  # so that the other actor gets blocks too
        return pa.table({NUMBER: batch[NUMBER], BLOCK: [pickle.dumps(self._found)]})


def test_two_gpus_have_an_actor_each(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees its own GPU alone, which is all that `--devices all` takes there, and half of the node's processors."""
    monkeypatch.setattr(ray_run, "BlockWorker", _Placed)
    with RayTranscriber.start(SETUP, print, workers=1) as found:
        found._places = ray_run.placement([{"CPU": 2.0, "GPU": 2.0}], None)
        blocks = {number: ray_run._Block(b"", 1.0) for number in range(8)}
        with closing(found._pipeline(blocks)) as stream:
            placed: list[Any] = [one for _, one in stream]
    assert len(placed) == 8
    assert {(visible, cpus, has_gpu) for _, visible, cpus, has_gpu in placed} == {("0", 1, True), ("1", 1, True)}
    assert {place.split(" ", 1)[1] for place, *_ in placed} == {"GPU 0", "GPU 1"}


def test_map_batches(nodes: Any, expected: dict[str, str]) -> None:
    """The callable class in Ray Data: a row for each row, with all its columns."""
    import ray

    clips = [*sorted(expected)[:3], "gone.wav"]
    dataset = ray.data.from_items([{"path": clip, "key": key} for key, clip in enumerate(clips)])
    found = dataset.map_batches(
        fastscribe.ray.Transcriber,
        fn_constructor_kwargs={"model": MODEL, "device": "cpu", "dtype": "fp32", "options": Options(threads=1)},
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
        batch_size=16,
        batch_format="pyarrow",
    ).take_all()
    assert {row["key"]: row["text"] for row in found} == {key: expected.get(clip) for key, clip in enumerate(clips)}
    assert [row["error"] is None for row in found if row["path"] == "gone.wav"] == [False]
