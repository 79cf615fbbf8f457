"""Files per second of a run over many tiny recordings: the cost of results that survive a power cut.

    python -m scripts.benchmarks.durability [--clips 3000] [--formats jsonl,srt,txt] [--repeats 5] [--tree OTHER_CHECKOUT]

The real run loop runs around an instant engine (host.py beside this file), into a folder on the disk of --folder. With
`--tree`, the package of another checkout is measured in alternation, so both meet the same load of the machine. Each turn is
a process of its own; the first of each tree is discarded.

The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLIP_S = 0.01  # nothing to decode: what is left is the host's work for each file
NUM_TOKENS = 28  # of eight seconds of English


def host_benchmark(tree: Path) -> Any:
    """Return the checkout's own host benchmark; older checkouts have it at another path."""
    sys.path.insert(0, str(tree))
    places = [tree / "scripts/benchmarks/host.py", tree / "scripts/bench_host"]
    loader = importlib.machinery.SourceFileLoader("host", str(next(filter(Path.exists, places), places[0])))
    spec = importlib.util.spec_from_loader("host", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["host"] = module
    loader.exec_module(module)
    return module


def one_turn(tree: Path, clips: Path, out: Path, formats: tuple[str, ...]) -> None:
    """Run once to warm up, then time a run until the folder is closed. Needs a process of its own."""
    host = host_benchmark(tree)
    checkpoint = host.read_checkpoint(tree / "tests/data/models/tdt_demo/model.nemo")
    run = host.transcriber(checkpoint, NUM_TOKENS, host.default_threads())
    style = host.OutputStyle(formats)
    for name in ("warm-up", "timed"):
        start, cpu = time.perf_counter(), time.process_time()
        num_files = 0
        with host.open_journaled(out / name, host.OutputRun(style, {})) as output:
            if hasattr(run, "results"):
                results = run.results(clips, style=style, ledger=output.ledger)
            else:  # an earlier checkout
                results = run._results(clips, output.ledger)
            for result in results:
                output.write(result)
                num_files += 1
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"files_per_s": num_files / seconds, "cpu_us_per_file": cpu_s / num_files * 1e6}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=3000)
    parser.add_argument("--formats", default="jsonl,srt,txt")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each tree, beside one that is discarded")
    parser.add_argument("--tree", type=Path, help="another checkout, to compare with")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to write: a disk")
    parser.add_argument("--turn", nargs=3, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    formats = tuple(arguments.formats.split(","))
    if arguments.turn:
        tree, clips, out = arguments.turn
        return one_turn(tree, clips, out, formats)

    host = host_benchmark(ROOT)
    trees = {"this": ROOT, **({"other": arguments.tree.resolve()} if arguments.tree else {})}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        host.make_clips(folder / "clips", host.Kind("wav"), arguments.clips, CLIP_S)
        for turn in range(arguments.repeats + 1):
            for tree_name, tree in trees.items():
                places = [str(tree), str(folder / "clips"), str(folder / f"{tree_name}-{turn}")]
                command = [
                    sys.executable,
                    "-m",
                    "scripts.benchmarks.durability",
                    "--formats",
                    arguments.formats,
                    "--turn",
                    *places,
                ]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ))
                found[tree_name].append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{tree_name:6s} {found[tree_name][-1]['files_per_s']:8.0f} files/s", file=sys.stderr)

    def middle(tree_name: str, key: str) -> float:
        return round(median(turn[key] for turn in found[tree_name][1:]), 1)

    document: dict[str, Any] = {
        "benchmark": "durability",
        "files": arguments.clips,
        "formats": list(formats),
        "statistic": f"median of {arguments.repeats} runs, in turns",
        **{name: {key: middle(name, key) for key in ("files_per_s", "cpu_us_per_file")} for name in trees},
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    if arguments.tree:
        document["loss_percent"] = round(
            100 * (1 - document["this"]["files_per_s"] / document["other"]["files_per_s"]), 1
        )
    print(json.dumps(document))


if __name__ == "__main__":
    main()
