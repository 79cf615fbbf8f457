"""Parts that say what the machine is and whether the code is right on it: facts, tests, compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

from fastscribe._system.processors import usable_processors
from fastscribe.bench import machine
from fastscribe.bench.result import describe_error
from scripts.gpu.goals import read_rows
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
_SHARES = {"end_to_end": 6, "triton_kernels": 6, "cuda_kernels": 3}  # processes for the modules that take longest
_TEST_S = 60  # a test's time limit; the first ones compile
_MAX_RUNS = 4  # of a module whose process ends early


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
    at_once = max(2, min(12, usable_processors() - 4))
    env = os.environ | {"OMP_NUM_THREADS": str(max(1, usable_processors() // at_once))}
    env |= {"GPU_CHECK_ROWS": str(part.notes.path)}

    def run(given: Sequence[Path], marks: str, share: str) -> None:
        options = [
            "-m",
            marks,
            "-v",
            "-p",
            "scripts.gpu.pytest_rows",
            "-p",
            "no:cacheprovider",
            "-o",
            f"timeout={_TEST_S}",
        ]
        # A warning of a newer package must not fail a test, nor a missing package the other modules.
        options += ["-W", "default", "--continue-on-collection-errors"]
        for _ in range(_MAX_RUNS):
            if _pytest(part.notes, [*options, *map(str, given)], env | {"GPU_CHECK_SHARE": share}) == 0:
                break

    with ThreadPoolExecutor(at_once) as pool:
        running = []
        for path in paths:
            count = _SHARES.get(path.stem.removeprefix("test_"), 1)
            for number in range(count):
                running.append(pool.submit(run, [path], "cuda and not whole_device", f"{number}/{count}"))
    for future in running:
        future.result()
    alone = [path for path in paths if "whole_device" in path.read_text(encoding="utf-8")]
    if alone:  # without a file, pytest would run everything
        run(alone, "cuda and whole_device", "0/1")


def _pytest(notes: MeasurementLog, arguments: Sequence[str], env: dict[str, str]) -> int:
    """Run pytest, whose plugin writes the rows of the tests, and write a row for the process.

    Returns the number of tests that another run can still take: those after the one that ended the process.
    """
    files = [Path(argument).name for argument in arguments if argument.endswith(".py")]
    row: dict[str, Any] = {"what": "pytest", "files": files, "share": env["GPU_CHECK_SHARE"], "run": uuid4().hex[:12]}
    start = perf_counter()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        command = [sys.executable, "-m", "pytest", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=env | {"GPU_CHECK_RUN": row["run"]},
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=max(0.0, notes.seconds_left),
            )
            row["exit_code"] = done.returncode
        except subprocess.TimeoutExpired:
            row["error"] = "stopped: out of time"
        said.seek(0)
        text = said.read()
    print(text, flush=True)
    during, num_left = _ended_during(notes.path, row["run"])
    # Codes 0, 1 and 5: passed, failed tests, nothing to run. pytest-timeout also ends a process with 1.
    if during is not None:
        row["error"] = "; ".join([row.get("error", f"ended during {during}"), f"{num_left} tests never ran"])
        row["during"] = during
    elif row.get("exit_code", 0) not in (0, 1, 5):
        row["error"] = f"pytest ended with {row['exit_code']}: {text[-300:]}"
    notes.write(row | {"wall_s": perf_counter() - start})
    return 0 if notes.seconds_left <= 0 else num_left


def _ended_during(rows: Path, run: str) -> tuple[str | None, int]:
    """Return the test or step in which this run's process ended early, or None, and the number of tests not started."""
    own = [row for row in read_rows(rows) if row.get("run") == run]
    started = [row["test"] for row in own if row["what"] == "started"]
    collected = sum(row["tests"] for row in own if row["what"] == "collected")
    if not own or any(row["what"] == "finished" for row in own):
        return None, 0
    return (started[-1] if started else "collection"), collected - len(started)


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
