"""A run on a Ray cluster: the driver's memory, the gain of each worker, and the number of GPUs that one driver can feed.

    python -m scripts.benchmarks.ray_cluster memory [--rows 100000] [--workers 2]
    python -m scripts.benchmarks.ray_cluster scaling [--rows 1200] [--most 3] [--rounds 3]
    python -m scripts.benchmarks.ray_cluster driver --whole-us N [--rows 20000]

`memory` transcribes a manifest of many 0.2 s clips with the small CTC checkpoint of the tests, on a local cluster with a node
for each worker, into a folder with a journal. `scaling` compares numbers of workers with one processor each, alternately.
`driver` measures what the driver does for a row (a clip of 10 s with 25 words), stage by stage and without Ray's transport,
and simulates clusters with these times. Linux only. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import pickle
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from fastscribe.audio.inputs import expand
from fastscribe.config import Options, OutputStyle
from fastscribe.ray.chunks import ChunkQueue, Item
from fastscribe.ray.library import connected
from fastscribe.ray.pool import Size
from fastscribe.ray.run import RayTranscriber
from fastscribe.ray.worker import packed, unpacked
from fastscribe.results.formats.writers import render
from fastscribe.results.output import open_journaled
from fastscribe.results.output_run import OutputRun
from fastscribe.types import AudioInfo, Failure, RenderedTranscript, Segment, Source, Transcript, Word
from scripts.benchmarks.size import write_manifest

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "tests/data/models/ctc/model.nemo")
CLIP_S, WORDS = 10.0, 25  # of the simulated rows
GPU_RTFX = 3000.0  # of a simulated worker
GROUP_S, GROUP_ROWS, GROUPS_AHEAD = 0.5, 256, 4  # as in fastscribe.ray.worker and .pool
TRANSPORT_S = 0.0008  # assumed, of a group: ray.wait, next() and ray.get


@contextmanager
def cluster(num_nodes: int) -> Iterator[None]:
    """Start a head without processors and nodes with one each, and connect."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_DISABLE_MEMORY_MONITOR": "1", "RAY_memory_monitor_refresh_ms": "0"}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(num_nodes):
        nodes.add_node(num_cpus=1)
    try:
        with connected(nodes.address):
            yield
    finally:
        nodes.shutdown()


def start(workers: int) -> RayTranscriber:
    """Start workers with one processor each, and wait for all."""
    found = RayTranscriber.start(
        MODEL, "cpu", "fp32", Options(threads=2), lambda line: None, size=Size(workers, cpus=1)
    )
    while len(found._pool.ready) < workers:
        list(found._pool.events(1.0))
    return found


def measure_memory(rows: int, workers: int) -> dict[str, Any]:
    """Transcribe a manifest, and sample the driver's memory."""
    process = psutil.Process()
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name, cluster(workers), start(workers) as found:
        folder = Path(name)
        manifest = write_manifest(folder, rows, with_durations=False)
        begin, cpu = time.perf_counter(), time.process_time()
        done = failed = 0
        with (
            open_journaled(folder / "out", OutputRun(OutputStyle(), {})) as output,
            closing(found._results([str(manifest)], output.ledger)) as results,
        ):
            for result in results:
                done += 1
                failed += isinstance(result, Failure)
                with found.progress.stopwatch.time("write"):
                    output.write(result)
                if done in (1, 1000) or done % 10_000 == 0:
                    memory = process.memory_full_info()
                    at_s = time.perf_counter() - begin
                    samples.append({"rows": done, "s": at_s, "rss_mb": memory.rss / 1e6, "uss_mb": memory.uss / 1e6})
                    print("{rows:8.0f} rows {s:7.1f} s  rss {rss_mb:6.1f} MB".format(**samples[-1]), file=sys.stderr)
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        keys = sum(1 for _ in (folder / "out" / "transcripts.jsonl").open(encoding="utf-8"))
    return {
        "rows": done,
        "rows_written": keys,
        "failed": failed,
        "workers": workers,
        "wall_s": round(wall_s, 1),
        "rows_per_s": round(done / wall_s, 1),
        "driver_cpu_us_per_row": round(1e6 * cpu_s / done, 1),
        "driver_memory_mb": [{name: round(value, 1) for name, value in sample.items()} for sample in samples],
    }


