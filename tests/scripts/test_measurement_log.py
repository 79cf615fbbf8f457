"""Every measurement leaves a row, also a failed or skipped one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scripts.measurement_log import MeasurementLog


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_failed_measurement_is_a_row(tmp_path: Path) -> None:
    notes = MeasurementLog(tmp_path / "rows", seconds=60)
    assert notes.measure({"what": "a"}, lambda: {"ms": 1 / 3, "not": float("nan")}) is not None
    assert notes.measure({"what": "b"}, lambda: {"ms": 1 / 0}) is None
    assert notes.make({"what": "c"}, lambda: "made") == "made"
    assert notes.make({"what": "d"}, lambda: [][1]) is None
    found = rows(tmp_path / "rows")
    assert found[0].pop("spent_s") >= 0 and found[0] == {"what": "a", "ms": 0.33333, "not": None}
    assert found[1]["error"].startswith("ZeroDivisionError") and found[1]["spent_s"] >= 0
    assert ["is_preparation" in row for row in found] == [False, False, True, False]
    assert [row["what"] for row in found] == ["a", "b", "c", "d"] and "error" in found[3]


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    """What is made is made again."""
    known = [{"what": "a", "rows": 1, "share": 0.33333, "ms": 5.0}, {"what": "c", "spent_s": 1.0}]
    notes = MeasurementLog(tmp_path / "rows", 60, known)
    assert notes.measure({"what": "a", "share": 1 / 3}, lambda: {"ms": 6.0}) == known[0]
    assert notes.measure({"what": "a", "rows": 2}, lambda: {"ms": 7.0})["ms"] == 7.0
    assert notes.make({"what": "c"}, lambda: "made") == "made"
    assert [row["what"] for row in rows(tmp_path / "rows")] == ["a", "c"]


def test_measurement_without_time_is_skipped(tmp_path: Path) -> None:
    notes = MeasurementLog(tmp_path / "rows", seconds=5)
    assert notes.measure({"what": "long"}, lambda: {}, needs_s=50) is None
    assert notes.measure({"what": "short"}, lambda: {}, needs_s=1) is not None
    assert rows(tmp_path / "rows")[0] == {"what": "long", "error": "skipped: out of time"}


def test_a_lost_device_ends_the_part(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("scripts.measurement_log.recover", lambda device: RuntimeError("again"))

    def lost() -> dict:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError):
        MeasurementLog(tmp_path / "rows", seconds=5).measure({"what": "a"}, lost)
    assert "illegal memory access" in rows(tmp_path / "rows")[0]["error"]
