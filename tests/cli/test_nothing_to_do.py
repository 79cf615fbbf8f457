"""A command that has nothing to do loads no model, and says so in one line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fastscribe.cli.run_messages import say_failed_before
from fastscribe.results.interfaces import Ledger
from tests.cli.test_cli import FIRST, MODEL, rows
from tests.conftest import AUDIO
from tests.helpers.processes import fastscribe, refused
from tests.helpers.scenes import NO_MODEL
from tests.helpers.schemas import check_schema
from tests.helpers.warm_process import WARM

SECOND = AUDIO / "02_0_00025.flac"


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for clip in (FIRST, SECOND):
        shutil.copy(clip, tmp_path / "in" / clip.name)
    return tmp_path / "in"


def test_all_done(clips: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "out", tmp_path / "model.nemo"
    shutil.copy(MODEL, model)
    command = ("transcribe", clips, "-m", model, "-o", out, "-f", "srt")
    first = fastscribe(*command, "--price-per-hour", 2)
    assert [line.partition(" ")[2].split(":")[0] for line in first.stderr.splitlines()] == [
        "2 files",
        first.stderr.splitlines()[1].partition(" ")[2].split(":")[0],
        "results",
    ]
    assert "times real time (RTFx)" in first.stderr and "USD per 1,000 hours of audio" in first.stderr
    before, report = ((out / name).read_bytes() for name in ("transcripts.jsonl", "report.json"))
    next(out.glob("*.srt")).unlink()
    again = fastscribe(*command)
    assert again.returncode == 0
    assert again.stderr.splitlines() == [
        f"fastscribe: {out}: all 2 inputs are done: there is nothing to do",
        "fastscribe: made files for 1 finished recording from their rows, without decoding",
    ]
    assert len(list(out.glob("*.srt"))) == 2 and (out / "transcripts.jsonl").read_bytes() == before
    assert (out / "report.json").read_bytes() == report  # of the run that did the work
    (out / "report.json").unlink()
    assert fastscribe(*command).returncode == 0
    found = json.loads((out / "report.json").read_text())
    check_schema("report", [found])
    assert found | {"files": 0, "skipped": 2, "load_s": 0.0} == found and found["totals"]["files"] == 2
    content = model.read_bytes()
    model.write_bytes(b"no model")  # other content: the run asks for the model again
    assert f"{model}: " in fastscribe(*command).stderr
    model.write_bytes(content)
    (clips / "nothing.wav").write_bytes(b"RIFF")
    assert "1 file, 1 of them failed: 0.0 s of audio (2 were done before)" in fastscribe(*command).stderr
    done = fastscribe(*command, "-q")
    assert done.returncode == 3
    failed = f"1 failed in an earlier run and was left alone ({clips / 'nothing.wav'}); --retry-failed tries it again"
    assert fastscribe(*command).stderr.splitlines() == [
        f"fastscribe: {out}: all 3 inputs are done: there is nothing to do; {failed}"
    ]
    assert done.stderr == f"fastscribe: {failed}\n"
    for change in (["--tokens"], ["--beam", 2], ["--overwrite"]):  # another command does its work
        assert "left alone" not in fastscribe(*command, "-q", *change).stderr


def test_a_manifest_with_other_fields_is_done_and_its_rows_get_them(clips: Path, tmp_path: Path) -> None:
    out, manifest = tmp_path / "out", tmp_path / "list.jsonl"
    command = ("transcribe", manifest, "-m", MODEL, "-o", out, "-f", "json")

    def write(folder: str, **fields: object) -> None:
        given = [{"audio_filepath": f"{folder}{clip.name}", **fields} for clip in sorted(clips.iterdir())]
        manifest.write_text("".join(json.dumps(row) + "\n" for row in given))

    write("in/", speaker="ann", part=1.0)
    assert fastscribe(*command).returncode == 0
    before = rows((out / "transcripts.jsonl").read_text())
    write(f"{clips}/", speaker="ann", part=1)
    done = f"fastscribe: {out}: all 2 inputs are done: there is nothing to do"
    assert fastscribe(*command).stderr.splitlines() == [done]
    write(f"{clips}/", speaker="bob")
    planned = fastscribe(*command, "--dry-run")
    assert (
        "fastscribe: 2 earlier results would get the fields that the list has now, without decoding\n" in planned.stderr
    )
    assert json.loads(planned.stdout)["skipped"] == 2
    found = fastscribe(*command)
    assert found.returncode == 0
    assert found.stderr.splitlines() == [
        done,
        "fastscribe: 2 earlier results got the fields that the list has now, without decoding",
    ]
    for row, old in zip(rows((out / "transcripts.jsonl").read_text()), before, strict=True):
        assert (row.pop("speaker"), row.pop("audio_filepath")) == ("bob", str(clips / Path(old["audio_filepath"]).name))
        assert row == {name: old[name] for name in old if name not in ("speaker", "part", "audio_filepath")}
    assert json.loads((out / "report.json").read_text())["totals"]["files"] == 2
    assert fastscribe(*command).stderr.splitlines() == [done]


def test_results_stay_while_their_recordings_are_out_of_reach(clips: Path, tmp_path: Path) -> None:
    """Also on stdin, where the listing finds what is gone; a dry run counts them as done."""
    out, paths = tmp_path / "out", tmp_path / "paths.txt"
    paths.write_text("".join(f"{clip}\n" for clip in sorted(clips.iterdir())))
    command = ("-m", MODEL, "-o", out, "-f", "srt")
    assert fastscribe("transcribe", paths, *command).returncode == 0
    results = [out / "transcripts.jsonl", *out.rglob("*.srt")]
    before = [path.read_bytes() for path in results]
    clips.rename(tmp_path / "elsewhere")
    stay = "fastscribe: 2 recordings with results are out of reach: their results stay"
    done = fastscribe("transcribe", paths, *command)
    assert done.stderr.splitlines() == [f"fastscribe: {out}: all 2 inputs are done: there is nothing to do", stay]
    planned = fastscribe("transcribe", paths, *command, "--dry-run")
    assert planned.stderr.splitlines()[0] == stay and json.loads(planned.stdout)["skipped"] == 2
    listed = fastscribe("transcribe", "-", *command, "--retry-failed", stdin=paths.read_text())
    assert stay in listed.stderr.splitlines()
    assert (done.returncode, planned.returncode, listed.returncode) == (0, 0, 0)
    assert len(before) == 3 and [path.read_bytes() for path in results] == before


def test_a_corrected_duration_is_no_sign_of_recordings_that_moved(clips: Path, tmp_path: Path) -> None:
    (manifest := tmp_path / "lists" / "rows.jsonl").parent.mkdir()
    command = ("transcribe", manifest, "-m", MODEL, "-o", tmp_path / "out")
    for span in ({}, {"duration": 1.0}, {"duration": 1.5, "show": "A"}, {"duration": 1.25}):
        given = [{"audio_filepath": f"../in/{clip.name}", **span} for clip in sorted(clips.iterdir())]
        manifest.write_text("".join(json.dumps(row) + "\n" for row in given))
        done = fastscribe(*command)
        assert done.returncode == 0 and "--moved" not in done.stderr
        found = rows((tmp_path / "out" / "transcripts.jsonl").read_text())
        assert len(found) == 2 and "not given this time" not in done.stderr
        replaced = "2 earlier results replaced: the list has another `duration` now" in done.stderr
        assert replaced is ("duration" in span)
    clips.rename(tmp_path / "elsewhere")
    manifest.write_text(manifest.read_text().replace("../in", "../elsewhere"))
    assert "--moved" in fastscribe(*command).stderr


def test_a_folder_above_that_was_renamed_is_named_though_the_paths_are_equal(clips: Path, tmp_path: Path) -> None:
    """Twice. The rows have the paths that were given, which count from the folder in which a run began."""
    command = ("transcribe", clips.name, "-m", MODEL, "-o", "out")
    (folder := tmp_path / "first").mkdir()
    clips.rename(folder / clips.name)
    assert fastscribe(*command, cwd=folder).returncode == 0
    for name in ("second", "third"):
        moved = folder.rename(folder.with_name(name))
        assert f"--moved {folder}={moved} takes" in refused(*command, cwd=moved)
        done = fastscribe(*command, "--moved", f"{folder}={moved}", cwd=(folder := moved))
        assert done.returncode == 0 and "took over 2 results, without decoding" in done.stderr


def test_a_list_has_the_last_word_on_its_recordings(clips: Path, tmp_path: Path) -> None:
    """A run over the folder keeps what a list said of one of them, until a list says otherwise or the file changes."""
    first, second = sorted(clips.iterdir())
    manifest, out = tmp_path / "guest.jsonl", tmp_path / "out"
    line = "1 earlier result keeps the `boost` that a list gave: a list with another one, or none, has it decoded again"

    def run(*inputs: Path) -> tuple[int, bool]:
        done = fastscribe("transcribe", *inputs, "-m", MODEL, "-o", out)
        assert done.returncode == 0
        return json.loads((out / "report.json").read_text())["files"], line in done.stderr

    def guest(**fields: str) -> Path:
        manifest.write_text(json.dumps({"audio_filepath": str(first), **fields}) + "\n")
        return manifest

    assert run(clips) == (2, False)
    assert run(guest(boost="Rice", show="A")) == (1, False)
    shutil.copy(second, new := clips / "new.flac")
    assert run(clips) == (1, True)
    found = {Path(row["audio_filepath"]).name: row for row in rows((out / "transcripts.jsonl").read_text())}
    assert found[first.name]["show"] == "A" and found[new.name].keys() == found[second.name].keys()
    assert run(guest(show="A")) == (1, False) and run(guest(boost="Rice")) == (1, False)
    os.utime(first, (1, 1))
    assert run(clips) == (1, False) and "boost" not in (out / "transcripts.jsonl").read_text()
    assert run(clips) == (1, False) and run(guest(boost="Rice")) == (1, False)
    assert "boost" in (out / "transcripts.jsonl").read_text()
    renamed = first.rename(clips / "S1E02.flac")
    done = fastscribe("transcribe", clips, "-m", MODEL, "-o", out, "--moved", f"{first}={renamed}")
    found = {Path(row["audio_filepath"]).name: row for row in rows((out / "transcripts.jsonl").read_text())}
    assert done.returncode == 0 and found[renamed.name]["boost"] == "Rice" and len(found) == 3


def test_the_report_of_the_run_that_did_the_work_stays_and_events_are_of_each_run(clips: Path, tmp_path: Path) -> None:
    events, report = tmp_path / "events", tmp_path / "out" / "report.json"
    rows = [{"audio_filepath": str(FIRST)}, {"audio_filepath": str(clips / "gone.wav"), "offset": 1.5, "id": "g"}]
    (clips / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("transcribe", clips / "list.jsonl", "-m", MODEL, "-o", tmp_path / "out", "--events", events)
    assert fastscribe(*command).returncode == 1
    before = report.read_bytes()
    [failed] = [event for event in map(json.loads, events.read_bytes().splitlines()) if event["event"] == "failed"]
    assert failed | {"offset": 1.5, "id": "g", "listed": f"{clips / 'list.jsonl'}: line 2, id g"} == failed
    check_schema("event", [failed])
    assert WARM.python(f"{NO_MODEL}from fastscribe.cli import main\nmain()", *command).returncode == 3
    assert report.read_bytes() == before
    told = [json.loads(line) for line in events.read_bytes().splitlines()]
    check_schema("event", told)
    assert [event["event"] for event in told] == ["started", "finished"] and told[0]["load_s"] == 0.0
    assert told[1]["exit_code"] == 3
    assert told[1]["report"] | {"files": 0, "skipped": 2, "failed_before": 1} == told[1]["report"]
    stdin = (clips / "list.jsonl").read_text()  # rows there are known only when the model is loaded
    assert fastscribe("transcribe", "-", *command[2:], stdin=stdin).returncode == 3
    assert report.read_bytes() == before
    assert [json.loads(line)["event"] for line in events.read_bytes().splitlines()][-1] == "finished"
    assert b'"failed", "audio' not in events.read_bytes()  # which the first run had
    assert fastscribe(*command, "--retry-failed").returncode == 1
    last = json.loads(events.read_bytes().splitlines()[-1])["report"]
    assert last | {"files": 1, "failed": 1, "skipped": 1} == last
    assert json.loads(report.read_bytes()) | {"files": 1} == json.loads(report.read_bytes())


def test_a_shard_that_is_done_counts_its_own_inputs(tmp_path: Path) -> None:
    names = "abcdefgh"
    for name in names:
        shutil.copy(FIRST, tmp_path / f"{name}.flac")
    command = ("transcribe", *(tmp_path / f"{name}.flac" for name in names), "-m", MODEL, "-o", tmp_path / "out")
    number = 0
    for shard in ("0/2", "1/2"):
        first = fastscribe(*command, "--shard", shard)
        rows = len((tmp_path / "out" / f"transcripts.shard-{shard[0]}-of-2.jsonl").read_text().splitlines())
        again = fastscribe(*command, "--shard", shard)
        assert first.returncode == again.returncode == 0 and 1 < rows < len(names)
        assert again.stderr.splitlines() == [
            f"fastscribe: shard {shard}",
            f"fastscribe: {tmp_path / 'out'}: all {rows} inputs of this shard are done: there is nothing to do",
        ]
        number += rows
    assert number == len(names)


def test_overwrite_says_what_it_removes_and_does_not_remove_other_results_for_single_files(
    clips: Path, tmp_path: Path
) -> None:
    command = ("-m", MODEL, "-o", tmp_path / "out", "--overwrite")
    assert fastscribe("transcribe", clips, *command).stderr.count("--overwrite") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    refused = WARM.python(
        f"{NO_MODEL}from fastscribe.cli import main\nmain()", "transcribe", clips / FIRST.name, *command
    )
    assert refused.returncode == 2 and "--overwrite would also remove 1 result of other recordings" in refused.stderr
    mistyped = fastscribe("transcribe", clips / FIRST.name, clips / "gone.flac", *command)
    shard = fastscribe("transcribe", clips / FIRST.name, *command, "--shard", "0/2")
    assert [one.returncode for one in (mistyped, shard)] == [2, 2], (mistyped.stderr, shard.stderr)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    again = fastscribe("transcribe", *sorted(clips.iterdir()), *command)
    assert again.returncode == 0 and "--overwrite" not in again.stderr
    (clips / FIRST.name).unlink()
    for quiet, number in (((), 1), (("-q",), 0)):
        fewer = fastscribe("transcribe", clips, *command, *quiet)
        assert fewer.returncode == 0
        assert fewer.stderr.count("--overwrite removes 2 results of earlier runs") == number
    assert len((tmp_path / "out" / "transcripts.jsonl").read_text("utf-8").splitlines()) == 1


def test_channels_are_no_reason_to_load_the_model(clips: Path, tmp_path: Path) -> None:
    command = ("transcribe", clips, "-o", out := tmp_path / "out", "--speakers", "channels")
    fastscribe(*command[:1], clips / FIRST.name, *command[2:])
    assert "1 file: 4.7 s of audio (1 was done before)" in fastscribe(*command).stderr
    done = fastscribe(*command)
    assert done.stderr == f"fastscribe: {out}: all 2 inputs are done: there is nothing to do\n"


_FEW_AHEAD = """if True:
    import sys
    from fastscribe.cli import listing, main
    listing._MAX_AHEAD = int(sys.argv.pop(1))
    main()"""


def test_a_folder_of_any_size_is_done_without_the_model(clips: Path, tmp_path: Path) -> None:
    """With as many recordings as may wait for the run, and with more; what comes behind those that are done is done too."""
    shutil.copy(FIRST, clips / "copy.flac")
    command = ("transcribe", clips, "-m", MODEL, "-o", tmp_path / "out")
    fastscribe(*command)
    for ahead in (2, 3):
        again = WARM.python(_FEW_AHEAD, ahead, *command)
        assert again.returncode == 0 and "all 3 inputs are done: there is nothing to do" in again.stderr
    shutil.copy(SECOND, clips / "last.flac")
    more = WARM.python(_FEW_AHEAD, 2, *command)
    assert more.returncode == 0 and "1 file: " in more.stderr and "(3 were done before)" in more.stderr
    rows = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text("utf-8").splitlines()]
    assert sorted(Path(row["audio_filepath"]).name for row in rows) == sorted(path.name for path in clips.iterdir())


def test_no_model_is_loaded_where_nothing_can_be_read(tmp_path: Path) -> None:
    """The model does not even exist."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for inputs in ([empty], [tmp_path / "gone.flac", tmp_path / "gone.wav"]):
        assert "no --model" not in fastscribe("transcribe", *inputs).stderr  # none is used
        done = fastscribe("transcribe", *inputs, "-m", tmp_path)
        assert done.returncode == 1
        assert [json.loads(line)["error"]["stage"] for line in done.stdout.splitlines()] == ["input"] * len(inputs)
        assert done.stderr.count("input failed") == len(done.stderr.splitlines()) == len(inputs)
        folder = fastscribe("transcribe", *inputs, "-m", tmp_path, "-o", tmp_path / "out", "-f", "srt")
        assert (folder.returncode, folder.stdout, folder.stderr) == (1, "", done.stderr)
        assert not (tmp_path / "out").exists()


