"""Run a comparison: a process for each side, all over one set of recordings. Returns its settings and rows."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastscribe
from fastscribe._system.processors import usable_processors
from fastscribe.bench.peer_comparison import turns
from fastscribe.bench.peer_comparison.peers import Peer, strictest
from fastscribe.bench.peer_comparison.process import Worker
from fastscribe.bench.peer_comparison.recordings import Recording, gather, write_lone
from fastscribe.fast_paths import first_reasons

LONE_S = 10.0
LOADS = 3  # of each side
_PACKAGES = ("fastscribe", "torch", "numpy")
_STATISTIC = (
    "medians of the rounds after one discarded. wall_s: from paths to texts with the model loaded; cpu_s: processor time of "
    "the process meanwhile; latency: the same of one recording alone, in every round; load: of as many starts, imports "
    "included"
)


@dataclass(frozen=True)
class Opponent:
    """A peer and what it loads."""

    peer: Peer
    model: str
    same_checkpoint: bool
    name: str  # of the model, in results


@dataclass(frozen=True)
class Comparison:
    opponents: Sequence[Opponent]
    python: Path  # that has the peers
    inputs: Sequence[str]
    model: Path
    model_name: str  # what results call it
    device: str
    dtypes: Sequence[str]  # fastscribe's; "auto" is its own choice, and the peers' follow
    batch_sizes: Sequence[int] | None  # the peers'; None: those of each peer for the kind of device
    runs: int


@dataclass(frozen=True)
class _Side:
    """How a process is started, and again for the time of loading."""

    python: Path
    name: str
    model: str
    dtype: str
    packages: Sequence[str]


def compare(comparison: Comparison, found: dict[str, Any], say: Callable[[str], None]) -> None:
    """Puts settings, "rows", "sides" and "comparisons" into the mapping, those so far where it ends early.

    Raises UsageError or AudioError for the recordings, SideFailed where a side gives up.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        takes = strictest([one.peer for one in comparison.opponents])
        recordings = gather(comparison.inputs, takes, Path(scratch))
        common = _common(comparison, recordings, write_lone(recordings, LONE_S, Path(scratch) / "alone.wav"))
        say(f"{len(recordings)} recordings, {_audio_s(recordings):.1f} s, on {comparison.device}")
        found |= _settings(comparison, recordings)

        def start(side: _Side) -> Worker:
            settings = {"side": side.name, "model": side.model, "dtype": side.dtype, "packages": list(side.packages)}
            return Worker(side.python, common | settings)

        workers: dict[_Side, Worker] = {}
        for side in _ours(comparison):
            _add(workers, side, start(side), stack, say)
        dtypes = [worker.info["dtype"] for worker in workers.values()]
        found |= {
            key: value for key, value in next(iter(workers.values())).info.items() if key in ("random_weights", "beam")
        }
        for side in _theirs(comparison, dtypes):
            _add(workers, side, start(side), stack, say)
        found["versions"] = {side.name: worker.info["versions"] for side, worker in workers.items()}
        loads = {side: [worker.info] for side, worker in workers.items()}
        cases, alone = _cases(comparison, workers), [turns.Lone(worker) for worker in workers.values()]
        try:
            found["load_averages_1min"] = turns.take_turns(cases, alone, comparison.runs, say)
            found["peer_fallback_lines"] = [line for worker in workers.values() for line in _fallback_lines(worker)]
            stack.close()
            _load_again(loads, start, say)
        finally:
            _evaluate(comparison, found, cases, _about_sides(loads, alone), _audio_s(recordings))


def _ours(comparison: Comparison) -> list[_Side]:
    return [
        _Side(Path(sys.executable), turns.OURS, str(comparison.model), dtype, _PACKAGES) for dtype in comparison.dtypes
    ]


def _theirs(comparison: Comparison, dtypes: Sequence[str]) -> list[_Side]:
    """A side for each dtype that stands against one of fastscribe's."""
    return [
        _Side(comparison.python, one.peer.name, one.model, dtype, one.peer.packages)
        for one in comparison.opponents
        for dtype in dict.fromkeys(one.peer.dtypes.get(dtype, dtype) for dtype in dtypes)
    ]


