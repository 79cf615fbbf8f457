"""The recorder: bounded memory for any number of files, and correct numbers."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from fastscribe.report.recorder import RunRecorder
from tests.helpers.report_samples import Clock, failure, transcript, utterance


def recorded(num_batches: int, rows: int) -> dict[str, Any]:
    """Record a run with all values different."""
    clock, rng = Clock(), random.Random(3)
    recorder = RunRecorder(clock)
    for batch in range(num_batches):
        clock.now_s += rng.uniform(0.1, 0.2)
        some = [utterance(batch * rows + row, rng.uniform(1, 20)) for row in range(rows)]
        recorder.batch(some)
        for one in some:
            is_bad = rng.random() < 0.2
            done = transcript(one, (rng.random(),), rng.uniform(0, 3))
            recorder.result(failure(one, "m" * 10_000) if is_bad else done)
    return recorder.data()


def test_size_independent_of_files() -> None:
    small, large = recorded(200, 20), recorded(1000, 20)
    sizes = [len(json.dumps(data)) for data in (small, large)]
    assert sizes[1] < 1.3 * sizes[0]
    assert 128 <= len(large["audio_over_time"]) <= 258
    assert len(large["uncertain"]) == len(large["wordless"]) == 8
    assert len(large["failures"]["first"]) == 100
    assert sum(large["failures"]["by_stage"].values()) > 3_000


@pytest.mark.parametrize("num_batches", [1, 255, 256, 257, 520, 1100])
def test_audio_over_time(num_batches: int) -> None:
    """Each point is the end of a batch with all audio up to it, at equal distances, and the last batch is there."""
    clock = Clock()
    recorder = RunRecorder(clock)
    rng, done = random.Random(1), [(0.0, 0.0)]
    for _ in range(num_batches):
        clock.now_s += rng.random()
        recorder.batch([one := utterance(0, rng.uniform(1, 20))])
        done.append((clock.now_s - 100.0, done[-1][1] + one.duration_s))
    *points, last = recorder.data()["audio_over_time"]
    every = next(step for step in (1, 2, 4, 8) if len(done[::step]) <= 256)
    assert points == done[::every] and last == done[-1]


def test_the_files_to_look_at() -> None:
    """Those of the lowest confidence, with the most speech without words, and without any word; of equal ones the first."""
    recorder = RunRecorder(Clock())
    for index in range(50):
        confidences = (index / 50, 1.0, math.nan, -0.1, 1.1)
        recorder.result(transcript(utterance(index, 60.0), confidences, gap_s=float(min(index, 40))))
    recorder.result(transcript(utterance(51, 60.0), (math.nan,)))
    for index in (70, *range(52, 62)):
        recorder.result(replace(transcript(utterance(index, 30.0)), text=""))
    found = recorder.data()
    assert found["silent"] == [(f"corpus/{at:06}.flac", 30.0) for at in range(52, 60)]
    assert found["uncertain"] == [(f"corpus/{at:06}.flac", pytest.approx((at / 50 + 1) / 2), 2) for at in range(8)]
    assert found["wordless"] == [(f"corpus/{at:06}.flac", 40.0) for at in range(40, 48)]


def test_paths_and_messages_are_short_and_without_secrets() -> None:
    recorder = RunRecorder(Clock())
    bad = utterance(0, 1.0, "https://me:pass5word@host/" + "a" * 1000 + "/the end.wav")
    recorder.result(failure(bad, "https://me:pass5word@host is gone" + "x" * 1000))
    recorder.result(transcript(bad, (0.5,)))
    found = recorder.data()
    [(path, stage, message)], [(uncertain, *_)] = found["failures"]["first"], found["uncertain"]
    assert path == uncertain and path.endswith("a/the end.wav") and stage == "load"
    assert max(len(path), len(message)) <= 503 and "pass5word" not in str(found)
