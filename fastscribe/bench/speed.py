"""The rows of `fastscribe bench`: for each dtype and batch budget the speed from files (`rtfx`, which is what one
pays for) and from memory, where the time went, memory held, and the share of what the machine could do (bench/roofline.py).

Recordings are the user's own or made up, as many as keep the measurement within a time that is guessed from a few of them.
Batches in memory are freed before the files are measured; the peak is that of the files. One model is in memory at a time.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastscribe._system.processors import usable_processors
from fastscribe.bench import roofline, synthetic, throughput_passes, work
from fastscribe.bench.machine import peak_bytes, release, reset_peak
from fastscribe.bench.result import describe_error
from fastscribe.bench.roofline import Roofline
from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.location import locate
from fastscribe.cli.terminal import say
from fastscribe.config import Options, OutputStyle
from fastscribe.errors import UsageError, is_out_of_memory
from fastscribe.families.model import torch_dtype
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.dtype_choice import check_dtype
from fastscribe.pipeline.model_building import choose_device
from fastscribe.pipeline.stats import usd_per_audio_hours
from fastscribe.transcriber import Transcriber
from fastscribe.types import Batch, Failure

CASE = ("model", "dtype", "batch_frames")
MEAN_S = 7.85  # of synthetic recordings
FEWEST, QUICK_FEWEST, _STEP, _MOST = 8, 2, 4, 8192  # recordings a pass: 8, 32 .. 8192
_MAX_RECORDINGS = 2048  # different synthetic recordings
_TRIED_S = 1.0  # a guess of the speed takes about as long
_STAGES = {"copy": "copy", "features": "features", "encode": "encode", "decode": "decode", "assemble": "text"}
_FILE_STAGES = {"wait_for_audio": "wait_for_audio", "write": "write"}
_MEASURED_BESIDE = "smi_"  # by the GPU's driver, while the run from files went on

Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """Which model, how. `refused` has the fast paths that its transcribers were refused (fast_paths.py)."""

    name: str
    path: Path
    device: torch.device
    say: Callable[[str], None]
    options: Options = field(default_factory=Options)
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: str | None, device: str, dtypes: Sequence[str], beam: int | None = None) -> Subject:
        """Check model, device and dtypes before anything is made, and raise their errors. The packaged model is the default."""
        at = choose_device(device)
        for dtype in dtypes:
            check_dtype(dtype, at)
        path, heard = locate(model or "default", say), RefusedPaths(say)
        return cls(_model_name(model, path), path, at, heard, Options(beam=beam), heard.reasons)

    def load(self, dtype: str) -> Transcriber:
        """Raise UsageError if the model does not fit in memory."""
        try:
            return Transcriber.load(self.path, str(self.device), dtype, self.options, self.say)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise UsageError(f"{self.name} in {dtype} does not fit in the memory of {self.device}") from error

    @contextmanager
    def from_files(self, loaded: Transcriber) -> Iterator[Transcriber]:
        """Give the transcriber that `fastscribe transcribe` has for many files: on a GPU one with helper processes."""
        if self.device.type != "cuda":
            yield loaded
            return
        facts, gpu = loaded.facts, str(self.device.index or 0)
        with Transcriber.load(self.path, "auto", facts.dtype, loaded._options, self.say, devices=gpu) as found:
            found._executor.style = OutputStyle()
            yield found


def _model_name(requested: str | None, path: Path) -> str:
    """The hub's name, or the file's or folder's; where that is "model", as NeMo names most files, the folder's around it."""
    if path == PACKAGED:
        return "fastscribe-default"
    if requested is not None and not Path(requested).exists():
        return requested.removeprefix("hf://")
    return path.resolve().parent.name if path.stem == "model" else path.resolve().name.removesuffix(".nemo")


def about(transcriber: Transcriber) -> dict[str, Any]:
    """What results say of a model beside its name."""
    beam = transcriber._recognizer.beam
    return {"random_weights": transcriber._model.has_random_weights, **({"beam": beam} if beam > 1 else {})}


@dataclass(frozen=True)
class Recordings:
    """`inputs` as Transcriber.transcribe() takes them. `once` are the same without copies: from memory they are gone through
    `copies` times, while from files each copy is a file."""

    inputs: Sequence[Any]
    clips: int | None = None  # number of different recordings; None: all that were given
    once: Sequence[Any] = ()
    copies: int = 1
    rtfx: float | None = None  # as guessed, where that decided how many there are


def guessed_rtfx(transcriber: Transcriber) -> float:
    """From twice as many recordings each time, until that takes about a second.

    Each number goes twice, and the first time, in which kernels are compiled and graphs captured, does not count.
    """
    budget, count = transcriber._recognizer.choose_budget(), 2
    while True:
        waves = synthetic.waves(synthetic.leaderboard_lengths_s(count, seed=5), seed=6)
        batches = throughput_passes.batches_of(waves, transcriber, budget)
        throughput_passes.stream(transcriber, batches)
        found = throughput_passes.stream(transcriber, batches)
        if found["wall_s"] > _TRIED_S or count >= _MAX_RECORDINGS:
            return float(found["audio_s"] / found["wall_s"])
        count *= 2


def amount(rtfx: float, seconds: float, passes: int, fewest: int = FEWEST) -> int:
    """Recordings of MEAN_S a pass, for `passes` passes in about `seconds`: half of that to twice as much.

    One of few numbers, each four times the last: so the same command does the same work, although it guesses another speed
    each time, unless that is near where one number gives way to the next.
    """
    wanted = rtfx * seconds / passes / MEAN_S
    steps = max(0, round(math.log(wanted / fewest, _STEP)))
    return min(int(fewest * _STEP**steps), _MOST)  # typeshed: int ** int may be a float


def make_recordings(folder: Path, count: int, rtfx: float | None = None) -> Recordings:
    """FLAC files of leaderboard-like lengths below `folder`; with `rtfx`, of more than a few thousand some are copies."""
    copies = 1 if rtfx is None else max(1, count // _MAX_RECORDINGS)
    waves = synthetic.waves(synthetic.leaderboard_lengths_s(count // copies, seed=3), seed=4)
    paths = synthetic.write_files(folder / "once", waves, "flac", usable_processors())
    if copies == 1:
        return Recordings((str(folder / "once"),), count, rtfx=rtfx)
    throughput_passes.hard_links(paths, folder / "copies", copies)
    return Recordings((str(folder / "copies"),), count // copies, (str(folder / "once"),), copies, rtfx)


def find_roofline(
    transcriber: Transcriber, lengths_s: Sequence[float], budget: Budget, memory_gb_per_s: float
) -> Roofline:
    """In the batches that this budget makes of the recordings; matrices have as many rows as the mean frame's batch."""
    config, recognizer = transcriber._config, transcriber._recognizer
    planned = batching.plan(lengths_s, config.num_frames, budget)
    frames = [sum(map(config.num_frames, batch)) for batch in planned]
    rows = round(sum(count**2 for count in frames) / sum(frames))
    rate = roofline.matrix_rate(config.encoder, recognizer.device, recognizer.dtype, rows)
    activation_bytes = torch_dtype(recognizer.dtype).itemsize
    found = work.per_audio_s(config, lengths_s, recognizer.dtype, activation_bytes, recognizer.beam)
    return Roofline(rate, memory_gb_per_s, found.gflop, found.mb_in_batches_of(math.fsum(lengths_s) / len(frames)))


