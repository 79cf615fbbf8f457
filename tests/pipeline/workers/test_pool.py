"""Several devices give what one gives, whatever happens to their processes. These are real processes."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import soundfile

from fastscribe import Audio, Failure, Options, Transcriber, Transcript
from fastscribe._system.processors import usable_processors
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.dry_run import estimate_run
from fastscribe.errors import DeviceFailed, UsageError
from fastscribe.pipeline import prefetch
from fastscribe.pipeline.window_buffer import WindowBuffer
from fastscribe.pipeline.workers import devices, helpers
from fastscribe.pipeline.workers import pool as workers_pool
from fastscribe.pipeline.workers.arena import Arena
from fastscribe.pipeline.workers.pool import num_helpers
from fastscribe.readable.edits import TextEdits
from fastscribe.results.interfaces import Ledger
from tests.conftest import AUDIO, MODEL, MODELS
from tests.helpers import worker_faults
from tests.helpers.processes import command, still_running

OPTIONS = Options(batch_frames=100, max_utterance_s=8.0, threads=2)
CLIPS = [next(AUDIO.glob(f"{number:02d}_*.flac")) for number in (12, 9, 5, 6, 8)]  # the shortest, 3 s each
CLIP = CLIPS[0]
PATIENCE_S = 120

pytestmark = [pytest.mark.posix, pytest.mark.usefixtures("forked")]

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
    clips = [soundfile.read(path, dtype="int16") for path in CLIPS]
    soundfile.write(long, np.concatenate([samples for samples, _ in clips[2:]]), clips[0][1])
    row = {"audio_filepath": str(CLIP), "duration": 1.5, "text": "said", "offset": 0.25}
    rows = [row, row | {"duration": 2.0}, {"audio_filepath": str(folder / "gone.wav"), "duration": 1.0}]
    manifest = folder / "rows.jsonl"
    manifest.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    edge_cases = sorted(AUDIO.glob("e0[1-6]*.flac"))
    return [long, *CLIPS, *edge_cases, folder / "missing.wav", manifest, CLIP.read_bytes(), clips[0]]


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
    audio = replace(result.audio, file="") if isinstance(result.audio.file, RemoteFile) else result.audio
    return audio, result.key, result.text, words, [token[:4] for token in result.tokens], result.gaps


def confidences(result: Transcript | Failure) -> list[float]:
    assert isinstance(result, Transcript)
    return [token.confidence for token in result.tokens]


def processes(transcriber: Transcriber) -> list[int]:
    return [slot.process.pid for slot in transcriber._executor._slots]  # type: ignore[attr-defined]


def helper_pids(transcriber: Transcriber) -> list[int]:
    return [process.pid for process in transcriber._executor.helpers.processes]  # type: ignore[attr-defined]


def linked(folder: Path, names: list[str]) -> list[Path]:
    """Return paths to one clip. Those whose names begin so end the device that decodes them."""
    paths = [folder / name for name in names]
    for path in paths:
        if path.name.startswith("poison"):
            samples, rate = soundfile.read(CLIP, dtype="int16")
            samples[: len(worker_faults.POISON)] = worker_faults.POISON
            soundfile.write(path, samples, rate, format="FLAC")
        else:
            path.symlink_to(CLIP)
    return paths


def killing(
    transcriber: Transcriber, number: int, results: Iterator[Transcript | Failure]
) -> list[Transcript | Failure]:
    """Return the results. The first text while a process has work ends that process."""
    executor: Any = transcriber._executor
    pid = processes(transcriber)[number]
    found: list[Transcript | Failure] = []
    is_killed = False
    for result in results:
        if not is_killed and isinstance(result, Transcript) and result.text and executor._dispatch.is_working(number):
            os.kill(pid, signal.SIGKILL)
            is_killed = True
        found.append(result)
    return found


def assert_fails_alone(found: list[Transcript | Failure], path: Path, stage: str) -> None:
    """One recording has killed its processes, and the others have the clip's text."""
    [failure] = [one for one in found if isinstance(one, Failure)]
    assert (failure.path, failure.stage, failure.error_type) == (str(path), stage, "RecordingKilledProcess")
    assert "was killed by SIGKILL" in failure.message
    assert len({one.text for one in found if isinstance(one, Transcript)}) == 1


