"""Fillers, figures, redaction and review on the command line, with real recordings."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.conftest import AUDIO
from tests.helpers.processes import fastscribe
from tests.helpers.schemas import check_schema

SPEECH = AUDIO / "03_0_00031.flac"  # "He was a widower, and seventy-three years of age."


def rows(folder: Path) -> list[dict]:
    found = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text("utf-8").splitlines()]
    check_schema("result", found)
    return found


def all_bytes(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()).lower()


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A recording, a part of it, and one that is missing; each with a text of its own."""
    shutil.copy(SPEECH, tmp_path / "talk.flac")
    listed = [
        {"audio_filepath": "talk.flac", "text": "Lord William Russell is seventy-three.", "note": "of Russell"},
        {"audio_filepath": "talk.flac", "offset": 3.0, "duration": 3.4, "text": "seventy-three years"},
        {"audio_filepath": "missing.flac", "text": "William, seventy-three"},
    ]
    path = tmp_path / "list.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    return path


def test_what_is_redacted_is_in_no_file_and_not_in_the_audio(manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("William Russell\n\n  Norfolk  \nRussell\nWilliam\n", encoding="utf-8")
    out = tmp_path / "out"
    options = ("--redact", "names,numbers", "--redact-list", tmp_path / "names.txt", "--beam", "4", "--nbest", "4")
    formats = (
        "-f",
        "jsonl,json,srt,vtt,ass,txt,tsv,ctm,rttm",
        "--report-html",
        out / "page.html",
        "--events",
        tmp_path / "ev",
    )
    out.mkdir()
    done = fastscribe("transcribe", manifest, "-o", out, *options, *formats, "--log-file", tmp_path / "log")
    assert done.returncode == 1 and "missing.flac" in done.stderr
    written = all_bytes(out) + (tmp_path / "ev").read_bytes().lower() + (tmp_path / "log").read_bytes().lower()
    written += (done.stderr + done.stdout).lower().encode()
    assert b"[name]" in written and b"[number]" in written and b"widower" in written
    for secret in (b"william", b"russell", b"norfolk", b"seventy"):
        assert secret not in written, secret
    whole = next(row for row in rows(out) if "offset" not in row and "error" not in row)
    assert [one["kind"] for one in whole["redacted"]] == ["name", "name", "number"]
    assert (whole["text"], whole["note"]) == ("Lord [name] is [number].", "of [name]")
    again = fastscribe("transcribe", manifest, "-o", out, *options, "-q")
    assert again.returncode == 1 and len(rows(out)) == 3
    other = fastscribe("transcribe", manifest, "-o", out, "--redact", "numbers", "-q")
    assert other.returncode == 2 and "--redact" in other.stderr

    copies = tmp_path / "copies"
    made = fastscribe("export", out, "--redact-audio", copies, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert {path.name for path in copies.rglob("*.flac")} == {"talk.flac.flac", "talk.flac@3000.flac"}
    whole_before, rate = soundfile.read(tmp_path / "talk.flac", dtype="int16")
    after, _ = soundfile.read(copies / "talk.flac.flac", dtype="int16")
    silent = np.zeros(len(whole_before), bool)
    for one in whole["redacted"]:
        begin, end = (one["start"] - 0.2) * rate, (one["end"] + 0.2) * rate
        silent[max(0, math.floor(begin)) : math.ceil(end)] = True
    silent, before = silent[: len(after)], whole_before[: len(after)]  # a row's duration has milliseconds
    assert len(whole_before) - len(after) <= rate / 1000 and np.array_equal(after[~silent], before[~silent])
    assert not after[silent].any() and before[silent].any()
    part, _ = soundfile.read(copies / "talk.flac@3000.flac", dtype="int16")
    assert len(part) == 3.4 * rate and part.any() and not np.array_equal(part, before[3 * rate : 3 * rate + len(part)])
    kept = fastscribe("export", out, "--redact-audio", copies, cwd=tmp_path)
    assert kept.returncode == 1 and "is there already: remove it" in kept.stderr


def test_export_changes_stored_texts_in_a_folder_of_their_own(tmp_path: Path) -> None:
    out, changed = tmp_path / "out", tmp_path / "changed"
    fastscribe("transcribe", SPEECH, "-o", out, "--tokens", "-q")
    before = (out / "transcripts.jsonl").read_bytes()
    options = ("--redact", "numbers", "--language", "en")
    refused = fastscribe("export", out, "-f", "srt", *options)
    assert refused.returncode == 2 and "--redact makes other rows, which need a folder of their own" in refused.stderr
    made = fastscribe("export", out, "-f", "srt", "-o", changed, *options, "--redact-audio", tmp_path / "copies")
    assert made.returncode == 0, made.stderr
    [row] = rows(changed)
    assert "[number] years" in row["text"] and "tokens" not in row and b"seventy" not in all_bytes(changed)
    assert len(list((tmp_path / "copies").rglob("*.flac"))) == 1
    assert (out / "transcripts.jsonl").read_bytes() == before
    other = fastscribe("export", out, "-f", "srt", "-o", changed, "--remove-fillers", "--language", "en")
    assert other.returncode == 2
    unknown = fastscribe("export", out / "transcripts.jsonl", "-f", "txt", "--redact", "numbers")
    assert unknown.returncode == 1 and unknown.stdout == "" and "add --language" in unknown.stderr
    plain = fastscribe("export", out, "--redact-audio", tmp_path / "none")
    assert plain.returncode == 1 and "has no `redacted`" in plain.stderr and not (tmp_path / "none").exists()


def test_review(manifest: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "review.html"
    fastscribe("transcribe", manifest, "-o", out, "--redact", "numbers", "-q")
    made = fastscribe("export", out, "--review", page, "--review-passages", "2", cwd=tmp_path)
    assert made.returncode == 0 and "2 passages to review" in made.stderr
    text = page.read_text("utf-8")
    assert text.count("<article") == 2 == text.count("data:audio/mpeg") and "seventy" not in text
    (tmp_path / "talk.flac").unlink()
    gone = fastscribe("export", out, "--review", page, cwd=tmp_path)
    assert gone.returncode == 1 and "without audio: talk.flac" in gone.stderr and "<article" in page.read_text("utf-8")
    (tmp_path / "other.html").write_text("mine")
    (tmp_path / "fi.jsonl").write_text("".join(json.dumps({**row, "pred_language": "fi"}) + "\n" for row in rows(out)))
    finnish = fastscribe(
        "export", tmp_path / "fi.jsonl", "-o", tmp_path / "fi", "-f", "txt", "--review", page, "--remove-fillers"
    )
    assert finnish.stderr.count("--remove-fillers: 2 transcripts have the language fi: left as they were") == 1
    taken = fastscribe("export", out, "--review", tmp_path / "other.html")
    assert taken.returncode == 2 and (tmp_path / "other.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transcribe", SPEECH, "--redact", "names"], "--redact names needs --redact-list FILE"),
        (["transcribe", SPEECH, "--redact", ","], "--redact names nothing to redact: give names or numbers"),
        (["export", "-", "-f", "txt", "--language", "en"], "--language needs --remove-fillers, --itn or --redact"),
        (["transcribe", SPEECH, "--redact", "places"], "--redact places: not one of names, numbers"),
        (["transcribe", SPEECH, "--redact-list", "x"], "--redact-list needs --redact names"),
        (["transcribe", SPEECH, "--redact", "names", "--redact-list", "no.txt"], "--redact-list no.txt: No such file"),
        (["transcribe", SPEECH, "--redact", "names", "--redact-list", SPEECH], "is not UTF-8"),
        (["transcribe", SPEECH, "--redact", "numbers", "--tokens"], "--tokens and --redact exclude each other"),
        (
            ["transcribe", SPEECH, "--itn", "--language", "fr"],
            "--itn: has no rules for the language fr, only for en, ja, zh",
        ),
        (["export", "-"], "nothing to do: give --format, --review or --redact-audio"),
        (["export", "-", "--review", "x.html"], "read the rows again: give a file or a folder"),
    ],
)
def test_wrong_use_is_one_line(arguments: list, message: str, tmp_path: Path) -> None:
    done = fastscribe(*arguments, "-q" if arguments[0] == "transcribe" else "--review-passages=3", cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
