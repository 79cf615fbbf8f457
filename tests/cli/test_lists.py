"""Whole runs over lists of other tools: a result for each row, found again by the next run."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import AUDIO, MODEL
from tests.helpers.archives import packed
from tests.helpers.processes import command, fastscribe

FIRST, SECOND = (AUDIO / name for name in ("01_0_00010.flac", "02_0_00025.flac"))


@pytest.fixture
def lists(tmp_path: Path) -> list[Path]:
    """The first recording in an archive, the second of a cut and of a table, and a command that is not run."""
    packed({"x/first.flac": FIRST.read_bytes()}, tmp_path / "s.tar")
    cut = {"id": "cut-1", "type": "MonoCut", "start": 0.5, "duration": 1.5, "channel": 0, "supervisions": []}
    source = {"type": "file", "channels": [0], "source": str(SECOND)}
    row = json.dumps({**cut, "recording": {"sources": [source]}})
    (tmp_path / "cuts.jsonl.gz").write_bytes(gzip.compress(row.encode()))
    (tmp_path / "t.tsv").write_text(f"path\tage\n{SECOND}\t40\n")
    (tmp_path / "wav.scp").write_text("utt cat x |\n")
    return [tmp_path / name for name in ("s.tar", "cuts.jsonl.gz", "t.tsv", "wav.scp")]


def test_runs_over_lists(lists: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = fastscribe("transcribe", FIRST, SECOND, "-m", MODEL, "--ordered", "-q")
    first, second = (json.loads(line)["text"] for line in plain.stdout.splitlines())
    given, events = ("transcribe", *lists, "-m", MODEL, "-o", out, "-f", "jsonl,txt", "--ordered"), tmp_path / "events"
    done = fastscribe(*given, "--events", events)
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["listed"] for one in told if one["event"] == "failed"] == [f"{lists[3]}: line 1"]
    assert done.returncode == 1 and f"{lists[3]}: input failed: line 1: a command writes this recording" in done.stderr
    in_tar, of_cut, of_table, failed = (
        json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()
    )
    assert (in_tar["audio_filepath"], in_tar["text"]) == (f"{lists[0]}/x/first.flac", first)
    assert (of_cut["id"], of_cut["offset"], of_cut["duration"], of_cut["channel"]) == ("cut-1", 0.5, 1.5, 0)
    assert of_cut["words"] and of_cut["words"][-1]["end"] <= 1.7
    assert (of_table["pred_text"], of_table["age"], of_table["path"]) == (second, "40", str(SECOND))
    assert failed["error"]["type"] == "ManifestError"
    assert (out / "s.tar/x/first.txt").read_text().strip() == first and (out / "cut-1.txt").exists()
    rows = (out / "transcripts.jsonl").read_bytes()
    again = fastscribe(*given)
    assert "1 failed in an earlier run" in again.stderr and (out / "transcripts.jsonl").read_bytes() == rows
    planned = fastscribe("transcribe", *lists, "-m", MODEL, "--dry-run")
    counts = json.loads(planned.stdout)
    assert (counts["files"], counts["failed"]) == (3, 1)


def test_a_failure_names_the_line_of_its_list(tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_text("no recording")
    manifest, paths = tmp_path / "m.jsonl", tmp_path / "paths.txt"
    manifest.write_text('\n{"audio_filepath": "bad.wav", "id": "b7", "duration": 1}\n')
    paths.write_text("# none\nbad.wav\n")
    done = fastscribe("transcribe", manifest, paths, "-m", MODEL, "-q")
    failed = [line.removeprefix("fastscribe: ").partition(" failed: ")[0] for line in done.stderr.splitlines()]
    assert sorted(failed) == [f"bad.wav ({manifest}: line 2, id b7): probe", f"bad.wav ({paths}: line 2): probe"]


def test_a_name_is_blamed_on_the_locale(tmp_path: Path) -> None:
    name = "Gr\u00f6\u00dfe \u2603.flac"
    shutil.copy(FIRST, tmp_path / name)
    listed = tmp_path / "m.jsonl"
    listed.write_text(json.dumps({"audio_filepath": name}))
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        command("transcribe", tmp_path / name, listed, "-m", MODEL), env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.count("this locale, which is not UTF-8: set LC_ALL=C.UTF-8") == 2
