"""Runs with a limit, and runs that get a notice, end cleanly; later runs lose and repeat nothing.

Times are those of a clock that counts audio: a second of it passes with each second of audio that is decoded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe._system import remote
from tests.conftest import AUDIO
from tests.helpers.forked_runs import Runs
from tests.helpers.kill_runs import arguments, compare, make_clips, rows_of
from tests.helpers.object_store import FaultyStore, object_store
from tests.helpers.processes import fastscribe
from tests.helpers.schemas import check_schema

pytestmark = pytest.mark.linux

NUM_CLIPS = 20
LIMITED = ("--stop-after", "1h")
COUNT_AUDIO = """
from fastscribe.pipeline import time_limit
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.time_limit import TimeLimit
time, push = {"s": 0.0, "batches": 0}, Engine.push
def timed(self, batch):
    time["s"] += batch.audio_s
    time["batches"] += 1
    if time["batches"] == %(at_batch)s:
        at_batch()
    yield from push(self, batch)
def at_batch():
    import os, signal
    for number in %(signals)s:
        os.kill(os.getpid(), number)
        sum(range(1000))
Engine.push = timed
time_limit.TimeLimit = lambda end_s: TimeLimit(%(limit_s)s, lambda: time["s"])
"""


def program(limit_s: float = 1e9, at_batch: int = 0, signals: str = "()") -> str:
    """Code that gives a run a limit in seconds of audio, or sends it signals while a batch is in flight."""
    return COUNT_AUDIO % {"limit_s": limit_s, "at_batch": at_batch, "signals": signals}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("runs"))
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


def limited(clips: Path | str, out: Path | str, *more: str) -> list[str]:
    return [*arguments(clips, out, *LIMITED, *more), "--max-utterance-s", "4"]  # type: ignore[arg-type]


def test_several_capped_runs_equal_a_whole_one(run: Runs, clips: Path, expected: Path, tmp_path: Path) -> None:
    """Each decodes up to 15 s of audio; the long clip waits until it fits."""
    out, reports, codes = tmp_path / "out", [], []
    while not codes or codes[-1] == 75:
        codes.append(run(limited(clips, out, "--ordered", "--price-per-hour", "2"), program(15.0)))
        reports.append(json.loads((out / "report.json").read_text()))
        done = sum(report["files"] for report in reports)
        assert len(rows_of(out)) == done == reports[-1]["totals"]["files"]
        if codes[-1] == 75:
            said = f"fastscribe: stopped after 1h: {done} of {NUM_CLIPS + 1} files done; the same command goes on\n"
            assert said in run.said()
            stopped = reports[-1]["stopped"]
            assert (stopped["limit"], stopped["files_done"], stopped["files_given"]) == ("after 1h", done, 21)
            assert stopped["usd"] == pytest.approx(2 * stopped["elapsed_s"] / 3600, abs=1e-4)
    assert codes[-1] == 0 and len(codes) >= 3 and reports[-1]["stopped"] is None
    check_schema("report", reports)
    assert all(report["audio_s"] <= 15.0 for report in reports)
    whole = json.loads((expected / "report.json").read_text())
    assert sum(report["audio_s"] for report in reports) == pytest.approx(whole["audio_s"], abs=0.01)
    problems, counts = compare(out, expected)
    assert problems == [] and not any(counts.values())
    assert list(rows_of(out)) == list(rows_of(expected))  # --ordered holds once all are there


def test_a_limit_too_short_for_what_is_left_is_an_error(run: Runs, clips: Path, tmp_path: Path) -> None:
    """A script that repeats the command would pay for loading the model again and again."""
    out = tmp_path / "out"
    codes = [run(limited(clips, out), program(9.0))]
    while codes[-1] == 75:
        codes.append(run(limited(clips, out), program(9.0)))
    assert codes[-1] == 2 and "no recording was finished" in run.said() and "raise --stop-after" in run.said()
    assert len(rows_of(out)) == NUM_CLIPS  # without the long one


def test_stdout_gets_what_is_done(run: Runs, clips: Path, expected: Path) -> None:
    settings = arguments(clips, Path("unused"), *LIMITED, "--max-utterance-s", "4")
    unused = settings.index("-o")
    settings = [*settings[:unused], *settings[unused + 2 :]]
    settings[settings.index("jsonl,srt")] = "txt"
    assert run(settings, program(10.0)) == 75
    lines = [line.partition("\t") for line in run.said().splitlines() if line.startswith(str(clips))]
    assert "files done; with --output-dir the same command goes on" in run.said()
    texts = {path: row["text"] for path, row in rows_of(expected).items()}
    assert 0 < len(lines) < len(texts)
    assert [name for name, _, _ in lines] == [path for path in texts if path in {name for name, _, _ in lines}]
    assert all(texts[name] == text for name, _, text in lines)


def test_capped_shards_are_incomplete_until_they_are_not(
    run: Runs, clips: Path, expected: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run(limited(clips, out, "--shard", "0/2"), program(9.0)) == 75
    assert run(limited(clips, out, "--shard", "1/2")) == 0
    merged = fastscribe("merge", out)
    assert merged.returncode == 1 and "not complete, run them again: 0/2" in merged.stderr
    assert run(limited(clips, out, "--shard", "0/2")) == 0
    assert fastscribe("merge", out, "--ordered").returncode == 0
    assert compare(out, expected)[0] == []


def test_a_capped_overwrite_says_how_to_go_on(run: Runs, clips: Path, tmp_path: Path) -> None:
    assert run(limited(clips, tmp_path / "out", "--overwrite"), program(9.0)) == 75
    assert "files done; without --overwrite the command goes on" in run.said()


def test_at_the_limit_itself_the_batch_in_flight_is_dropped(
    run: Runs, clips: Path, expected: Path, tmp_path: Path
) -> None:
    """As if the third batch took longer than all that is left."""
    out, events = tmp_path / "out", tmp_path / "events.jsonl"
    assert run(limited(clips, out, "--events", str(events)), program(1e9, 3, "[signal.SIGALRM]")) == 75
    assert 0 < len(rows_of(out)) <= 4  # of two batches of two
    told = [json.loads(line) for line in events.read_text().splitlines()]
    check_schema("event", told)
    last = told[-1]
    check_schema("report", [last["report"]])
    assert (last["event"], last["message"]) == ("stopped", "stopped after 1h")
    assert last["report"]["files"] == len(rows_of(out))
    assert run(limited(clips, out)) == 0
    assert compare(out, expected)[0] == []


def test_a_dry_run_says_whether_the_limit_suffices(run: Runs, clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(limited(clips, out, "--dry-run")) == 0
    found = json.loads(run.said().splitlines()[-1])
    assert (found["limit_s"], found["limit_suffices"], found["limit_runs"]) == (3600.0, True, 1)
    assert "stops after 1h: this suffices" in run.said() and not out.exists()


# --- a notice: SIGTERM -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signals", ["[signal.SIGTERM]", "[signal.SIGTERM, signal.SIGTERM]"], ids=["once", "twice"])
def test_sigterm_with_a_batch_in_flight(run: Runs, clips: Path, expected: Path, tmp_path: Path, signals: str) -> None:
    out = tmp_path / "out"
    twice = program(1e9, 3, signals) + (
        "close = Engine.close\nEngine.close = lambda self: (close(self), at_batch())\n" if "," in signals else ""
    )
    assert run(limited(clips, out), twice) == 143
    assert len(rows_of(out)) <= 4  # after a second signal perhaps none: nothing waits for the writer
    assert "," in signals or rows_of(out)
    assert run(limited(clips, out)) == 0
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
    assert run(limited(clips, tmp_path / "out"), loading) == 143
    assert run.said().count("\n") == 1 and "terminated" in run.said() and not (tmp_path / "out").exists()


# --- from bucket to bucket -------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[FaultyStore]:
    with object_store() as store:
        yield store


def stored_rows(url: str) -> dict[str, dict]:
    rows = [json.loads(line) for line in remote.read_object(f"{url}/transcripts.jsonl").data.decode().splitlines()]
    named = {row["audio_filepath"].rpartition("/")[2]: row for row in rows}
    assert len(named) == len(rows)
    return named


def test_bucket_to_bucket(run: Runs, clips: Path, expected: Path, server: FaultyStore) -> None:
    """Capped runs, and one that gets a notice."""
    for path in clips.rglob("*.wav"):
        server.put(f"bucket/in/{path.name}", path.read_bytes())
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")} | {"NO_PROXY": "*"}
    at_store = f"import os\nos.environ.update({variables!r})\n"
    given = limited("s3://bucket/in/", "s3://bucket/out")
    codes = [run(given, at_store + program(9.0))]
    done = [len(stored_rows("s3://bucket/out"))]
    codes.append(run(given, at_store + program(1e9, 2, "[signal.SIGTERM]")))
    codes.append(run(given, at_store + program(1e9, 3, "[signal.SIGALRM]")))
    done.append(len(stored_rows("s3://bucket/out")))
    codes.append(run(given, at_store + program()))
    assert codes == [75, 143, 75, 0], run.said()
    assert 0 < done[0] < done[1] < NUM_CLIPS + 1
    whole = {Path(path).name: row for path, row in rows_of(expected).items()}
    found = stored_rows("s3://bucket/out")
    assert {name: row["text"] for name, row in found.items()} == {name: row["text"] for name, row in whole.items()}
    for name in whole:
        local = next(expected.rglob(f"{name.removesuffix('.wav')}.srt"))
        assert remote.read_object(f"s3://bucket/out/{name}.srt").data == local.read_bytes()