def _add(
    workers: dict[_Side, Worker], side: _Side, worker: Worker, stack: ExitStack, say: Callable[[str], None]
) -> None:
    stack.callback(worker.stop)
    workers[side] = worker
    say(f"{side.name} {worker.info['dtype']}: loaded in {worker.info['load_s']:.1f} s")


def _cases(comparison: Comparison, workers: dict[_Side, Worker]) -> list[turns.Case]:
    kind = comparison.device.partition(":")[0]
    sizes: dict[str, Sequence[int | None]] = {turns.OURS: (None,)}
    sizes |= {one.peer.name: comparison.batch_sizes or one.peer.batch_sizes[kind] for one in comparison.opponents}
    return [turns.Case(worker, size) for side, worker in workers.items() for size in sizes[side.name]]


def _fallback_lines(worker: Worker) -> list[str]:
    return [] if worker.side == turns.OURS else worker.fallback_lines()


def _load_again(
    loads: dict[_Side, list[dict[str, Any]]], start: Callable[[_Side], Worker], say: Callable[[str], None]
) -> None:
    """Start each side again, in turns, with no other in memory."""
    for _ in range(LOADS - 1):
        for side, found in loads.items():
            worker = start(side)
            worker.stop()
            found.append(worker.info)
            say(f"{side.name} {worker.info['dtype']}: loaded again in {worker.info['load_s']:.1f} s")


def _about_sides(loads: dict[_Side, list[dict[str, Any]]], alone: Sequence[turns.Lone]) -> list[dict[str, Any]]:
    return [
        {
            "side": side.name,
            "dtype": infos[0]["dtype"],
            **turns.timed("load_s", [info["load_s"] for info in infos]),
            **turns.timed("load_cpu_s", [info["load_cpu_s"] for info in infos]),
            **lone.row(),
        }
        for (side, infos), lone in zip(loads.items(), alone, strict=True)
    ]


def _evaluate(
    comparison: Comparison,
    found: dict[str, Any],
    cases: Sequence[turns.Case],
    sides: list[dict[str, Any]],
    audio_s: float,
) -> None:
    counterparts: dict[str, Mapping[str, str]] = {one.peer.name: one.peer.dtypes for one in comparison.opponents}
    found["rows"] = turns.rows(cases, audio_s, counterparts)
    found["sides"] = sides
    found["refused"] = first_reasons(case.side.info for case in cases)
    found["comparisons"] = turns.comparisons(cases, sides)
    found["caveats"] = turns.caveats(found["rows"])


def _common(comparison: Comparison, recordings: Sequence[Recording], alone: str) -> dict[str, Any]:
    """Settings of all sides."""
    return {
        "device": comparison.device,
        "threads": usable_processors(),
        "paths": [recording.path for recording in recordings],
        "alone": alone,
        "root": str(Path(fastscribe.__file__).parents[1]),
    }


def _audio_s(recordings: Sequence[Recording]) -> float:
    return sum(recording.duration_s for recording in recordings)


def _settings(comparison: Comparison, recordings: Sequence[Recording]) -> dict[str, Any]:
    lengths_s = [recording.duration_s for recording in recordings]
    return {
        "peers": [one.peer.name for one in comparison.opponents],
        "model": comparison.model_name,
        "peer_models": {one.peer.name: one.name for one in comparison.opponents},
        "same_checkpoint": all(one.same_checkpoint for one in comparison.opponents),
        "files": len(recordings),
        "copied_files": sum(recording.is_copy for recording in recordings),
        "audio_s": round(_audio_s(recordings), 2),
        "shortest_s": round(min(lengths_s), 2),
        "longest_s": round(max(lengths_s), 2),
        "latency_audio_s": LONE_S,
        "threads": usable_processors(),
        "runs": comparison.runs,
        "load_average_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "statistic": _STATISTIC,
    }
