#!/usr/bin/env python3
"""How a run grows: a manifest of a million rows, the memory it takes on its way and how soon the first transcript comes.

    scripts/benchmarks/size.py [--rows 1000000] [--until N] [--durations yes|no] [--engine instant|model] [--out DIR]

Every row is the same 0.2 s clip at another offset. With `--engine instant` nothing is computed (host.py beside this file),
so that the rows a second are the host's; with `model` the demo checkpoint runs. `--out` writes there as the command line
does, journal included; without it rows are made and thrown away. `--until` stops early. Resident memory is read from
/proc, beyond what the loaded model takes: Linux only.

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
from typing import Any

import numpy as np
import soundfile

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fastscribe.checkpoint.reader import read_checkpoint  # noqa: E402
from fastscribe.config import Options, OutputStyle  # noqa: E402
from fastscribe.output.folder import FolderOutput  # noqa: E402
from fastscribe.output.writers import render  # noqa: E402
from fastscribe.transcriber import Transcriber  # noqa: E402
from fastscribe.types import Failure  # noqa: E402

RATE = 16_000
BATCH_FRAMES = 4096  # where there is no model that could choose
CLIP_S = 0.2
CLIPS = 500  # in the one file that all rows are cut from
LOOKED_AT = (1, 1_000, 10_000, 50_000)  # and every 50,000 rows


def resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def write_manifest(folder: Path, rows: int, with_durations: bool) -> Path:
    """Without durations, each clip is a file of its own under a hundred names: a cut needs one to end."""
    noise = 0.1 * np.random.default_rng(0).normal(0, 1, int(RATE * CLIP_S * CLIPS))
    soundfile.write(folder / "all.wav", noise, RATE)
    for number in range(100):
        soundfile.write(folder / f"{number}.wav", noise[: int(RATE * CLIP_S)], RATE)
    path = folder / "manifest.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            row: dict[str, Any] = {"audio_filepath": f"{number % 100}.wav", "text": f"what was said in {number}"}
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
    return Transcriber(checkpoint, host.InstantEngine(checkpoint.config.num_labels, 2), options, 0.0)


def looked_at(until: int) -> Iterator[int]:
    yield from (rows for rows in LOOKED_AT if rows <= until)
    yield from range(100_000, until + 1, 50_000)


def measure(run: Transcriber, manifest: Path, until: int, out: Path | None) -> dict[str, Any]:
    gc.collect()
    before_mb = resident_mb()
    marks, found, rows, failed = set(looked_at(until)), [], 0, 0
    start = time.perf_counter()
    ledger = nullcontext() if out is None else FolderOutput(out, OutputStyle(), {}, overwrite=True)
    with ledger as output, closing(run.transcribe(manifest, output)) as results:
        for result in results:
            rows += 1
            failed += isinstance(result, Failure)
            if output is None:
                render(result, "jsonl")
            else:
                output.write(result)
            if rows in marks:
                found.append({"rows": rows, "s": time.perf_counter() - start, "grown_mb": resident_mb() - before_mb})
                print("{rows:8d} rows  {s:8.1f} s  {grown_mb:7.1f} MB".format(**found[-1]), file=sys.stderr)
            if rows >= until:
                break
    wall_s = time.perf_counter() - start
    return {
        "rows": rows,
        "failed": failed,
        "first_row_s": round(found[0]["s"], 3),
        "wall_s": round(wall_s, 2),
        "rows_per_s": round(rows / wall_s, 1),
        "loaded_mb": round(before_mb, 1),
        "grown_mb_by_rows": {str(mark["rows"]): round(mark["grown_mb"], 1) for mark in found},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the manifest")
    parser.add_argument("--until", type=int, help="stop after so many results")
    parser.add_argument("--durations", choices=("yes", "no"), default="yes", help="whether rows say how long they are")
    parser.add_argument("--engine", choices=("instant", "model"), default="instant")
    parser.add_argument("--window", type=int, default=Options.window)
    parser.add_argument("--out", type=Path, help="a folder for results; one that is there is started over")
    asked = parser.parse_args()
    frames = BATCH_FRAMES if asked.engine == "instant" else "auto"
    run = make_transcriber(asked.engine, Options(window=asked.window, batch_frames=frames))
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_manifest(Path(folder), asked.rows, asked.durations == "yes")
        found = measure(run, manifest, asked.until or asked.rows, asked.out)
    document = {
        "benchmark": "size",
        "manifest_rows": asked.rows,
        "durations": asked.durations == "yes",
        "engine": asked.engine,
        "window": asked.window,
        "journal": asked.out is not None,
        **found,
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
