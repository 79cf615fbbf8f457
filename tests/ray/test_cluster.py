"""Runs on a real Ray cluster of several nodes: nothing is lost or comes twice, whatever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fastscribe
from fastscribe import Failure, Options, Transcript
from fastscribe.errors import UsageError
from fastscribe.ray import pool
from fastscribe.ray.run import RayTranscriber
from tests.conftest import AUDIO, MODELS
from tests.helpers.processes import command as in_fresh_process
from tests.helpers.processes import fastscribe as command
from tests.helpers.schemas import check_schema
from tests.ray.clusters import KILLS, MODEL, STORE_BYTES, KillableWorker, cluster, manifest, transcriber

pytestmark = [
    pytest.mark.linux,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
NUMBER = 240


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster(num_nodes=3) as found:
        yield found


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """The text of each clip, from one process."""
    loaded = fastscribe.Transcriber.load(MODEL, device="cpu", dtype="fp32")
    return {result.audio.path: result.text for result in loaded.transcribe(AUDIO) if isinstance(result, Transcript)}


def run(found: RayTranscriber, path: Path, on_result: Any = lambda number: None) -> list[Transcript | Failure]:
    results = []
    with closing(found._results([str(path)])) as stream:
        for result in stream:
            results.append(result)
            on_result(len(results))
    return results


def check(results: list[Transcript | Failure], number: int, expected: dict[str, str]) -> list[Failure]:
    """Check that each row has one result, and the text that one process gives. Return the failures."""
    keys = Counter((result if isinstance(result, Failure) else result.audio).row["key"] for result in results)
    assert keys == Counter(range(number))
    assert sorted(result.index for result in results) == list(range(number))
    done = [result for result in results if isinstance(result, Transcript)]
    assert [result.text for result in done] == [expected[result.audio.path] for result in done]
    return [result for result in results if isinstance(result, Failure)]


def test_nothing_is_lost_whatever_dies(
    nodes: Any, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A worker is killed, a node goes, another comes, the object stores are full; a corrupt file fails, and one that ends its
    worker each time fails alone."""
    import numpy as np
    import ray

    monkeypatch.setattr(pool, "Worker", KillableWorker)
    (tmp_path / f"{KILLS}.flac").symlink_to(next(AUDIO.glob("01*.flac")))
    (tmp_path / "corrupt.flac").write_bytes(b"fLaC" + bytes(1000))
    extra = [{"audio_filepath": str(tmp_path / name)} for name in (f"{KILLS}.flac", "corrupt.flac")]
    path, said = manifest(tmp_path / "list.jsonl", NUMBER, extra), list[str]()
    taken = [ray.put(np.zeros(30 << 20, np.uint8)) for _ in range(4)]  # more than the head's store: the rest is spilled
    with transcriber(3, said) as found:

        def disturb(number: int) -> None:
            first = next((handle.facts for handle in found._pool.ready if handle.running), None)
            if number == 5:
                os.kill(int(first.place.split()[-1]), signal.SIGKILL)
            if number == 60:
                gone = next(node for node in nodes.worker_nodes if node.node_id == first.node_id)
                nodes.remove_node(gone, allow_graceful=False)
                nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES)

        failures = check(run(found, path, disturb), NUMBER + 2, expected)
    del taken
    assert sorted(Path(failure.path).stem for failure in failures) == ["corrupt", KILLS]
    killer = next(failure for failure in failures if KILLS in failure.path)
    assert (killer.stage, killer.error_type) == ("model", "WorkerDied")
    # The third may have had it beside others, if the kill or the lost node came then: a fourth gets it alone.
    assert re.match("[34] workers ended while they transcribed it, the last one with it alone: ", killer.message)
    ends = [line for line in said if line.startswith("worker ")]
    # Three for the recording (the kill may be one of them), and one as its node went.
    assert len(ends) == sum(share.died for share in found.shares()) >= 4
    assert capsys.readouterr().out == ""  # Ray's own lines would be among the transcripts


