"""Run a comparison: two processes over one set of recordings. Returns its settings and rows."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastscribe
from fastscribe._system.processors import usable_processors
from fastscribe.bench.peer_comparison import turns
from fastscribe.bench.peer_comparison.peers import Peer
from fastscribe.bench.peer_comparison.process import Worker
from fastscribe.bench.peer_comparison.recordings import Recording, gather

_PACKAGES = ("fastscribe", "torch", "numpy")
_STATISTIC = (
    "wall clock from paths to texts with the model loaded, median of the rounds after one discarded; fastscribe takes a turn "
    "beside each of the peer's, so it has more of them"
)


@dataclass(frozen=True)
class Comparison:
    peer: Peer
    python: Path  # that has the peer
    inputs: Sequence[str]
    model: Path
    model_name: str  # what results call it
    peer_model: str
    same_checkpoint: bool
    device: str
    dtype: str  # fastscribe's; "auto" is its own choice, and the peer's follows
    batch_sizes: Sequence[int]  # the peer's
    runs: int


def compare(comparison: Comparison, found: dict[str, Any], say: Callable[[str], None]) -> None:
    """Puts settings and "rows" into the mapping, those so far where it ends early.

    Raises UsageError or AudioError for the recordings, SideFailed where a side gives up.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        recordings = gather(comparison.inputs, comparison.peer.takes, Path(scratch))
        audio_s = sum(recording.duration_s for recording in recordings)
        say(f"{len(recordings)} recordings, {audio_s:.1f} s, on {comparison.device}")

        def start(python: Path, side: str, model: str, dtype: str, packages: Sequence[str]) -> Worker:
            settings = {"side": side, "model": model, "dtype": dtype, "packages": list(packages)}
            worker = Worker(python, _common(comparison, recordings) | settings)
            stack.callback(worker.stop)
            say(f"{side}: loaded in {worker.info['load_s']:.1f} s, {worker.info['dtype']}")
            return worker

        ours = start(Path(sys.executable), turns.OURS, str(comparison.model), comparison.dtype, _PACKAGES)
        dtype = ours.info["dtype"]
        theirs = start(
            comparison.python,
            comparison.peer.name,
            comparison.peer_model,
            comparison.peer.dtypes.get(dtype, dtype),
            comparison.peer.packages,
        )
        found |= {key: ours.info[key] for key in ("random_weights", "beam") if key in ours.info}
        found |= {
            **_settings(comparison, recordings),
            "load_s": {worker.side: round(worker.info["load_s"], 2) for worker in (ours, theirs)},
            "versions": {worker.side: worker.info["versions"] for worker in (ours, theirs)},
        }
        mine, others = turns.Case(ours, None), [turns.Case(theirs, size) for size in comparison.batch_sizes]
        try:
            turns.take_turns(mine, others, comparison.runs, say)
        finally:
            found["rows"] = turns.rows(mine, others, audio_s)
            found["caveats"] = turns.caveats(found["rows"])
            found["peer_fallback_lines"] = theirs.fallback_lines()


def _common(comparison: Comparison, recordings: Sequence[Recording]) -> dict[str, Any]:
    """Settings of both sides."""
    return {
        "device": comparison.device,
        "threads": usable_processors(),
        "paths": [recording.path for recording in recordings],
        "root": str(Path(fastscribe.__file__).parents[1]),
    }


def _settings(comparison: Comparison, recordings: Sequence[Recording]) -> dict[str, Any]:
    lengths_s = [recording.duration_s for recording in recordings]
    return {
        "peer": comparison.peer.name,
        "model": comparison.model_name,
        "peer_model": comparison.peer_model,
        "same_checkpoint": comparison.same_checkpoint,
        "files": len(recordings),
        "copied_files": sum(recording.is_copy for recording in recordings),
        "audio_s": round(sum(lengths_s), 2),
        "shortest_s": round(min(lengths_s), 2),
        "longest_s": round(max(lengths_s), 2),
        "threads": usable_processors(),
        "runs": comparison.runs,
        "statistic": _STATISTIC,
    }
