"""On a CPU, the rows of a batch run in parts side by side: the same results, errors and settings as in one part."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, get_ident

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.pipeline import engine
from fastscribe.pipeline.engine import Engine, equal_shares, fastest_shares
from fastscribe.pipeline.model_building import prepare
from fastscribe.speakers.diarizer import Diarizer
from fastscribe.speakers.readers import read_speaker_model
from fastscribe.types import Batch
from tests.conftest import AUDIO, MODELS, recognizer, torch_threads, waveform
from tests.helpers import sortformer
from tests.helpers.collate import batch_of

NAMES = sorted(path.name for path in Path(AUDIO).glob("*.flac"))[:6]


def batch() -> Batch:
    return batch_of([waveform(AUDIO / name) for name in NAMES])


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_equal_shares(sizes: list[int], num_parts: int) -> None:
    """Every row once; no part is empty, nor larger than a fair share by more than a row."""
    parts = equal_shares(np.array(sizes), num_parts)
    assert sorted(row for part in parts for row in part) == list(range(len(sizes)))
    assert all(parts) and len(parts) <= num_parts
    assert all(part == sorted(part) for part in parts)
    largest = max(sum(sizes[row] for row in part) for part in parts)
    assert largest <= max(1.1 * sum(sizes) / num_parts, sum(sizes) / num_parts + max(sizes))


def test_neighbours_stay_together() -> None:
    assert equal_shares(np.array([30, 29, 28, 20, 19, 18, 17, 16]), 2) == [[0, 1, 2], [3, 4, 5, 6, 7]]
    assert equal_shares(np.array([30, 26, 20, 14]), 2) == [[0, 3], [1, 2]]


def test_rows_without_samples() -> None:
    assert equal_shares(np.array([0]), 1) == [[0]]
    assert equal_shares(np.array([5, 0]), 1) == [[0, 1]]
    assert sorted(equal_shares(np.array([5, 5, 0]), 2)) == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("sizes", "threads", "num_parts"),
    [([60, 20], 2, 1), ([40, 40, 40], 2, 1), ([40, 40], 2, 2), ([25] * 5, 4, 2), ([30] * 4, 8, 4), ([10] * 13, 16, 13)],
)
def test_no_thread_waits_long_for_another(sizes: list[int], threads: int, num_parts: int) -> None:
    """All threads work on one part where a part of its own would keep one of them busy for long after the others."""
    assert len(fastest_shares(np.array(sizes), 16, threads)) == num_parts


@pytest.mark.parametrize("folder", ["tdt_demo", "hybrid"])
def test_equal_to_one_part(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = recognizer(MODELS / folder)
    expected = model.transcribe(batch())
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)
    with torch_threads(3):
        ours = Engine(model)
        outcomes = list(ours.push(batch()))
        assert torch.get_num_threads() == 3
        assert len(ours._parts(batch())) == 3
    [(whole, found)] = outcomes  # one result, as a time limit and the counts of batches expect it
    assert [row.num_samples for row in whole.utterances] == [len(waveform(AUDIO / name)) for name in NAMES]
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert {"features", "encode", "decode"} <= set(ours.stopwatch.seconds)


def test_a_speaker_model_reads_recordings_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sortformer.write_nemo(tmp_path / "model.nemo", sortformer.config("v1"))
    diarizer = Diarizer.build(read_speaker_model(path), torch.device("cpu"), prepare)
    words = batch()
    turns = replace(words, utterances=tuple(replace(one, purpose="turns") for one in words.utterances))
    plain = recognizer(MODELS / "tdt_demo")
    ours = Engine(replace(plain, rooms=replace(plain.rooms, others={"turns": diarizer})))
    [(_, expected)] = ours.push(turns)
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)
    with torch_threads(2):
        assert len(ours._parts(turns)) == 2
        [(_, found)] = ours.push(turns)
    for one, other in zip(expected, found, strict=True):
        assert one.found is not None and other.found is not None
        np.testing.assert_allclose(one.found, other.found, atol=2e-5)


def test_a_failure_stays_in_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row fails whenever it is encoded; the others have their texts."""
    model = recognizer(MODELS / "tdt_demo")
    bad = max(batch().utterances, key=lambda row: row.num_samples)
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)
    encode = Engine._encode

    def fails(self: Engine, one: Batch) -> object:
        if bad in one.utterances:
            raise RuntimeError("broken")
        return encode(self, one)

    monkeypatch.setattr(Engine, "_encode", fails)
    with torch_threads(2):
        assert len(Engine(model)._parts(batch())) == 2
        outcomes = list(Engine(model).push(batch()))
    failed = [row for part, result in outcomes if isinstance(result, Exception) for row in part.utterances]
    done = [row for part, result in outcomes if not isinstance(result, Exception) for row in part.utterances]
    assert failed == [bad] and len(done) == len(NAMES) - 1