def test_a_process_that_is_started_again_gets_the_models_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Any] = []

    def refuse(_: object, start: object, *rest: object) -> None:
        starts.append(start)
        raise UsageError("no pool")

    monkeypatch.setattr(workers_pool, "WorkerPool", refuse)
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
    not_decoded_s = transcriber.progress.audio_s - sum(one.audio_s for one in shares)
    assert 2 <= round(not_decoded_s, 6) < 4, "digital silence"
    assert {"features", "encode", "decode"} <= transcriber.progress.stopwatch.seconds.keys()
    in_order = list(transcriber.transcribe(inputs, ordered=True))
    assert [one.index for one in in_order] == sorted(results)


def test_a_killed_process_is_replaced_and_the_others_take_its_work(
    pool: SimpleNamespace, inputs: list[Any], expected
) -> None:
    transcriber = pool.transcriber
    before = processes(transcriber)
    os.kill(before[0], signal.SIGSTOP)  # it takes batches and does none of them
    found = killing(transcriber, 0, transcriber.transcribe(inputs))
    assert_same(by_index(iter(found)), expected[0])
    [line] = pool.lines
    assert line.startswith("the process of cpu:0 was killed by SIGKILL")
    assert re.search(r"utterance(s go| goes) to other processes; a new process is started$", line)
    assert [one.died for one in transcriber._executor.shares()] == [1, 0, 0]
    assert processes(transcriber)[1:] == before[1:] and processes(transcriber)[0] != before[0]


def test_a_process_that_hangs_is_replaced_and_the_others_take_its_work(
    pool: SimpleNamespace, inputs: list[Any], expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_pool, "MIN_SILENT_S", 5.0)  # on a busy machine, more than another process needs
    monkeypatch.setattr(workers_pool, "MAX_BATCH_TIMES", 2.0)
    transcriber = pool.transcriber
    hung = processes(transcriber)[1]  # the first may be a new one that loads the model
    os.kill(hung, signal.SIGSTOP)
    assert_same(by_index(transcriber.transcribe(inputs)), expected[0])
    assert any(line.startswith("the process of cpu:1 has not answered for ") for line in pool.lines)
    assert processes(transcriber)[1] != hung and not psutil.pid_exists(hung)


