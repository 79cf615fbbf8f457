"""`--report-html`, which adds the page of a run to `fastscribe transcribe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastscribe.cli.app import local_file, option
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.report.transcribe_page import PageHook


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
) -> PageHook | None:
    if report_html is None:
        return None
    if value_of(context, "dry_run"):
        raise typer.BadParameter("--report-html and --dry-run exclude each other")
    return PageHook(report_html)


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--events")}
