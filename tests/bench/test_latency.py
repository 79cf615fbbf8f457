"""Latencies are of whole batches, percentiles need enough iterations, and cases that do not fit report it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastscribe.bench import batch_latency, throughput_passes
from fastscribe.errors import UsageError
from fastscribe.transcriber import Transcriber
from fastscribe.types import Batch
from tests.conftest import MODEL
from tests.helpers import random_models
from tests.helpers.benches import run


def transcriber(dtype: str = "fp32") -> Transcriber:
    return random_models.transcriber("tiny", dtype)


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=300), st.sampled_from(batch_latency.PERCENTILES))
def test_percentile_has_values_above_it(values: list[float], percent: int) -> None:
    found = batch_latency.percentile(values, percent)
    if found is None:
        assert len(values) * (100 - percent) < 100
    else:
        assert sum(value <= found for value in values) * 100 >= percent * len(values)
        assert sum(value < found for value in values) * 100 < percent * len(values)


def test_summary_has_mean_and_noise() -> None:
    found = batch_latency.summary([1.0, 2.0, 3.0, 4.0, 10.0] * 2)
    assert found["average_ms"] == 4.0 and (found["min_ms"], found["max_ms"]) == (1.0, 10.0)
    assert found["p50_ms"] == 3.0 and found["p90_ms"] == 10.0 and found["p95_ms"] is None
    assert found["average_ms_runs"] == [1.5, 3.5, 5.5, 2.5, 7.0] and found["p50_ms_runs"] == [1.0, 3.0, 1.0, 2.0, 4.0]
    assert found["max_ms_runs"] == [2.0, 4.0, 10.0, 3.0, 10.0] and found["min_ms_runs"] == [1.0, 3.0, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(("count", "parts"), [(1, 0), (19, 0), (20, 2), (39, 3), (50, 5), (500, 5)])
def test_percentile_noise_needs_enough_iterations(count: int, parts: int) -> None:
    found = batch_latency.summary(np.arange(1.0, count + 1).tolist())
    runs = {percent: len(found.get(f"p{percent}_ms_runs", ())) for percent in batch_latency.PERCENTILES}
    assert (runs[50], runs[90], runs[99]) == (5 if count > 1 else 0, parts, 5 if count == 500 else 0)
    assert len(found.get("average_ms_runs", ())) == runs[50]
    assert not parts or found["p90_ms_runs"][-1] == pytest.approx(count - 0.1 * count / parts, abs=1.0)


def made_batches(batch_size: int, duration_s: float) -> list[Batch]:
    case = batch_latency._Case(transcriber(), batch_size, duration_s)
    case.make_batches()
    return case.batches


@pytest.mark.parametrize("batch_size", [1, 3])
def test_batches_have_different_recordings(batch_size: int) -> None:
    batches = made_batches(batch_size, 1.3)
    assert [batch.samples_BS.shape for batch in batches] == [(batch_size, 20800)] * 8
    assert len({row.tobytes() for batch in batches for row in batch.samples_BS}) == 8 * batch_size
    assert all((batch.lengths_B == 20800).all() and batch.samples_BS.dtype == np.int16 for batch in batches)


def test_latency_includes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = throughput_passes.assemble
    monkeypatch.setattr(throughput_passes, "assemble", lambda *given: made.append(real(*given)))
    labels = batch_latency.text_of(transcriber(), made_batches(2, 4.0)[0])
    assert len(made) == 2 and labels == sum(len(transcript.tokens) for transcript in made) > 5
    assert all(word.end_s <= 4.1 for transcript in made for word in transcript.words)


def test_out_of_memory_costs_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    real = batch_latency.text_of

    def text_of(one: Transcriber, batch: Batch):
        if len(batch.utterances) == 2 and one._recognizer.dtype == "fp32":
            raise torch.OutOfMemoryError("no room")
        return real(one, batch)

    monkeypatch.setattr(batch_latency, "text_of", text_of)
    both = [transcriber(), transcriber("bf16")]
    found = list(batch_latency.rows("tiny", both, [0.5], [2, 1], batch_latency.Effort(2, 5.0)))
    assert "no room" in found[0][0]["error"] and found[0][1]["iterations"] == 2
    assert "speedup_ratio" not in found[0][1]
    assert found[1][1]["speedup_ratio"] == pytest.approx(found[1][0]["average_ms"] / found[1][1]["average_ms"])


def test_out_of_memory_for_audio_fails_all_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches(*given: object):
        raise MemoryError("no room")

    monkeypatch.setattr(batch_latency, "batches_of", batches)
    [found] = batch_latency.rows("tiny", [transcriber(), transcriber("bf16")], [0.5], [2], batch_latency.Effort(2, 5.0))
    assert ["no room" in row["error"] for row in found] == [True, True]


class SlowingMachine:
    """A machine that takes 1 % longer at each call, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.dtypes = 0.0, list[str]()
        monkeypatch.setattr(batch_latency, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(batch_latency, "text_of", self.text_of)

    def text_of(self, one: Transcriber, batch: Batch) -> int:
        self.dtypes.append(one._recognizer.dtype)
        self.now_s += 0.01 * 1.01 ** len(self.dtypes)
        return 3


def test_slowing_machine_affects_dtypes_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SlowingMachine(monkeypatch)
    both = [transcriber(), transcriber("bf16")]
    [[first, second]] = batch_latency.rows("tiny", both, [0.5], [1], batch_latency.Effort(100, 60.0))
    assert first["iterations"] == second["iterations"] == 100
    assert second["max_ms"] > 5 * second["min_ms"]
    assert second["speedup_ratio"] == pytest.approx(1.0, abs=0.05)
    assert len(second["speedup_ratio_runs"]) == 5 and max(second["speedup_ratio_runs"]) < 1.3
    turns = [a for a, b in pairwise([*machine.dtypes[6:], ""]) if a != b]
    assert len(turns) >= 10


def test_dtypes_stop_together(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowingMachine(monkeypatch)
    both = [transcriber(), transcriber("bf16")]
    [[first, second]] = batch_latency.rows("tiny", both, [0.5], [1], batch_latency.Effort(10_000, 0.5))
    assert abs(first["iterations"] - second["iterations"]) < 0.2 * first["iterations"]
    assert first["iterations"] * first["average_ms"] + second["iterations"] * second["average_ms"] < 1200.0


def test_slow_case_reports_its_iterations() -> None:
    [[row]] = batch_latency.rows("tiny", [transcriber()], [0.5], [1], batch_latency.Effort(10**6, 0.2))
    assert 1 <= row["iterations"] < row["iterations_asked"] == 10**6
    assert row["sequences_per_s"] == pytest.approx(1000 / row["average_ms"])
    assert row["rtfx"] == pytest.approx(500 / row["average_ms"])
    for name, amount in (("sequences_per_s", 1000), ("rtfx", 500)):
        assert row[f"{name}_runs"] == pytest.approx([amount / run_ms for run_ms in row["average_ms_runs"]])


@pytest.fixture
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_latency, "_EFFORT", batch_latency.Effort(3, 20.0))


def test_the_command(capsys, few_iterations: None, tmp_path: Path) -> None:
    model = random_models.folder("tiny", tmp_path)
    arguments = ("--latency", "2,1", "--durations-s", "0.5,1", "--model", model, "--json", tmp_path / "out.json")
    found, said = run(capsys, *arguments, "--device", "cpu")
    assert found["case_keys"] == ["model", "dtype", "batch_size", "duration_s"] and found["benchmark"] == "latency"
    cases = [(row["duration_s"], row["batch_size"], row["dtype"]) for row in found["rows"]]
    assert cases == [(s, size, dtype) for s in (0.5, 1.0) for size in (2, 1) for dtype in ("fp32", "bf16")]
    assert all(row["iterations"] == 3 and row["p99_ms"] is None and row["p50_ms"] > 0 for row in found["rows"])
    lines = said.splitlines()[-4:]
    assert all(line.split()[0] == str(row["batch_size"]) for line, row in zip(lines, found["rows"][::2], strict=True))
    assert all(line.endswith("x") for line in lines) and found["refused"] == {} and found["random_weights"] is True
    assert "only" not in said


def test_one_dtype_has_no_speedup(capsys, few_iterations: None) -> None:
    arguments = ("--latency", "1", "--durations-s", "1", "--dtype", "fp32", "--device", "cpu", "--model", MODEL)
    found, said = run(capsys, *arguments)
    [row] = found["rows"]
    assert row["dtype"] == "fp32" and row["model"] == "tdt_demo" and "speedup_ratio" not in row
    assert "speed-up" not in said and "beam" not in found
    found, _ = run(capsys, "--beam", "3", *arguments)
    assert found["beam"] == 3


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--durations-s", "2,x"), "--durations-s 2,x"),
        (("--durations-s", "0"), "--durations-s 0"),
        (("--durations-s", "nan"), "--durations-s nan"),
        (("--latency", "0"), "--latency 0: not whole numbers"),
        (("--dtype", "fp32", "--dtype", "bf16", "--dtype", "int8"), "one or two"),
        (("--model", "nowhere.nemo"), "nowhere.nemo"),
        (("--device", "tpu"), "tpu"),
        (("--dtype", "fp8"), "fp8"),
        (("--dtype", "auto", "--dtype", "fp32", "--model", str(MODEL)), "both fp32"),
        (("a.wav",), "recordings: not with --latency"),
        (("--clips", "3"), "--clips: not with --latency"),
    ],
)
def test_wrong_usage(capsys, arguments: tuple[str, ...], what: str) -> None:
    with pytest.raises((UsageError, ValueError), match=what):
        run(capsys, "--latency", "1", "--device", "cpu", *arguments)
