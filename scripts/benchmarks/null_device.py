"""A device that decodes nothing: it takes the time that a GPU takes and answers each utterance with the same number of words.

    python -m scripts.benchmarks.null_device helpers|process RTFX STATS transcribe FOLDER -o OUT ..

runs the command behind STATS with such a device, in a process of its own with helpers, or in the command's process, and writes
what the run cost into the file STATS. scripts/benchmarks/host.py calls it. main() is the device's process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.interfaces import ModelFacts
from fastscribe.pipeline.workers.arena import SharedMemory
from fastscribe.pipeline.workers.device import serve
from fastscribe.pipeline.workers.messages import Start
from fastscribe.text.hypothesis_columns import HypothesisColumns
from fastscribe.types import AnyArray, Batch

NUM_TOKENS = 40  # 20 words
BATCH_FRAMES = 32_768
_RTFX, _STATS = "FASTSCRIBE_NULL_RTFX", "FASTSCRIBE_NULL_STATS"  # environment variables
_IN_FLIGHT = 3  # as the engine on a GPU
_TEMPLATES = 64


class NullEngine:
    """Stands in for the engine on a GPU of a given speed.

    Args:
        checkpoint: Has the vocabulary and the rate.
        rtfx: Seconds of audio that the device decodes in a second; 0: it takes no time.
        stats: File for what it measures, written when a run ends.
    """

    max_in_flight = _IN_FLIGHT

    def __init__(self, checkpoint: Checkpoint, rtfx: float, stats: Path) -> None:
        config = checkpoint.config
        facts = ModelFacts("null", "fp32", "tdt", 1, "full", config.frame_s, zero_duration_punctuation=True)
        self.device = SimpleNamespace(type="cuda", index=0)
        self.recognizer = SimpleNamespace(
            device=self.device,
            facts=facts,
            sample_rate=config.features.sample_rate,
            marks=frozenset(),
            peak_bytes=lambda: 0,
            choose_budget=lambda: Budget(BATCH_FRAMES),
            languages=None,
        )
        self.budget: Any = Budget(BATCH_FRAMES)
        self.stopwatch: Any = None
        self._rtfx, self._stats = rtfx, stats
        self._templates = _templates(checkpoint)
        self._in_flight: deque[tuple[Batch, float]] = deque()
        self._num_rows, self._idle_s, self._free_at, self._begun_at = 0, 0.0, 0.0, 0.0
        self._cpu_s = time.thread_time()

    def push(self, batch: Batch) -> Iterator[tuple[Batch, Sequence[Any]]]:
        now = time.perf_counter()
        if not self._num_rows:
            self._begun_at = self._free_at = now
        self._idle_s += max(0.0, now - self._free_at)
        audio_s = float(batch.lengths_B.sum()) / self.recognizer.sample_rate
        self._free_at = max(now, self._free_at) + (audio_s / self._rtfx if self._rtfx else 0.0)
        self._num_rows += len(batch.utterances)
        self._in_flight.append((batch, self._free_at))
        while len(self._in_flight) > _IN_FLIGHT:
            yield from self.advance()

    def advance(self) -> Iterator[tuple[Batch, Sequence[Any]]]:
        if self._in_flight:
            batch, ready_at = self._in_flight.popleft()
            time.sleep(max(0.0, ready_at - time.perf_counter()))
            if not self._in_flight:  # it may have been the last
                self._write_stats()
            yield batch, self._answers(len(batch.utterances))

    def drain(self) -> Iterator[tuple[Batch, Sequence[Any]]]:
        while self._in_flight:
            yield from self.advance()

    def drop(self) -> None:
        self._in_flight.clear()

    def _write_stats(self) -> None:
        """Write what was measured so far, which costs nothing."""
        now = time.thread_time()
        found = {
            "rows": self._num_rows,
            "cpu_s": now - self._cpu_s,
            "idle_s": self._idle_s,
            "busy_and_idle_s": self._free_at - self._begun_at,
        }
        self._stats.write_text(json.dumps(found), encoding="utf-8")
        self._cpu_s += time.thread_time() - now

    def _answers(self, num_rows: int) -> HypothesisColumns:
        picked = np.arange(num_rows) % _TEMPLATES
        ids, frames, durations, logprobs = (column[picked].reshape(-1) for column in self._templates)
        return HypothesisColumns(np.full(num_rows, NUM_TOKENS, np.int32), ids, frames, durations, logprobs)


def _templates(checkpoint: Checkpoint) -> tuple[AnyArray, ...]:
    """Return ids, frames, durations and logprobs [_TEMPLATES, NUM_TOKENS] of words of two tokens at an even pace.

    They reach over half as long again as the mean clip, so that no stretch is searched for speech without words.
    """
    rng, pieces = np.random.default_rng(0), checkpoint.tokenizer.pieces
    begins = [label for label, piece in enumerate(pieces) if piece.startswith("\u2581") and piece[1:].isalpha()]
    others = [label for label, piece in enumerate(pieces) if piece.isalpha()]
    shape = _TEMPLATES, NUM_TOKENS
    ids = np.where(np.arange(NUM_TOKENS) % 2, rng.choice(others, shape), rng.choice(begins, shape)).astype(np.int32)
    frames = np.tile((np.arange(NUM_TOKENS) / 3.5 * 12.5 * 1.5).astype(np.int32), (_TEMPLATES, 1))
    logprobs = np.log(rng.uniform(0.8, 1.0, shape)).astype(np.float32)
    return ids, frames, np.ones(shape, np.int32), logprobs


def main() -> None:
    """Be the device's process."""
    serve(_load)


