"""What a run's progress says: the share of the audio done, counts, speed and time left. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastscribe.pipeline.stats import Progress

_MIN_EVIDENCE_S = 2.0  # the first batch is slower than the others, so it alone says little about the time left


class Pace:
    """Speed and time left, from the audio done over time.

    Batches finish in steps. The speed is a mean of the steps so far, in which recent ones weigh more; between two steps the
    time left counts down.
    """

    def __init__(self) -> None:
        self._start_s: float | None = None
        self._step_s = self._audio_s = self._weighted_audio_s = self._weighted_s = 0.0

    def update(self, now_s: float, audio_s: float) -> None:
        """Note that `audio_s` seconds of audio are done at time `now_s`. The first call starts the clock."""
        if self._start_s is None:
            self._start_s = self._step_s = now_s
        elif audio_s > self._audio_s and now_s > self._step_s:
            taken_s = now_s - self._step_s
            weight = math.exp(-taken_s / (120.0 + (now_s - self._start_s) / 2))
            self._weighted_audio_s = weight * self._weighted_audio_s + audio_s - self._audio_s
            self._weighted_s = weight * self._weighted_s + taken_s
            self._step_s, self._audio_s = now_s, audio_s

    @property
    def speed(self) -> float:
        """Seconds of audio per second; 0 before the first step."""
        return self._weighted_audio_s / self._weighted_s if self._weighted_s else 0.0

    def left_s(self, now_s: float, total_s: float) -> float | None:
        """Return the seconds left, or None if too little is done to tell."""
        if self._start_s is None or not self.speed or self._step_s - self._start_s < _MIN_EVIDENCE_S:
            return None
        return max(0.0, (total_s - self._audio_s) / self.speed - (now_s - self._step_s))


@dataclass(frozen=True)
class Status:
    """What a line of progress says.

    Attributes:
        share: Share of the audio done, from 0 to 1; None: unknown.
        is_exact: The share's total is known, not estimated.
        parts: Texts in order, each with its rank; narrow terminals lack those of high rank.
    """

    share: float | None
    is_exact: bool
    parts: tuple[tuple[int, str], ...]

    @property
    def percent(self) -> str:
        return "" if self.share is None else f"{'' if self.is_exact else '~'}{math.floor(100 * self.share)} %"

    def text(self, width: int) -> str:
        """Join the most important parts that fit in `width` columns, at least one."""
        parts = sorted(self.parts)
        while len(parts) > 1 and sum(len(text) + 2 for _, text in parts) - 2 > width:
            parts.pop()
        return ", ".join(text for rank, text in self.parts if (rank, text) in parts)


def make_status(progress: Progress, num_inputs: int | None, pace: Pace, now_s: float) -> Status:
    """Describe a run.

    Args:
        progress: The run's counts.
        num_inputs: The number of inputs, with those that earlier runs have done; None: unknown.
        pace: Updated here.
        now_s: The time.
    """
    known_files, known_s = progress.planned_files + progress.queued_files, progress.planned_s + progress.queued_s
    before = [(5, f"{progress.skipped:,} done before")] if progress.skipped else []
    if not progress.planned_files:
        return Status(None, True, ((0, "starting"), *before))
    pace.update(now_s, progress.done_s)
    num_files, total_s = (known_files, known_s) if progress.has_all else (None, None)
    if total_s is None and num_inputs is not None:
        num_files = max(known_files, num_inputs - progress.skipped)
        total_s = known_s * num_files / known_files
    failed = [(2, f"{progress.failed:,} failed")] if progress.failed else []
    speed = [(1, f"{pace.speed:.0f}x")] if pace.speed else []
    total = f"file{'' if progress.files == 1 else 's'}" if num_files is None else f"of {num_files:,} files"
    files = [] if num_files == 1 else [(4, f"{progress.files:,} {total}")]
    parts = [
        *files,
        *failed,
        *before,
        (3, _audio_text(progress.done_s, total_s)),
        *speed,
    ]
    if total_s is None:
        return Status(None, True, (*parts, (0, "more may come")))
    left_s = pace.left_s(now_s, total_s)
    is_done = progress.has_all and progress.done_s >= total_s * (1 - 1e-9)
    left = [(0, "finishing")] if is_done else [(0, _left_text(left_s))] if left_s is not None else []
    return Status(min(1.0, progress.done_s / total_s) if total_s else 0.0, progress.has_all, (*parts, *left))


def _audio_text(done_s: float, total_s: float | None) -> str:
    largest_s = done_s if total_s is None else total_s
    unit, unit_s, digits = ("h", 3600, 1) if largest_s >= 7200 else ("min", 60, 0) if largest_s >= 120 else ("s", 1, 0)
    of = "" if total_s is None else f" of {total_s / unit_s:,.{digits}f}"
    return f"{done_s / unit_s:,.{digits}f}{of} {unit}"


def _left_text(seconds: float) -> str:
    """Round to what an estimate can tell, so that it does not flicker."""
    if seconds >= 5940:
        hours, minutes = divmod(math.ceil(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min left"
    if seconds >= 100:
        return f"{math.ceil(seconds / 60)} min left"
    return f"{5 * math.ceil(seconds / 5)} s left" if seconds > 0 else "a few s left"