@dataclass
class Measurement:
    """One model in one dtype. `lengths_s` are those of the utterances that are measured."""

    transcriber: Transcriber
    subject: Subject
    recordings: Recordings
    auto: Budget = field(default_factory=lambda: Budget(math.inf))
    failures: list[Failure] = field(default_factory=list)
    lengths_s: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, transcriber: Transcriber, subject: Subject, recordings: Recordings) -> Measurement:
        """Raises UsageError where none of the inputs can be read."""
        found = cls(transcriber, subject, recordings)
        batches, found.failures = found.batches("auto")
        found.auto = replace(transcriber._engine.budget)
        if not batches:
            why = f": {found.failures[0].path}: {found.failures[0].message}" if found.failures else ""
            raise UsageError(f"no recording that can be measured{why}")
        found.lengths_s = [utterance.duration_s for batch in batches for utterance in batch.utterances]
        return found

    @property
    def audio_s(self) -> float:
        return sum(self.lengths_s)

    @property
    def auto_frames(self) -> int:
        return round(self.auto.frames)

    def ceiling(self, batch_frames: int | Literal["auto"], memory_gb_per_s: float) -> Roofline:
        """What the machine could reach within this budget."""
        budget = self.auto if batch_frames == "auto" else Budget(batch_frames)
        return find_roofline(self.transcriber, self.lengths_s, budget, memory_gb_per_s)

    def batches(self, frames: int | Literal["auto"]) -> tuple[list[Batch], list[Failure]]:
        """Within this budget, which is also the one of later runs."""
        self.transcriber._options = replace(self.transcriber._options, batch_frames=frames)
        once = self.recordings.once or self.recordings.inputs
        return throughput_passes.read_batches(self.transcriber, once)

    def rows(self, ceilings: Sequence[tuple[int | Literal["auto"], Roofline]], passes: int, out: Path) -> Iterator[Row]:
        """A row a budget, with its ceiling; what does not fit in memory is a row with its error."""
        for batch_frames, ceiling in ceilings:
            key = {
                "model": self.subject.name,
                "dtype": self.transcriber._recognizer.dtype,
                "batch_frames": batch_frames,
            }
            key["budget_frames"] = self.auto_frames if batch_frames == "auto" else batch_frames
            try:
                yield key | self._row(batch_frames, passes, ceiling, out)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.transcriber._engine.drop()  # nothing of this case may come out in the next
                yield key | {"error": describe_error(error)}
            release(self.subject.device)

    def _row(self, frames: int | Literal["auto"], passes: int, ceiling: Roofline, out: Path) -> Row:
        transcriber, recordings = self.transcriber, self.recordings
        batches, _ = self.batches(frames)
        transcriber._engine.budget = Budget(math.inf)
        memory = throughput_passes.from_batches(transcriber, batches, passes, recordings.copies)
        if math.isfinite(transcriber._engine.budget.frames):
            raise torch.OutOfMemoryError(
                "batches of this size do not fit in memory; smaller ones were measured in their place"
            )
        del batches
        folder = out / f"run{len(list(out.iterdir()))}"
        reset_peak(self.subject.device)
        with self.subject.from_files(transcriber) as of_command:
            device = self.subject.device
            files = throughput_passes.from_files(of_command, recordings.inputs, folder, passes, device=device)
        shutil.rmtree(folder, ignore_errors=True)
        return _speeds(memory, files) | {
            "ceiling_rtfx": ceiling.ceiling_rtfx,
            "ceiling_reached_share": memory["rtfx"] / ceiling.ceiling_rtfx,
            "peak_bytes": peak(transcriber),
        }


def _speeds(memory: Row, files: Row) -> Row:
    wall_s, files_wall_s = memory["middle_wall_s"], files["middle_wall_s"]
    return {
        "rtfx": files["rtfx"],
        "files_load_s": files["load_s"],
        "first_batch_s": files["first_batch_s"],
        "total_s": files["total_s"],
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


def usd_per_hours(rtfx: float, usd_per_hour: float | None) -> dict[str, float | None]:
    """Return USD per 1,000 and per 1,000,000 hours of audio; None where the price is not known."""
    return {
        "usd_per_1000_audio_hours": usd_per_audio_hours(rtfx, usd_per_hour, 1e3),
        "usd_per_1000000_audio_hours": usd_per_audio_hours(rtfx, usd_per_hour, 1e6),
    }


def peak(transcriber: Transcriber) -> int:
    """Bytes since reset_peak, or since the process began where it cannot be reset."""
    found = peak_bytes(transcriber._recognizer.device)
    return transcriber._recognizer.peak_bytes() if found is None else found
