"""Resumed runs and runs that share their inputs, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.test_cli import FIRST, MODEL, SENTENCE, rows, transcribe
from tests.conftest import AUDIO
from tests.helpers.processes import fastscribe, refused, with_pipes
from tests.helpers.schemas import check_schema
from tests.helpers.warm_process import LIBRARIES_ALONE

CLIPS = sorted(AUDIO.glob("0*.flac"))[:5]


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for clip in CLIPS:
        shutil.copy(clip, folder / clip.name)
    return folder


def texts(out: Path, name: str = "transcripts.jsonl") -> dict[str, str]:
    found = rows((out / name).read_text(encoding="utf-8"))
    named = {Path(row["audio_filepath"]).name: row.get("text", "failed") for row in found}
    assert len(named) == len(found)
    return named


def report(out: Path) -> dict:
    found = json.loads((out / "report.json").read_text())
    check_schema("report", [found])
    return found


def test_second_run_does_only_the_rest(clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    late = clips / CLIPS[0].name
    late.rename(tmp_path / "late.flac")
    (clips / "broken.wav").write_text("not audio")
    assert transcribe(clips, "-o", out, "-f", "jsonl,srt").returncode == 1
    assert report(out) | {"files": 5, "failed": 1, "skipped": 0} == report(out)
    (tmp_path / "late.flac").rename(late)
    again = transcribe(clips, "-o", out, "-f", "jsonl,srt")
    assert again.returncode == 3
    assert "--retry-failed" in again.stderr
    assert report(out) | {"files": 1, "failed": 0, "skipped": 5, "failed_before": 1} == report(out)
    assert texts(out)[late.name] == SENTENCE
    assert texts(out)["broken.wav"] == "failed"
    assert len(list(out.glob("*.srt"))) == 5
    for allowed, code in (("1", 0), ("20%", 0), ("16%", 3), ("0", 3)):
        assert transcribe(clips, "-o", out, "-f", "jsonl,srt", "--allow-failures", allowed).returncode == code

    shutil.copy(
        FIRST, clips / "broken.wav"
    )  # which changes its size, too, so that it is done again without being asked
    os.utime(clips / CLIPS[1].name)
    assert transcribe(clips, "-o", out, "-f", "jsonl,srt").returncode == 0
    assert report(out) | {"files": 2, "failed": 0, "skipped": 4, "failed_before": 0} == report(out)
    assert texts(out)["broken.wav"] == SENTENCE
    assert len(texts(out)) == 6


def test_concurrent_run_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with with_pipes("transcribe", "-", "-m", MODEL, "-o", out, "-q", warm=LIBRARIES_ALONE) as (first, *_):
        while not (out / "journal.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.02)
        second = transcribe(FIRST, "-o", out)
        assert second.returncode == 1  # another try may succeed
        assert f"process {first.pid} " in second.stderr
        assert second.stderr.count("\n") == 1
    assert transcribe(FIRST, "-o", out).returncode == 0


def test_shards_together_do_everything_once(clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (clips / "broken.wav").write_text("not audio")
    codes = [transcribe(clips, "-o", out, "--shard", f"{index}/3", "-f", "jsonl,txt").returncode for index in (0, 1)]
    partial = fastscribe("merge", out, "--allow-failures", "100%")  # which does not stand for missing shards
    assert partial.returncode == 1
    assert "missing: 2/3" in partial.stderr
    array = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "2"}
    environment = {**os.environ, **array, "SLURM_ARRAY_TASK_COUNT": "3"}
    codes.append(transcribe(clips, "-o", out, "-f", "jsonl,txt", env=environment).returncode)
    assert sorted(codes) == [0, 0, 1]
    merged = fastscribe("merge", out, "--ordered")
    assert merged.returncode == 1  # one file failed
    assert "missing" not in merged.stderr and "--retry-failed on each shard" in merged.stderr
    for allowed, code in (("1", 0), ("17%", 0), ("16%", 1), ("0", 1), ("one", 2)):
        assert fastscribe("merge", out, "--allow-failures", allowed).returncode == code
    fastscribe("merge", out, "--ordered")
    assert list(texts(out)) == [*(clip.name for clip in CLIPS), "broken.wav"]
    assert report(out) | {"files": 6, "failed": 1, "shards_missing": [], "shards_incomplete": []} == report(out)
    assert len(list(out.glob("*.txt"))) == 5
    assert fastscribe("merge", out, "-o", tmp_path / "merged", "--allow-failures", "1").returncode == 0
    (tmp_path / "merged/journal.jsonl").unlink()  # as a version before left it
    for folder in (out, tmp_path / "merged"):  # not for a run that is divided otherwise
        done = transcribe(clips, "-o", folder)
        assert done.returncode == 2
        assert f"{folder}: holds what fastscribe merge made of shards: merge them with -o FOLDER" in done.stderr
    assert transcribe(FIRST, "-o", tmp_path / "merged", "--overwrite").returncode == 0


def test_a_run_goes_on_where_shards_were_merged(clips: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    (clips / "broken.wav").write_text("not audio")
    codes = {transcribe(clips, "-o", out, "--shard", f"{index}/3", "-f", "jsonl,srt").returncode for index in (1, 2)}
    assert codes == {0, 1} and len(texts(out, "transcripts.shard-1-of-3.jsonl")) > 1
    with (out / "journal.shard-1-of-3.jsonl").open("r+b") as lines:  # killed while it wrote this line
        lines.truncate(lines.seek(0, os.SEEK_END) - 20)
    (out / "report.shard-1-of-3.json").unlink()
    for _ in range(2):
        merged = fastscribe("merge", out, "-o", whole)
        assert merged.returncode == 1 and "missing: 0/3" in merged.stderr and "run them again: 1/3" in merged.stderr
    done = report(whole)["files"]
    assert '"files"' not in (whole / "journal.jsonl").read_text()  # which are in the other folder
    assert 0 < done < 6 and "--tokens was false, is true" in refused(
        "transcribe", clips, "-m", MODEL, "-o", whole, "--tokens"
    )
    assert "of a run without shards" in transcribe(clips, "-o", whole, "--shard", "0/3").stderr
    assert transcribe(clips, "-o", whole, "-f", "jsonl,srt").returncode == 3
    assert report(whole) | {"files": 6 - done, "failed": 0, "skipped": done, "failed_before": 1} == report(whole)
    assert len(texts(whole)) == 6 and len(list(whole.glob("*.srt"))) == 5
    assert "holds the results of a run of its own" in refused("merge", out, "-o", whole)
    shutil.copy(FIRST, clips / "broken.wav")
    assert transcribe(clips, "-o", whole, "-f", "jsonl,srt", "--retry-failed").returncode == 0
    assert texts(whole)["broken.wav"] == SENTENCE


def test_shards_are_merged_again_where_files_of_them_were_exported(clips: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert transcribe(clips, "-o", out, "--shard", "0/2").returncode == 0
    assert fastscribe("merge", out, "-o", whole).returncode == 1
    assert fastscribe("export", whole, "-f", "srt").returncode == 0
    (done, *_), num_done = whole.glob("*.srt"), len(texts(whole))
    done.write_text("corrected")
    assert transcribe(clips, "-o", out, "--shard", "1/2").returncode == 0
    assert fastscribe("merge", out, "-o", whole).returncode == 0
    exported = fastscribe("export", whole, "-f", "srt").stderr
    assert f"made files for {len(texts(whole)) - num_done} of {len(texts(whole))} results" in exported
    assert len(list(whole.glob("*.srt"))) == len(texts(whole)) and done.read_text() == "corrected"
    changed = next(one for one in sorted(whole.glob("*.srt")) if one != done)
    recording, before = next(clips.glob(f"{changed.stem}.*")), changed.read_text()
    shutil.copy(next(one for one in sorted(clips.iterdir()) if one != recording), recording)
    assert [transcribe(clips, "-o", out, "--shard", f"{shard}/2").returncode for shard in range(2)] == [0, 0]
    assert fastscribe("merge", out, "-o", whole).returncode == 0
    assert "1 edited file left as it is" in fastscribe("export", whole, "-f", "srt").stderr
    assert changed.read_text() != before and done.read_text() == "corrected"


def test_a_failure_stays_until_its_recording_is_gone(clips: Path, tmp_path: Path) -> None:
    """A run of other inputs keeps it, and says how it goes; no good result goes."""
    out, broken, other = tmp_path / "out", clips / "broken.wav", clips / CLIPS[2].name
    broken.write_text("not audio")
    assert transcribe(broken, clips / CLIPS[0].name, clips / CLIPS[1].name, "-o", out).returncode == 1
    (clips / CLIPS[1].name).unlink()
    again = fastscribe("transcribe", other, "-m", MODEL, "-o", out)
    assert again.returncode == 0 and "3 results are of inputs not given this time: " in again.stderr
    assert "; 1 of them failed: --retry-failed drops failures whose" in again.stderr
    assert transcribe(other, "-o", out, "--retry-failed").returncode == 0 and len(texts(out)) == 4
    broken.unlink()
    assert transcribe(other, "-o", out).returncode == 0 and len(texts(out)) == 4
    last = fastscribe("transcribe", other, "-m", MODEL, "-o", out, "--retry-failed")
    assert last.returncode == 0 and "1 earlier failure dropped: of inputs that are not given any more" in last.stderr
    assert set(texts(out)) == {clip.name for clip in CLIPS[:3]}
    assert report(out)["totals"] | {"files": 3, "failed": 0} == report(out)["totals"]


def test_overwrite_spares_users_files(tmp_path: Path) -> None:
    mine = {name: tmp_path / name for name in ("journal_calls.jsonl", "journal-diary.jsonl", "transcripts-diary.jsonl")}
    for path in mine.values():
        path.write_text(json.dumps({"audio_filepath": str(FIRST)}) + "\n")
    assert transcribe(mine["journal_calls.jsonl"], "-o", tmp_path).returncode == 0
    assert transcribe(mine["journal_calls.jsonl"], "-o", tmp_path, "--overwrite", "--tokens").returncode == 0
    assert all(path.exists() for path in mine.values())
    own = transcribe(tmp_path / "transcripts.jsonl", "-o", tmp_path)
    assert own.returncode == 2
    assert "transcripts.jsonl" in own.stderr


def test_shards_of_different_inputs_are_not_merged_as_complete(clips: Path, tmp_path: Path) -> None:
    """Recordings came between two shards: the first one lacks its part of them, and says so until it has run again."""
    out, late = tmp_path / "out", clips / CLIPS[0].name
    late.rename(tmp_path / "late.flac")
    assert transcribe(clips, "-o", out, "--shard", "0/2").returncode == 0
    (tmp_path / "late.flac").rename(late)
    assert transcribe(clips, "-o", out, "--shard", "1/2").returncode == 0
    merged = fastscribe("merge", out)
    assert merged.returncode == 1
    assert "of fewer or other inputs than others, run them again with the same ones: 0/2\n" in merged.stderr
    assert transcribe(clips, "-o", out, "--shard", "0/2").returncode == 0
    assert fastscribe("merge", out).returncode == 0
    clips.joinpath("other.flac").write_bytes(late.read_bytes())
    late.unlink()
    assert transcribe(clips, "-o", out, "--shard", "1/2").returncode == 0
    merged = fastscribe("merge", out)
    assert merged.returncode == 1
    assert "run them again with the same ones: 0/2, 1/2\n" in merged.stderr
    of_first = out / "report.shard-0-of-2.json"
    stated = {name: value for name, value in json.loads(of_first.read_text()).items() if name != "inputs_digest"}
    of_first.write_text(json.dumps(stated))  # as a version before wrote it: whether the inputs are the same is unknown
    assert fastscribe("merge", out).returncode == 0
    assert transcribe(clips, "-o", out, "--shard", "0/2").returncode == 0
    assert fastscribe("merge", out).returncode == 0


def shards_of(clips: Path, out: Path) -> None:
    for index in range(2):
        assert transcribe(clips, "-o", out, "--shard", f"{index}/2").returncode == 0


def test_changed_shard_is_not_merged(clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shards_of(clips, out)
    assert fastscribe("merge", out).returncode == 0
    whole = (out / "transcripts.jsonl").read_bytes()
    rows_of_one = out / "transcripts.shard-0-of-2.jsonl"
    kept = rows_of_one.read_bytes()
    for content in (kept[:-10], b"{}\n" + kept, None):
        rows_of_one.unlink() if content is None else rows_of_one.write_bytes(content)
        assert "transcripts.shard-0-of-2.jsonl" in refused("merge", out)
        assert (out / "transcripts.jsonl").read_bytes() == whole
    rows_of_one.write_bytes(kept)
    (out / "report.shard-1-of-2.json").write_text("{}")
    half = fastscribe("merge", out)
    assert half.returncode == 1
    assert "not complete, run them again: 1/2" in half.stderr
    assert len(texts(out)) == 5
    (out / ".swap.shard-0-of-2").touch()  # stopped while it put its rows in order: they cannot be read now
    assert "0/2, 1/2" in fastscribe("merge", out).stderr
    other = tmp_path / "other"
    other.mkdir()
    (other / "transcripts.jsonl").write_text("mine\n")
    assert str(other / "transcripts.jsonl") in refused("merge", out, "-o", other)
    assert [path.read_text() for path in other.iterdir()] == ["mine\n"]
