"""Dry run: files, hours, batches and an estimated time, without transcribing or writing anything.

Every input is probed and split as in a run. The estimate comes from a few batches that are transcribed and discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Any

from fastscribe.pipeline.executor import Executor
from fastscribe.pipeline.idle import IDLE
from fastscribe.pipeline.run import Run
from fastscribe.results.ledger import Ledger
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Utterance

_SAMPLES = 4  # batches that are timed, spread over the lengths there are; for each of several devices
_MAX_ROWS = 1_000_000  # of a batch


@dataclass(frozen=True)
class DryRunReport:
    """What a run would do. Times are in seconds.

    `skipped` counts the inputs that earlier runs have finished; `failed_before` of them failed. `files` and `failed` include
    none of these. estimated_usd is None if no price is known.
    """

    files: int
    failed: int
    skipped: int
    failed_before: int
    audio_s: float
    utterances: int
    batches: int
    padding_share: float
    estimated_s: float
    estimated_rtfx: float
    estimated_usd: float | None
    left_out: Mapping[str, int] = field(
        default_factory=dict
    )  # files of folders that are not audio by their names, by kind
    repeated: int = 0  # inputs given more than once, without the first time

    def to_json(self) -> dict[str, Any]:
        """Return the fields; seconds and shares with 4 decimals, the price with 4 significant digits: it may be tiny."""
        fields = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return fields | {"estimated_usd": None if self.estimated_usd is None else float(f"{self.estimated_usd:.4g}")}


def estimate_run(
    transcriber: Transcriber,
    inputs: Iterable[str],
    ledger: Ledger,
    usd_per_hour: float | None,
    on_failure: Callable[[Failure], None],
) -> DryRunReport:
    """Probe all inputs and estimate the run. Does not return for a source of inputs that never ends.

    Args:
        transcriber: A loaded transcriber.
        inputs: As in Transcriber.transcribe().
        ledger: Decides which inputs belong to the run.
        usd_per_hour: Price of the machine; None: unknown.
        on_failure: Called for each input that cannot be used.
    """
    files = failed = utterances = batches = real = padded = 0
    audio_s = 0.0
    samples: list[tuple[Utterance, ...]] = []
    with closing(transcriber._new_run()) as run:
        for window in run.windows(inputs, ledger, hold=False):
            if window is IDLE:
                continue
            usable = [item for item in window if not isinstance(item, Failure)]
            for item in window:
                if isinstance(item, Failure):
                    on_failure(item)
            files, failed = files + len(usable), failed + len(window) - len(usable)
            audio_s += sum(item[0].audio.duration_s for item in usable)
            plan = list(run.plan([utterance for item in usable for utterance in item if utterance.num_samples]))
            samples = samples or _pick_samples(plan)
            for batch in plan:
                lengths = [run.num_frames(utterance) for utterance in batch]
                utterances, batches = utterances + len(batch), batches + 1
                real, padded = real + sum(lengths), padded + len(batch) * max(lengths)
        frames_per_s = _measure_speed(run, transcriber._executor, samples) if samples else 0.0
    estimated_s = padded / frames_per_s if frames_per_s else 0.0
    return DryRunReport(
        files=files,
        failed=failed,
        skipped=transcriber.progress.skipped,
        failed_before=ledger.failed_before,
        audio_s=audio_s,
        utterances=utterances,
        batches=batches,
        padding_share=1 - real / padded if padded else 0.0,
        estimated_s=estimated_s,
        estimated_rtfx=audio_s / estimated_s if estimated_s else 0.0,
        estimated_usd=None if usd_per_hour is None else usd_per_hour * estimated_s / 3600,
        left_out=dict(transcriber.progress.left_out),
        repeated=transcriber.progress.repeats.num,
    )


def _pick_samples(plan: Sequence[tuple[Utterance, ...]]) -> list[tuple[Utterance, ...]]:
    """Return up to _SAMPLES batches of a plan, from the longest to the shortest."""
    step = max(1, len(plan) // _SAMPLES)
    return list(plan[step // 2 :: step])[:_SAMPLES]


def _measure_speed(run: Run, executor: Executor, samples: Sequence[tuple[Utterance, ...]]) -> float:
    """Return padded encoder frames a second, reading included, after a warm-up batch; 0 if no sample could be read.

    Each of several devices has as many batches as one would have.
    """
    _decoded_frames(run, executor, [samples[0]] * executor.num_devices)
    start = perf_counter()
    frames = _decoded_frames(run, executor, [batch for batch in samples for _ in range(executor.num_devices)])
    return frames / (perf_counter() - start)


def _decoded_frames(run: Run, executor: Executor, plans: Sequence[tuple[Utterance, ...]]) -> int:
    """Decode batches. Return their padded encoder frames, without those of failures."""
    plans = [tuple(_numbered(batch, number)) for number, batch in enumerate(plans)]
    frames = 0
    with closing(executor.execute(plans)) as outcomes:
        for outcome in outcomes:
            if outcome is not IDLE and not isinstance(outcome[1][0], Failure):
                frames += len(outcome[0]) * max(map(run.num_frames, outcome[0]))
    return frames


def _numbered(batch: Sequence[Utterance], number: int) -> Iterator[Utterance]:
    """Give the recordings of a batch numbers of their own, so that a batch can be decoded more than once at a time."""
    for row, utterance in enumerate(batch):
        index = number * _MAX_ROWS + row
        unread = utterance.audio.unread
        unread = None if unread is None else replace(unread, index=index)
        yield replace(utterance, audio=replace(utterance.audio, index=index, unread=unread))
