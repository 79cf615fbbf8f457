"""A run that gets helpers without an option goes on in its own process if they are refused or fail. These are real processes.

A part of the processors plays the GPU: no GPU takes part.
"""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile
import torch

from fastscribe import Failure, Options, Transcriber, Transcript
from fastscribe.cli.run import load_beside_helpers
from fastscribe.errors import DeviceFailed, UsageError
from fastscribe.fast_paths import RefusedPath
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.workers import devices, process
from fastscribe.pipeline.workers import pool as workers_pool
from fastscribe.pipeline.workers.devices import Device
from fastscribe.types import Batch
from tests.conftest import AUDIO, MODEL
from tests.fakes.cuda import forbid_contexts
from tests.helpers import worker_faults

OPTIONS = Options(batch_frames=100, threads=2)
CLIPS = [str(next(AUDIO.glob(f"{number:02d}_*.flac"))) for number in (12, 9, 5, 6, 8)]  # the shortest, 3 s each

pytestmark = [pytest.mark.posix, pytest.mark.usefixtures("forked")]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_contexts(monkeypatch)
    monkeypatch.setattr(devices, "parse_devices", lambda text: (Device(f"cuda:{text}", "cpu", 1, {}),))


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """The texts of one process."""
    return texts(Transcriber.load(MODEL, "cpu", "fp32", OPTIONS).transcribe(CLIPS))


def load(say: Callable[[str], None], device: str = "auto", gpu: int = 0) -> Transcriber:
    return load_beside_helpers(MODEL, device, "fp32", OPTIONS, gpu, say)


def texts(results: Iterator[Transcript | Failure]) -> dict[str, str]:
    found = list(results)
    assert not [one for one in found if isinstance(one, Failure)]
    assert len({one.index for one in found}) == len(found), "a recording has two results"
    return {one.audio.path: one.text for one in found if isinstance(one, Transcript)}


def out_of_processes(*_: Any, **__: Any) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def no_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(process, "subprocess", SimpleNamespace(**vars(process.subprocess) | {"Popen": out_of_processes}))


def no_shared_memory(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    patch.setattr(os, "memfd_create", refuse, raising=False)
    patch.setattr(tempfile, "mkstemp", refuse)


def no_device(patch: pytest.MonkeyPatch) -> None:
    """Find a GPU that this torch, which has no CUDA, cannot use."""
    patch.setattr(devices, "parse_devices", lambda text: (Device(f"cuda:{text}", "cuda", 1, {}),))


def no_thread(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(workers_pool, "ReplacingThreadPool", refuse)


@pytest.mark.parametrize(
    ("refuse", "reason"),
    [
        (no_thread, "the start of threads failed: can't start new thread"),
        (no_process, "cuda:0 failed: [Errno 11] Resource temporarily unavailable"),
        (no_shared_memory, "the start of processes failed: [Errno 1] Operation not permitted"),
        (no_device, "this torch has no CUDA"),
    ],
)
def test_a_run_whose_processes_are_refused_begins_in_this_process(
    refuse: Callable[[pytest.MonkeyPatch], None], reason: str, monkeypatch: pytest.MonkeyPatch, expected: dict[str, str]
) -> None:
    refuse(monkeypatch)
    lines: list[str] = []
    with load(lines.append) as transcriber:
        assert texts(transcriber.transcribe(CLIPS)) == expected
        assert isinstance(transcriber._engine, Engine)
    [line] = lines
    assert isinstance(line, RefusedPath) and line.reason.startswith(reason)
    assert transcriber.refused_paths == {"helpers": line.reason}
    assert line.startswith("no processes beside this one (") and "the run goes on in this process, on " in line


def test_a_gpu_that_no_process_can_use_leaves_the_cpu_with_one_line(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, str]
) -> None:
    """It is counted here, and held by another program: its process and this one are refused it."""
    no_device(monkeypatch)
    refuse, make = RuntimeError("all CUDA-capable devices are busy"), torch.empty

    def empty(*size: Any, device: Any = None, **rest: Any) -> torch.Tensor:
        if torch.device(device or "cpu").type == "cuda":
            raise refuse
        return make(*size, device=device, **rest)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch, "empty", empty)
    lines: list[str] = []
    with load(lines.append) as transcriber:
        assert texts(transcriber.transcribe(CLIPS)) == expected
    [line] = lines
    assert isinstance(line, RefusedPath) and "the run goes on in this process, on " in line


