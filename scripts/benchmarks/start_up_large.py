"""The start of a short transcription with a large checkpoint on a CPU, in two checkouts and in onnx-asr, in turns.

    python -m scripts.benchmarks.start_up_large CHECKOUT_BEFORE CHECKOUT_AFTER --model MODEL.nemo --clip CLIP.wav
        --peer-python PYTHON --peer-model FOLDER [--turns 5] [--json docs/bench/latency/start-up-large.json]

Each turn runs each of these in a process of its own, from its start to its end, with files in the page cache: fastscribe in
int8 and bf16 with the machine code that numba has kept, and onnx-asr in int8 with the export of the same checkpoint that
`fastscribe bench --against onnx-asr` makes. The first turns also have starts without kept machine code, as after an
installation. A row has the smallest wall time and the smallest processor time (user and system) of the turns, which other
programs disturb least.

A table goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from scripts.benchmarks.gap_recovery import publish
from scripts.benchmarks.start_up import revision

DTYPES = ("int8", "bf16")
FIRST_TURNS = 2  # that have starts without kept machine code too
PEER = """
import json, sys
import onnx_asr, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[3])
kind = json.load(open(sys.argv[1] + "/config.json"))["model_type"]
settings = {"quantization": "int8", "sess_options": options, "providers": ["CPUExecutionProvider"]}
print(onnx_asr.load_model(kind, sys.argv[1], **settings).recognize(sys.argv[2]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    for name in ("--model", "--clip", "--peer-python", "--peer-model"):
        parser.add_argument(name, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if subprocess.run([arguments.peer_python, "-c", "import onnx_asr"], stderr=subprocess.DEVNULL).returncode:
        parser.error(f"--peer-python {arguments.peer_python}: onnx-asr cannot be imported there")
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(arguments.turns + 1):
            for name, seconds in turn_of(arguments, checkouts, Path(scratch), turn).items():
                if turn or name.startswith("first"):  # turn 0 fills caches
                    found.setdefault(name, []).append(seconds)
    rows = []
    for name, times in found.items():
        wall_s, cpu_s = (round(min(some), 3) for some in zip(*times, strict=True))
        rows.append({"what": name, "wall_s": wall_s, "cpu_s": cpu_s, "turns": len(times)})
        print(f"{name:>32} {wall_s:>9} {cpu_s:>9}", file=sys.stderr)
    arguments.model, arguments.dtype = Path(arguments.model).stem, " and ".join(DTYPES)
    commits = ", ".join(f"{side} {revision(checkout)}" for side, checkout in checkouts.items())
    load = f"load average {os.getloadavg()[2]:.1f} on {os.cpu_count()} processors"
    publish("start-up-large", f"smallest of the turns, seconds; {commits}; {load}", arguments, rows)


def turn_of(
    arguments: argparse.Namespace, checkouts: dict[str, Path], scratch: Path, turn: int
) -> dict[str, tuple[float, float]]:
    """Return wall and processor seconds of each start, once."""
    found = {}
    for dtype in DTYPES:
        for side, checkout in checkouts.items():
            options = ["-m", arguments.model, "--device", "cpu", "--dtype", dtype, "-q"]
            command = [sys.executable, "-m", "fastscribe", "transcribe", arguments.clip, *options]
            if turn < FIRST_TURNS:
                with tempfile.TemporaryDirectory() as empty:
                    found[f"first {dtype}, {side}"] = measured(command, PYTHONPATH=str(checkout), NUMBA_CACHE_DIR=empty)
            kept = str(scratch / side)
            found[f"{dtype}, {side}"] = measured(command, PYTHONPATH=str(checkout), NUMBA_CACHE_DIR=kept)
    peer = [arguments.peer_python, "-c", PEER, arguments.peer_model, arguments.clip, str(os.cpu_count())]
    return found | {"onnx-asr int8": measured(peer)}


def measured(command: list[str], **environment: str) -> tuple[float, float]:
    """Run a command in another folder, so that only the checkout is found; return its seconds."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_", "NUMBA_"))}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run(command, cwd="/", env=inherited | environment, check=True, capture_output=True)
    wall_s, after = perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
