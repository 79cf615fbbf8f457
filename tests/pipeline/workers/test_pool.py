"""Several devices give what one gives, whatever happens to their processes. These are real processes."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import soundfile

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe import transcriber as transcriber_module
from fastscribe._system.processors import usable_processors
from fastscribe.errors import DeviceFailed, UsageError
from fastscribe.pipeline.time_limit import TimeLimit
from fastscribe.pipeline.workers import devices
from fastscribe.pipeline.workers import pool as workers_pool
from fastscribe.segmentation import gaps
from fastscribe.types import Utterance
from tests.conftest import AUDIO, MODELS
from tests.helpers import worker_faults
from tests.helpers.processes import command

MODEL = MODELS / "tdt_demo" / "model.nemo"
OPTIONS = Options(batch_frames=300, max_utterance_s=8.0, threads=2)
CLIP = next(AUDIO.glob("01*.flac"))
PATIENCE_S = 120

pytestmark = pytest.mark.posix

Results = dict[int, Transcript | Failure]


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    worker_faults.install(folder, patch)
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Short and long recordings: files, rows of a manifest that are opened late, bytes, samples; one is missing."""
    folder = tmp_path_factory.mktemp("inputs")
    long = folder / "long.wav"
    clips = [soundfile.read(path, dtype="int16") for path in sorted(AUDIO.glob("[01]*.flac"))]
    rate = clips[0][1]
    with soundfile.SoundFile(long, "w", rate, 1) as file:
        for samples, _ in clips:
            file.write(samples)
    row = {"audio_filepath": str(CLIP), "duration": 1.5, "text": "said", "offset": 0.25}
    rows = [row, row | {"duration": 2.0}, {"audio_filepath": str(folder / "gone.wav"), "duration": 1.0}]
    manifest = folder / "rows.jsonl"
    manifest.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return [long, *sorted(AUDIO.glob("*.flac")), folder / "missing.wav", manifest, CLIP.read_bytes(), clips[0]]


@pytest.fixture(scope="module")
def expected(inputs: list[Any]) -> tuple[Results, int]:
    """The results of one process, and the frames of their audio."""
    transcriber = Transcriber.load(MODEL, "cpu", "fp32", OPTIONS)
    return by_index(transcriber.transcribe(inputs)), transcriber.progress.real_frames


