"""Kill runs and restart them until they finish, and check that the folder equals that of an uninterrupted run.

A kill comes at a random moment of what an attempt is expected to take: tests/results/test_power_cut.py stops runs at each
change that they make.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import soundfile

from fastscribe.results.journal import read_entries
from tests.conftest import AUDIO, ROOT
from tests.helpers.forked_runs import LOADED, MODEL, Runs

PATIENCE_S = 60.0
COLD_S = 6.0  # a run that starts from nothing takes about so long
CONFIDENCE_TOLERANCE = 0.011
USERS = {"part0/000.srt": "somebody's own subtitles", "notes.txt": "mine", "part0/.003.vtt.part": "a download"}
# Ends a run after some seconds as a kill does, whatever it is doing.
_ALARM = "import signal\nsignal.setitimer(signal.ITIMER_REAL, {after_s})"
_ALARMED = -14


def make_clips(folder: Path, number: int, seed: int = 0) -> list[Path]:
    """Short clips of real speech, and one file that is no recording for each thirty."""
    folder.mkdir()
    rng, paths = random.Random(seed), []
    speech = [soundfile.read(path, dtype="int16") for path in sorted(AUDIO.glob("[01]*.flac"))]
    for index in range(number):
        path = folder / f"part{index % 3}" / f"{index:03d}.wav"
        path.parent.mkdir(exist_ok=True)
        samples, rate = speech[index % len(speech)]
        begin = rng.randrange(len(samples) // 2)
        soundfile.write(path, samples[begin : begin + int(rng.uniform(0.5, 2.0) * rate)], rate)
        paths.append(path)
    for index in range(number // 30):
        path = folder / f"bad{index}.wav"
        path.write_bytes(b"RIFF, or so it says" * 10)
        paths.append(path)
    return paths


def arguments(clips: Path, out: Path, *more: str) -> list[str]:
    settings = ["-m", str(MODEL), "-o", str(out), "--dtype", "fp32", "-f", "jsonl,srt,vtt", "--batch-size", "2"]
    return ["transcribe", str(clips), *settings, "--threads", "2", "--no-progress", *more]


# --- what is in the folder -------------------------------------------------------------------------------------------


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    """Rows by path. Raises ValueError for a line that is not JSON, and for two rows of a file."""
    rows: dict[str, dict[str, Any]] = {}
    for line in (out / "transcripts.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["audio_filepath"] in rows:
            raise ValueError(f"{row['audio_filepath']} has two rows")
        rows[row["audio_filepath"]] = row
    return rows


def difference(given: Any, expected: Any, name: str = "") -> str | None:
    """The differences of two JSON values; confidences may differ by the effect of other batches."""
    if isinstance(expected, dict) and isinstance(given, dict) and given.keys() == expected.keys():
        return next(filter(None, (difference(given[key], expected[key], key) for key in expected)), None)
    if isinstance(expected, list) and isinstance(given, list) and len(given) == len(expected):
        return next(filter(None, (difference(*pair, name) for pair in zip(given, expected, strict=True))), None)
    if name == "confidence" and abs(given - expected) <= CONFIDENCE_TOLERANCE:
        return None
    return None if given == expected else f"{name}: {given!r} where {expected!r} was expected"


def compare(out: Path, expected: Path) -> tuple[list[str], Counter[str]]:
    """(problems, counts of lost and doubled files and of other differences)"""
    problems, counts = [], Counter({"lost": 0, "doubled": 0, "different": 0})
    wanted = rows_of(expected)
    lines = (out / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            counts["different"] += 1
            problems.append(f"not JSON: {line[:80]}")
            continue
        if row["audio_filepath"] in found:
            counts["doubled"] += 1
            problems.append(f"doubled: {row['audio_filepath']}")
        found[row["audio_filepath"]] = row
    for path, row in wanted.items():
        if path not in found:
            counts["lost"] += 1
            problems.append(f"lost: {path}")
        elif problem := difference(found[path], row):
            counts["different"] += 1
            problems.append(f"{path}: {problem}")
    problems += (extra := [f"no input is {path}" for path in found.keys() - wanted.keys()])
    other = _files_that_differ(out, expected)
    counts["different"] += len(extra) + len(other)
    return problems + other, counts


def _files_that_differ(out: Path, expected: Path) -> list[str]:
    """Compare all files but rows, journal, lock and report: somebody else's too."""
    here, there = (
        {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
        for root in (out, expected)
    )
    own = {"transcripts.jsonl", "journal.jsonl", "report.json", ".lock"}
    problems = [f"{name}: missing or too many" for name in (here.keys() ^ there.keys()) - own]
    same = (here.keys() & there.keys()) - own
    return problems + [f"{name}: differs" for name in same if here[name].read_bytes() != there[name].read_bytes()]


def put_users(out: Path) -> None:
    """Write somebody's own files into a folder for results; one has the name of a recording's."""
    for name, text in USERS.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)


