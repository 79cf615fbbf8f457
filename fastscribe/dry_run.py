"""Dry run: files, hours, batches and an estimated time, without transcribing or writing anything.

Every input is listed. Up to _MAX_OPENED of them, drawn at random, are opened and split as in a run, for _MAX_OPENING_S at most;
they stand for the others. The estimate comes from a few batches that are transcribed and discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from random import Random
from time import perf_counter
from typing import Any, cast

from fastscribe.audio.given import all_of, sources
from fastscribe.pipeline.executor import Executor
from fastscribe.pipeline.interfaces import IDLE
from fastscribe.pipeline.run import Run
from fastscribe.pipeline.windows import Window, duration_s, expected_sources
from fastscribe.results.interfaces import Ledger
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Source, Utterance

_SAMPLES = 3  # batches that are timed, spread over the lengths there are; for each of several devices
_MAX_ROWS = 1_000_000  # of a batch
_MAX_OPENED = 1000  # inputs: the mean length of clips is then known to 2 or 3 %
_MAX_OPENING_S = 20.0


@dataclass(frozen=True)
class DryRunReport:
    """What a run would do. Times are in seconds.

    `skipped` counts the inputs that earlier runs have finished; `failed_before` of them failed. `files` and `failed` include
    none of these. estimated_usd is None if no price is known.

    If `opened` is less than files + failed, the inputs that were opened stand for the others: `files`, `failed`, audio_s
    (unless a manifest states every duration and none failed), utterances, batches and the time are estimates. Recordings on
    which the model fails, of those that are timed, are among `failed`, and not in audio_s. estimated_s is 0 if it fails on all.
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
    left_out: dict[str, int] = field(default_factory=dict)  # files of folders that are not audio, by kind
    repeated: int = 0  # inputs given more than once, without the first time
    opened: int = 0  # inputs that were looked at, or whose durations are stated

    def to_json(self) -> dict[str, Any]:
        """Return the fields; seconds and shares with 4 decimals, the price with 4 significant digits: it may be tiny."""
        fields = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return fields | {"estimated_usd": None if self.estimated_usd is None else float(f"{self.estimated_usd:.4g}")}


@dataclass
class _Listing:
    """The inputs of a run that it has not done.

    Attributes:
        sample: Some of them, in random order.
        num: Their number.
        skipped: Inputs that earlier runs have done.
        failed: Inputs that cannot be listed; they are not among the others.
        stated_s: Sum of the durations that manifests state.
        num_stated: Number of these.
    """

    sample: list[Source]
    num: int = 0
    skipped: int = 0
    failed: int = 0
    stated_s: float = 0.0
    num_stated: int = 0


