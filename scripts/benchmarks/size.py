"""Growth of a run: memory and speed over a manifest of a million rows, and the time of the first transcript.

    python -m scripts.benchmarks.size [--rows 1000000] [--until N] [--durations yes|no] [--engine instant|model] [--out DIR]

Every row is the same 0.2 s clip at another offset. `--engine instant` computes nothing (host.py beside this file) and
measures the host's rows per second; `model` runs the demo checkpoint. `--out` writes as the command line does, with the
journal; without it, rows are rendered and dropped. `--until` stops early. Resident memory is read from /proc, minus that of
the loaded model: Linux only.

Progress goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soundfile

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import Options, OutputStyle
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.results.formats.writers import render
from fastscribe.results.output import open_journaled
from fastscribe.results.outputs import OutputRun
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure

ROOT = Path(__file__).resolve().parents[2]

RATE = 16_000
BATCH_FRAMES = 4096  # for the instant engine
CLIP_S = 0.2
CLIPS = 500  # in the file from which all rows are cut
CHECKPOINTS = (1, 1_000, 10_000, 50_000)  # and every 50,000 rows


def resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def write_manifest(folder: Path, rows: int, with_durations: bool) -> Path:
    """Write the manifest and its audio. Rows without durations name whole files, because a cut needs an end."""
    noise = 0.1 * np.random.default_rng(0).normal(0, 1, int(RATE * CLIP_S * CLIPS))
    soundfile.write(folder / "all.wav", noise, RATE)
    for number in range(100):
        soundfile.write(folder / f"{number}.wav", noise[: int(RATE * CLIP_S)], RATE)
    path = folder / "manifest.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row: dict[str, Any] = {"audio_filepath": f"{number % 100}.wav", "text": f"text of row {number}"}
            if with_durations:
                offset_s = round(CLIP_S * (number % CLIPS), 3)
                row |= {"audio_filepath": "all.wav", "offset": offset_s, "duration": CLIP_S}
            file.write(json.dumps(row) + "\n")
    return path


def make_transcriber(engine: str, options: Options) -> Transcriber:
    model = ROOT / "tests/data/models/tdt_demo/model.nemo"
    if engine == "model":
        return Transcriber.load(model, device="cpu", dtype="fp32", options=options)
    from scripts.benchmarks import host

    checkpoint = read_checkpoint(model)
    return Transcriber(checkpoint, LocalExecutor(host.InstantEngine(checkpoint, 2)), options, 0.0)  # type: ignore[arg-type]


def checkpoints(until: int) -> Iterator[int]:
    yield from (rows for rows in CHECKPOINTS if rows <= until)
    yield from range(100_000, until + 1, 50_000)


def measure(run: Transcriber, manifest: Path, until: int, out: Path | None) -> dict[str, Any]:
    gc.collect()
    before_mb = resident_mb()
    checkpoint_rows, samples, rows, failed = set(checkpoints(until)), [], 0, 0
    start = time.perf_counter()
    opened = nullcontext() if out is None else open_journaled(out, OutputRun(OutputStyle(), {}, overwrite=True))
    with opened as output, closing(run.results(manifest, ledger=None if output is None else output.ledger)) as results:
        for result in results:
            rows += 1
            failed += isinstance(result, Failure)
            if output is None:
                render(result, "jsonl")
            else:
                output.write(result)
            if rows in checkpoint_rows:
                samples.append({"rows": rows, "s": time.perf_counter() - start, "grown_mb": resident_mb() - before_mb})
                print("{rows:8.0f} rows  {s:8.1f} s  {grown_mb:7.1f} MB".format(**samples[-1]), file=sys.stderr)
            if rows >= until:
                break
    wall_s = time.perf_counter() - start
    return {
        "rows": rows,
        "failed": failed,
        "first_row_s": round(samples[0]["s"], 3),
        "wall_s": round(wall_s, 2),
        "rows_per_s": round(rows / wall_s, 1),
        "loaded_mb": round(before_mb, 1),
        "grown_mb_by_rows": {str(mark["rows"]): round(mark["grown_mb"], 1) for mark in samples},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the manifest")
    parser.add_argument("--until", type=int, help="stop after this number of results")
    parser.add_argument("--durations", choices=("yes", "no"), default="yes", help="whether rows have durations")
    parser.add_argument("--engine", choices=("instant", "model"), default="instant")
    parser.add_argument("--window", type=int, default=Options.window)
    parser.add_argument("--out", type=Path, help="a folder for results; an existing one is overwritten")
    arguments = parser.parse_args()
    frames: int | Literal["auto"] = BATCH_FRAMES if arguments.engine == "instant" else "auto"
    run = make_transcriber(arguments.engine, Options(window=arguments.window, batch_frames=frames))
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_manifest(Path(folder), arguments.rows, arguments.durations == "yes")
        samples = measure(run, manifest, arguments.until or arguments.rows, arguments.out)
    document = {
        "benchmark": "size",
        "manifest_rows": arguments.rows,
        "durations": arguments.durations == "yes",
        "engine": arguments.engine,
        "window": arguments.window,
        "journal": arguments.out is not None,
        **samples,
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
