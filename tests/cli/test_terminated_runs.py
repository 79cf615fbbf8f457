"""Runs that get a notice, SIGTERM, end cleanly; later runs lose and repeat nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe._system import remote
from tests.conftest import AUDIO
from tests.helpers.forked_runs import Runs
from tests.helpers.kill_runs import arguments, compare, make_clips, rows_of
from tests.helpers.object_store import OF_CLIENTS, FaultyStore
from tests.helpers.schemas import check_schema

pytestmark = pytest.mark.linux

NUM_CLIPS = 20
COUNT_BATCHES = """
from itertools import count
from fastscribe.pipeline.engine import Engine
numbers, push = count(1), Engine.push
def counted(self, batch):
    if next(numbers) == %(at_batch)s:
        at_batch()
    yield from push(self, batch)
def at_batch():
    import os, signal
    for number in %(signals)s:
        os.kill(os.getpid(), number)
        sum(range(1000))
Engine.push = counted
"""


def program(at_batch: int, signals: str) -> str:
    """Code that sends a run signals while a batch is in flight."""
    return COUNT_BATCHES % {"at_batch": at_batch, "signals": signals}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("runs"), OF_CLIENTS)
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 short clips, and one of 12 s that is cut into several utterances."""
    folder = tmp_path_factory.mktemp("clips") / "in"
    make_clips(folder, NUM_CLIPS)
    speech = np.concatenate([soundfile.read(path, dtype="int16")[0] for path in sorted(AUDIO.glob("0*.flac"))])
    soundfile.write(folder / "long.wav", speech[: 12 * 16_000], 16_000)
    return folder


@pytest.fixture(scope="module")
def expected(run: Runs, clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("expected") / "out"
    assert run([*arguments(clips, out, "--ordered"), "--max-utterance-s", "4"]) == 0
    return out


def given(clips: Path | str, out: Path | str, *more: str) -> list[str]:
    return [*arguments(clips, out, *more), "--max-utterance-s", "4"]  # type: ignore[arg-type]


def test_several_terminated_runs_equal_a_whole_one(run: Runs, clips: Path, expected: Path, tmp_path: Path) -> None:
    out, codes, done = tmp_path / "out", [], [0]
    while not codes or codes[-1] == 143:
        codes.append(run(given(clips, out, "--ordered"), program(6, "[signal.SIGTERM]")))
        done.append(len(rows_of(out)))
        assert done[-1] > done[-2]
    assert codes[-1] == 0 and len(codes) >= 3
    report = json.loads((out / "report.json").read_text())
    assert report["files"] + report["skipped"] == report["totals"]["files"] == NUM_CLIPS + 1
    problems, counts = compare(out, expected)
    assert problems == [] and not any(counts.values())
    assert list(rows_of(out)) == list(rows_of(expected))  # --ordered holds once all are there


def test_stdout_gets_what_is_done(run: Runs, clips: Path, expected: Path) -> None:
    settings = given(clips, Path("unused"))
    unused = settings.index("-o")
    settings = [*settings[:unused], *settings[unused + 2 :]]
    settings[settings.index("jsonl,srt,vtt")] = "txt"
    assert run(settings, program(6, "[signal.SIGTERM]")) == 143
    lines = [line.partition("\t") for line in run.said().splitlines() if line.startswith(str(clips))]
    assert re.search(r"; \d+ of 21 files are done; with --output-dir the same command goes on", run.said())
    texts = {path: row["text"] for path, row in rows_of(expected).items()}
    assert 0 < len(lines) < len(texts)
    assert [name for name, _, _ in lines] == [path for path in texts if path in {name for name, _, _ in lines}]
    assert all(texts[name] == text for name, _, text in lines)


def test_the_last_event_says_why(run: Runs, clips: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    assert run(given(clips, tmp_path / "out", "--events", str(events)), program(3, "[signal.SIGTERM]")) == 143
    told = [json.loads(line) for line in events.read_text().splitlines()]
    check_schema("event", told)
    counts = {"files": told[-1]["files"], "failed": 0, "skipped": 0}
    last = {"event": "stopped", "time": told[-1]["time"], "exit_code": 143, "message": "terminated", **counts}
    assert told[-1] == last and counts["files"] < 21
    assert all(before["time"] <= after["time"] for before, after in pairwise(told))


def test_a_second_sigterm_with_a_batch_in_flight(run: Runs, clips: Path, expected: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    again = "drop = Engine.drop\nEngine.drop = lambda self: (drop(self), at_batch())\n"
    assert run(given(clips, out), program(5, "[signal.SIGTERM, signal.SIGTERM]") + again) == 143
    assert len(rows_of(out)) <= 8  # perhaps none: nothing waits for the writer
    assert run(given(clips, out)) == 0
    assert compare(out, expected)[0] == []


def test_sigterm_while_the_model_loads(run: Runs, clips: Path, tmp_path: Path) -> None:
    loading = """
import os, signal
from fastscribe.transcriber import Transcriber
load = Transcriber.load
def interrupted(*given, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    return load(*given, **named)
Transcriber.load = interrupted
"""
    assert run(given(clips, tmp_path / "out"), loading) == 143
    assert run.said().count("\n") == 1 and "terminated" in run.said() and not (tmp_path / "out").exists()


def test_a_run_that_is_ended_at_once_writes_its_last_event(run: Runs, clips: Path, tmp_path: Path) -> None:
    """An import takes longer than a signal waits."""
    importing = """
from fastscribe.transcriber import Transcriber
def imported(*given, **named):
    exec("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)")
Transcriber.load = imported
"""
    events = tmp_path / "events.jsonl"
    assert run(given(clips, tmp_path / "out", "--events", str(events)), importing) == 143
    told = json.loads(events.read_text())
    check_schema("event", [told])
    assert told == {"event": "stopped", "time": told["time"], "exit_code": 143, "message": "terminated"}


# --- from bucket to bucket -------------------------------------------------------------------------------------------


def stored_rows(url: str) -> dict[str, dict]:
    rows = [json.loads(line) for line in remote.read_object(f"{url}/transcripts.jsonl").data.decode().splitlines()]
    named = {row["audio_filepath"].rpartition("/")[2]: row for row in rows}
    assert len(named) == len(rows)
    return named


def test_bucket_to_bucket(run: Runs, clips: Path, expected: Path, server: FaultyStore) -> None:
    """With two runs that get a notice."""
    for path in clips.rglob("*.wav"):
        server.put(f"bucket/in/{path.name}", path.read_bytes())
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")} | {"NO_PROXY": "*"}
    at_store = f"import os\nos.environ.update({variables!r})\n"
    settings = given("s3://bucket/in/", "s3://bucket/out")
    codes = [run(settings, at_store + program(6, "[signal.SIGTERM]")) for _ in range(2)]
    assert run([*settings, "--dry-run"], at_store) == 0
    planned = json.loads(run.said()[run.said().index("{") :])
    codes.append(run(settings, at_store))
    assert codes == [143, 143, 0], run.said()
    report = json.loads(remote.read_object("s3://bucket/out/report.json").data)
    assert planned["files"] == report["files"]
    assert report["skipped"] > report["files"] > 0 and report["totals"]["files"] == NUM_CLIPS + 1
    whole = {Path(path).name: row for path, row in rows_of(expected).items()}
    found = stored_rows("s3://bucket/out")
    assert {name: row["text"] for name, row in found.items()} == {name: row["text"] for name, row in whole.items()}
    for name in whole:
        local = next(expected.rglob(f"{name.removesuffix('.wav')}.srt"))
        assert remote.read_object(f"s3://bucket/out/{local.name}").data == local.read_bytes()
