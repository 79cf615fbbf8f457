"""`--report-html`: the pages of a whole run, an interrupted one and a resumed one."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastscribe import Options
from fastscribe.errors import UsageError
from fastscribe.pipeline.batching import Budget
from fastscribe.report import options, transcribe_page
from fastscribe.results.shards import Shard
from tests.cli.test_cli import FIRST, MODEL, transcribe
from tests.conftest import AUDIO
from tests.helpers.processes import with_pipes
from tests.helpers.scenes import NO_MODEL
from tests.helpers.warm_process import WARM
from tests.report.test_run_page import Page


def test_run_and_resume(tmp_path: Path) -> None:
    out, page, bad = tmp_path / "out", tmp_path / "page.html", tmp_path / "<b>bad.wav"
    bad.write_text("not audio")
    clips = sorted(AUDIO.glob("0*.flac"))[:4]
    done = transcribe(*clips[:2], bad, "-o", out, "--report-html", page, env={**os.environ, "HF_TOKEN": "hf_secret"})
    assert done.returncode == 1
    report = json.loads((out / "report.json").read_text())
    text = Page(page.read_text()).text
    assert "1 of 3 files failed" in text
    assert str(bad) in text
    assert f"{report['padding_share']:.1%}" in text
    assert f"--report-html {page}" in text
    assert "This page is about this run" not in text
    assert "hf_secret" not in text
    assert "Where the time went" in text and text.count("mean confidence") == 2
    named = ("--speakers", "channels", "--speaker-names", "Host,Guest", "--boost", "Rice Stadium,Zed")
    assert transcribe(*clips[:1], *named, "--report-html", tmp_path / "named.html").returncode == 0
    settings = Page((tmp_path / "named.html").read_text()).text
    assert "Host, Guest" in settings and "Rice Stadium, Zed" in settings and "Phrase(" not in settings
    assert transcribe(*clips, bad, "-o", out, "--report-html", page).returncode == 3
    again = Page(page.read_text()).text
    assert "Earlier runs had done 3 files already, of which 1 had failed" in again
    assert "Of all runs the folder holds 5 files (1 failed)" in again
    before, again_with = page.read_bytes(), (*clips, bad, "-m", MODEL, "-o", out, "--report-html")
    assert transcribe(*clips, bad, "-o", out, "--report-html", page).returncode == 3
    assert page.read_bytes() == before  # of the run that did something
    page.unlink()
    idle = WARM.python(f"{NO_MODEL}from fastscribe.cli import main\nmain()", "transcribe", *again_with, page)
    assert idle.returncode == 3 and not page.exists()
    why = "is not written, because there was nothing to do; report.json has the earlier numbers"
    assert idle.stderr.splitlines()[-1] == f"fastscribe: --report-html {page}: {why}"
    assert f"{page}: is not written" in transcribe(*clips, bad, "-o", out, "-q", "--report-html", page).stderr
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.posix
def test_terminated_run(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for copy in range(400):
        (tmp_path / "in").mkdir(exist_ok=True)
        os.link(shutil.copy(FIRST, tmp_path / "clip.flac"), tmp_path / "in" / f"{copy}.flac")
    arguments = ("transcribe", tmp_path / "in", "-m", MODEL, "-q", "--batch-size", 1, "--report-html", page)
    with with_pipes(*arguments) as (process, _, rows, said):
        assert rows.readline()
        process.send_signal(signal.SIGTERM)
        assert said.read().count("terminated") == 1
        assert process.wait(60) == 128 + signal.SIGTERM
    text = Page(page.read_text()).text
    assert "terminated: this is what was done by then" in text
    assert "Where the time went" in text
    assert not list(tmp_path.glob("*.part"))


def test_the_page_hides_secrets_of_the_error_and_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    style = SimpleNamespace(formats=["jsonl"])
    output = SimpleNamespace(where="s3://key:pass5word@bucket/out", shard=Shard(0, 1), style=style)
    job = SimpleNamespace(options=Options(), output=output, devices=None, model="m", price_per_hour=None)
    executor = SimpleNamespace(facts=SimpleNamespace(decoder_name="tdt"), budget=Budget(1.0))
    transcriber: Any = SimpleNamespace(
        _executor=executor,
        progress=SimpleNamespace(skipped=0),
    )
    written: list[Any] = []
    monkeypatch.setattr(transcribe_page, "render", written.append)
    monkeypatch.setattr(transcribe_page, "write_page", lambda path, page: None)
    monkeypatch.setattr("fastscribe.transcriber.run_stats", lambda *given: SimpleNamespace(to_json=dict))
    for error in (UsageError("https://me:pass5word@host/a is gone"), RuntimeError("https://me:pass5word@host/a")):
        page = transcribe_page.PageHook(tmp_path / "page.html")
        with pytest.raises(type(error)), page.during(job, transcriber):  # type: ignore[arg-type]
            raise error
    assert [one["status"] for one in written] == [
        "stopped: https://me:***@host/a is gone",
        "stopped: RuntimeError: https://me:***@host/a",
    ]
    assert {one["settings"]["output_dir"] for one in written} == {"s3://key:***@bucket/out"}


def test_bad_page_path(tmp_path: Path) -> None:
    sound = shutil.copy(FIRST, tmp_path / "a.flac")
    out = tmp_path / "out"
    for place in (tmp_path, tmp_path / "no" / "page.html", sound, out / "transcripts.jsonl"):
        out.mkdir(exist_ok=True)
        done = transcribe(FIRST, "-o", out, "--report-html", place)
        assert done.returncode == 2, place
        assert done.stderr.count("\n") == 1
        assert "--report-html" in done.stderr
        assert not (out / "transcripts.jsonl").exists()
    assert Path(sound).read_bytes() == FIRST.read_bytes()
    done = transcribe(FIRST, "--dry-run", "--report-html", tmp_path / "page.html")
    assert (done.returncode, "exclude each other" in done.stderr) == (2, True)


def test_shard_page(tmp_path: Path) -> None:
    part = options.PageHook((tmp_path / "page.html").resolve())
    whole, first, second = (
        part.files(SimpleNamespace(shard=shard))["--report-html"]  # type: ignore[arg-type]
        for shard in (Shard(0, 1, "--shard"), Shard(0, 2, "--shard"), Shard(1, 2, "--shard"))
    )
    assert whole == (tmp_path / "page.html").resolve() and len({whole, first, second}) == 3
    assert {first.parent, second.parent} == {whole.parent} and first.suffix == ".html"


def test_long_command_truncated() -> None:
    assert transcribe_page.command_line(["transcribe", "a b.wav"]) == "fastscribe transcribe 'a b.wav'"
    long = transcribe_page.command_line(["transcribe", *("x.wav" for _ in range(100_000))])
    assert len(long) < 5000
    assert "100,001 arguments" in long
