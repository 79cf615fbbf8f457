"""A fast path that is refused is a line for the user and an entry of the report, also from another process."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path

import pytest

from fastscribe import Transcriber
from fastscribe.cli.run_messages import report_table
from fastscribe.families.blocks import int8
from fastscribe.fast_paths import RefusedPath, RefusedPaths
from fastscribe.pipeline.workers import messages
from fastscribe.transcriber import run_stats
from tests.conftest import AUDIO, ROOT
from tests.helpers.processes import command
from tests.helpers.schemas import check_schema

CLIP = sorted(AUDIO.glob("01*.flac"))[0]
# sitecustomize.py of a process whose torch has no int8 products: the module is patched as soon as it is imported.
BROKEN = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.helpers.worker_faults import Finder

def damage(module):
    def refuse(*_):
        raise RuntimeError("no kernel found")
    module.Int8Linear.product = refuse

sys.meta_path.insert(0, Finder({{"fastscribe.families.blocks.int8": damage}}))
sys.path.remove({str(ROOT)!r})
"""
REASON = "this torch cannot multiply int8 here (no kernel found)"
LINE = f"--dtype fastest: without int8, because {REASON}"
needs_int8 = pytest.mark.skipif(int8.int8_hardware_problem() is not None, reason=str(int8.int8_hardware_problem()))


def test_the_first_reason_of_each_path_is_kept() -> None:
    said: list[str] = []
    heard = RefusedPaths(said.append)
    lines = [
        "model: ready",
        RefusedPath("graphs", "full: old driver", "using chunked"),
        RefusedPath("graphs", "chunked: broken", "using off"),
        RefusedPath("triton", "no compiler", "using torch's"),
    ]
    for line in lines:
        heard(line)
    assert said == ["model: ready", "using chunked", "using off", "using torch's"]
    assert heard.reasons == {"graphs": "full: old driver", "triton": "no compiler"}
    assert RefusedPaths.around(heard) is heard and RefusedPaths.around(said.append).reasons == {}


def test_a_line_keeps_its_path_between_processes() -> None:
    line = pickle.loads(
        messages.packed(messages.Say(RefusedPath("pinning", "out of memory", "copies are slower")))
    ).line
    assert (line, line.path, line.reason) == ("copies are slower", "pinning", "out of memory")


@needs_int8
def test_a_run_reports_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.pipeline.dtype_choice._int8_problem", lambda: REASON)
    said: list[str] = []
    transcriber = Transcriber.load(device="cpu", dtype="fastest", say=said.append)
    assert transcriber.refused_paths == {"int8": REASON} and LINE in said
    assert Transcriber.load(device="cpu", dtype="fp32", say=said.append).refused_paths == {}
    assert all(one.text for one in list(transcriber.transcribe(CLIP)))
    transcriber._refused(RefusedPath("pinning", "out of memory", "copies are slower"))  # in the run
    stats = run_stats(transcriber, 1.0, None)
    report = stats.to_json()
    assert report["refused"] == {"int8": REASON, "pinning": "out of memory"}
    check_schema("report", [report])
    assert f"no int8      {REASON}" in report_table(stats)
    with pytest.raises(AssertionError):
        check_schema("report", [report | {"refused": {"speed": "unknown"}}])


@needs_int8
@pytest.mark.linux
def test_the_command_says_it_and_the_report_has_it(tmp_path: Path) -> None:
    """In fresh processes, of which the device's own meets the refusal; without -v, and with -q."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    options = ("--dtype", "fastest", "--devices", "cpu:1", "-q", "-o", tmp_path / "out")
    done = subprocess.run(command("transcribe", CLIP, *options), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines().count(f"fastscribe: {LINE}") == 1
    assert json.loads((tmp_path / "out" / "report.json").read_text())["refused"] == {"int8": REASON}
