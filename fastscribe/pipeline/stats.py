"""Statistics of a run: stage times, RTFx, padding share, USD per 1,000 audio hours. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

from fastscribe.audio.input_names import Repeats
from fastscribe.types import Failure, Transcript, Utterance


class Stopwatch:
    """Seconds by stage. Repeated and nested uses add up. Not thread-safe: only the thread that drives the model uses it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time of the `with` block to a stage."""
        start = perf_counter()
        try:
            yield
        finally:
            self.add(stage, perf_counter() - start)


@dataclass
class DeviceShare:
    """What one of several devices has done in a run.

    Attributes:
        name: The device, as --devices names it: "cuda:0", "cpu:1".
        device: Name of the GPU or the processor.
        batches: Batches decoded.
        utterances: Utterances decoded or failed.
        audio_s: Seconds of audio in them.
        busy_s: Seconds that its processes spent with decoding, without the wait for batches and for audio.
        peak_bytes: Peak memory of the GPU, or of the process on a CPU; of several processes, the sum of their peaks.
        died: Times that a process of it ended before the run did.
        pinned_bytes: Of the memory that processes share, what a GPU's driver has pinned; of several processes, the sum.
    """

    name: str
    device: str
    batches: int = 0
    utterances: int = 0
    audio_s: float = 0.0
    busy_s: float = 0.0
    peak_bytes: int = 0
    died: int = 0
    pinned_bytes: int = 0

    def plus(self, other: DeviceShare) -> DeviceShare:
        """Return what both processes of a device have done together."""
        added = {name: getattr(self, name) + getattr(other, name) for name in _ADDED}
        return replace(self, device=self.device or other.device, **added)


_MAX_NAMES = 3  # files of a kind that are named
_APART_S, _APART = 2.0, 0.1  # in which a voice has a channel for itself: time, and share of the recording
_ADDED = ("batches", "utterances", "audio_s", "busy_s", "peak_bytes", "died", "pinned_bytes")


# Gets the utterances of every decoded batch, in the thread that drives the model.
Watcher = Callable[[Sequence[Utterance]], None]


@dataclass
class Progress:
    """Counts of the current run. Progress bars and reports read it while the run writes it."""

    files: int = 0
    failed: int = 0
    skipped: int = 0  # done by an earlier run, and not among `files`
    textless: int = 0  # left out by align, because they have no text; of shards also those of others
    # Files of folders that are not audio by their names, by kind.
    left_out: Counter[str] = field(default_factory=Counter)
    repeats: Repeats = field(default_factory=Repeats)  # inputs given more than once
    audio_s: float = 0.0  # of files transcribed
    planned_files: int = 0  # that the model works on or is done with
    planned_s: float = 0.0  # of these
    queued_files: int = 0  # probed, and waiting for the model
    queued_s: float = 0.0  # of these
    has_all: bool = False  # no more inputs will come after the planned and the queued ones
    done_s: float = 0.0  # of the planned ones, decoded or given up: parts of a long recording count as they finish
    gaps: int = 0  # stretches with speech in which no words were found, in files transcribed
    gap_s: float = 0.0
    with_gaps: int = 0  # files transcribed that have such stretches
    wordless: int = 0  # files transcribed of which no word was recognised
    first_wordless: list[str] = field(default_factory=list)  # paths of the first of them
    apart: int = 0  # files transcribed of which each of two channels has a voice, and which were mixed
    first_apart: list[str] = field(default_factory=list)  # paths of the first of them
    padded_frames: int = 0
    real_frames: int = 0
    first_batch_at: float | None = None  # time.perf_counter() when the first batch had its results
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    reports: Sequence[Callable[[], list[str]]] = ()  # each returns lines of a room for the user
    watcher: Watcher | None = None

    @property
    def lines(self) -> list[str]:
        """Lines of rooms for the user, at the end of the run."""
        return [line for report in self.reports for line in report()]

    def count_batch(self, utterances: Sequence[Utterance], lengths: Sequence[int]) -> None:
        """Count a decoded batch, by the lengths of its utterances in encoder frames."""
        self.first_batch_at = self.first_batch_at or perf_counter()
        self.real_frames += sum(lengths)
        self.padded_frames += len(lengths) * max(lengths)
        if self.watcher is not None:
            self.watcher(utterances)

    def count(self, result: Transcript | Failure) -> None:
        """Count a result of the run."""
        self.files += 1
        if isinstance(result, Failure):
            self.failed += 1
        else:
            self.audio_s += result.audio.duration_s
            self.gaps += len(result.gaps)
            self.with_gaps += bool(result.gaps)
            self.gap_s += sum(gap.end_s - gap.start_s for gap in result.gaps)
            alone_s = result.audio.alone_s if result.text else ()  # of music, what is on one channel alone is no voice
            is_apart = len(alone_s) == 2 and min(alone_s) >= max(_APART_S, _APART * result.audio.duration_s)
            self.apart += is_apart
            if is_apart and len(self.first_apart) < _MAX_NAMES:
                self.first_apart.append(result.audio.path)
            self.wordless += not result.text
            if not result.text and len(self.first_wordless) < _MAX_NAMES:
                self.first_wordless.append(result.audio.path)


@dataclass(frozen=True)
class RunStats:
    """Report of one run. Names end in their unit.

    `files`, `failed` and `audio_s` count this run alone; audio_s covers transcribed files only. wall_s runs from the loaded
    model to the last row written. stage_s is summed over the devices, peak_bytes is that of the device with the most.
    `skipped` counts the inputs that earlier runs have finished; `failed_before` of them failed. `totals` (files, failed,
    audio_s) counts all runs of the output folder. `refused` has the reason of each fast path that was refused, by its name
    (fast_paths.py).
    """

    files: int
    failed: int
    audio_s: float
    load_s: float
    wall_s: float
    stage_s: dict[str, float]
    padded_frames: int
    real_frames: int
    peak_bytes: int
    device: str
    dtype: str
    usd_per_hour: float | None
    price_source: str | None
    versions: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    failed_before: int = 0
    # Files of folders that are not audio by their names, by kind.
    left_out: Mapping[str, int] = field(default_factory=dict)
    repeated: int = 0  # inputs given more than once, without the first time
    totals: dict[str, Any] | None = None
    gaps: int = 0  # stretches with speech in which no words were found
    gap_s: float = 0.0
    devices: Sequence[DeviceShare] = ()  # of a run whose devices have processes of their own
    refused: Mapping[str, str] = field(default_factory=dict)
    first_batch_s: float | None = None  # from the command's start to the first batch's results; None: unknown
    total_s: float | None = None  # from the command's start to the last row written

    @property
    def device_shares(self) -> list[tuple[DeviceShare, float]]:
        """Each of several devices with its share of the decoded audio."""
        audio_s = sum(one.audio_s for one in self.devices)
        return [(one, one.audio_s / audio_s if audio_s else 0.0) for one in self.devices]

    @property
    def rtfx(self) -> float:
        """Seconds of audio transcribed per second of wall time."""
        return self.audio_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def padding_share(self) -> float:
        """Share of the computed encoder frames that are padding."""
        return 1.0 - self.real_frames / self.padded_frames if self.padded_frames else 0.0

    @property
    def usd_per_1000_audio_hours(self) -> float | None:
        """Cost of 1,000 hours of audio in USD; None if the price is unknown."""
        return usd_per_audio_hours(self.rtfx, self.usd_per_hour, 1000.0)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of report.json."""
        cost = self.usd_per_1000_audio_hours
        return {
            "files": self.files,
            "failed": self.failed,
            "skipped": self.skipped,
            "failed_before": self.failed_before,
            "left_out": dict(self.left_out),
            "repeated": self.repeated,
            "totals": None if self.totals is None else {**self.totals, "audio_s": round(self.totals["audio_s"], 3)},
            "audio_s": round(self.audio_s, 3),
            "load_s": round(self.load_s, 3),
            "wall_s": round(self.wall_s, 3),
            "first_batch_s": None if self.first_batch_s is None else round(self.first_batch_s, 3),
            "total_s": None if self.total_s is None else round(self.total_s, 3),
            "rtfx": round(self.rtfx, 2),
            "stage_s": {stage: round(seconds, 3) for stage, seconds in self.stage_s.items()},
            "gaps": self.gaps,
            "gap_s": round(self.gap_s, 3),
            "padding_share": round(self.padding_share, 4),
            "padded_frames": self.padded_frames,
            "real_frames": self.real_frames,
            "peak_bytes": self.peak_bytes,
            "device": self.device,
            "dtype": self.dtype,
            "usd_per_hour": self.usd_per_hour,
            "price_source": self.price_source,
            "usd_per_1000_audio_hours": None if cost is None else round(cost, 4),
            "devices": [
                asdict(one)
                | {"audio_s": round(one.audio_s, 3), "busy_s": round(one.busy_s, 3), "audio_share": round(share, 4)}
                for one, share in self.device_shares
            ],
            "refused": dict(self.refused),
            "versions": self.versions,
        }


def usd_per_audio_hours(rtfx: float, usd_per_hour: float | None, audio_hours: float) -> float | None:
    """Return the cost of `audio_hours` at this speed and price; None if either is unknown."""
    if usd_per_hour is None or rtfx <= 0:
        return None
    return audio_hours * usd_per_hour / rtfx
