"""Dry run: files, hours, batches and an estimated time, without transcribing or writing anything.

Every input is probed and split as in a run. The estimate comes from a few batches that are transcribed and discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from fastscribe.pipeline.idle import IDLE, Idle
from fastscribe.pipeline.loader import Loaded
from fastscribe.resume.ledger import Ledger
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Utterance

_SAMPLES = 4  # batches that are timed, spread over the lengths there are


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
        for window in run.windows(inputs, ledger):
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
        frames_per_s = _measure_speed(transcriber, run.load([samples[0], *samples], ahead=1)) if samples else 0.0
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


def _measure_speed(transcriber: Transcriber, batches: Iterable[Loaded | Idle]) -> float:
    """Return padded encoder frames a second, reading included, after one warm-up batch; 0 if no sample could be read."""
    frames, start = 0, None
    for loaded in batches:
        batch = None if loaded is IDLE else loaded[0]
        if batch is None:
            continue
        for _ in transcriber._engine.stream([batch]):
            pass
        if start is not None:
            frames += len(batch.utterances) * transcriber._recognizer.num_frames(batch)
        start = start if start is not None else perf_counter()
    seconds = perf_counter() - start if start is not None else 0.0
    return frames / seconds if seconds else 0.0
