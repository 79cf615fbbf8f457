"""Kill runs and restart them until they finish, and check that the folder equals that of an uninterrupted run.

    python -m tests.helpers.kill_runs --kills 120 --seed 0      the last line is one JSON object

A process that has loaded the model and started no thread is forked for each attempt, so that one takes a tenth of the
time; `--cold 5` also kills so many that start from nothing. A kill comes at a random moment of what an attempt is expected
to take: tests/results/test_power_cut.py stops runs at each change that they make.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

import soundfile

from fastscribe.results.journal import read_entries
from tests.conftest import ROOT
from tests.helpers.warm_process import import_program, settle

AUDIO = ROOT / "tests" / "data" / "audio"
MODEL = ROOT / "tests" / "data" / "models" / "tdt_demo" / "model.nemo"
PATIENCE_S = 60.0
COLD_S = 6.0  # a run that starts from nothing takes about so long
CONFIDENCE_TOLERANCE = 0.011
LOADED = "the model is loaded"  # a fork says so
USERS = {"part0/000.srt": "somebody's own subtitles", "notes.txt": "mine", "part0/.003.vtt.part": "a download"}


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


# --- one attempt -----------------------------------------------------------------------------------------------------


def _child(given: list[str], log: Path, before: Callable[[], None] | None) -> NoReturn:
    """Run the command line in the fork."""
    try:
        atexit._clear()  # what the parent wants done at its own end: its temporary folders are removed then
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.argv = ["fastscribe", *given]
        if before is not None:
            before()
        from fastscribe.cli import main

        main()
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(99)


def load_for_forks() -> None:
    """Load the model before the fork. One thread, because OpenMP's threads do not survive a fork."""
    import torch

    from fastscribe.config import Options
    from fastscribe.transcriber import Transcriber

    torch.set_num_threads(1)
    options = Options(batch_size=2, threads=2)
    loaded = Transcriber.load(MODEL, "cpu", "fp32", options)

    def load(model: Path, device: str, dtype: str, requested: Options, say: object, devices: str | None) -> Transcriber:
        assert (Path(model), dtype, requested.batch_size, requested.threads) == (MODEL, "fp32", 2, 2)
        print(LOADED, flush=True)
        loaded._options = requested
        return loaded

    Transcriber.load = load  # type: ignore[method-assign, assignment]


def start(given: list[str], log: Path, before: Callable[[], None] | None = None) -> int:
    process = os.fork()
    if process == 0:
        _child(given, log, before)
    return process


