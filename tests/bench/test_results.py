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
import typer.main
from typer.testing import CliRunner

from fastscribe import cli
from fastscribe._system.signals import SignalHandler
from fastscribe.bench import document as documents
from fastscribe.bench import doubt
from fastscribe.bench.commands import common
from fastscribe.bench.document import document
from fastscribe.bench.stored import read
from fastscribe.cli import app
from fastscribe.cli.terminal import show
from fastscribe.errors import OutputError, UsageError
from fastscribe.report.bench_page import render
from tests.conftest import AUDIO
from tests.helpers.bench_documents import document as made_up
from tests.helpers.bench_documents import speed, stored
from tests.report.test_run_page import Page

CPU = torch.device("cpu")
KEYS = ("batch_size",)
ROW, FAILED = {"batch_size": 1, "ms": 2.0}, {"batch_size": 2, "error": "out of memory"}


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert isinstance(done.exception, UsageError) and done.stdout == "", done.output
    return str(done.exception)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.linux
def test_only_results_are_overwritten(tmp_path: Path) -> None:
    a, b = (stored(tmp_path, f"{name}.json", made_up([speed()])) for name in "ab")
    recording, manifest = tmp_path / "rec.flac", tmp_path / "rows.jsonl"
    recording.write_bytes(next(AUDIO.glob("0*.flac")).read_bytes())
    manifest.write_text('{"audio_filepath": "a.wav"}\n')
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for place in (recording, manifest):
        assert f"--json {place}: there is a file that is no benchmark's result" in refused(
            "diff", a, b, "--json", place
        )
    for place in (tmp_path, Path("/dev/null"), tmp_path / "no" / "x.json", Path("/proc/x.json")):
        assert f"--json {place}" in refused("diff", a, b, "--json", place)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    for place in (stored(tmp_path, "old.json", made_up([speed()])), stored(tmp_path, "empty.json", "")):
        assert CliRunner().invoke(app, ["bench", "diff", str(a), str(b), "--json", str(place)]).exit_code == 0
        assert read(place)["benchmark"] == "diff"
    assert not list(tmp_path.glob("*.part"))


def test_a_download_beside_a_result_stays(tmp_path: Path) -> None:
    a, b = (stored(tmp_path, f"{name}.json", made_up([speed()])) for name in "ab")
    theirs = [tmp_path / "c.json.part", tmp_path / "c.html.part"]
    for path in theirs:
        path.write_text("half of it")
    places = ["--json", str(tmp_path / "c.json"), "--report-html", str(tmp_path / "c.html")]
    assert CliRunner().invoke(app, ["bench", "diff", str(a), str(b), *places]).exit_code == 0
    assert [path.read_text() for path in theirs] == ["half of it"] * 2


def test_a_recording_that_is_named_twice_is_kept(tmp_path: Path) -> None:
    recording = tmp_path / "rec.flac"
    recording.write_bytes(b"fLaC")
    for extra in ((), ("--against", "nemo")):
        assert "--json" in refused(recording, "-m", "x", "--json", recording, *extra)
    assert recording.read_bytes() == b"fLaC"


def test_a_result_and_its_page_are_two_files(tmp_path: Path) -> None:
    a, b = (stored(tmp_path, f"{name}.json", made_up([speed()])) for name in "ab")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for page in (tmp_path / "x", tmp_path / "link", tmp_path / "." / "x"):
        assert "one file for both" in refused("diff", a, b, "--json", tmp_path / "x", "--report-html", page)
    assert not (tmp_path / "x").exists()


def test_every_benchmark_checks_its_output_paths(tmp_path: Path) -> None:
    group = typer.main.get_command(app).commands["bench"]  # type: ignore[attr-defined]
    for name in group.commands:
        arguments = {"diff": ("a.json", "b.json"), "cost": ("a.json",)}.get(name, ())
        places = ("--json", tmp_path / "x", "--report-html", tmp_path / "x")
        assert "one file for both" in refused(name, *arguments, *places), name
        assert "no benchmark's result" in refused(name, *arguments, "--json", __file__), name


def test_unknown_word_is_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused("loss") == "loss: no such command, file or folder"
    (tmp_path / "loss").mkdir()
    assert "loss: no audio in this folder" in refused("loss", "--device", "cpu")


# --- options that would not be read -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        ("--random", "tiny"),
        ("--quick",),
        ("--clips", "3"),
        ("--batch-frames", "200"),
        ("--price-per-hour", "1"),
    ],
)
def test_a_comparison_drops_no_option(given: tuple[str, ...]) -> None:
    said = refused("a.wav", "--against", "nemo", "-m", "x.nemo", *given)
    assert said.startswith(given[0]) and "with --against" in said


@pytest.mark.parametrize("given", [("--peer-model", "x"), ("--peer-batch-sizes", "1"), ("--peer-python", "x")])
def test_peer_options_need_a_peer(given: tuple[str, ...]) -> None:
    assert refused("a.wav", *given) == f"{given[0]} is for --against"


def test_each_mode_reads_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSCRIBE_PEER_PYTHON", "/no/such/python")
    monkeypatch.setenv("FASTSCRIBE_PRICE_PER_HOUR", "2")
    assert "tpu" in refused("a.wav", "--device", "tpu")
    assert "/no/such/python" in refused("a.wav", "--against", "nemo")


