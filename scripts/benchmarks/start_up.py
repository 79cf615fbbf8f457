"""Where the start of a short transcription goes, in two checkouts in turns.

    python -m scripts.benchmarks.start_up CHECKOUT_BEFORE CHECKOUT_AFTER [--turns 7] [--json docs/bench/latency/start-up.json]

Each turn runs, with both checkouts, each in a process of its own: nothing (`python -c pass`), `import torch`,
`fastscribe transcribe --help`, a whole transcription of a clip of 4 s with the packaged model on the CPU, and the same in
steps, whose seconds are taken in between. The steps leave out the command line, which the whole one has. A row has the smallest
wall time and the smallest processor time (user and system) of the turns, which other programs disturb least.

A table goes to stderr; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from scripts.benchmarks.gap_recovery import publish

CLIP = "tests/data/audio/15_1_00203.flac"
STEPS = """
import json, sys
from time import perf_counter, process_time
seconds, last = {}, [0.0, 0.0]
def step(name):
    now = [perf_counter() - begun, process_time()]
    seconds[name] = [b - a for a, b in zip(last, now)]
    last[:] = now
begun = perf_counter()
step("python")
import fastscribe.cli
step("import the command line")
from fastscribe._system.openmp import limit_openmp_spin
limit_openmp_spin()
try:
    from fastscribe._system.quick_start import quick_start
except ImportError:  # an earlier checkout
    from contextlib import nullcontext as quick_start
with quick_start():
    import torch
step("import torch")
import fastscribe.pipeline.engine, fastscribe.pipeline.local, fastscribe.transcriber
step("import the engine")
from fastscribe.pipeline import recognizer
inner, spent = recognizer.fused_model, [0.0, 0.0]
def timed(*arguments):
    start = [perf_counter(), process_time()]
    found = inner(*arguments)
    spent[:] = perf_counter() - start[0], process_time() - start[1]
    return found
recognizer.fused_model = timed
transcriber = fastscribe.Transcriber.load(device="cpu")
step("load the model")
seconds["load the model"] = [a - b for a, b in zip(seconds["load the model"], spent)]
seconds["expand the language model"] = spent
[result] = transcriber.transcribe([sys.argv[1]])
assert result.text
step("read and decode the clip")
print(json.dumps(seconds))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.model = "packaged"
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(arguments.turns):
        for side, checkout in checkouts.items():
            for name, times in turn(checkout).items():
                found.setdefault((name, side), []).append(times)
    names = list(dict.fromkeys(name for name, _ in found))
    rows = []
    for name in names:
        row: dict[str, object] = {"what": name}
        for side in checkouts:
            wall_s, cpu_s = (round(min(times), 3) for times in zip(*found[name, side], strict=True))
            row |= {f"wall_s_{side}": wall_s, f"cpu_s_{side}": cpu_s}
        rows.append(row)
        print(" ".join(f"{value!s:>26}" for value in row.values()), file=sys.stderr)
    commits = ", ".join(f"{side} {revision(checkout)}" for side, checkout in checkouts.items())
    publish("start-up", f"smallest of {arguments.turns} turns, seconds; {commits}", arguments, rows)


def turn(checkout: Path) -> dict[str, tuple[float, float]]:
    """Return wall and processor seconds of everything that is measured, once."""
    clip = str(checkout / CLIP)
    commands = {
        "python -c pass": ["-c", "pass"],
        "python -c 'import torch'": ["-c", "import torch"],
        "transcribe --help": ["-m", "fastscribe", "transcribe", "--help"],
        "transcribe a clip": ["-m", "fastscribe", "transcribe", clip, "-q", "--device", "cpu"],
    }
    found = {name: measured(checkout, arguments)[0] for name, arguments in commands.items()}
    seconds = json.loads(measured(checkout, ["-c", STEPS, clip])[1].splitlines()[-1])
    return found | {f"step: {name}": (wall_s, cpu_s) for name, (wall_s, cpu_s) in seconds.items()}


def measured(checkout: Path, arguments: list[str]) -> tuple[tuple[float, float], str]:
    """Run Python in another folder, so that only the checkout is found; return its seconds and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        wall_s, after = perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (wall_s, cpu_s), done.stdout


def revision(checkout: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