def _load(start: Start, memory: SharedMemory, say: Callable[[str], None]) -> Any:
    import fastscribe.cuda.device  # noqa: F401 - with torch, which a real device has imported by now

    return NullEngine(read_checkpoint(start.model), float(os.environ[_RTFX]), Path(os.environ[_STATS]))


def run_command(mode: str, rtfx: str, stats: Path, command: Sequence[str]) -> None:
    """Run a command of fastscribe with the device, and write its costs."""
    from fastscribe.cli import main as run_main
    from fastscribe.cli import run

    device = Path(f"{stats}.device")
    os.environ |= {_RTFX: rtfx, _STATS: str(device)}
    costs: dict[str, Any] = {"helpers": 0, "helper_cpu_s": {}}
    write_all = run._write_all

    def timed(transcriber: Any, *given: Any, **named: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        found = write_all(transcriber, *given, **named)
        costs.update(wall_s=time.perf_counter() - wall, coordinator_cpu_s=time.process_time() - cpu)
        costs.update(files=found.files, failed=found.failed, audio_s=found.audio_s)
        if mode == "helpers":
            pool = transcriber._executor.helpers
            costs.update(helpers=pool.number, helper_cpu_s=dict(pool.cpu_s))
        return found

    run._write_all = timed
    if mode == "helpers":
        _run_with_helpers()
        command = [*command, "--devices", "0"]
    else:
        _run_in_process(float(rtfx))
    sys.argv = ["fastscribe", *command]
    try:
        run_main()
    finally:
        costs["device"] = json.loads(device.read_text(encoding="utf-8"))
        stats.write_text(json.dumps(costs), encoding="utf-8")


def _run_with_helpers() -> None:
    """Let the command find a GPU, whose process is main()."""
    from fastscribe.pipeline.workers import devices, process

    process.PROGRAMS["device"] = "scripts.benchmarks.null_device"
    devices.num_gpus = lambda: 1  # type: ignore[attr-defined, assignment]


def _run_in_process(rtfx: float) -> None:
    """Let the command load the device in its own process."""
    import fastscribe.transcriber
    from fastscribe.config import Options
    from fastscribe.pipeline import local
    from fastscribe.pipeline.local import LocalExecutor

    class NullExecutor(NullEngine, LocalExecutor):  # type: ignore[misc]
        """Stands in for the engine of this process."""

        def __init__(self, *given: Any) -> None:
            NullEngine.__init__(self, *given)
            self.opens_files, self.style, self._options, self._readers = True, None, Options(), None
            self._is_closed = False

    def load(model: Any, device: str, dtype: str, options: Options, *rest: Any, **named: Any) -> Any:
        checkpoint = read_checkpoint(model)
        executor = NullExecutor(checkpoint, rtfx, Path(os.environ[_STATS]))
        return fastscribe.transcriber.Transcriber(checkpoint, executor, options, 0.0)

    local.host_array = lambda shape, dtype, device: np.empty(shape, dtype)  # type: ignore[attr-defined]
    fastscribe.transcriber.Transcriber.load = staticmethod(load)  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("helpers", "process"))
    parser.add_argument("rtfx")
    parser.add_argument("stats", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of fastscribe, without the program's name")
    run_command(**vars(parser.parse_args()))