# --- ends -----------------------------------------------------------------------------------------------------------------


def last(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def measure_until(end: BaseException, rows: list[dict[str, Any]], *places: Path | None) -> None:
    with common.result("train", CPU, KEYS, *places) as found:
        found["model"] = "m"
        found["rows"] += rows
        raise end


@pytest.mark.parametrize("end", [KeyboardInterrupt(), UsageError("no"), SystemExit(1)])
def test_early_end_keeps_measurements(end: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "a.json", tmp_path / "a.html"
    with pytest.raises(type(end)):
        measure_until(end, [FAILED, ROW], file, page)
    left = last(capsys)
    assert left["complete"] is False and left["rows"] == [FAILED, ROW] and left["model"] == "m"
    assert read(file) == left
    assert "the measurement ended before its end" in Page(page.read_text()).text


def test_early_end_without_measurements_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure_until(KeyboardInterrupt(), [FAILED], tmp_path / "a.json", None)
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


def test_lost_device_keeps_measured_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(documents, "document", lost)
    with pytest.raises(ZeroDivisionError):
        measure_until(ZeroDivisionError(), [ROW], None, None)
    left = last(capsys)
    assert (left["rows"], left["complete"]) == ([ROW], False) and "machine" not in left


def test_a_whole_result_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with common.result("train", CPU, KEYS, None, None) as found:
        found["rows"] += [FAILED, ROW]
    assert last(capsys)["complete"] is True


@pytest.mark.parametrize("rows", [[], [FAILED]])
def test_nothing_measured_is_no_success(rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, common.result("train", CPU, KEYS, None, None) as found:
        found["rows"] += rows
    assert ended.value.exit_code == 1 and last(capsys)["rows"] == rows


def test_a_result_is_printed_before_it_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    old = stored(tmp_path, "a.json", made_up([speed()]))
    before = old.read_bytes()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        common.finish("train", CPU, {"rows": [ROW]}, KEYS, old, None)
    assert last(capsys)["rows"] == [ROW]
    assert old.read_bytes() == before and list(tmp_path.iterdir()) == [old]


def test_nan_is_stored_as_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = ROW | {"rtfx": math.inf, "rtfx_runs": (1.0, math.nan), "stage_s": {"encode": -math.inf}}
    common.finish("train", CPU, {"rows": [row]}, KEYS, tmp_path / "a.json", None)
    [found] = last(capsys)["rows"]
    assert found == ROW | {"rtfx": None, "rtfx_runs": [1.0, None], "stage_s": {"encode": None}}
    assert read(tmp_path / "a.json")["rows"] == [found]


@pytest.mark.parametrize(
    ("command", "said"), [("bench", "fastscribe: interrupted\n"), ("evaluate", "fastscribe: interrupted\n")]
)
def test_interrupt_message_depends_on_the_command(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SignalHandler, "install", lambda self: None)
    monkeypatch.setattr(sys, "argv", ["fastscribe", command, "a.json"])
    assert cli._run(stopped) == 130
    assert capsys.readouterr().err == said


# --- on the page and on the terminal ----------------------------------------------------------------------------------------


def test_page_shows_speedup_and_agreement() -> None:
    row = {"side": "fastscribe", "rtfx": 40.0, "speedup_ratio": 2.5, "equal_texts_share": 0.975}
    made = document("against", CPU, {"rows": [row, {"side": "nemo", "rtfx": 16.0}]}, ["side"], [])
    tiles = render(made).partition('class="tiles"')[2].partition("</dl>")[0]
    assert "2.50 times" in tiles and "97.5 %" in tiles


def test_terminal_escapes_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    show("a\tb\n\x1b[2Jred \u202egnp.exe \r\x9b1m \udcff é 日本語")
    assert capsys.readouterr().err == "a\\tb\\n\\x1b[2Jred \\u202egnp.exe \\r\\x9b1m \\udcff é 日本語\n"


def test_a_terminal_gets_no_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    common.leave({"rows": []}, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    common.leave({"rows": []}, None)
    assert capsys.readouterr().out == '{"rows": []}\n'


def test_what_is_worth_nothing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A busy machine, and passes that differ; not an idle one with passes that are alike."""
    steady, wild = (
        {"case": "a", "rtfx": 10.0, "rtfx_runs": [9.8, 10.0, 10.4]},
        {"case": "b", "rtfx_runs": [6.0, 10.0, 11.0]},
    )
    monkeypatch.setattr(doubt, "busy_share", lambda: 0.1)
    with common.result("throughput", torch.device("cpu"), ["case"], None, None) as found:
        found["rows"] += [steady]
    shown = capsys.readouterr()
    assert "worth nothing" not in shown.err and "doubts" not in json.loads(shown.out)
    monkeypatch.setattr(doubt, "busy_share", lambda: 0.9)
    with common.result("throughput", torch.device("cpu"), ["case"], None, None) as found:
        found["rows"] += [steady, wild]
    shown = capsys.readouterr()
    busy, spread = json.loads(shown.out)["doubts"]
    assert busy.startswith("other work kept 90% of the processors busy") and busy in shown.err
    assert "rtfx of b differs by 50% (6 to 11): such figures are worth nothing" in spread and spread in shown.err


def test_the_processors_are_looked_at() -> None:
    assert 0.0 <= doubt.busy_share() <= 1.0
