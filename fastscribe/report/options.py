"""`--report-html`, which adds the page of a run to `fastscribe transcribe`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe.cli.app import local_file, option
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_part import RunPart
from fastscribe.cli.terminal import say
from fastscribe.report.files import check_page
from fastscribe.report.transcribe_page import RunPage

if TYPE_CHECKING:
    from fastscribe.cli.run_part import TranscribeJob
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.results.interfaces import OutputRun
    from fastscribe.transcriber import Transcriber
    from fastscribe.types import Failure, Transcript


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

    def files(self, output: OutputRun) -> Mapping[str, Path]:
        """Return the page. Raises UsageError if another file is there."""
        return {"--report-html": self._path_of(output)}

    def during(self, job: TranscribeJob, transcriber: Transcriber) -> AbstractContextManager[object]:
        """Return what collects the run's data, and writes the page of a run that an error or a signal ends."""
        self._page = RunPage(self._path_of(job.output), job, transcriber)
        return self._page

    def result(self, written: Transcript | Failure) -> None:
        """Record a result."""
        if self._page is not None:
            self._page.recorder.result(written)

    def finished(self, job: TranscribeJob, stats: RunStats, quiet: bool) -> int:
        """Write the page of a run that has finished; one that did nothing leaves an earlier page. Raises OutputError."""
        if self._page is not None and (stats.files or not job.output.place):
            self._page.write(stats)
        elif not quiet:
            path = self._path_of(job.output)
            stays = "stays as it is" if path.exists() and path.stat().st_size else "is not written"
            say(f"--report-html {path}: {stays}, because there was nothing to do; report.json has the earlier numbers")
        return 0

    def _path_of(self, output: OutputRun) -> Path:
        return check_page(self._path.with_stem(self._path.stem + output.shard.suffix))


def _of_transcribe(
    context: typer.Context,
    report_html: Annotated[
        Path | None,
        option(
            "--report-html",
            callback=local_file,
            help="Write a page about the run to this HTML file.\fFailed files first, then hours, speed and cost, files that "
            "deserve a look, and where the time went.",
            rich_help_panel="Messages and reports",
        ),
    ] = None,
) -> RunPart | None:
    if report_html is None:
        return None
    if value_of(context, "dry_run"):
        raise typer.BadParameter("--report-html and --dry-run exclude each other")
    return PagePart(report_html)


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--events")}