@pytest.fixture(scope="module")
def pool(faults: Path, patch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Three processes, and the lines that they say."""
    patch.setattr(devices, "usable_processors", lambda: 3)
    lines: list[str] = []
    with Transcriber.load(MODEL, dtype="fp32", options=OPTIONS, say=lines.append, devices="cpu:3") as transcriber:
        yield SimpleNamespace(transcriber=transcriber, lines=lines)


@pytest.fixture(autouse=True)
def _no_lines_of_others(request: pytest.FixtureRequest) -> None:
    if "pool" in request.fixturenames:
        request.getfixturevalue("pool").lines.clear()


def by_index(results: Iterator[Transcript | Failure]) -> Results:
    found = list(results)
    assert len({one.index for one in found}) == len(found), "a recording has two results"
    return {one.index: one for one in found}


def assert_same(found: Results, expected: Results) -> None:
    """Confidences alone may differ, in the last digits: a slow machine makes other batches."""
    assert found.keys() == expected.keys()
    for index, result in expected.items():
        assert content(found[index]) == content(result)
        if isinstance(result, Transcript):
            assert confidences(found[index]) == pytest.approx(confidences(result), abs=1e-4)


def content(result: Transcript | Failure) -> Any:
    if isinstance(result, Failure):
        return result, result.key
    words = [(word.text, word.start_s, word.end_s) for word in result.words]
    return result.audio, result.key, result.text, words, [token[:4] for token in result.tokens], result.gaps


def confidences(result: Transcript | Failure) -> list[float]:
    assert isinstance(result, Transcript)
    return [token.confidence for token in result.tokens]


def processes(transcriber: Transcriber) -> list[int]:
    return [slot.process.pid for slot in transcriber._executor._slots]  # type: ignore[attr-defined]


def linked(folder: Path, names: list[str]) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.symlink_to(CLIP)
    return paths


def test_a_process_that_is_started_again_gets_the_models_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Any] = []

    def refuse(_: object, start: object, *rest: object) -> None:
        starts.append(start)
        raise UsageError("no pool")

    monkeypatch.setattr(transcriber_module, "WorkerPool", refuse)
    monkeypatch.chdir(MODELS)
    with pytest.raises(UsageError, match="no pool"):
        Transcriber.load(MODEL.relative_to(MODELS), "auto", "fp32", OPTIONS, devices="cpu:2")
    assert [start.model for start in starts] == [str(MODEL.absolute())]


def test_three_processes_give_what_one_gives(pool: SimpleNamespace, inputs: list[Any], expected) -> None:
    """Texts, words, times, rows, keys and failures."""
    results, real_frames = expected
    transcriber = pool.transcriber
    found = by_index(transcriber.transcribe(inputs))
    assert_same(found, results)
    assert transcriber.progress.real_frames == real_frames
    assert sum(isinstance(one, Failure) for one in found.values()) == 2
    shares = transcriber._executor.shares()
    assert [one.name for one in shares] == ["cpu:0", "cpu:1", "cpu:2"]
    assert all(one.batches and one.busy_s > 0 and one.peak_bytes > 0 and not one.died for one in shares)
    decoded = sum(one.audio_s for one in shares)
    assert decoded >= transcriber.progress.audio_s
    assert {"features", "encode", "decode"} <= transcriber.progress.stopwatch.seconds.keys()
    in_order = list(transcriber.transcribe(inputs, ordered=True))
    assert [one.index for one in in_order] == sorted(results)


@pytest.mark.parametrize("start_s", [0.0, 0.5])
def test_speech_without_words_is_decoded_again_in_recordings_that_were_opened_late(
    pool: SimpleNamespace, inputs: list[Any], monkeypatch: pytest.MonkeyPatch, start_s: float
) -> None:
    """The first utterance of a manifest's row has the whole row, which a process opens."""

    def half(transcript: Transcript, *_: object) -> list[Utterance]:
        audio = transcript.audio
        return [Utterance(audio, int(start_s * audio.sample_rate), audio.num_samples // 2)]

    monkeypatch.setattr(gaps, "find_untranscribed_spans", lambda transcript: [(0.0, transcript.audio.duration_s)])
    monkeypatch.setattr(gaps, "find_clear_speech", half)
    rows = [path for path in inputs if str(path).endswith(".jsonl")]
    alone = Transcriber.load(MODEL, "cpu", "fp32", replace(OPTIONS, recover_gaps=True))
    monkeypatch.setattr(pool.transcriber, "_recovers_gaps", True)
    results = by_index(alone.transcribe(rows))
    assert_same(by_index(pool.transcriber.transcribe(rows)), results)
    assert sum(one.utterances for one in pool.transcriber.shares()) == 2 * 2 + 1  # one row's file is missing


def test_a_killed_process_is_replaced_and_the_others_take_its_work(
    pool: SimpleNamespace, inputs: list[Any], expected
) -> None:
    transcriber = pool.transcriber
    before = processes(transcriber)
    os.kill(before[0], signal.SIGSTOP)  # it takes batches and does none of them
    found: Results = {}
    for result in transcriber.transcribe(inputs):
        if not found:
            os.kill(before[0], signal.SIGKILL)
        found[result.index] = result
    assert_same(found, expected[0])
    [line] = pool.lines
    assert line.startswith("the process of cpu:0 was killed by SIGKILL")
    assert line.endswith("utterances go to other processes; a new process is started")
    assert [one.died for one in transcriber._executor.shares()] == [1, 0, 0]
    assert processes(transcriber)[1:] == before[1:] and processes(transcriber)[0] != before[0]


def test_a_process_that_hangs_is_replaced_and_the_others_take_its_work(
    pool: SimpleNamespace, inputs: list[Any], expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_pool, "MIN_SILENT_S", 0.1)
    monkeypatch.setattr(workers_pool, "MAX_BATCH_TIMES", 2.0)
    transcriber = pool.transcriber
    hung = processes(transcriber)[1]  # the first may be a new one that loads the model
    os.kill(hung, signal.SIGSTOP)
    assert_same(by_index(transcriber.transcribe(inputs)), expected[0])
    assert any(line.startswith("the process of cpu:1 has not answered for ") for line in pool.lines)
    assert processes(transcriber)[1] != hung and not psutil.pid_exists(hung)


def test_a_poisoned_recording_fails_alone(pool: SimpleNamespace, tmp_path: Path) -> None:
    paths = linked(tmp_path, ["a.flac", "b.flac", "poison.flac", "c.flac", "d.flac", "e.flac", "f.flac"])
    found = list(pool.transcriber.transcribe(paths))
    assert len(found) == len(paths)
    [failure] = [one for one in found if isinstance(one, Failure)]
    assert (failure.path, failure.stage, failure.error_type) == (str(paths[2]), "model", "RecordingKilledProcess")
    assert "by itself; the last one was killed by SIGKILL" in failure.message
    assert len({one.text for one in found if isinstance(one, Transcript)}) == 1
    assert 2 <= len(pool.lines) <= 3 and all("a new process is started" in line for line in pool.lines)
    assert pool.transcriber._executor.num_devices == 3


def test_a_hung_recording_holds_up_no_other(pool: SimpleNamespace, faults: Path, tmp_path: Path) -> None:
    """More recordings hang than all processes take batches at once."""
    names = [f"hang{number:02d}.flac" for number in range(12)]
    paths = linked(tmp_path, [*names, *(f"well{number:02d}.flac" for number in range(12))])
    with closing(pool.transcriber.transcribe(paths)) as results:
        first = [next(results) for _ in range(12)]
        assert all("well" in one.audio.path for one in first)
        with worker_faults.release(faults):
            assert len(list(results)) == 12


def test_a_poisoned_recording_fails_alone_beside_ones_that_hang(
    pool: SimpleNamespace, faults: Path, tmp_path: Path
) -> None:
    names = [f"hang{number}.flac" for number in range(6)]
    paths = linked(tmp_path, [*names, "poison.flac", *(f"well{number}.flac" for number in range(3))])
    with closing(pool.transcriber.transcribe(paths)) as results:
        first = [next(results) for _ in range(4)]
        [failure] = [one for one in first if isinstance(one, Failure)]
        assert (failure.path, failure.error_type) == (str(paths[6]), "RecordingKilledProcess")
        with worker_faults.release(faults):
            assert all(isinstance(one, Transcript) for one in [*first, *results] if one is not failure)
    assert pool.transcriber._executor.num_devices == 3


def test_a_limit_ends_the_run_and_what_is_begun_is_finished(pool: SimpleNamespace, inputs: list[Any], expected) -> None:
    """The clock counts the audio with a result, so a second of audio takes a second, as the limit has learnt before."""
    transcriber, results = pool.transcriber, expected[0]
    lesson = [0.0, 1.0]
    limit = TimeLimit(
        81.0, lambda: lesson.pop(0) if lesson else 1.0 + sum(one.audio_s for one in transcriber._executor.shares())
    )
    assert limit.begin(1.0)
    limit.done(1.0)
    transcriber._limit = limit
    try:
        found = by_index(transcriber.transcribe(inputs))
    finally:
        transcriber._limit = None
    assert limit.is_reached and 2 < len(found) < len(results)
    assert_same(found, {index: results[index] for index in found})
    assert sum(one.audio_s for one in transcriber._executor.shares()) <= 80.0
    assert_same(by_index(transcriber.transcribe(inputs)), results)


def test_a_cancelled_run_leaves_nothing_to_the_next(pool: SimpleNamespace, inputs: list[Any], expected) -> None:
    with closing(pool.transcriber.transcribe(inputs)) as results:
        next(results)
    assert_same(by_index(pool.transcriber.transcribe(inputs)), expected[0])


def test_devices_that_cannot_start_or_die_are_given_up_one_by_one(
    inputs: list[Any], expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two processes has no memory for the model; the other does the work, until it dies without a result."""
    (tmp_path / "faults").mkdir()
    worker_faults.install(tmp_path / "faults", monkeypatch, broken_threads=2)
    monkeypatch.setattr(devices, "usable_processors", lambda: 3)
    lines: list[str] = []
    with Transcriber.load(MODEL, dtype="fp32", options=OPTIONS, say=lines.append, devices="cpu:2") as transcriber:
        assert lines == ["the process of cpu:0 failed: no memory left for a model; the others go on"]
        assert_same(by_index(transcriber.transcribe(inputs)), expected[0])
        paths = linked(tmp_path, [f"poison{number}.flac" for number in range(8)])
        with pytest.raises(DeviceFailed, match=r"was killed by SIGKILL .*what is written is kept"):
            list(transcriber.transcribe(paths))
        assert len(lines) == 5 and lines[-1].endswith("it is not used any more")
        assert transcriber._executor.num_devices == 0


def test_processes_of_a_transcriber_that_nobody_closed_end_with_it() -> None:
    transcriber = Transcriber.load(MODEL, dtype="fp32", options=OPTIONS, devices="cpu:1")
    [process] = [psutil.Process(pid) for pid in processes(transcriber)]
    del transcriber
    gc.collect()
    _, alive = psutil.wait_procs([process], PATIENCE_S)
    assert not alive


def test_what_every_process_refuses_is_the_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "usable_processors", lambda: 2)
    lines: list[str] = []
    with pytest.raises(UsageError, match=r"^--dtype fp8: unavailable: ") as caught:
        Transcriber.load(MODEL, dtype="fp8", say=lines.append, devices="cpu:2")
    assert not lines and type(caught.value) is UsageError
    with pytest.raises(UsageError, match="exclude each other"):
        Transcriber.load(MODEL, "cpu", devices="cpu:2")


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda process: process.kill(), -signal.SIGKILL),
        (lambda process: os.killpg(process.pid, signal.SIGINT), 130),  # as a terminal does
        (lambda process: process.terminate(), 143),
    ],
    ids=["killed", "interrupted", "terminated"],
)
def test_the_processes_end_with_the_command(end: Callable[[subprocess.Popen[bytes]], None], code: int) -> None:
    number = min(2, usable_processors())
    given = command("transcribe", "-", "-m", MODEL, "--devices", f"cpu:{number}", "--dtype", "fp32", "-f", "jsonl")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(given, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(f"{CLIP}\n".encode())
        process.stdin.flush()  # and no end
        row = json.loads(process.stdout.readline())
        assert row["audio_filepath"] == str(CLIP) and row["text"]
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == number
        end(process)
        assert process.wait(PATIENCE_S) == code
        _, alive = psutil.wait_procs(children, PATIENCE_S)
        assert not alive
        errors = process.stderr.read().decode().splitlines()
    assert len(errors) == (code > 0), errors  # nothing but how it ended
