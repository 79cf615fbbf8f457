"""Result files: nothing measured is lost, and no other file is overwritten."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from fastscribe.bench import machine, result
from fastscribe.cli import app
from fastscribe.errors import OutputError, UsageError
from tests.conftest import AUDIO, FIRST

CPU = torch.device("cpu")
KEYS = ("batch_size",)
ROW, FAILED = {"batch_size": 1, "ms": 2.0}, {"batch_size": 2, "error": "out of memory"}


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert isinstance(done.exception, UsageError) and done.stdout == "", done.output
    return str(done.exception)


def stored(
    folder: Path, name: str, content: str = json.dumps({"benchmark": "train", "case_keys": [], "rows": []})
) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def leave_row(place: Path | None, row: dict[str, Any] = ROW) -> None:
    with result.result("train", CPU, KEYS, place) as found:
        found["rows"] += [row]


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.linux
def test_only_results_are_overwritten(tmp_path: Path) -> None:
    recording = stored(tmp_path, "rec.flac")
    recording.write_bytes(next(AUDIO.glob("0*.flac")).read_bytes())
    others = (stored(tmp_path, "rows.jsonl", '{"audio_filepath": "a.wav"}\n'), stored(tmp_path, "list.json", "[1]"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for place in (recording, *others, Path(__file__)):
        assert f"--json {place}: there is a file that is no benchmark's result" in refused("--json", place)
    for place in (tmp_path, Path("/dev/null"), tmp_path / "no" / "x.json", Path("/proc/x.json")):
        assert f"--json {place}" in refused("--json", place)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    for place in (stored(tmp_path, "old.json"), stored(tmp_path, "empty.json", ""), tmp_path / "new.json"):
        leave_row(result.usable_json(place))
        assert json.loads(place.read_text())["rows"] == [ROW]
    assert not list(tmp_path.glob("*.part"))


def test_a_recording_that_is_named_twice_is_kept(tmp_path: Path) -> None:
    recording = stored(tmp_path, "rec.flac", "")
    assert refused(recording, "-m", "x", "--json", recording).startswith(f"--json {recording}: it is one of the inputs")
    assert recording.read_bytes() == b""


def test_an_option_of_the_other_measurement_is_refused() -> None:
    assert refused("--durations-s", "2") == "--durations-s is for --latency"
    assert refused("--latency", "1", "--price-per-hour", "2") == "--price-per-hour: not with --latency"


def test_the_environment_is_for_any_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSCRIBE_PRICE_PER_HOUR", "2")
    assert "tpu" in refused("--latency", "1", "--device", "tpu")
    monkeypatch.setenv("FASTSCRIBE_LATENCY", "1")
    assert "tpu" in refused(FIRST, "--device", "tpu") and "tpu" in refused("--device", "tpu")
    assert "--latency 0" in refused("--latency", "0")


def test_inputs_are_looked_for_before_the_model() -> None:
    assert refused("throughput", "-m", "x") == "no recording that can be measured: throughput: no such file or folder"
    for inputs in (["gone.wav", FIRST], ["-"], ["*.none"], ["s3://bucket/a.wav"]):
        assert refused(*inputs, "--device", "tpu", "--json", "-").startswith("--device tpu")


# --- ends -----------------------------------------------------------------------------------------------------------------


def last(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def measure_until(end: BaseException, rows: list[dict[str, Any]], place: Path | None) -> None:
    with result.result("train", CPU, KEYS, place) as found:
        found["model"] = "m"
        found["rows"] += rows
        raise end


@pytest.mark.parametrize("end", [KeyboardInterrupt(), UsageError("no"), SystemExit(1)])
def test_early_end_keeps_measurements(end: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    with pytest.raises(type(end)):
        measure_until(end, [FAILED, ROW], file)
    left = last(capsys)
    assert left["complete"] is False and left["rows"] == [FAILED, ROW] and left["model"] == "m"
    assert json.loads(file.read_text()) == left


def test_early_end_without_measurements_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure_until(KeyboardInterrupt(), [FAILED], tmp_path / "a.json")
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


def test_lost_device_keeps_measured_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(machine, "facts", lost)
    with pytest.raises(ZeroDivisionError):
        measure_until(ZeroDivisionError(), [ROW], None)
    left = last(capsys)
    assert (left["rows"], left["complete"]) == ([ROW], False) and "machine" not in left


def test_a_whole_result_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with result.result("train", CPU, KEYS, None) as found:
        found["rows"] += [FAILED, ROW]
    assert last(capsys)["complete"] is True


@pytest.mark.parametrize("rows", [[], [FAILED]])
def test_nothing_measured_is_no_success(rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, result.result("train", CPU, KEYS, None) as found:
        found["rows"] += rows
    assert ended.value.exit_code == 1 and last(capsys)["rows"] == rows


def test_a_result_is_printed_before_it_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    old = stored(tmp_path, "a.json")
    before = old.read_bytes()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        leave_row(old)
    assert last(capsys)["rows"] == [ROW]
    assert old.read_bytes() == before and list(tmp_path.iterdir()) == [old]


def test_nan_is_stored_as_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = ROW | {"rtfx": math.inf, "rtfx_runs": (1.0, math.nan), "stage_s": {"encode": -math.inf}}
    leave_row(tmp_path / "a.json", row)
    [found] = last(capsys)["rows"]
    assert found == ROW | {"rtfx": None, "rtfx_runs": [1.0, None], "stage_s": {"encode": None}}
    assert json.loads((tmp_path / "a.json").read_text())["rows"] == [found]


# --- on the terminal --------------------------------------------------------------------------------------------------


def test_a_terminal_gets_no_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result.leave({"rows": []}, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    result.leave({"rows": []}, None)
    assert capsys.readouterr().out == '{"rows": []}\n'
    result.leave({"rows": []}, result.usable_json(Path("-")))  # unless it is asked for
    assert capsys.readouterr().out == '{"rows": []}\n' and not Path("-").exists()


def test_what_is_worth_nothing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A busy machine, and passes that differ; not an idle one with passes that are alike."""
    steady, wild = (
        {"case": "a", "rtfx": 10.0, "rtfx_runs": [9.8, 10.0, 10.4]},
        {"case": "b", "rtfx_runs": [6.0, 10.0, 11.0]},
    )
    monkeypatch.setattr(result, "busy_share", lambda: 0.1)
    with result.result("throughput", torch.device("cpu"), ["case"], None) as found:
        found["rows"] += [steady]
    shown = capsys.readouterr()
    assert "worth nothing" not in shown.err and "doubts" not in json.loads(shown.out)
    monkeypatch.setattr(result, "busy_share", lambda: 0.9)
    with result.result("throughput", torch.device("cpu"), ["case"], None) as found:
        found["rows"] += [steady, wild]
    shown = capsys.readouterr()
    busy, spread = json.loads(shown.out)["doubts"]
    assert busy.startswith("other work kept 90% of the processors busy") and busy in shown.err
    assert "rtfx of b differs by 50% (6 to 11): such figures are worth nothing" in spread and spread in shown.err


def test_the_processors_are_looked_at() -> None:
    assert 0.0 <= result.busy_share() <= 1.0