def test_the_command_gives_the_same_files(nodes: Any, tmp_path: Path) -> None:
    """Rows, subtitles, journal rules and exit codes are those of a run without Ray, also with --align-with."""
    path = manifest(tmp_path / "list.jsonl", 20, [{"audio_filepath": "gone.wav"}])
    common = ["transcribe", path, "-m", MODEL, "-f", "jsonl,srt", "--ordered", "--dtype", "fp32", "--no-progress"]
    common += ["--align-with", MODELS / "hybrid" / "model.nemo"]
    engine = ["--engine", "ray", "--ray-address", nodes.address, "--ray-workers", 1]
    local = command(*common, "-o", tmp_path / "local")
    done = command(*common, "-o", tmp_path / "ray", *engine)
    assert (local.returncode, done.returncode) == (1, 1), done.stderr
    names = sorted(file.name for file in (tmp_path / "local").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "ray").iterdir())
    for name in names:
        if name == "transcripts.jsonl" or name.endswith(".srt"):
            assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    report = json.loads((tmp_path / "ray" / "report.json").read_text())
    assert (report["files"], report["failed"]) == (21, 1)
    check_schema("report", [report])
    assert sum(share["audio_s"] for share in report["devices"]) == pytest.approx(report["audio_s"], abs=0.01)
    assert sum(share["audio_share"] for share in report["devices"]) == pytest.approx(1, abs=0.01)
    # Each engine goes on with the other's folder: the fingerprint is the same.
    again = command(*common, "-o", tmp_path / "ray", "--dry-run")
    assert json.loads(again.stdout)["skipped"] == 21
    other = manifest(tmp_path / "longer.jsonl", 24)
    planned = [
        command("transcribe", other, *common[2:], "-o", tmp_path / "local", "--dry-run", *more) for more in ((), engine)
    ]
    alone, spread = (json.loads(one.stdout) for one in planned)
    same = ("files", "failed", "skipped", "audio_s", "utterances")
    assert {name: spread[name] for name in same} == {name: alone[name] for name in same}
    assert (spread["files"], spread["skipped"]) == (4, 20) and spread["estimated_s"] > 0


def test_stdout_and_a_mistake(nodes: Any, tmp_path: Path) -> None:
    path = manifest(tmp_path / "list.jsonl", 20)
    engine = ["--engine", "ray", "--ray-address", nodes.address, "--ray-workers", 1, "-q"]
    done = command("transcribe", path, *engine, "-m", MODEL)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 20
    done = command("transcribe", path, *engine, "-m", tmp_path / "gone.nemo")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "gone.nemo: no such file or folder" in done.stderr


def test_sigterm_and_the_next_run(nodes: Any, tmp_path: Path) -> None:
    """SIGTERM ends the command in order, also while Ray waits; the same command goes on."""
    path, out = manifest(tmp_path / "list.jsonl", 300), tmp_path / "out"
    engine = ["--engine", "ray", "--ray-address", nodes.address, "--ray-workers", 1]
    arguments = ["transcribe", path, "-m", MODEL, "-o", out, "-q", *engine]
    process = subprocess.Popen(in_fresh_process(*arguments), stderr=subprocess.PIPE, text=True)
    rows = out / "transcripts.jsonl"
    while process.poll() is None and not (rows.exists() and rows.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, said.count("\n")) == (143, 1) and "terminated" in said, said
    assert 0 < len(rows.read_text().splitlines()) < 300
    assert command(*arguments).returncode == 0
    keys = [json.loads(line)["key"] for line in rows.read_text().splitlines()]
    assert sorted(keys) == list(range(300))


def test_a_dataset(nodes: Any, expected: dict[str, str], tmp_path: Path) -> None:
    """The dataset's columns are in the rows, a second call has nothing to do, and bytes are refused."""
    import ray

    import fastscribe.ray

    path = manifest(tmp_path / "list.jsonl", 40, [{"audio_filepath": None}])
    dataset = ray.data.read_json(str(path), lines=True)
    settings: dict[str, Any] = {"model": MODEL, "output": tmp_path / "out", "device": "cpu", "dtype": "fp32", "cpus": 1}
    said: list[str] = []
    stats = fastscribe.ray.transcribe(dataset, **settings, workers=2, say=said.append)  # all processors: read before
    assert (stats.files, stats.failed, stats.skipped) == (41, 1, 0)
    assert any("no path or URL in column audio_filepath" in line for line in said)
    rows = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    assert Counter(row["key"] for row in rows) == Counter(range(41))
    assert all(row["pred_text"] == expected[row["audio_filepath"]] for row in rows if "error" not in row)
    stats = fastscribe.ray.transcribe(dataset, **settings, workers=1, say=said.append)
    assert (stats.files, stats.skipped, stats.failed_before) == (0, 41, 1)
    with pytest.raises(UsageError, match="column bytes holds bytes"):
        fastscribe.ray.transcribe(ray.data.from_items([{"path": "a.wav", "bytes": b"x"}]), MODEL, tmp_path / "other")


def test_map_batches(nodes: Any, expected: dict[str, str], tmp_path: Path) -> None:
    """The callable class in Ray Data: a row for each row, with all its columns."""
    import ray

    import fastscribe.ray

    path = manifest(tmp_path / "list.jsonl", 40, [{"audio_filepath": "gone.wav"}])
    dataset = ray.data.read_json(str(path), lines=True)
    settings = {"model": MODEL, "device": "cpu", "dtype": "fp32", "options": Options(threads=1)}
    found = dataset.map_batches(
        fastscribe.ray.Transcriber,
        fn_constructor_kwargs=settings,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
        batch_size=16,
        batch_format="pyarrow",
    ).take_all()
    assert sorted(row["key"] for row in found) == list(range(41))
    for row in found:
        if row["audio_filepath"] == "gone.wav":
            assert row["text"] is None and row["error"]["stage"] in ("probe", "load")
        else:
            assert row["text"] == expected[row["audio_filepath"]] and row["error"] is None