def test_a_device_that_the_user_names_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without helpers too: no other device takes its place."""
    no_process(monkeypatch)
    lines: list[str] = []
    with pytest.raises(UsageError, match=r"^--device cuda:1: this torch has no CUDA"):
        load(lines.append, "cuda:1", 1)
    assert not lines


def kill_after_first(transcriber: Transcriber, inputs: Iterator[str]) -> list[Transcript | Failure]:
    """Return the results. The device ends after the first one that it has made."""
    results, found = transcriber.transcribe(inputs), []
    for result in results:
        found.append(result)
        if len(found) == 1:
            os.kill(transcriber._executor._slots[0].process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    return found


def test_a_run_whose_device_dies_goes_on_with_what_has_no_result(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, str], pushed: list[Batch]
) -> None:
    """The inputs come from an iterator, which cannot be read twice."""
    monkeypatch.setattr(workers_pool, "MAX_DEATHS", 0)
    lines: list[str] = []
    clips = CLIPS * 8
    with load(lines.append) as transcriber:
        found = kill_after_first(transcriber, iter(clips))
        assert sorted(one.index for one in found) == list(range(len(clips)))
        assert [one.text for one in found if isinstance(one, Transcript)] == [
            expected[clips[one.index]] for one in found
        ]
        here = [one.audio.index for batch in pushed for one in batch.utterances]
        assert 0 < len(here) < len(clips) and len(set(here)) == len(here)
        assert set(here) == {one.index for one in found[-len(here) :]}
        progress = transcriber.progress
        assert (progress.files, progress.failed, progress.planned_files) == (len(clips), 0, len(clips))
        assert progress.done_s == pytest.approx(progress.audio_s) == pytest.approx(progress.planned_s)
        assert not transcriber.shares()
        assert texts(transcriber.transcribe(CLIPS)) == expected, "the next run is in this process"
    death, line = lines
    assert death.startswith("the process of cuda:0 was killed by SIGKILL") and death.endswith("it is not used any more")
    assert isinstance(line, RefusedPath)
    assert line.reason.startswith("cuda:0 failed: the last process was killed by SIGKILL")


def kill_device(transcriber: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_pool, "MAX_DEATHS", 0)
    os.kill(transcriber._executor._slots[0].process.pid, signal.SIGKILL)


def kill_helpers(transcriber: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    no_process(monkeypatch)
    for one in transcriber._executor.helpers.processes:
        os.kill(one.pid, signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_device, kill_helpers])
def test_inputs_that_are_not_listed_yet_are_not_lost(
    kill: Callable[[Any, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iterator is read as far as this process looks ahead, and has many more inputs. It ends with the run.

    The memory that the processes shared is free in the rest of the run.
    """
    samples, rate = soundfile.read(CLIPS[0], dtype="int16")
    soundfile.write(tmp_path / "short.wav", samples[: rate // 2], rate)
    num_inputs, listed, closed = 400, [0], []

    def inputs() -> Iterator[Path]:
        try:
            for number in range(num_inputs):
                listed[0] = number + 1
                yield tmp_path / "short.wav"
        finally:
            closed.append(True)

    lines: list[str] = []
    loaded = load_beside_helpers(MODEL, "auto", "fp32", replace(OPTIONS, window=10), 0, lines.append)
    with loaded as transcriber:
        arena = weakref.ref(transcriber._executor._arena)  # type: ignore[attr-defined]
        found = []
        for result in transcriber.transcribe(inputs()):
            if not found:
                kill(transcriber, monkeypatch)
                assert listed[0] < num_inputs / 2
            found.append(result)
            if len(found) == num_inputs - 50:
                assert arena() is None
        assert sorted(one.index for one in found) == list(range(num_inputs)) and closed
        progress = transcriber.progress
        assert (progress.files, progress.planned_files) == (num_inputs, num_inputs)
        # An input that one helper had when it was killed, and then another one, counts as what ended both.
        assert progress.failed <= (kill is kill_helpers)
    assert isinstance(lines[-1], RefusedPath)


def test_an_input_that_is_waited_for_meanwhile_is_not_lost_and_nor_is_an_error(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, str]
) -> None:
    goes_on = Event()

    def inputs() -> Iterator[str]:
        yield CLIPS[0]
        assert goes_on.wait(60)
        yield from CLIPS[1:]
        raise OSError("the list ends here")

    with load(lambda line: goes_on.set() if isinstance(line, RefusedPath) else None) as transcriber:
        results = transcriber.transcribe(inputs())
        found = [next(results)]
        kill_device(transcriber, monkeypatch)
        found += islice(results, len(CLIPS) - 1)
        assert texts(iter(found)) == expected
        with pytest.raises(OSError, match="the list ends here"):
            next(results)


def test_recordings_that_may_have_ended_processes_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, str]
) -> None:
    """The device has done nothing else, so it may be to blame as well. Here they do this process no harm."""
    (tmp_path / "faults").mkdir()
    worker_faults.install(tmp_path / "faults", monkeypatch)
    samples, rate = soundfile.read(CLIPS[0], dtype="int16")
    samples[: len(worker_faults.POISON)] = worker_faults.POISON
    poisons = [tmp_path / f"{number}.flac" for number in range(6)]
    for path in poisons:
        soundfile.write(path, samples, rate)
    given = [*map(str, poisons), *CLIPS]
    lines: list[str] = []
    with load(lines.append) as transcriber:
        found = list(transcriber.transcribe(given))
    assert sorted(one.index for one in found) == list(range(len(given)))
    assert texts(iter(found[: len(CLIPS)])) == expected
    assert all(isinstance(one, Transcript) and one.index < len(poisons) for one in found[len(CLIPS) :])
    assert any(isinstance(line, RefusedPath) for line in lines)


@pytest.mark.parametrize(("device", "here"), [("auto", "cuda"), ("cuda:1", "cuda:1")])
def test_the_device_and_the_dtype_stay_in_the_middle_of_a_run(
    device: str, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def note(*arguments: Any, **named: Any) -> Any:
        given.append(arguments[1:3])
        if named:
            return SimpleNamespace()
        raise MemoryError

    monkeypatch.setattr(Transcriber, "load", staticmethod(note))
    load_here = load(lambda line: None, device).load_here
    facts: Any = SimpleNamespace(is_gpu=True, dtype="bf16")
    with pytest.raises(DeviceFailed, match=r"^cuda:0 failed: lost; this process failed: MemoryError; the run stops"):
        load_here(DeviceFailed("cuda:0", RuntimeError("lost")), facts)  # type: ignore[misc]
    assert given == [("auto", "fp32"), (here, "bf16")]
