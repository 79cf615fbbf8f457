"""Compare two revisions of fastscribe on this machine, in alternation.

    python -m scripts.benchmarks.revisions BASE [HEAD] [--turns 7] [--json OUT.json]

Each measurement is one command of one revision in a process of its own; the revisions alternate, so a slow minute of the
machine affects both. Cases:

    help     `fastscribe --help`
    files    `fastscribe transcribe` of 2,000 recordings of 0.2 s with a tiny model: the host's cost per file
    audio    `fastscribe transcribe` of 40 synthetic recordings of 5 to 35 s with the packaged model: the model's speed
    gaps     the same with half of each recording silent and `--recover-gaps`

The result has, for each case, the medians of wall seconds, processor seconds (user and system) and peak resident memory of
both revisions, and the median of the ratios HEAD / BASE of each turn. For transcriptions the wall seconds are the
report's, which exclude loading; processor seconds and memory are the whole process's. Linux and macOS only (wait4).

Progress goes to stderr; the last line of stdout is the JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]

TINY_MODEL = ROOT / "tests/data/models/tdt_demo/model.nemo"
RATE = 16_000
FILES, FILE_S = 2000, 0.2
RECORDINGS, SHORTEST_S, LONGEST_S = 40, 5.0, 35.0


def speech_like(rng: np.random.Generator, seconds: float) -> NDArray[np.int16]:
    """Return noise with speech's spectrum and four syllables a second, int16."""
    num_samples = int(RATE * seconds)
    hertz = np.fft.rfftfreq(num_samples, 1 / RATE)
    voice = np.fft.irfft(np.fft.rfft(rng.normal(0, 1, num_samples)) / np.maximum(1, hertz / 300), num_samples)
    syllables = np.maximum(0, np.sin(2 * np.pi * 4 * np.arange(num_samples) / RATE))
    samples: NDArray[np.int16] = np.clip(3000 * voice / voice.std() * syllables, -32768, 32767).astype(np.int16)
    return samples


def make_recordings(folder: Path) -> dict[str, Path]:
    """Write the recordings of each case; return the folders."""
    rng, folders = np.random.default_rng(0), {name: folder / name for name in ("files", "audio", "gaps")}
    for path in folders.values():
        path.mkdir()
    for number in range(FILES):
        soundfile.write(folders["files"] / f"{number:05d}.wav", speech_like(rng, FILE_S), RATE)
    for number, seconds in enumerate(np.linspace(SHORTEST_S, LONGEST_S, RECORDINGS)):
        samples = speech_like(rng, seconds)
        soundfile.write(folders["audio"] / f"{number:03d}.flac", samples, RATE)
        samples[len(samples) // 4 : 3 * len(samples) // 4] = 0
        soundfile.write(folders["gaps"] / f"{number:03d}.flac", samples, RATE)
    return folders


def export(revision: str, folder: Path) -> str:
    """Unpack a revision's files; return its commit."""
    commit = subprocess.run(["git", "rev-parse", revision], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    archive = subprocess.run(["git", "archive", revision, "fastscribe"], cwd=ROOT, check=True, capture_output=True)
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return commit.strip()


def run(checkout: Path, arguments: list[str], scratch: Path) -> dict[str, float]:
    """Run one command of one revision; return its wall and processor seconds and its peak memory in MB."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": ""}
    start = time.perf_counter()
    with (scratch / "stderr").open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "fastscribe", *arguments],
            cwd=scratch,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{checkout.name}: {' '.join(arguments)}: {(scratch / 'stderr').read_text()}")
    peak = usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    return {
        "wall_s": time.perf_counter() - start,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": peak,
    }


def transcribe(checkout: Path, folder: Path, options: list[str], scratch: Path) -> dict[str, float]:
    """Transcribe a folder into a new one; the wall seconds are the report's."""
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        command = ["transcribe", str(folder), "-o", out, "--device", "cpu", "--quiet", *options]
        found = run(checkout, command, scratch)
        found["wall_s"] = json.loads((Path(out) / "report.json").read_text())["wall_s"]
    return found


def compare(base: list[dict[str, float]], head: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians of both and the median of the turns' ratios, of the second half of each pair by the first."""
    found: dict[str, Any] = {"turns": len(base)}
    for key in base[0]:
        found[key] = {
            "base": round(median(turn[key] for turn in base), 4),
            "head": round(median(turn[key] for turn in head), 4),
            "ratio": round(median(new[key] / old[key] for old, new in zip(base, head, strict=True)), 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("head", nargs="?", default="HEAD")
    parser.add_argument("--turns", type=int, default=7, help="of each case and revision, beside one that is discarded")
    parser.add_argument("--cases", default="help,files,audio,gaps")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        checkouts = {side: scratch / side for side in ("base", "head")}
        commits = {side: export(getattr(arguments, side), path) for side, path in checkouts.items()}
        folders = make_recordings(scratch)
        for case in arguments.cases.split(","):
            turns: dict[str, list[dict[str, float]]] = {"base": [], "head": []}
            for turn in range(arguments.turns + 1):
                for side in ("base", "head") if turn % 2 else ("head", "base"):
                    checkout = checkouts[side]
                    if case == "help":
                        found = run(checkout, ["--help"], scratch)
                    else:
                        options = ["--model", str(TINY_MODEL)] if case == "files" else []
                        options += ["--recover-gaps"] if case == "gaps" else []
                        found = transcribe(checkout, folders[case], options, scratch)
                    if turn:
                        turns[side].append(found)
            cases[case] = compare(turns["base"], turns["head"])
            print(case, json.dumps(cases[case]), file=sys.stderr)
    import torch  # only now: Linux counts a parent's memory at the fork as its child's peak

    from fastscribe.bench.machine import facts

    document = {
        "benchmark": "revisions",
        **commits,
        "cases": cases,
        "machine": facts(torch.device("cpu"), ROOT),
    }
    text = json.dumps(document)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    print(text)


if __name__ == "__main__":
    main()