def num_listed(out: Path) -> int:
    """Return how many results the journal has."""
    journal = out / "journal.jsonl"
    return len({entry.key for entry in read_entries(journal)}) if journal.exists() else 0


# --- many ------------------------------------------------------------------------------------------------------------


def kill_runs(run: Runs, folder: Path, num_clips: int, kills: int, cold: int = 0, seed: int = 0) -> dict[str, Any]:
    """Kill runs over the same clips, `cold` times also runs that start from nothing, until each kill has hit a living one."""
    clips, expected, out = folder / "clips", folder / "expected", folder / "out"
    rng, num_files = random.Random(seed), len(make_clips(clips, num_clips))
    codes = (1, 3) if num_clips >= 30 else (0,)  # 3: what cannot be read failed in an earlier run
    put_users(expected)
    begin = time.monotonic()
    assert run(arguments(clips, expected)) == codes[0], run.said()
    whole_s = time.monotonic() - begin
    points, counts = Counter({"moment": 0, "cold": 0}), Counter({"lost": 0, "doubled": 0, "different": 0})
    problems: list[str] = []
    num_runs = nothing_left = 0
    while points.total() < kills + cold:
        shutil.rmtree(out, ignore_errors=True)
        put_users(out)
        num_runs += 1
        attempts: list[str] = []
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            kind = "cold" if points["cold"] < cold else "moment"
            share_left = 1 - num_listed(out) / num_files
            after_s = rng.uniform(0, COLD_S if kind == "cold" else 1.1 * whole_s * (0.1 + 0.9 * share_left))
            attempts.append(f"{kind} {after_s:.3f} s")
            code = _run_cold(clips, out, after_s) if kind == "cold" else run(arguments(clips, out), _alarm(after_s))
            if code != _ALARMED:
                problems += (
                    [] if code in codes else [f"run {num_runs} ({attempts}): exit code {code}: {run.said()[-500:]}"]
                )
                break
            points[kind] += 1
            if points.total() >= kills + cold:
                break
        num_left = num_files - num_listed(out)
        nothing_left += not num_left
        found, differences = _finished(run, clips, out, expected, num_left, codes)
        problems += [f"run {num_runs} ({attempts}): {problem}" for problem in found]
        counts.update(differences)
    return {
        "points": points.total(),
        "points_by_kind": dict(points),
        "runs": num_runs,
        "nothing_left": nothing_left,
        "files_a_run": num_files,
        "files_checked": num_runs * num_files,
        **counts,
        "whole_run_s": round(whole_s, 3),
        "problems": problems[:20],
        "num_problems": len(problems),
    }


def _alarm(after_s: float) -> str:
    return _ALARM.format(after_s=max(after_s, 1e-6))  # 0 would set no alarm


def _run_cold(clips: Path, out: Path, after_s: float) -> int:
    """Return the exit code of a run that starts from nothing; _ALARMED if it was killed."""
    command = [sys.executable, "-m", "fastscribe", *arguments(clips, out)]
    try:
        return subprocess.run(command, capture_output=True, cwd=ROOT, timeout=after_s).returncode
    except subprocess.TimeoutExpired:
        return _ALARMED


def _finished(
    run: Runs, clips: Path, out: Path, expected: Path, num_left: int, codes: tuple[int, ...]
) -> tuple[list[str], Counter[str]]:
    """Run one last attempt to its end, and compare the results as `compare` does."""
    (out / "report.json").unlink(missing_ok=True)  # else that of an earlier attempt stays if nothing is left
    code = run(arguments(clips, out), _alarm(PATIENCE_S))
    if code not in codes:
        return [f"finished with {code}: {run.said()[-500:]}"], Counter()
    problems, counts = compare(out, expected)
    num_done = json.loads((out / "report.json").read_text())["files"]
    if num_done > num_left:
        problems.append(f"{num_done} decoded where {num_left} were left")
    if not num_left and LOADED in run.said():
        problems.append("a model was loaded though nothing was left to decode")
    return problems, counts
