"""The host's share of a run with a GPU, measured without one: the files per second that helpers, coordinator and device feed.

    python -m scripts.benchmarks.host --null-device 25600 [--format flac] [--files 2000] [--seconds 8] [--turns 5]

The real command runs with helper processes and a device's process that takes as long as a GPU of this speed and answers 20
words a file (null_device.py); in turns with the same command in one process. Clips are deterministic noise with speech's
spectrum and pauses: 100 different ones under `--files` names, in a temporary folder and so in the page cache.

Each turn goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import soundfile

from fastscribe._system.processors import cpu_name
from fastscribe.bench.machine import commit
from fastscribe.types import Float64Array

ROOT = Path(__file__).resolve().parents[2]

DIFFERENT_CLIPS = 100


@dataclass(frozen=True)
class Kind:
    """A kind of file: how soundfile writes it."""

    extension: str
    rate: int = 16_000


KINDS = {
    "flac": Kind("flac"),
    "wav": Kind("wav"),
    "mp3": Kind("mp3"),
    "mp3-44k": Kind("mp3", 44_100),
}


def like_speech(rng: np.random.Generator, num_samples: int, rate: int) -> Float64Array:
    """Return noise that falls by 6 dB per octave from 300 Hz, with four syllables a second, over a floor at -60 dB."""
    hertz = np.fft.rfftfreq(num_samples, 1 / rate)
    spectrum = np.fft.rfft(rng.normal(0, 1, num_samples)) / np.maximum(1, hertz / 300)
    voice = np.fft.irfft(spectrum, num_samples)
    syllables = np.maximum(0, np.sin(2 * np.pi * 4 * np.arange(num_samples) / rate + rng.uniform(0, 6)))
    speech: Float64Array = 0.1 * voice / voice.std() * syllables + 0.001 * rng.normal(0, 1, num_samples)
    return speech


def make_clips(folder: Path, kind: Kind, num_clips: int, mean_s: float) -> None:
    """Write clips with lengths spread evenly from half the mean to one and a half times it."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:06d}.{kind.extension}" for number in range(num_clips)]
    for number, path in enumerate(paths):
        if number >= DIFFERENT_CLIPS:
            os.link(paths[number % DIFFERENT_CLIPS], path)
            continue
        length = max(1, round(kind.rate * mean_s * (0.5 + number % DIFFERENT_CLIPS / DIFFERENT_CLIPS)))
        soundfile.write(path, np.clip(like_speech(rng, length, kind.rate), -1, 1), kind.rate)


# The machine of the estimate: what a GPU's host has, if its processors are cores, and if two are threads of one core.
_PROCESSORS, _THREADS_OF_A_CORE = 16, 0.65


def null_device_turn(mode: str, rtfx: float, clips: Path, model: Path, folder: Path) -> dict[str, Any]:
    """Run the command once. Return its costs."""
    stats, out = folder / "stats.json", folder / "out"
    for path in (stats, Path(f"{stats}.device")):
        path.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    command = ["transcribe", str(clips), "-m", str(model), "-o", str(out), "--no-progress", "--quiet"]
    given = [sys.executable, "-m", "scripts.benchmarks.null_device", mode, str(rtfx), str(stats), *command]
    subprocess.run(given, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(stats.read_text(encoding="utf-8"))
    if found["failed"]:
        raise SystemExit(f"{found['failed']} of the clips failed")
    return found


def null_device(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the command with helpers and in one process, in turns."""
    turns: dict[str, list[dict[str, Any]]] = {"helpers": [], "process": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_clips(folder / "clips", KINDS[arguments.format], arguments.files, arguments.seconds)
        for turn in range(arguments.turns):
            for mode, found in turns.items():
                found.append(null_device_turn(mode, arguments.null_device, folder / "clips", arguments.model, folder))
                rate = found[-1]["files"] / found[-1]["wall_s"]
                print(f"turn {turn + 1}, {mode:8s} {rate:8.0f} files/s", file=sys.stderr)

    def middle(value: Callable[[dict[str, Any]], float], mode: str = "helpers") -> float:
        return median(value(found) for found in turns[mode])

    def ms(value: Callable[[dict[str, Any]], float]) -> float:
        return round(middle(lambda found: 1000 * value(found) / found["files"]), 4)

    files_per_s = middle(lambda found: found["files"] / found["wall_s"])
    before = middle(lambda found: found["files"] / found["wall_s"], "process")
    mean_s = middle(lambda found: found["audio_s"] / found["files"])
    coordinator_ms, device_ms = ms(lambda found: found["coordinator_cpu_s"]), ms(lambda found: found["device"]["cpu_s"])
    kinds = turns["helpers"][0]["helper_cpu_s"]
    helper_ms: dict[str, float] = {kind: ms(partial(_helper_cpu_s, kind)) for kind in kinds}

    def estimate(share: float) -> float:
        """Return files a second of a machine with more processors.

        The smallest of the device's rate, of what the coordinator's time a file allows, and of what the other processors, less
        the coordinator's share, do of the helpers' time.
        """
        helpers: float = share * (_PROCESSORS - 1) * 1000 / (sum(helper_ms.values()) + share * coordinator_ms)
        return round(min(float(arguments.null_device) / mean_s, 1000 / coordinator_ms, helpers), 1)

    return {
        "benchmark": "host with a null device",
        "format": arguments.format,
        "files": arguments.files,
        "mean_clip_s": round(mean_s, 3),
        "null_device_rtfx": arguments.null_device,
        "processors": len(os.sched_getaffinity(0)),
        "helpers": turns["helpers"][0]["helpers"],
        "statistic": f"median of {arguments.turns} turns",
        "files_per_s": round(files_per_s, 1),
        "files_per_s_before": round(before, 1),
        "ratio": round(files_per_s / before, 3),
        "rtfx": round(files_per_s * mean_s, 1),
        "device_cpu_ms_per_file": device_ms,
        "coordinator_cpu_ms_per_file": coordinator_ms,
        "helper_cpu_ms_per_file": helper_ms,
        "process_cpu_ms_per_file_before": round(
            middle(lambda found: 1000 * found["coordinator_cpu_s"] / found["files"], "process"), 4
        ),
        "device_idle_share": round(
            middle(lambda found: found["device"]["idle_s"] / found["device"]["busy_and_idle_s"]), 3
        ),
        "estimate_16_cores_files_per_s": estimate(1.0),
        "estimate_16_threads_of_8_cores_files_per_s": estimate(_THREADS_OF_A_CORE),
        "commit": commit(ROOT),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "turns": {mode: [round(one["files"] / one["wall_s"], 1) for one in found] for mode, found in turns.items()},
        "processor": cpu_name(),
        "python": platform.python_version(),
    }


def _helper_cpu_s(kind: str, found: dict[str, Any]) -> float:
    return float(found["helper_cpu_s"][kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--null-device", type=float, metavar="RTFX", required=True, help="speed of the device; 0: it takes no time"
    )
    parser.add_argument("--format", default="flac", choices=KINDS, help="kind of file")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=8.0, help="mean length of a file")
    parser.add_argument("--turns", type=int, default=5, help="runs each way")
    parser.add_argument("--model", default=ROOT / "tests/data/models/tdt_demo/model.nemo", help="its tokenizer counts")
    print(json.dumps(null_device(parser.parse_args())))


if __name__ == "__main__":
    main()
