"""The recorder: bounded memory for any number of files, and correct numbers."""

from __future__ import annotations

import itertools
import json
import math
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.report.recorder import RunRecorder, TimeBins, even_indices
from tests.helpers.report_samples import Clock, failure, transcript, utterance

spans = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(0, 1000)), min_size=1, max_size=40)


@given(spans, st.integers(2, 16))
def test_time_bins(spans: list[tuple[float, float, float]], most: int) -> None:
    series = TimeBins(("x", "y"), width_s=0.25, most=most)
    spans = [(min(a, b), max(a, b), amount) for a, b, amount in spans]
    for start_s, end_s, amount in spans:
        series.add("x", amount, start_s, end_s)
    found = series.sums["x"]
    assert len(found) <= most
    assert len(found) == len(series.sums["y"])
    assert sum(found) == pytest.approx(sum(amount for _, _, amount in spans), rel=1e-6, abs=1e-6)
    for place, value in enumerate(found):
        low, high = place * series.width_s, (place + 1) * series.width_s
        expected = sum(
            amount * max(0.0, min(end_s, high) - max(start_s, low)) / (end_s - start_s)
            if end_s - start_s > 1e-6
            else amount * (low <= end_s < high)
            for start_s, end_s, amount in spans
        )
        if all(
            end_s - start_s > 1e-6 for start_s, end_s, _ in spans
        ):  # merging pairs may move an instant to another bin
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.integers(0, 300), st.integers(2, 40))
def test_even_indices(count: int, most: int) -> None:
    places = even_indices(count, most)
    assert len(places) == min(count, most)
    assert places == sorted(set(places))
    if count:
        assert (places[0], places[-1]) == (0, count - 1)


def recorded(num_batches: int, rows: int) -> dict:
    """Record a run with all values different."""
    clock, rng = Clock(), random.Random(3)
    recorder = RunRecorder(clock)
    for batch in range(num_batches):
        clock.now_s += rng.uniform(0.1, 0.2)
        some = [utterance(batch * rows + row, rng.uniform(1, 20)) for row in range(rows)]
        recorder.batch(some, [round(one.duration_s / 0.08) for one in some])
        for one in some:
            is_bad = rng.random() < 0.2
            recorder.result(failure(one, "m" * 10_000) if is_bad else transcript(one, (rng.random(),)))
    return recorder.data()


def test_size_independent_of_files() -> None:
    small, large = recorded(200, 30), recorded(2000, 30)
    sizes = [len(json.dumps(data)) for data in (small, large)]
    assert sizes[1] < 1.3 * sizes[0]
    assert len(large["series"]["audio_s"]) <= 512
    assert len(large["batches"]["kept"]) <= 64
    assert large["batches"]["count"] == 2000
    assert len(large["slowest"]) == 20
    assert len(large["failures"]["first"]) == 100
    assert sum(large["failures"]["by_stage"].values()) == sum(large["series"]["failed"]) > 10_000
    assert sum(large["series"]["files"]) == 60_000
    assert sum(large["word_confidences"]) == 60_000 - sum(large["series"]["failed"])
    numbers = [batch["number"] for batch in large["batches"]["kept"]]
    steps = {after - before for before, after in itertools.pairwise(numbers)}
    assert numbers[0] == 1
    assert len(steps) == 1


def test_finished_files_forgotten() -> None:
    clock = Clock()
    recorder = RunRecorder(clock)
    for index in range(1000):
        recorder.batch([utterance(index, 2.0)] * 2, [25, 25])
        recorder.result(transcript(utterance(index, 4.0)) if index % 2 else failure(utterance(index, 4.0)))
    assert recorder._spent_s == {}


def test_failed_files_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.report.recorder._MAX_IN_FLIGHT", 50)
    recorder = RunRecorder(Clock())
    for index in range(1000):
        recorder.batch([utterance(index, 2.0)], [25])
    assert len(recorder._spent_s) == 50


def test_file_time() -> None:
    clock = Clock()
    recorder = RunRecorder(clock)
    long, short = utterance(0, 10.0, "long.wav"), utterance(1, 2.0, "short.wav")
    clock.now_s += 3
    recorder.batch([long, long, short], [125, 125, 25])
    clock.now_s += 4
    recorder.batch([long], [125])
    for one in (short, long):
        recorder.result(transcript(one))
    slowest = recorder.data()["slowest"]
    assert [(file["path"], file["seconds"]) for file in slowest] == [("long.wav", pytest.approx(6)), ("short.wav", 1)]
    assert sum(recorder.data()["series"]["audio_s"]) == pytest.approx(32)


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=60))
def test_slowest_files(seconds: list[float]) -> None:
    clock = Clock()
    recorder = RunRecorder(clock)
    spent = []
    for index, taken_s in enumerate(seconds):
        before_s, clock.now_s = clock.now_s, clock.now_s + taken_s
        spent.append(clock.now_s - before_s)
        recorder.batch([utterance(index, 1.0)], [12])
        recorder.result(transcript(utterance(index, 1.0)))
    kept = [file["seconds"] for file in recorder.data()["slowest"]]
    assert kept == pytest.approx(sorted(spent, reverse=True)[:20], abs=1e-9)


def test_nan_confidence_ignored() -> None:
    recorder = RunRecorder(Clock())
    recorder.result(transcript(utterance(0, 1.0), (0.0, 0.049, 0.05, 0.5, 0.999, 1.0, math.nan, -0.1, 1.1)))
    counts = recorder.data()["word_confidences"]
    assert (counts[0], counts[1], counts[10], counts[19], sum(counts)) == (2, 1, 1, 2, 6)


def test_no_torch_import() -> None:
    program = "import sys, fastscribe.report.recorder, fastscribe.report.run_page"
    done = subprocess.run([sys.executable, "-c", f"{program}; sys.exit('torch' in sys.modules)"], check=False)
    assert done.returncode == 0
