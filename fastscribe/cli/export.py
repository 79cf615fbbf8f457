"""`fastscribe export`: other formats from stored results, without decoding."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe._system.remote import is_url
from fastscribe.cli.app import StdoutClosed, app, option
from fastscribe.cli.evaluate import Problems
from fastscribe.cli.job import check_output_dir
from fastscribe.cli.subtitle_options import (
    DEFAULT_CHARS_PER_SECOND,
    DEFAULTS,
    HighlightWords,
    MaxCharsPerSecond,
    MaxCueS,
    MaxLines,
    MaxLineWidth,
    MinCueS,
    parse_formats,
)
from fastscribe.cli.terminal import say
from fastscribe.config import OUTPUT_FORMATS, OutputStyle, SubtitleStyle
from fastscribe.errors import ManifestError, OutputError, UsageError

if TYPE_CHECKING:
    from fastscribe.evaluation.rows import ResultRow
    from fastscribe.output.export import Exported
    from fastscribe.types import Failure, Transcript

    Stored = tuple[Transcript | Failure, ResultRow]


@app.command(
    short_help="Make other formats from results, without decoding.",
    epilog="Example: fastscribe export out -f srt,vtt --max-line-width 37",
)
def export(
    results: Annotated[
        list[str],
        typer.Argument(help="Output folders of transcribe, files like transcripts.jsonl, or -.", metavar="RESULTS"),
    ],
    format: Annotated[
        list[str], option("--format", "-f", help=f"{', '.join(OUTPUT_FORMATS)}; repeat or separate by commas.")
    ],
    output_dir: Annotated[
        Path | None,
        option("--output-dir", "-o", help="Folder for the files. Default: the output folder itself; of files, stdout."),
    ] = None,
    max_line_width: MaxLineWidth = DEFAULTS.max_line_width,
    max_lines: MaxLines = DEFAULTS.max_lines,
    max_cue_s: MaxCueS = DEFAULTS.max_cue_s,
    min_cue_s: MinCueS = DEFAULTS.min_cue_s,
    max_chars_per_second: MaxCharsPerSecond = DEFAULT_CHARS_PER_SECOND,
    highlight_words: HighlightWords = False,
) -> None:
    """Make files of other formats, or with other subtitles, from the rows of finished runs. Nothing is decoded.

    Files that no run wrote, or that someone edited since, stay as they are. Tokens are in JSON if the run had --tokens.
    """
    layout = SubtitleStyle(
        max_line_width, max_lines, max_cue_s, min_cue_s, max_chars_per_second or None, highlight_words
    )
    style = OutputStyle(parse_formats(format) or ("jsonl",), subtitles=layout)
    for url in filter(is_url, results):
        raise UsageError(
            f"{url}: export works on local results; for a URL, repeat transcribe with --format: nothing is decoded"
        )
    if output_dir is not None:
        check_output_dir(output_dir)
    folders = [given for given in results if given != "-" and Path(given).is_dir()]
    try:
        if output_dir is not None:
            _export_rows(results, style, output_dir)
        elif not folders:
            _print_rows(results, style)
        elif len(folders) < len(results):
            raise typer.BadParameter("give folders or files, not both, or a folder for all with --output-dir")
        else:
            for folder in folders:
                _export_in_place(Path(folder), style)
    except BrokenPipeError as error:
        raise StdoutClosed from error
    except OSError as error:
        raise OutputError(str(error.filename or output_dir or "stdout"), error) from error


def _export_in_place(folder: Path, style: OutputStyle) -> None:
    from fastscribe.output.export import export_in_place, runs_of

    if style.formats == ("jsonl",):
        raise typer.BadParameter("jsonl is what export reads; choose another format")
    if not runs_of(folder):
        raise UsageError(
            f"{folder}: no run's journal is here, so its files need a folder of their own: add -o FOLDER, or give the "
            "folders of the shards if it is merged"
        )
    _report(folder, export_in_place(folder, style, say), style)


def _export_rows(results: list[str], style: OutputStyle, folder: Path) -> None:
    from fastscribe.output.export import export_to_folder

    for given in results:
        if given != "-" and _is_source_of(folder, Path(given)):
            raise UsageError(
                f"{given}: is what --output-dir {folder} holds: fastscribe export {folder} makes files of it there; edited "
                "rows need another folder"
            )
    problems = Problems()
    exported = export_to_folder(_usable(results, problems), style, folder, say)
    if exported.results or not problems.num:
        _check_any(exported.results)
        _report(folder, exported, style)
    _finish(problems)


def _is_source_of(folder: Path, given: Path) -> bool:
    """Return True if the rows in a folder are those that were given, by their file or their folder."""
    rows = folder / "transcripts.jsonl"
    return rows.exists() and given.exists() and (given.samefile(rows) or given.samefile(folder))


def _print_rows(results: list[str], style: OutputStyle) -> None:
    from fastscribe.output.stored import has_tokens
    from fastscribe.output.stream import SINGLE_FORMATS, emit, several, stream_text

    if len(style.formats) > 1:
        raise typer.BadParameter("several formats need --output-dir")
    if sys.stdout is None:
        raise StdoutClosed
    problems = Problems()
    rows = _usable(results, problems)
    first = list(islice(rows, 2))
    if not problems.num:
        _check_any(len(first))
    if len(first) > 1 and style.formats[0] in SINGLE_FORMATS:
        raise several(style.formats[0])
    for result, row in chain(first, rows):
        emit(sys.stdout, stream_text(result, replace(style, tokens=has_tokens(row.fields)), is_one=len(first) == 1))
    _finish(problems)


def _usable(results: Iterable[str], problems: Problems) -> Iterator[Stored]:
    """Yield the stored results; count the rows that are none."""
    from fastscribe.evaluation.rows import read_rows
    from fastscribe.output.export import stored_results

    for stored in stored_results(read_rows(results)):
        if isinstance(stored, ManifestError):
            problems.add([stored])
        else:
            yield stored


def _check_any(num_results: int) -> None:
    if num_results == 0:
        raise UsageError("no results at all: nothing was given to export")


def _report(folder: Path, exported: Exported, style: OutputStyle) -> None:
    verb = "recording has" if exported.failed == 1 else "recordings have"
    what = "JSON alone" if "json" in style.formats else "no files"
    failed = f"; {exported.failed} failed {verb} {what}" if exported.failed and style.formats != ("jsonl",) else ""
    say(f"{folder}: made files for {exported.made} of {exported.results} results, without decoding{failed}")


def _finish(problems: Problems) -> None:
    problems.report_rest()
    if problems.num:
        raise typer.Exit(1)