def measure_scaling(rows: int, most: int, rounds: int) -> dict[str, Any]:
    """Transcribe the same clips with 1, 2 .. workers, in turns."""
    clips = sorted((ROOT / "tests/data/audio").glob("0*.flac"))
    wall_s: dict[int, list[float]] = {number: [] for number in range(1, most + 1)}
    cpu_s: dict[int, list[float]] = {number: [] for number in wall_s}  # of all workers
    audio_s = 0.0
    with tempfile.TemporaryDirectory() as name, cluster(most):
        manifest = Path(name) / "list.jsonl"
        lines = [json.dumps({"audio_filepath": str(clips[number % len(clips)])}) for number in range(rows)]
        manifest.write_text("\n".join(lines), encoding="utf-8")
        for _ in range(rounds):
            for number in wall_s:
                with start(number) as found:
                    list(found._results([str(clips[0])]))  # the first batch takes longer
                    begin, used_s = time.perf_counter(), worker_cpu_s(found)
                    results = list(found._results([str(manifest)]))
                    wall_s[number].append(time.perf_counter() - begin)
                    cpu_s[number].append(worker_cpu_s(found) - used_s)
                audio_s = sum(result.audio.duration_s for result in results if isinstance(result, Transcript))
                print(f"{number} workers: {wall_s[number][-1]:.1f} s", file=sys.stderr)
    table = [
        {
            "workers": number,
            "wall_s": [round(value, 2) for value in values],
            "rtfx": round(audio_s / median(values), 1),
            "times_one_worker": round(median(wall_s[1]) / median(values), 2),
            "workers_cpu_s": [round(value, 2) for value in cpu_s[number]],
            "audio_s_per_cpu_s": round(audio_s / median(cpu_s[number]), 1),
        }
        for number, values in wall_s.items()
    ]
    return {"rows": rows, "audio_s": round(audio_s, 1), "statistic": f"median of {rounds}, in turns", "table": table}


def worker_cpu_s(found: RayTranscriber) -> float:
    """Return the processor time of all workers so far, which other programs on the machine hardly change."""
    places = [handle.facts.place for handle in found._pool.ready if handle.facts is not None]
    times = [psutil.Process(int(place.split()[-1])).cpu_times() for place in places]
    return float(sum(one.user + one.system for one in times))