def test_a_wrong_path_that_is_similar_to_a_right_one(clips: Path) -> None:
    """The hint has the name that is there; nothing similar, or nothing wrong about the path: no hint."""
    said = [fastscribe("transcribe", path, "-m", clips).stderr for path in (f"{clips}s", clips / "zzz.m4a", clips)]
    assert f"no such file or folder: did you mean {clips}?" in said[0] and "did you mean" not in said[1] + said[2]
    wrong = [clips / f"{FIRST.stem}{number}.flac" for number in range(12)]  # beside others that are right
    lines = fastscribe("transcribe", *wrong, FIRST, "-m", MODEL).stderr.splitlines()
    hints = [f"did you mean {clips / FIRST.name}?" in line for line in lines if "input failed" in line]
    assert hints == [True] * 10 + [False] * 2


def test_failures_of_earlier_runs_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger()
    ledger.failed_before, ledger.first_failed = 1234, ["a.wav", "b.wav", "c.wav"]
    say_failed_before(ledger)
    named = "a.wav, b.wav, c.wav and 1,231 more"
    assert f"1,234 failed in an earlier run and were left alone ({named}); --retry" in capsys.readouterr().err


def test_results_beside_their_recordings_are_not_left_out(clips: Path) -> None:
    (clips / "notes.txt").write_text("no recording has this name")
    command = ("transcribe", clips, "-m", MODEL, "-o", clips, "-f", "srt,txt,json")
    assert "1 file left out: .txt 1" in fastscribe(*command).stderr
    assert fastscribe(*command).stderr.endswith("nothing to do\n")
    shutil.copy(FIRST, clips / "new.flac")
    assert "1 file left out: .txt 1" in fastscribe(*command).stderr


def test_results_below_the_recordings_are_not_left_out(clips: Path) -> None:
    """In a folder of their own, whose folders are those of the recordings."""
    (clips / "deep").mkdir()
    shutil.copy(FIRST, clips / "deep" / "a.flac")
    command = ("transcribe", clips, "-m", MODEL, "-o", clips / "out", "-f", "srt")
    for name in ("deep/b.flac", "deep/c.flac"):
        shutil.copy(FIRST, clips / name)
        assert "left out" not in fastscribe(*command).stderr
    (clips / "deep" / "notes.txt").touch()
    shutil.copy(FIRST, clips / "d.flac")
    assert "1 file left out: .txt 1" in fastscribe(*command).stderr


def test_verbose_prints_the_whole_report() -> None:
    done = fastscribe("transcribe", FIRST, "-m", MODEL, "-f", "txt", "-v")
    assert [line.split()[0] for line in done.stderr.splitlines()][:4] == ["files", "audio", "time", "RTFx"]
    assert "peak memory" in done.stderr
