"""Passes that `fastscribe bench` does not measure: cold, profiled, batch by batch, and in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from fastscribe.bench import throughput_passes
from fastscribe.pipeline.batching import Budget
from fastscribe.transcriber import Transcriber
from fastscribe.types import Batch, Int16Array
from scripts.benchmarks import gpu_utilization


def cold_pass(transcriber: Transcriber, batches: Sequence[Batch], before: Sequence[Batch] = ()) -> dict[str, Any]:
    """Measure the first pass over these batches. `before`: the batches that this process has run so far."""
    seen = {batch.samples_BS.shape for batch in before}
    new = sum(batch.samples_BS.shape not in seen for batch in batches)
    counts = {"batches": len(batches), "new_shapes_share": new / len(batches)}
    return (
        throughput_passes.summary([throughput_passes.stream(transcriber, batches)])
        | throughput_passes.padding(batches)
        | counts
    )


def from_memory(
    transcriber: Transcriber, waves: Sequence[Int16Array], budget: Budget, passes: int, repeats: int
) -> dict[str, Any]:
    """Return the median of `passes` after a warm-up, each over all the audio `repeats` times."""
    return throughput_passes.from_batches(
        transcriber, throughput_passes.batches_of(waves, transcriber, budget), passes, repeats
    )


def profiled(transcriber: Transcriber, waves: Sequence[Int16Array], budget: Budget) -> dict[str, Any]:
    """Run one pass under the profiler after one without: the GPU's busy share, and its kernels."""
    batches = throughput_passes.batches_of(waves, transcriber, budget)
    unprofiled = throughput_passes.stream(transcriber, batches)
    found = gpu_utilization.profile(
        lambda: throughput_passes.stream(transcriber, batches), transcriber._recognizer.device
    )
    return {"unprofiled_wall_ms": 1000 * unprofiled["wall_s"], **found}


def by_command(model: Path, inputs: Path, out: Path, where: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run the same by `fastscribe transcribe` in a new process, loading included. `where`: --device or --devices."""
    command = [sys.executable, "-m", "fastscribe", "transcribe", str(inputs), "--model", str(model), "-o", str(out)]
    start = perf_counter()
    done = subprocess.run(
        [*command, *where, "--no-progress"], capture_output=True, text=True, timeout=seconds, env=os.environ
    )
    process_s = perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-500:]}")
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {"process_s": process_s, "said": done.stderr[-600:], **{key: report[key] for key in _REPORTED}}


_REPORTED = (
    "rtfx",
    "audio_s",
    "load_s",
    "wall_s",
    "first_batch_s",
    "total_s",
    "files",
    "failed",
    "stage_s",
    "padding_share",
    "dtype",
    "device",
    "refused",
)