def wait(process: int, seconds: float) -> int | None:
    """The exit code, negative for a signal; None if the process still runs after the timeout."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


@dataclass(frozen=True)
class Attempt:
    """A command line, and code that runs before it."""

    arguments: list[str]
    code: str
    log: Path
    environment: dict[str, str]


def serve(connection: Connection) -> None:
    """Import the modules that come first, run each attempt in a fork of this process, and answer its exit code."""
    for module in connection.recv():
        importlib.import_module(module)
    load_for_forks()
    settle()
    while True:
        try:
            attempt: Attempt = connection.recv()
        except EOFError:
            return
        # The name of this code differs from that of exec()'s text, which loses signals.
        code = compile(attempt.code, "injected", "exec")

        def begin(attempt: Attempt = attempt, code: CodeType = code) -> None:
            connection.close()
            os.environ.clear()
            os.environ.update(attempt.environment)
            exec(code, {})

        process = start(attempt.arguments, attempt.log, begin)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


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


class Killing:
    """Kill runs over the same clips until the given number of kills has hit a living process."""

    def __init__(self, folder: Path, num_clips: int, seed: int) -> None:
        self.clips, self.expected, self.log = folder / "clips", folder / "expected", folder / "log"
        self.out = folder / "out"
        self.rng = random.Random(seed)
        self.num_files = len(make_clips(self.clips, num_clips))
        put_users(self.expected)
        begin = time.monotonic()
        code = wait(start(arguments(self.clips, self.expected), self.log), PATIENCE_S)
        assert code == (1 if num_clips >= 30 else 0), f"{code}: {self.log.read_text()[-2000:]}"
        self.whole_s = time.monotonic() - begin
        self.start_s = 0.1 * self.whole_s
        self.points: Counter[str] = Counter({"moment": 0, "cold": 0})
        self.counts: Counter[str] = Counter({"lost": 0, "doubled": 0, "different": 0})
        self.problems: list[str] = []
        self.runs = self.nothing_left = 0

    def run(self, kills: int, cold: int) -> None:
        while sum(self.points.values()) < kills + cold:
            shutil.rmtree(self.out, ignore_errors=True)
            put_users(self.out)
            self.runs += 1
            kinds = []
            for _ in range(self.rng.choice((1, 1, 2, 4, 8))):
                is_cold = self.points["cold"] < cold
                kind, code = self._killed(is_cold)
                kinds.append(kind)
                if code is None:  # killed
                    self.points[kind.split()[0]] += 1
                elif code not in self._codes():
                    self.problems.append(f"run {self.runs} ({kinds}): exit code {code}: {self.log.read_text()[-500:]}")
                if code is not None or sum(self.points.values()) >= kills + cold:
                    break
            self._finish(kinds)

    def _codes(self) -> tuple[int, ...]:
        """Return the exit codes of a run to its end. 3: what cannot be read failed in an earlier one."""
        return (1, 3) if self.num_files >= 30 else (0,)

    def _killed(self, is_cold: bool) -> tuple[str, int | None]:
        """How an attempt was to be killed, and its exit code if it was not."""
        self.log.unlink(missing_ok=True)
        given, done = arguments(self.clips, self.out), self._done()
        expected_s = self.start_s + (self.whole_s - self.start_s) * (1 - done)
        if is_cold:
            after_s = self.rng.uniform(0, COLD_S)
            command = [sys.executable, "-m", "fastscribe", *given]
            with open(self.log, "ab") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT) as process:
                try:
                    return f"cold {after_s:.3f} s", process.wait(after_s)
                except subprocess.TimeoutExpired:
                    process.kill()
                    return f"cold {after_s:.3f} s", None
        after_s = self.rng.uniform(0, 1.1 * expected_s)
        process_id = start(given, self.log)
        code = wait(process_id, after_s)
        if code is None:
            kill(process_id)
        return f"moment {after_s:.3f} s", code

    def _done(self) -> float:
        rows = self.out / "transcripts.jsonl"
        return rows.read_bytes().count(b"\n") / self.num_files if rows.exists() else 0.0

    def _finish(self, kinds: list[str]) -> None:
        """Run one last attempt to its end, and compare the results."""
        self.log.unlink(missing_ok=True)
        num_left = self.num_files - num_listed(self.out)
        (self.out / "report.json").unlink(missing_ok=True)  # else that of an earlier attempt stays if nothing is left
        process = start(arguments(self.clips, self.out), self.log)
        code = wait(process, PATIENCE_S)
        if code is None:
            kill(process)
        where = f"run {self.runs} ({', '.join(kinds)})"
        if code not in self._codes():
            self.problems.append(f"{where}: finished with {code}: {self.log.read_text()[-500:]}")
            return
        problems, counts = compare(self.out, self.expected)
        num_done = json.loads((self.out / "report.json").read_text())["files"]
        if num_done > num_left:
            problems.append(f"{num_done} decoded where {num_left} were left")
        if not num_left and LOADED in self.log.read_text():
            problems.append("a model was loaded though nothing was left to decode")
        self.nothing_left += not num_left
        self.counts.update(counts)
        self.problems += [f"{where}: {problem}" for problem in problems]

    def to_json(self) -> dict[str, Any]:
        return {
            "points": sum(self.points.values()),
            "points_by_kind": dict(self.points),
            "runs": self.runs,
            "nothing_left": self.nothing_left,
            "files_a_run": self.num_files,
            "files_checked": self.runs * self.num_files,
            **self.counts,
            "whole_run_s": round(self.whole_s, 3),
            "problems": self.problems[:20],
            "num_problems": len(self.problems),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--cold", type=int, default=0)
    parser.add_argument("--clips", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    import_program()
    load_for_forks()
    settle()
    with tempfile.TemporaryDirectory() as folder:
        killing = Killing(Path(folder), settings.clips, settings.seed)
        killing.run(settings.kills, settings.cold)
    print(json.dumps(killing.to_json()))


if __name__ == "__main__":
    main()
