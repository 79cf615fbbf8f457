"""Parts that say what the machine is and whether the code is right on it: facts, tests, compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from fastscribe._system.processors import usable_processors
from fastscribe.bench import machine
from fastscribe.bench.result import describe_error
from scripts.gpu.part import ROOT, TEST_DATA, Part
from scripts.measurement_log import MeasurementLog

_DEVICES = "cuda/test_device_processes.py"
# Test modules in the order of what they decide.
_LOW_LEVEL = (
    "families/conformer/test_triton_kernels.py",
    "families/blocks/test_dot_product_attention.py",
    "families/conformer/test_subsampling.py",
    "families/blocks/test_quantized.py",
    "cuda/test_graph_capture.py",
    "decode/test_transducer_graphs.py",
    "cuda/test_encoder_graphs.py",
    "training/loss/test_cuda_kernels.py",
    "cuda/test_device.py",
    "decode/test_aed.py",
)
_TEST_S = 60  # a test's time limit; the first ones compile


def facts(part: Part) -> None:
    """Write what this is, however late it is: a result whose card is not known counts for none."""
    part.notes.write({"what": "commit", "commit": machine.commit(ROOT)})
    row: dict[str, Any] = {"what": "machine"}
    try:
        row |= machine.facts(part.device, part.scratch)
    except Exception as error:  # the other parts may still work
        row["error"] = describe_error(error)
    part.notes.write(row)


def devices(part: Part) -> None:
    """Run the tests of devices' processes: a measurement of the command is worth nothing where they fail."""
    run_tests(part, [ROOT / "tests" / _DEVICES])


def tests(part: Part) -> None:
    """Run the low-level tests that are marked cuda; without a GPU all are skipped."""
    run_tests(part, [ROOT / "tests" / name for name in _LOW_LEVEL])


def end_to_end(part: Part) -> None:
    """Run the other tests that are marked cuda, but for those of part devices."""
    low_level = {ROOT / "tests" / name for name in (*_LOW_LEVEL, _DEVICES)}
    paths = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path not in low_level)
    run_tests(part, [path for path in paths if "mark.cuda" in path.read_text(encoding="utf-8")])


def run_tests(part: Part, paths: Sequence[Path]) -> None:
    """Run modules in parallel processes, in this order; then the tests that need the whole device."""
    processes = min(len(paths), max(2, min(12, usable_processors() - 4)))
    _pytest(part.notes, paths, "cuda and not whole_device", processes)
    _pytest(
        part.notes,
        [path for path in paths if "whole_device" in path.read_text(encoding="utf-8")],
        "cuda and whole_device",
        1,
    )


def _pytest(notes: MeasurementLog, paths: Sequence[Path], marks: str, processes: int) -> None:
    """Run pytest, whose plugin writes the rows of the tests, and write a row for the run."""
    if not paths:  # without a file, pytest would run everything
        return
    command = [sys.executable, "-m", "pytest", "-v", "-m", marks, "-n", str(processes), *map(str, paths)]
    command += ["-p", "scripts.gpu.pytest_rows", "-p", "no:cacheprovider", "-o", f"timeout={_TEST_S}"]
    # A warning of a newer package must not fail a test, nor a missing package the other modules.
    command += ["-W", "default", "--continue-on-collection-errors"]
    env = os.environ | {"OMP_NUM_THREADS": str(max(1, usable_processors() // processes))}
    env |= {"GPU_CHECK_ROWS": str(notes.path)}
    row: dict[str, Any] = {"what": "pytest", "marks": marks, "processes": processes}
    start = perf_counter()
    try:
        code = subprocess.run(
            command, cwd=ROOT, env=env, stderr=subprocess.STDOUT, timeout=max(0.0, notes.seconds_left)
        ).returncode
        row["exit_code"] = code
        if code not in (0, 1, 5):  # passed, failed tests, nothing to run
            row["error"] = f"pytest ended with {code}"
    except subprocess.TimeoutExpired:
        row["error"] = "stopped: out of time"
    notes.write(row | {"wall_s": perf_counter() - start})


def sanitizer(part: Part) -> None:
    """Run compute-sanitizer over the command with a small trained model, for invalid accesses and uninitialised reads."""
    model, audio = TEST_DATA / "models" / "tdt_demo" / "model.nemo", sorted((TEST_DATA / "audio").glob("0[1-4]*.flac"))
    command = [sys.executable, "-m", "fastscribe", "transcribe", *map(str, audio), "-m", str(model), "-f", "txt"]
    for tool, graphs in product(("memcheck", "initcheck"), ("full", "off")):
        run = [*command, "--device", str(part.device), "--cuda-graphs", graphs]
        key = {"what": "sanitizer", "tool": tool, "graphs": graphs}
        part.notes.measure(key, partial(_sanitize, tool, run, graphs, part.notes), needs_s=15.0)


def _sanitize(tool: str, command: Sequence[str], graphs: str, notes: MeasurementLog) -> dict[str, Any]:
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # torch's allocator hands out parts of larger blocks, between which no tool can see; a capture cannot do without it.
    env = os.environ | ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if graphs == "off" else {})
    done = subprocess.run(
        [program, "--tool", tool, "--print-limit", "5", "--error-exitcode", "9", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=env,
        timeout=notes.seconds_left,
    )
    print(done.stdout[-4000:], done.stderr[-2000:], flush=True)
    summary = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line]
    return {"exit_code": done.returncode, "summary": summary[-1].strip("= ") if summary else None}