@pytest.mark.parametrize(("name", "stage"), [("crashread", "load"), ("crashtext", "assemble")])
def test_a_recording_that_kills_its_helper_fails_alone(
    pool: SimpleNamespace, tmp_path: Path, name: str, stage: str
) -> None:
    paths = linked(tmp_path, ["a.flac", "b.flac", f"{name}.flac", "c.flac", "d.flac", "e.flac"])
    found = list(pool.transcriber.transcribe(paths))
    assert len(found) == len(paths)
    assert_fails_alone(found, paths[2], stage)
    assert len(pool.lines) == 2 and all("a helper process was killed by SIGKILL" in line for line in pool.lines)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers that do nothing are soon ended."""
    monkeypatch.setattr(helpers, "STILL_S", 0.3)
    monkeypatch.setattr(helpers, "CHECK_INTERVAL_S", 0.05)


@pytest.mark.parametrize(("name", "stage"), [("hang", "load"), ("stall", "probe")])
def test_recordings_that_hang_fail_alone(
    pool: SimpleNamespace, tmp_path: Path, impatient: None, name: str, stage: str
) -> None:
    """More of them hang than there are helpers, when they are read or prepared."""
    names = [f"{name}{number:02d}.flac" for number in range(4)]
    paths = linked(tmp_path, [*names, *(f"well{number:02d}.flac" for number in range(8))])
    found = list(pool.transcriber.transcribe(paths))
    failed = [one for one in found if isinstance(one, Failure)]
    assert sorted(one.path for one in failed) == sorted(map(str, paths[:4])) and {one.stage for one in failed} == {
        stage
    }
    assert len(found) == 12 and len({one.text for one in found if isinstance(one, Transcript)}) == 1
    assert 5 <= len(pool.lines) <= 8  # once for each alone, and once for each job that had some of them
    assert all("a helper process stood still in a file" in line for line in pool.lines)


def test_a_run_that_is_cancelled_while_files_hang_leaves_nothing_to_the_next(
    pool: SimpleNamespace, inputs: list[Any], expected, tmp_path: Path, impatient: None
) -> None:
    paths = linked(tmp_path, ["hang0.flac", "stall0.flac", "well.flac"])
    with closing(pool.transcriber.transcribe(paths)) as results:
        next(results)
    assert_same(by_index(pool.transcriber.transcribe(inputs)), expected[0])
    assert len(helper_pids(pool.transcriber)) == OPTIONS.threads


@pytest.mark.parametrize("language", ["en", None])
def test_changed_texts_are_those_of_one_process(
    pool: SimpleNamespace, inputs: list[Any], monkeypatch: pytest.MonkeyPatch, language: str | None
) -> None:
    """So are the counts of what an option left alone, if no language is known."""
    pytest.importorskip("wetext", reason="needs the extra itn")
    inputs = [*inputs, next(AUDIO.glob("03_*.flac"))]  # "seventy-three"
    options = replace(OPTIONS, remove_fillers=True, itn=True)
    alone = Transcriber.load(MODEL, "cpu", "fp32", OPTIONS)
    counts = []
    for transcriber in (alone, pool.transcriber):
        monkeypatch.setattr(transcriber, "_edits", TextEdits(options, language))
        found = by_index(transcriber.transcribe(inputs))
        if transcriber is alone:
            results = found
        counts.append(transcriber._edits.left_alone)
    assert_same(found, results)
    words = [word for one in found.values() if isinstance(one, Transcript) for word in one.words]
    assert any(word.original for word in words) == (language is not None)
    assert counts[0] == counts[1] and (sum(counts[0].values()) > 1) == (language is None)


def test_a_callers_objects_and_keys_come_back(pool: SimpleNamespace) -> None:
    """Keys need not be such as travel between processes. Bytes, samples and files stay in this one."""
    samples, rate = soundfile.read(CLIP, dtype="int16")
    with CLIP.open("rb") as file:
        sources = [CLIP, CLIP.read_bytes(), file, CLIP.with_name("gone.flac"), b"no audio"]
        given = [Audio(source, key=object()) for source in sources]
        given.append(Audio(samples, rate, key=object()))
        found = by_index(pool.transcriber.transcribe(given))
    assert [found[index].key for index in range(len(given))] == [one.key for one in given]
    assert len({found[index].text for index in (0, 1, 2, 5)}) == 1
    assert [found[index].stage for index in (3, 4)] == ["input", "probe"]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a server of the clips."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(AUDIO))) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_other_formats_rates_and_urls_give_what_one_process_gives(
    pool: SimpleNamespace, url: str, tmp_path: Path
) -> None:
    pytest.importorskip("av")
    from tests.helpers.containers import encode

    samples, rate = soundfile.read(CLIP, dtype="float32")
    names = [
        "e07_telephone_8k.flac",
        "e08_stereo_44k1.flac",
        "e09_float32_22k05.wav",
        "e11_speech.mp3",
        "e12_speech.opus.ogg",
    ]
    given = [AUDIO / name for name in names]
    given += [encode(tmp_path / f"a.{kind}", "aac", rate, samples=samples) for kind in ("m4a", "mp4")]
    given += [f"{url}/{CLIP.name}", f"{url}/e11_speech.mp3", f"{url}/gone.flac"]
    alone = Transcriber.load(MODEL, "cpu", "fp32", OPTIONS)
    results = by_index(alone.transcribe(given))
    assert_same(by_index(pool.transcriber.transcribe(given)), results)
    assert [index for index, one in results.items() if isinstance(one, Failure)] == [len(given) - 1]


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


@pytest.fixture(scope="module")
def cramped(faults: Path) -> Iterator[Transcriber]:
    """One device's process, and memory for less than a recording."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Arena, "of_machine", lambda *_: Arena(100_000, 12_500))
        with Transcriber.load(MODEL, dtype="fp32", options=OPTIONS, devices="cpu:1") as transcriber:
            yield transcriber


def test_a_memory_that_is_too_small_for_a_batch_still_gives_all_results(
    cramped: Transcriber, inputs: list[Any], expected
) -> None:
    """Batches are divided to fit eight times; a single long row has to grow it."""
    arena = cramped._executor._arena  # type: ignore[attr-defined]
    assert_same(by_index(cramped.transcribe(inputs)), expected[0])
    assert arena.num_bytes > arena.file.num_bytes, "no batch was too large"


