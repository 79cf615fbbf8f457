"""`fastscribe export`: other formats from stored results, without decoding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe._system.text_layout import count_of
from fastscribe._system.urls import is_url
from fastscribe.cli import run_options
from fastscribe.cli.app import StdoutClosed, app, option
from fastscribe.cli.job import check_output_dir
from fastscribe.cli.problems import Problems
from fastscribe.cli.room_options import CommandWithRooms, room_hooks
from fastscribe.cli.run_hooks import ExportHook, Stored
from fastscribe.cli.terminal import say
from fastscribe.config import OUTPUT_FORMATS, OutputStyle, SpeakerNames, SubtitleStyle
from fastscribe.errors import ManifestError, OutputError, UsageError
from fastscribe.results.formats.writers import SINGLE_FORMATS
from fastscribe.results.paths import journals_in
from fastscribe.results.rows import read_rows
from fastscribe.results.stream import emit, several, stream_text
from fastscribe.types import Transcript

if TYPE_CHECKING:
    from fastscribe.results.export import Exported

    Report = Callable[[Path, Exported, OutputStyle], None]


@app.command(
    cls=CommandWithRooms,
    short_help="Make other formats from results, without decoding.",
    epilog="Example: fastscribe export out -f srt,vtt --max-line-width 37",
)
def export(
    context: typer.Context,
    results: Annotated[
        list[str],
        typer.Argument(
            help="Output folders of transcribe, files like transcripts.jsonl, URLs of either, or -.", metavar="RESULTS"
        ),
    ],
    format: Annotated[
        list[str] | None, option("--format", "-f", help=f"{', '.join(OUTPUT_FORMATS)}; repeat or separate by commas.")
    ] = None,
    output_dir: Annotated[
        str | None,
        option(
            "--output-dir",
            "-o",
            help="Folder for the files. Default: the output folder itself; of files and URLs, stdout.",
        ),
    ] = None,
    max_line_width: run_options.MaxLineWidth = run_options.DEFAULTS.max_line_width,
    max_lines: run_options.MaxLines = run_options.DEFAULTS.max_lines,
    max_cue_s: run_options.MaxCueS = run_options.DEFAULTS.max_cue_s,
    min_cue_s: run_options.MinCueS = run_options.DEFAULTS.min_cue_s,
    max_chars_per_second: run_options.MaxCharsPerSecond = run_options.DEFAULT_CHARS_PER_SECOND,
    highlight_words: run_options.HighlightWords = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="Print failures and warnings only.")] = False,
) -> None:
    """Make files of other formats, or with other subtitles, from the rows of finished runs. Nothing is decoded.

    Files that no run wrote, or that someone edited since, stay as they are. Tokens are in JSON if the run had --tokens.
    """
    hooks: Sequence[ExportHook] = room_hooks(context)
    if format is None:
        from fastscribe.results.export import formats_in

        formats = formats_in(Path(results[0]))
        has = f"; the folder has {', '.join(formats)}: -f {','.join(formats)}" if formats else ""
        raise typer.BadParameter(f"nothing to do: give --format{has}")
    layout = SubtitleStyle(
        max_line_width, max_lines, max_cue_s, min_cue_s, max_chars_per_second or None, highlight_words
    )
    style = OutputStyle(run_options.parse_formats(format), subtitles=layout)
    for hook in hooks:
        style = hook.styled(style)
    folder = None if output_dir is None else _checked_folder(output_dir)
    if style.speaker_names is None and (folder is not None or not Path(results[0]).is_dir()):
        style = _with_names(style, results, folder, quiet)
    folders = [given for given in results if given != "-" and Path(given).is_dir()]
    problems = Problems()
    report = (lambda *made: None) if quiet else _report
    try:
        if folder is not None:
            _export_rows(results, style, folder, hooks, problems, report)
        elif not folders:
            _print_rows(results, style, hooks, problems)
        elif len(folders) < len(results):
            raise typer.BadParameter("give folders or files, not both, or a folder for all with --output-dir")
        elif asked := next((hook.changes for hook in hooks if hook.changes), ""):
            raise typer.BadParameter(f"{asked} makes other rows, which need a folder of their own: add --output-dir")
        else:
            for place in map(Path, folders):
                _export_in_place(place, style, report)
                for hook in hooks:
                    hook.made_in(place)
    except BrokenPipeError as error:
        raise StdoutClosed from error
    except OSError as error:
        raise OutputError(str(error.filename or output_dir or "stdout"), error) from error
    for line in (line for hook in hooks for line in hook.lines):
        say(line)
    problems.report()
    if problems.num:
        raise typer.Exit(1)


def _checked_folder(output_dir: str) -> Path:
    check_output_dir(output_dir)
    if is_url(output_dir):
        raise UsageError(
            f"--output-dir {output_dir}: export writes into a local folder; for files at the URL of a run, repeat transcribe "
            "with --format: nothing is decoded"
        )
    return Path(output_dir)


def _with_names(style: OutputStyle, results: list[str], output_dir: Path | None, quiet: bool) -> OutputStyle:
    """Return the style with the names of speakers of the folder that is written, or else of the only one that is read."""
    from fastscribe.results.export import names_in

    names = None if output_dir is None else names_in(output_dir)
    if names is None and len(results) == 1:
        names = names_in(Path(results[0]))
        if names not in (None, SpeakerNames()) and output_dir is not None and not quiet:
            say(f"{output_dir}: its files get the names of speakers that {results[0]} was given")
    elif names is None and (named := [given for given in results if names_in(Path(given)) is not None]):
        say(f"{named[0]}: the names of speakers that it was given are left out, as several results are joined")
    return replace(style, speaker_names=names)


def _export_in_place(folder: Path, style: OutputStyle, report: Report) -> None:
    from fastscribe.results.export import export_in_place

    if style.formats == ("jsonl",):
        raise typer.BadParameter("jsonl is what export reads; choose another format")
    if not journals_in(folder):
        raise UsageError(
            f"{folder}: no run's journal is here, so its files need a folder of their own: add -o FOLDER, or give the "
            "folders of the shards if it is merged"
        )
    report(folder, export_in_place(folder, style, say), style)


def _export_rows(
    results: list[str],
    style: OutputStyle,
    folder: Path,
    hooks: Sequence[ExportHook],
    problems: Problems,
    report: Report,
) -> None:
    from fastscribe.results.export import export_to_folder

    for given in results:
        rows, path = folder / "transcripts.jsonl", Path(given)
        if given != "-" and rows.exists() and path.exists() and (path.samefile(rows) or path.samefile(folder)):
            raise UsageError(
                f"{given}: is what --output-dir {folder} holds: fastscribe export {quote(str(folder))} makes files of it "
                "there; edited rows need another folder"
            )
    settings = {name: value for hook in reversed(hooks) for name, value in hook.settings.items()}
    exported = export_to_folder(_usable(results, hooks, problems), style, folder, say, settings)
    if exported.results or not problems.num:
        _check_any(exported.results)
        report(folder, exported, style)


def _print_rows(results: list[str], style: OutputStyle, hooks: Sequence[ExportHook], problems: Problems) -> None:
    if len(style.formats) > 1:
        raise typer.BadParameter("several formats need --output-dir")
    if sys.stdout is None:
        raise StdoutClosed
    rows = _usable(results, hooks, problems)
    first = list(islice(rows, 2))
    if not problems.num:
        _check_any(len(first))
    if len(first) > 1 and style.formats[0] in SINGLE_FORMATS:
        raise several(style.formats[0])
    for result, row in chain(first, rows):
        style = replace(style, tokens="tokens" in row.fields)
        emit(sys.stdout, stream_text(result, style, is_one=len(first) == 1))


def _usable(results: Iterable[str], hooks: Sequence[ExportHook], problems: Problems) -> Iterator[Stored]:
    """Yield the stored results, changed and without voice prints, which are not for others; count the rows that are none."""
    from fastscribe.results.export import stored_results

    found: Iterable[Stored | ManifestError] = stored_results(read_rows(results))
    for hook in hooks:
        found = hook.changed(found)
    for result, row in problems.without_problems(found):
        yield replace(result, voices=()) if isinstance(result, Transcript) else result, row


def _check_any(num_results: int) -> None:
    if num_results == 0:
        raise UsageError("no results at all: nothing was given to export")


def _report(folder: Path, exported: Exported, style: OutputStyle) -> None:
    verb = "recording has" if exported.failed == 1 else "recordings have"
    what = "JSON alone" if "json" in style.formats else "no files"
    failed = f"; {exported.failed} failed {verb} {what}" if exported.failed and style.formats != ("jsonl",) else ""
    kept = f"; {count_of(exported.kept, 'edited file')} left as {'it is' if exported.kept == 1 else 'they are'}"
    say(
        f"{folder}: made files for {exported.made} of {exported.results} results, without decoding"
        f"{kept if exported.kept else ''}{failed}"
    )
