"""The rows of `fastscribe bench throughput`: for each dtype and batch budget the speed from files (`rtfx`, which is what one
pays for) and from memory, where the time went, memory held, and how near that is to what the machine could do (reach.py).

Recordings are the user's own or made up, as many as keep the measurement within a time that is guessed from a few of them.
One model is in memory at a time.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastscribe.batching import Budget
from fastscribe.bench import reach, synthetic, throughput, work
from fastscribe.bench.notebook import describe
from fastscribe.bench.reach import Reach
from fastscribe.config import Options
from fastscribe.device import is_out_of_memory
from fastscribe.errors import UsageError
from fastscribe.run import Transcriber
from fastscribe.types import Batch, Failure

CASE = ("model", "dtype", "batch_frames")
_MEAN_S = 7.85  # of synthetic recordings
_FEWEST, _MOST, _MOST_COPIES = 8, 2048, 8  # synthetic recordings, and names for each of them in a pass
_TRIED_S = 1.0  # a guess of the speed takes about as long
_STAGES = {"copy": "copy", "features": "features", "encode": "encode", "decode": "decode", "assemble": "text"}
_FILE_STAGES = {"wait_for_audio": "wait_for_audio", "write": "write"}
_MEASURED_BESIDE = ("smi_", "j_per_", "kwh_per_", "energy_")  # by the GPU's driver, while the run from files went on

Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """Which model, how."""

    name: str
    path: Path
    device: torch.device
    say: Callable[[str], None]
    options: Options = field(default_factory=Options)

    def load(self, dtype: str) -> Transcriber:
        return Transcriber.load(self.path, str(self.device), dtype, self.options, self.say)


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    batch_frames: tuple[int | Literal["auto"], ...]
    passes: int


@dataclass(frozen=True)
class Recordings:
    """`inputs` as the user would name them, the first `most` of which count. `once` are the same without copies: from
    memory they are gone through `copies` times, while from files each copy is a file."""

    inputs: tuple[str, ...]
    most: int | None = None
    once: tuple[str, ...] = ()
    copies: int = 1


def guessed_rtfx(transcriber: Transcriber) -> float:
    """From twice as many recordings each time, until that takes about a second."""
    budget, count = transcriber.recognizer.choose_budget(), 2
    while True:
        waves = synthetic.waves(synthetic.leaderboard_lengths_s(count, seed=5), seed=6)
        found = throughput.stream(transcriber, throughput.batches_of(waves, transcriber, budget))
        if found["wall_s"] > _TRIED_S or count >= _MOST:
            return found["audio_s"] / found["wall_s"]
        count *= 2


def synthetic_amount(rtfx: float, seconds: float, passes: int) -> tuple[int, int]:
    """Recordings, and copies of each in a pass, for `passes` passes in about `seconds`."""
    wanted = rtfx * seconds / passes / _MEAN_S
    return round(min(max(wanted, _FEWEST), _MOST)), min(max(1, math.floor(wanted / _MOST)), _MOST_COPIES)


def make_recordings(folder: Path, count: int, copies: int) -> Recordings:
    """FLAC files of leaderboard-like lengths below `folder`."""
    waves = synthetic.waves(synthetic.leaderboard_lengths_s(count, seed=3), seed=4)
    paths = synthetic.write_files(folder / "once", waves, "flac", len(os.sched_getaffinity(0)))
    if copies == 1:
        return Recordings((str(folder / "once"),))
    throughput.hard_links(paths, folder / "copies", copies)
    return Recordings((str(folder / "copies"),), None, (str(folder / "once"),), copies)


def reach_of(transcriber: Transcriber, lengths_s: Sequence[float], frames: float, memory_gb_per_s: float) -> Reach:
    """In batches of so many encoder frames."""
    config, recognizer = transcriber.config, transcriber.recognizer
    frames = min(frames, sum(map(config.num_frames, lengths_s)))
    rate = reach.matrix_rate(config.encoder, recognizer.device, recognizer.dtype, round(frames))
    found = work.per_audio_s(config, lengths_s, recognizer.dtype)
    return reach.of((rate, memory_gb_per_s), found, frames * config.frame_s)


@dataclass
class Measurement:
    """One model in one dtype. `lengths_s` are those of the utterances that are measured."""

    transcriber: Transcriber
    subject: Subject
    recordings: Recordings
    auto_frames: float = math.inf
    failures: list[Failure] = field(default_factory=list)
    lengths_s: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, transcriber: Transcriber, subject: Subject, recordings: Recordings) -> Measurement:
        """Raises UsageError where none of the inputs can be read."""
        found = cls(transcriber, subject, recordings)
        batches, found.failures = found.batches("auto")
        found.auto_frames = transcriber.engine.budget.frames
        if not batches:
            why = f": {found.failures[0].path}: {found.failures[0].message}" if found.failures else ""
            raise UsageError(f"no recording that can be measured{why}")
        found.lengths_s = [utterance.duration_s for batch in batches for utterance in batch.utterances]
        return found

    @property
    def audio_s(self) -> float:
        return sum(self.lengths_s)

    def batches(self, frames: int | Literal["auto"]) -> tuple[list[Batch], list[Failure]]:
        """Within this budget, which is also the one of later runs."""
        self.transcriber.options = replace(self.transcriber.options, batch_frames=frames)
        once = self.recordings.once or self.recordings.inputs
        return throughput.read_batches(self.transcriber, once, self.recordings.most)

    def rows(self, plan: Plan, ceiling: Reach, out: Path) -> Iterator[Row]:
        """A row a budget; what does not fit in memory is a row with its error."""
        for asked in plan.batch_frames:
            key = {"model": self.subject.name, "dtype": self.transcriber.recognizer.dtype, "batch_frames": asked}
            key["budget_frames"] = round(self.auto_frames) if asked == "auto" else asked
            try:
                yield key | self._row(asked, plan.passes, ceiling, out)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.transcriber.engine.close()  # nothing of this case may come out in the next
                yield key | {"error": describe(error)}
            free(self.subject.device)

    def _row(self, frames: int | Literal["auto"], passes: int, ceiling: Reach, out: Path) -> Row:
        transcriber, recordings = self.transcriber, self.recordings
        batches, _ = self.batches(frames)
        reset_peak(self.subject.device)
        transcriber.engine.budget = Budget(math.inf)
        memory = throughput.from_batches(transcriber, batches, passes, recordings.copies)
        peak_bytes = peak(transcriber)
        if math.isfinite(transcriber.engine.budget.frames):
            raise torch.OutOfMemoryError(
                "batches of this size do not fit in memory; smaller ones were measured in their place"
            )
        del batches
        folder = out / f"run{len(list(out.iterdir()))}"
        files = throughput.from_inputs(transcriber, recordings.inputs, folder, passes, recordings.most)
        shutil.rmtree(folder, ignore_errors=True)
        return _speeds(memory, files) | {
            "ceiling_rtfx": ceiling.ceiling_rtfx,
            "ceiling_reached_share": memory["rtfx"] / ceiling.ceiling_rtfx,
            "peak_bytes": peak_bytes,
        }


def _speeds(memory: Row, files: Row) -> Row:
    wall_s, files_wall_s = memory["middle_wall_s"], files["middle_wall_s"]
    return {
        "rtfx": files["rtfx"],
        "rtfx_runs": [files["audio_s"] / run_s for run_s in files["walls_s"]],
        "memory_rtfx": memory["rtfx"],
        "memory_rtfx_runs": [memory["audio_s"] / run_s for run_s in memory["walls_s"]],
        "audio_s": memory["audio_s"],
        "files": files["files"],
        "failed": files["failed"],
        "batches": memory["batches"],
        "rows_of_largest_batch": memory["rows_of_largest_batch"],
        "padding_share": memory["padding_share"],
        "labels_per_audio_s": memory["labels_per_audio_s"],
        **{f"{name}_share": memory["stage_s"].get(stage, 0.0) / wall_s for stage, name in _STAGES.items()},
        **{
            f"files_{name}_share": files["stage_s"].get(stage, 0.0) / files_wall_s
            for stage, name in _FILE_STAGES.items()
        },
        **{key: value for key, value in files.items() if key.startswith(_MEASURED_BESIDE)},
    }


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reset_peak(device: torch.device) -> None:
    """From now on the peak is counted anew; where a system cannot do that, it stays what it was."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # freed memory is kept (freed_memory.py), and would count
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak(transcriber: Transcriber) -> int:
    """Bytes: of the device's memory on a GPU, of the process's on a CPU."""
    recognizer = transcriber.recognizer
    if recognizer.device.type == "cpu":
        with suppress(OSError, StopIteration):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
    return recognizer.peak_bytes()