def test_recordings_that_hang_in_all_of_the_memory_hold_up_no_other(
    cramped: Transcriber, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "MAX_WAIT_S", 0.05)
    executor: Any = cramped._executor
    size = executor._arena.num_bytes - executor._arena.file.num_bytes  # recordings before may have made it grow
    grown = executor._arena.allocate(size)
    paths = linked(tmp_path, ["hang0.flac", "hang1.flac", "well0.flac", "well1.flac"])
    found = {
        Path(one.path if isinstance(one, Failure) else one.audio.path).name: one for one in cramped.transcribe(paths)
    }
    assert [isinstance(found[path.name], Failure) for path in map(Path, paths)] == [True, True, False, False]
    executor._arena.release(grown)


def test_a_dry_run_counts_what_a_run_would_do_and_waits_for_its_inputs(
    cramped: Transcriber, inputs: list[Any], expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not woken, so it must not ask again and again."""
    asked: list[WindowBuffer[Any, Any]] = []
    take = WindowBuffer._take
    monkeypatch.setattr(WindowBuffer, "_take", lambda self: (asked.append(self), take(self))[1])
    failures: list[Failure] = []
    report = estimate_run(cramped, inputs, Ledger(), None, failures.append)
    assert {one.index for one in failures} == {index for index, one in expected[0].items() if isinstance(one, Failure)}
    assert (report.files, report.failed) == (len(expected[0]) - len(failures), len(failures))
    assert report.estimated_s > 0 and report.batches and len(asked) < 100


def test_processes_of_a_transcriber_that_nobody_closed_end_with_it() -> None:
    transcriber = Transcriber.load(MODEL, dtype="fp32", options=OPTIONS, devices="cpu:1")
    started = [psutil.Process(pid) for pid in (*processes(transcriber), *helper_pids(transcriber))]
    assert len(started) == 1 + OPTIONS.threads
    del transcriber
    gc.collect()
    _, alive = psutil.wait_procs(started, PATIENCE_S)
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
    ("end", "code", "number"),
    [
        (lambda process: process.kill(), -signal.SIGKILL, 1),
        (lambda process: os.killpg(process.pid, signal.SIGINT), 130, min(2, usable_processors())),  # as a terminal does
    ],
    ids=["killed", "interrupted"],
)
def test_the_processes_end_with_the_command(
    end: Callable[[subprocess.Popen[bytes]], None], code: int, number: int
) -> None:
    given = command("transcribe", "-", "-m", MODEL, "--devices", f"cpu:{number}", "--dtype", "fp32", "-f", "jsonl")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(given, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(f"{CLIP}\n".encode())
        process.stdin.flush()  # and no end
        row = json.loads(process.stdout.readline())
        assert row["audio_filepath"] == str(CLIP) and row["text"]
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == number + num_helpers(Options(), number)
        end(process)
        assert process.wait(PATIENCE_S) == code
        assert not still_running(children, PATIENCE_S)
        errors = process.stderr.read().decode().splitlines()
    assert len(errors) == (code > 0), errors  # nothing but how it ended


# A system that is short of descriptors and refuses memory without a file; the command says when its processes end.
_SHORT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 56))
def refuse(*_):
    raise PermissionError(1, "Operation not permitted")
os.memfd_create = refuse
if "-m" in sys.orig_argv:
    from fastscribe.pipeline.workers import process
    kill_all = process.kill_all
    def told(processes):
        print(len(processes), "processes end", file=sys.stderr)
        kill_all(processes)
    process.kill_all = told
"""


@pytest.mark.linux
def test_a_short_system_has_fewer_helpers_and_all_results_and_the_summary_comes_before_the_ends(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SHORT)
    output = tmp_path / "out"
    given = command("transcribe", *CLIPS, "-o", output, "-m", MODEL, "--devices", "cpu:1", "--threads", 24)
    done = subprocess.run(given, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert len((output / "transcripts.jsonl").read_bytes().splitlines()) == len(CLIPS)
    refused, fewer, summary, *_, ended = done.stderr.splitlines()
    assert "the system refuses memory without a file ([Errno 1] Operation not permitted)" in refused
    number = int(re.search(r"(\d+) of 24 helper processes run: a process may open 56 files here", fewer)[1])
    assert 1 <= number < 8
    assert "5 files" in summary and ended == f"{number + 1} processes end"
    assert json.loads((output / "report.json").read_text())["refused"].keys() == {"helpers"}