def in_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_the_number_of_threads_is_as_before_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other part may begin after the error: it must not set the number after it was restored."""
    model, restored, here = recognizer(MODELS / "tdt_demo"), Event(), get_ident()
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)
    set_number = torch.set_num_threads

    def late(number: int) -> None:
        if get_ident() != here:
            restored.wait(0.3)
        set_number(number)
        if get_ident() == here and number == 3:
            restored.set()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "_all_stages", interrupted)
    with torch_threads(3):
        monkeypatch.setattr(torch, "set_num_threads", late)
        with pytest.raises(KeyboardInterrupt):
            list(Engine(model).push(batch()))
        monkeypatch.undo()
        assert torch.get_num_threads() == in_new_thread() == 3


def test_threads_that_begin_meanwhile_have_the_usual_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run in a thread of its own, which first asks for the number while the parts of this one run."""
    model, others = recognizer(MODELS / "tdt_demo"), []
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)
    stages, begun, here = Engine._all_stages, Event(), get_ident()

    def other() -> int:
        begun.set()
        list(Engine(model).push(batch()))
        return torch.get_num_threads()

    def waits(self: Engine, part: Batch) -> object:
        if get_ident() == here and not others:
            others.append(pool.submit(other))
        begun.wait()
        return stages(self, part)

    monkeypatch.setattr(Engine, "_all_stages", waits)
    with torch_threads(3), ThreadPoolExecutor(1) as pool:
        list(Engine(model).push(batch()))
        assert others[0].result() == torch.get_num_threads() == in_new_thread() == 3


def test_threads_of_others_that_begin_meanwhile_have_the_usual_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that do not transcribe."""
    model, stages, all_run, found = recognizer(MODELS / "tdt_demo"), Engine._all_stages, Barrier(2, timeout=20), []
    monkeypatch.setattr(engine, "_MIN_PART_S", 2.0)

    def asks(self: Engine, part: Batch) -> object:
        all_run.wait()
        found.append((torch.get_num_threads(), in_new_thread()))
        return stages(self, part)

    monkeypatch.setattr(Engine, "_all_stages", asks)
    with torch_threads(2):
        list(Engine(model).push(batch()))
    assert found == [(1, 2), (1, 2)]


class Held:
    def __enter__(self) -> None:
        raise TimeoutError

    def __exit__(self, *error: object) -> None:
        pass


def test_a_gpu_does_not_wait_for_parts_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Engine(recognizer(MODELS / "tdt_demo"))
    monkeypatch.setattr(engine, "_threads_lock", Held)
    monkeypatch.setattr(Engine, "_encode", lambda self, one: one)
    monkeypatch.setattr(Engine, "_finish", lambda self, *most: iter(()))
    with pytest.raises(TimeoutError):
        list(ours.push(batch()))
    monkeypatch.setattr(ours, "device", torch.device("cuda"))
    assert list(ours.push(batch())) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_waits_for_no_thread_that_it_lacks() -> None:
    with engine._threads_lock():  # as by a thread whose batch runs in parts
        child = os.fork()
        if child == 0:
            os._exit(not engine._threads_lock().acquire(blocking=False))
    assert os.waitpid(child, 0)[1] == 0