def estimate_run(
    transcriber: Transcriber,
    inputs: Iterable[str],
    ledger: Ledger,
    usd_per_hour: float | None,
    on_failure: Callable[[Failure], None],
) -> DryRunReport:
    """List all inputs and estimate the run. Does not return for a source of inputs that never ends.

    Args:
        transcriber: A loaded transcriber.
        inputs: As in Transcriber.transcribe().
        ledger: Decides which inputs belong to the run.
        usd_per_hour: Price of the machine; None: unknown.
        on_failure: Called for each input that is found to be unusable.
    """
    with closing(transcriber._new_run()) as run:
        listing = _listed(transcriber, inputs, ledger, on_failure)
        windows: list[Window] = list(_opened(run, listing.sample, on_failure))
        opened, usable = sum(map(len, windows)), [item for window in windows for item in _usable(window)]
        if opened < listing.num:  # else the batches are those of the run
            windows = [[*usable] * max(1, min(listing.num, transcriber.options.window) // max(1, opened))]
        plans = [
            list(run.plan([one for item in _usable(part) for one in item if one.num_samples]))
            for window in windows
            for part in run.parts(window)
        ]
        first = next(filter(None, plans), [])
        step = max(1, len(first) // _SAMPLES)
        samples = first[step // 2 :: step][:_SAMPLES]  # from the longest to the shortest
        lengths = [list(map(run.num_frames, batch)) for plan in plans for batch in plan]
        frames_per_s, undecoded = _measure_speed(run, transcriber._executor, samples) if samples else (0.0, [])
    planned_s = sum(duration_s(item) for window in windows for item in window)
    lost = {failure.id for failure in undecoded}
    read = [item for item in usable if not any(utterance.audio.id in lost for utterance in item)]
    if listing.num_stated == listing.num and len(read) == opened < listing.num:
        audio_s = listing.stated_s
    else:
        audio_s = sum(map(duration_s, read)) * listing.num / max(1, opened)
    scale = audio_s / planned_s if planned_s else 0.0
    padded = sum(len(batch) * max(batch) for batch in lengths)
    estimated_s = scale * padded / frames_per_s if frames_per_s else 0.0
    for failure in undecoded:
        on_failure(failure)
    failed = round((opened - len(usable)) * listing.num / max(1, opened)) + len(undecoded)
    return DryRunReport(
        files=listing.num - failed,
        failed=listing.failed + failed,
        skipped=listing.skipped,
        failed_before=ledger.failed_before,
        audio_s=audio_s,
        utterances=round(scale * sum(map(len, lengths))),
        batches=round(scale * len(lengths)),
        padding_share=1 - sum(map(sum, lengths)) / padded if padded else 0.0,
        estimated_s=estimated_s,
        estimated_rtfx=audio_s / estimated_s if estimated_s else 0.0,
        estimated_usd=None
        if usd_per_hour is None or (samples and not frames_per_s)
        else usd_per_hour * estimated_s / 3600,
        left_out=dict(transcriber.progress.left_out),
        repeated=transcriber.progress.repeats.num,
        opened=opened + listing.failed,
    )


def _listed(
    transcriber: Transcriber, inputs: Iterable[str], ledger: Ledger, on_failure: Callable[[Failure], None]
) -> _Listing:
    """List the inputs, and draw the sample; those before the sample is full keep their order in it only by chance."""
    progress, random, listing = transcriber.progress, Random(0), _Listing([])
    found = sources(all_of(inputs), progress.left_out, progress.repeats)
    for source in expected_sources(found, ledger, transcriber.options):
        if ledger.skip(source):
            listing.skipped += 1
        elif isinstance(source, Failure):
            listing.failed += 1
            on_failure(source)
        else:
            listing.num += 1
            listing.stated_s += source.duration_s or 0.0
            listing.num_stated += source.duration_s is not None
            if len(listing.sample) < _MAX_OPENED:
                listing.sample.append(source)
            elif (place := random.randrange(listing.num)) < _MAX_OPENED:
                listing.sample[place] = source
    random.shuffle(listing.sample)  # time may allow a part of it only
    return listing


def _opened(run: Run, sample: Sequence[Source], on_failure: Callable[[Failure], None]) -> Iterator[Window]:
    """Yield the sample, split into utterances, as far as it is done in time."""
    end_s = perf_counter() + _MAX_OPENING_S
    with closing(run.windows(cast(Iterable[str], sample), None, dry=True)) as windows:
        for window in windows:
            if window is IDLE:
                continue
            for item in window:
                if isinstance(item, Failure):
                    on_failure(replace(item, index=sample[item.index].index))
            yield window
            if perf_counter() >= end_s:
                return


def _usable(window: Window) -> list[tuple[Utterance, ...]]:
    return [item for item in window if not isinstance(item, Failure)]


def _measure_speed(
    run: Run, executor: Executor, samples: Sequence[tuple[Utterance, ...]]
) -> tuple[float, list[Failure]]:
    """Return padded encoder frames a second, reading included, after a warm-up; 0 if no sample could be decoded.

    Also return the failure of each recording that could not be.

    The warm-up is a whole batch on a GPU, whose memory and kernels depend on the shape, and one utterance on a CPU.

    Each of several devices has as many batches as one would have.
    """
    warm_up = samples[0] if executor.facts.is_gpu else samples[0][:1]
    _decoded_frames(run, executor, [warm_up] * executor.num_devices)
    start = perf_counter()
    frames, failures = _decoded_frames(run, executor, [batch for batch in samples for _ in range(executor.num_devices)])
    return frames / (perf_counter() - start), failures


def _decoded_frames(run: Run, executor: Executor, plans: Sequence[tuple[Utterance, ...]]) -> tuple[int, list[Failure]]:
    """Decode batches. Return the padded encoder frames of those that have results, and one failure of each recording."""
    plans = [tuple(_numbered(batch, number)) for number, batch in enumerate(plans)]
    frames = 0
    failures: dict[str, Failure] = {}
    with closing(executor.execute(plans)) as outcomes:
        for outcome in outcomes:
            if outcome is IDLE:
                continue
            failures |= {one.id: one for one in outcome[1] if isinstance(one, Failure)}
            decoded = [one for one, result in zip(*outcome, strict=True) if not isinstance(result, Failure)]
            frames += len(decoded) * max(map(run.num_frames, decoded), default=0)
    return frames, list(failures.values())


def _numbered(batch: Sequence[Utterance], number: int) -> Iterator[Utterance]:
    """Give the recordings of a batch numbers of their own, so that a batch can be decoded more than once at a time."""
    for row, utterance in enumerate(batch):
        index = number * _MAX_ROWS + row
        unread = utterance.audio.unread
        unread = None if unread is None else replace(unread, index=index)
        yield replace(utterance, audio=replace(utterance.audio, index=index, unread=unread))
