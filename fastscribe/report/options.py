"""`--report-html`, which adds the page of a run to `fastscribe transcribe`; the commands of benchmarks have it too."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe.cli.app import local_file, option
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_part import RunPart
from fastscribe.report.files import check_page

if TYPE_CHECKING:
    from fastscribe.cli.run_part import OutputTarget, TranscribeJob
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.report.transcribe_page import RunPage
    from fastscribe.transcriber import Transcriber
    from fastscribe.types import Failure, Transcript


def _check_page_path(path: Path | None) -> Path | None:
    path = local_file(path)
    return None if path is None else check_page(path)


ReportHtml = Annotated[
    Path | None,
    option(
        "--report-html",
        callback=_check_page_path,
        help="Write a report with charts to this HTML file.",
        rich_help_panel="Messages and reports",
    ),
]


class PagePart(RunPart):
    """Writes the page of a run, however the run ends.

    Args:
        path: What --report-html names; each shard has a page of its own beside it.
    """

    needs_words = True  # the page shows their confidences

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._page: RunPage | None = None

    def files(self, target: OutputTarget) -> Mapping[str, Path]:
        """Return the page. Raises UsageError if another file is there."""
        from fastscribe.report.transcribe_page import page_path

        return {"--report-html": page_path(self._path, target.shard)}

    def during(self, job: TranscribeJob, transcriber: Transcriber) -> AbstractContextManager[object]:
        """Return what collects the run's data, and writes the page of a run that an error or a signal ends."""
        from fastscribe.report.transcribe_page import RunPage, page_path

        self._page = RunPage(page_path(self._path, job.target.shard), job, transcriber)
        return self._page

    def result(self, written: Transcript | Failure) -> None:
        """Record a result."""
        if self._page is not None:
            self._page.recorder.result(written)

    def finished(self, job: TranscribeJob, stats: RunStats, quiet: bool) -> int:
        """Write the page of a run that has finished. Raises OutputError."""
        if self._page is not None:
            self._page.finished(stats)
        return 0


def _of_transcribe(context: typer.Context, report_html: ReportHtml = None) -> RunPart | None:
    if report_html is None:
        return None
    if value_of(context, "dry_run"):
        raise typer.BadParameter("--report-html and --dry-run exclude each other")
    return PagePart(report_html)


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--events")}
