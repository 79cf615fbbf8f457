"""The host benchmark runs, and its last line has the documented fields."""

from __future__ import annotations

import json
import sys

import pytest

from scripts.benchmarks import host


def test_host(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--clips",
        "5",
        "--seconds",
        "0.2",
        "--repeats",
        "1",
        "--threads",
        "2",
        "--kinds",
        "flac,flac-44k-stereo",
    ]
    monkeypatch.setattr(sys, "argv", ["host", *options])
    host.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["ceiling_files_per_s"] > 0
    assert set(found["kinds"]) == {"flac", "flac-44k-stereo"}
    for kind in found["kinds"].values():
        assert kind["files"] == 5
        assert set(kind["stage_cpu_us_per_file"]) == {"expand", "probe", "read", "assemble", "render", "write"}