def measure_driver(rows: int) -> dict[str, float]:
    """Return microseconds a row of what the driver does, stage by stage."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        seconds[stage] = time.process_time() - begin

    with tempfile.TemporaryDirectory() as name:
        manifest = Path(name) / "list.jsonl"
        with manifest.open("w", encoding="utf-8") as file:
            for number in range(rows):
                file.write(json.dumps({"audio_filepath": f"{number}.wav", "duration": CLIP_S, "speaker": "a"}) + "\n")
        with open_journaled(Path(name) / "out", OutputRun(OutputStyle(), {})) as output:
            with timed("expand"):
                sources = [replace(found, index=index) for index, found in enumerate(expand([str(manifest)]))]
                kept = [one for one in sources if isinstance(one, Source) and output.ledger.expect(one)]
                items = [Item(one, CLIP_S) for one in kept if not output.ledger.is_done(one)]
            queue = ChunkQueue(3)
            with timed("hand_out"):
                queue.add(items)
                while (chunk := queue.take(10_000.0, 30.0, 8, is_idle=True)) is not None:
                    pickle.dumps(packed([item.source for item in chunk.items.values()]), protocol=5)
            groups = [[transcript(one) for one in kept[at : at + GROUP_ROWS]] for at in range(0, rows, GROUP_ROWS)]
            sent = [pickle.dumps(group, protocol=5) for group in groups]
            results: list[Transcript | Failure] = []
            with timed("receive"):
                for group in sent:
                    results += [unpacked(one, kept[one.index]) for one in pickle.loads(group)]
            with timed("write"):  # the committer's thread included
                for result in results:
                    output.write(result)
                output.flush()
    return {stage: round(1e6 * value / rows, 1) for stage, value in seconds.items()}


def transcript(source: Source) -> Transcript:
    """Return a result as a worker sends it."""
    words = tuple(Word(f"word{number}", 0.4 * number, 0.4 * number + 0.3, 0.97) for number in range(WORDS))
    text = " ".join(word.text for word in words)
    audio = AudioInfo(source.path, source.id, 16_000, 1, int(16_000 * CLIP_S), index=source.index, row=source.row)
    whole = Transcript(audio, text, (Segment(text, 0.0, CLIP_S, 0.97, words),), ())
    return RenderedTranscript(replace(audio, row=None), text, (), (), texts={"jsonl": render(whole, "jsonl")})


def simulate(workers: int, row_s: float, transport_s: float, limit_s: float = 60.0) -> dict[str, Any]:
    """Return the throughput of a cluster whose driver needs `row_s` for each row.

    `transport_s` is Ray's own work for a group. Each worker makes rows at its speed and sends them in groups. With
    GROUPS_AHEAD groups that the driver has not taken it pauses. The driver takes one group at a time, the oldest first.
    """
    rows_per_s = GPU_RTFX / CLIP_S
    rows = min(GROUP_ROWS, max(1, int(rows_per_s * GROUP_S)))
    make_s, take_s = rows / rows_per_s, transport_s + rows * row_s
    ready = [(make_s * (1 + worker / workers), worker) for worker in range(workers)]  # when a worker has its next group
    heapq.heapify(ready)
    taken_at: list[list[float]] = [[] for _ in range(workers)]
    driver_s = busy_s = 0.0
    done = 0
    while ready[0][0] < limit_s:
        at, worker = heapq.heappop(ready)
        begin = max(driver_s, at)
        driver_s = begin + take_s
        busy_s += take_s
        done += rows
        taken_at[worker].append(driver_s)
        full = taken_at[worker][-GROUPS_AHEAD] if len(taken_at[worker]) >= GROUPS_AHEAD else 0.0
        heapq.heappush(ready, (max(at, full) + make_s, worker))
    total_s = max(limit_s, driver_s)
    rtfx = done * CLIP_S / total_s
    share = rtfx / (workers * GPU_RTFX)
    return {
        "gpus": workers,
        "audio_hours_per_hour": round(rtfx, 0),
        "share_of_the_gpus": round(min(1.0, share), 3),
        "driver_busy_share": round(min(1.0, busy_s / total_s), 3),
    }


def driver_document(rows: int, whole_us: float) -> dict[str, Any]:
    """Return the measured times, and clusters simulated with two of them: the best and the worst case.

    Args:
        rows: To measure the stages with.
        whole_us: Processor time of the whole driver for a row, in microseconds, from a run of `memory`: with Ray's threads.
    """
    stages = measure_driver(rows)
    cases = {
        "stages_alone": (sum(stages.values()) / 1e6, TRANSPORT_S),
        "all_processor_time_in_turn": (whole_us / 1e6, 0.0),
    }
    return {
        "rows": rows,
        "driver_us_per_row": stages,
        "driver_us_per_row_in_a_run_on_ray": whole_us,
        "assumptions": {
            "clip_s": CLIP_S,
            "words_per_clip": WORDS,
            "rtfx_of_a_gpu": GPU_RTFX,
            "rows_per_group": GROUP_ROWS,
            "groups_ahead": GROUPS_AHEAD,
            "stages_alone": "the driver's own steps, one after the other, and transport_s_per_group for Ray",
            "transport_s_per_group": TRANSPORT_S,
            "all_processor_time_in_turn": "all threads of the driver in a real run, Ray's included, as if only one could run",
            "left_out": "network, node failures, listing of folders, the disk's own time",
        },
        "gpus_that_one_driver_feeds": {
            name: round(CLIP_S / GPU_RTFX / (row_s + transport_s / GROUP_ROWS), 1)
            for name, (row_s, transport_s) in cases.items()
        },
        "simulated": {
            name: [simulate(workers, *case) for workers in (1, 2, 4, 8, 16, 32, 64, 128, 512)]
            for name, case in cases.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    memory = commands.add_parser("memory")
    memory.add_argument("--rows", type=int, default=100_000)
    memory.add_argument("--workers", type=int, default=2)
    scaling = commands.add_parser("scaling")
    scaling.add_argument("--rows", type=int, default=1200)
    scaling.add_argument("--most", type=int, default=3)
    scaling.add_argument("--rounds", type=int, default=3)
    driver = commands.add_parser("driver")
    driver.add_argument("--rows", type=int, default=20_000)
    driver.add_argument("--whole-us", type=float, required=True, help="driver_cpu_us_per_row of a run of `memory`")
    given = parser.parse_args()
    if given.command == "memory":
        found = measure_memory(given.rows, given.workers)
    elif given.command == "scaling":
        found = measure_scaling(given.rows, given.most, given.rounds)
    else:
        found = driver_document(given.rows, given.whole_us)
    machine = {
        "benchmark": f"ray {given.command}",
        "model": "tests/data/models/ctc, fp32, CPU",
        "processors": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    print(json.dumps(machine | found))


if __name__ == "__main__":
    main()
