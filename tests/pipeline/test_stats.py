from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastscribe.cli.run_messages import report_table
from fastscribe.pipeline.stats import DeviceShare, RunStats, Stopwatch
from fastscribe.results.journal import ENTRY
from fastscribe.results.merge import MergeResult, ShardResult, merged_report
from fastscribe.results.paths import Paths
from fastscribe.results.shards import Shard


def stats(**changes) -> RunStats:
    values = {
        "files": 2,
        "failed": 0,
        "audio_s": 7200.0,
        "load_s": 1.0,
        "wall_s": 72.0,
        "stage_s": {"encode": 70.0},
        "padded_frames": 100,
        "real_frames": 95,
        "peak_bytes": 1,
        "device": "x",
        "dtype": "fp32",
        "usd_per_hour": None,
        "price_source": None,
    }
    return RunStats(**(values | changes))


def test_shares_of_devices() -> None:
    shares = [DeviceShare("cpu:0", "x", 3, 9, 5400.0, 60.0), DeviceShare("cpu:1", "x", 1, 4, 1800.0, 20.0, died=1)]
    run = stats(devices=shares)
    assert [one["audio_share"] for one in run.to_json()["devices"]] == [0.75, 0.25]
    lines = [line.split(maxsplit=1) for line in report_table(run).splitlines()]
    assert ["cpu:0", "75 % of the audio (1.500 h in 3 batches), busy 60.0 s"] in lines
    assert ["cpu:1", "25 % of the audio (0.500 h in 1 batch), busy 20.0 s, died 1 time"] in lines
    assert stats().to_json()["devices"] == [] and "% of the audio" not in report_table(stats())
    idle = stats(devices=[DeviceShare("cpu:0", "x")])
    assert idle.to_json()["devices"][0]["audio_share"] == 0.0


def test_rtfx_padding_and_cost() -> None:
    run = stats(usd_per_hour=2.0)
    assert run.rtfx == 100.0
    assert run.padding_share == pytest.approx(0.05)
    assert run.usd_per_1000_audio_hours == pytest.approx(20.0)  # 1,000 h of audio take 10 h


def test_gaps_are_reported_and_shown() -> None:
    run = stats(gaps=2, gap_s=3.21)
    assert (run.to_json()["gaps"], run.to_json()["gap_s"]) == (2, 3.21)
    assert "2 (3.2 s)" in report_table(run)


def test_a_merged_report_adds_up_gaps() -> None:
    results = []
    for index in range(2):
        report = stats(gaps=1, gap_s=2.0).to_json()
        results.append(ShardResult(Paths(Path(), Shard(index, 2).suffix), np.zeros(1, ENTRY), report, {}))
    merged = merged_report(MergeResult(2, tuple(results)))
    assert [merged[name] for name in ("gaps", "gap_s")] == [2, 4.0]


def test_empty_run_has_no_division_by_zero() -> None:
    empty = stats(audio_s=0.0, wall_s=0.0, padded_frames=0, real_frames=0, usd_per_hour=1.0)
    assert (empty.rtfx, empty.padding_share, empty.usd_per_1000_audio_hours) == (0.0, 0.0, None)


def test_stopwatch_adds_up_even_when_a_stage_fails() -> None:
    watch = Stopwatch()
    for _ in range(2):
        with pytest.raises(RuntimeError), watch.time("stage"):
            raise RuntimeError
    assert watch.seconds["stage"] > 0
