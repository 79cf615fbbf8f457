"""A dry run on a cluster: the workers probe the inputs, and time a few batches of each chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastscribe.dry_run import DryRunReport
from fastscribe.ray.worker import packed
from fastscribe.types import Failure

if TYPE_CHECKING:
    from fastscribe.pipeline.stats import Progress
    from fastscribe.ray.chunks import Item
    from fastscribe.ray.inputs import Windows
    from fastscribe.ray.pool import WorkerPool
    from fastscribe.results.ledger import Ledger

_CALLS_AHEAD = 2  # for each worker
_MAX_ITEMS = 1000  # in a call


def estimate(
    ray: Any,
    pool: WorkerPool,
    windows: Windows,
    ledger: Ledger,
    progress: Progress,
    usd_per_hour: float | None,
    on_failure: Callable[[Failure], None],
) -> DryRunReport:
    """Return what a run would do.

    Args:
        ray: The module, connected.
        pool: Workers, of which one is ready. A worker that dies ends the dry run.
        windows: The inputs that the run would transcribe.
        ledger: The run's.
        progress: Counts of the inputs.
        usd_per_hour: Price of all workers; None: unknown.
        on_failure: Called for each input that cannot be used.
    """
    reports: list[DryRunReport] = []
    num_failed = 0
    calls: deque[Any] = deque()

    def collect() -> None:
        report, failures = ray.get(calls.popleft())
        reports.append(report)
        for failure in failures:
            on_failure(failure)

    while not windows.has_ended:
        window = windows.take(0.2)
        items: list[Item] = []
        for item in window:
            if isinstance(item, Failure):
                num_failed += 1
                on_failure(item)
            else:
                items.append(item)
        for begin in range(0, len(items), _MAX_ITEMS):
            ready = pool.ready
            sources = [item.source for item in items[begin : begin + _MAX_ITEMS]]
            calls.append(ready[len(reports) % len(ready)].actor.estimate.remote(packed(sources)))
            while len(calls) > _CALLS_AHEAD * len(ready):
                collect()
        for _ in pool.events(0.0):  # workers that have become ready take part
            pass
    while calls:
        collect()
    return _total(reports, num_failed, max(1, len(pool.ready)), ledger, progress, usd_per_hour)


def _total(
    reports: list[DryRunReport],
    num_failed: int,
    num_workers: int,
    ledger: Ledger,
    progress: Progress,
    usd_per_hour: float | None,
) -> DryRunReport:
    """Add the reports of the chunks up; the workers share the time."""
    audio_s = sum(report.audio_s for report in reports)
    estimated_s = sum(report.estimated_s for report in reports) / num_workers
    padded = sum(report.audio_s / (1 - report.padding_share) for report in reports)  # in seconds of audio
    total = DryRunReport(
        files=sum(report.files for report in reports),
        failed=num_failed + sum(report.failed for report in reports),
        skipped=progress.skipped,
        failed_before=ledger.failed_before,
        audio_s=audio_s,
        utterances=sum(report.utterances for report in reports),
        batches=sum(report.batches for report in reports),
        padding_share=1 - audio_s / padded if padded else 0.0,
        estimated_s=estimated_s,
        estimated_rtfx=audio_s / estimated_s if estimated_s else 0.0,
        estimated_usd=None if usd_per_hour is None else usd_per_hour * estimated_s / 3600,
        left_out=dict(progress.left_out),
        opened=num_failed + sum(report.opened for report in reports),
    )
    return replace(total, repeated=progress.repeats.num)
