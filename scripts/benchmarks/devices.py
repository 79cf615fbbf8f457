"""`--devices cpu:N` against one process with the same number of threads: short clips, and the clips joined to one recording.

    python -m scripts.benchmarks.devices MANIFEST [--clips 100] [--repeats 5] [--json FILE]

Both stay loaded and run by turns, so that other work on the machine slows both; the figure to read is the median of the turns'
ratios. The processor seconds do not depend on other work. Reading is included, writing is not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import soundfile

from fastscribe import Options, Transcriber, Transcript
from fastscribe._system.processors import cpu_name, usable_processors

PAUSE_S = 0.5  # between joined clips


def clips_of(manifest: Path, count: int) -> list[Path]:
    """Return the first `count` recordings of a manifest."""
    with manifest.open(encoding="utf-8") as file:
        names = [json.loads(line)["audio_filepath"] for line, _ in zip(file, range(count), strict=False)]
    return [manifest.parent / name for name in names]


def joined(clips: Sequence[Path], path: Path) -> Path:
    """Write the clips to one recording, with pauses between them."""
    rate = soundfile.info(clips[0]).samplerate
    with soundfile.SoundFile(path, "w", rate, 1) as file:
        for clip in clips:
            file.write(soundfile.read(clip, dtype="int16")[0])
            file.write(np.zeros(round(PAUSE_S * rate), np.int16))
    return path


def processor_s() -> float:
    """Return the processor seconds of this process and its children so far."""
    us = psutil.Process()
    times = [one.cpu_times() for one in (us, *us.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def measure(transcriber: Transcriber, inputs: Sequence[Path]) -> dict[str, Any]:
    start, before_s = perf_counter(), processor_s()
    texts = {result.index: result.text for result in transcriber.transcribe(inputs) if isinstance(result, Transcript)}
    wall_s, spent_s = perf_counter() - start, processor_s() - before_s
    shares = [round(one.audio_s, 1) for one in transcriber._executor.shares()]
    return {
        "wall_s": wall_s,
        "processor_s": spent_s,
        "audio_s": transcriber.progress.audio_s,
        "texts": texts,
        "shares_s": shares,
    }


def compare(one: Transcriber, several: Transcriber, inputs: Sequence[Path], repeats: int) -> dict[str, Any]:
    """Measure by turns, after a turn that does not count."""
    turns = [(measure(one, inputs), measure(several, inputs)) for _ in range(repeats + 1)][1:]
    assert all(alone["texts"] == together["texts"] for alone, together in turns), "the texts differ"
    return {
        "recordings": len(inputs),
        "audio_s": round(turns[0][0]["audio_s"], 1),
        "one_process_wall_s": [round(alone["wall_s"], 3) for alone, _ in turns],
        "devices_wall_s": [round(together["wall_s"], 3) for _, together in turns],
        "speed_ratio": round(median(alone["wall_s"] / together["wall_s"] for alone, together in turns), 3),
        "processor_s_ratio": round(
            median(alone["processor_s"] / together["processor_s"] for alone, together in turns), 3
        ),
        "audio_s_by_device": turns[-1][1]["shares_s"],
        "same_texts": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="default")
    parser.add_argument("--processes", type=int, default=usable_processors())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import torch  # here: fastscribe, imported above, shortens OpenMP's spinning only before torch is there

    threads = usable_processors()
    torch.set_num_threads(threads)
    clips = clips_of(given.manifest, given.clips)
    devices = f"cpu:{given.processes}"
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"clips": clips, "one_recording": [joined(clips, Path(folder) / "joined.wav")]}
        one = Transcriber.load(given.model, "cpu", "fp32", Options())
        with Transcriber.load(given.model, dtype="fp32", options=Options(), devices=devices) as several:
            for kind, inputs in kinds.items():
                rows[kind] = compare(one, several, inputs, given.repeats)
                print(kind, rows[kind], file=sys.stderr)
    document = {
        "benchmark": "devices",
        "model": given.model,
        "devices": devices,
        "one_process_threads": threads,
        "dtype": "fp32",
        "batch": "auto",
        "statistic": f"median of {given.repeats} turns",
        "cpu": cpu_name(),
        "processors": threads,
        "load_average_1_min": round(os.getloadavg()[0], 1),
        **rows,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    text = json.dumps(document, indent=1)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
