"""`fastscribe export`: other formats from stored results, without decoding."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fastscribe._system.remote import is_url
from fastscribe.cli.app import StdoutClosed, app, option, options_in
from fastscribe.cli.job import check_output_dir
from fastscribe.cli.problems import Problems
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
from fastscribe.config import OUTPUT_FORMATS, Options, OutputStyle, SubtitleStyle
from fastscribe.errors import ManifestError, OutputError, UsageError
from fastscribe.readable.options import Itn, Redact, RedactList, RemoveFillers, text_options

if TYPE_CHECKING:
    from fastscribe.readable.edits import TextEdits
    from fastscribe.results.export import Exported
    from fastscribe.results.rows import ResultRow
    from fastscribe.speakers.renaming import Renaming
    from fastscribe.types import Failure, Transcript

    Stored = tuple[Transcript | Failure, ResultRow]

output_option = options_in("Output")


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
        list[str] | None, option("--format", "-f", help=f"{', '.join(OUTPUT_FORMATS)}; repeat or separate by commas.")
    ] = None,
    output_dir: Annotated[
        Path | None,
        option("--output-dir", "-o", help="Folder for the files. Default: the output folder itself; of files, stdout."),
    ] = None,
    remove_fillers: RemoveFillers = False,
    itn: Itn = False,
    redact: Redact = None,
    redact_list: RedactList = None,
    speaker_map: Annotated[
        Path | None,
        output_option(
            "--speaker-map",
            metavar="FILE",
            help="Names of persons, from fastscribe speakers.\fThe speakers.json that it has written and you have edited. "
            "Persons without a name are person 1 and so on.",
        ),
    ] = None,
    language: Annotated[
        str | None, output_option("--language", help="Language of the texts.\fDefault: the one that each row says.")
    ] = None,
    redact_audio: Annotated[
        Path | None,
        output_option(
            "--redact-audio",
            metavar="DIR",
            help="Write copies of the recordings, redacted.\fSilence takes the place of what --redact has found, now or in "
            "transcribe. Recordings without any are copied too.",
        ),
    ] = None,
    review: Annotated[
        Path | None,
        option(
            "--review",
            metavar="FILE.html",
            help="Write a page of the least certain passages.\fWith their audio inside, to listen to and to correct. It saves "
            "the corrections as a manifest.",
        ),
    ] = None,
    review_passages: Annotated[
        int, option("--review-passages", min=1, max=10_000, help="Passages on the page, at most.")
    ] = 100,
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
    if format is None and redact_audio is None and review is None:
        raise typer.BadParameter("nothing to do: give --format, --review or --redact-audio")
    from fastscribe.readable.edits import TextEdits
    from fastscribe.results.fingerprint import text_settings

    options = text_options(remove_fillers, itn, redact, redact_list, language)
    edits = TextEdits.of_model(options, (), says_language=True)
    changes = _Changes(edits, None if speaker_map is None else _renaming(speaker_map))
    with_audio = redact_audio is not None or review is not None
    if with_audio and "-" in results:
        raise typer.BadParameter("-: --review and --redact-audio read the rows again: give a file or a folder")
    layout = SubtitleStyle(
        max_line_width, max_lines, max_cue_s, min_cue_s, max_chars_per_second or None, highlight_words
    )
    formats = parse_formats(format)
    style = OutputStyle(formats or ("jsonl",), subtitles=layout)
    for url in filter(is_url, results):
        raise UsageError(
            f"{url}: export works on local results; for a URL, repeat transcribe with --format: nothing is decoded"
        )
    if output_dir is not None:
        check_output_dir(output_dir)
    folders = [given for given in results if given != "-" and Path(given).is_dir()]
    problems = Problems()
    num_failed = 0
    try:
        if not formats:
            pass
        elif output_dir is not None:
            settings = text_settings(options) | ({} if speaker_map is None else {"--speaker-map": True})
            _export_rows(results, style, output_dir, changes, problems, settings)
        elif not folders:
            _print_rows(results, style, changes, problems)
        elif len(folders) < len(results):
            raise typer.BadParameter("give folders or files, not both, or a folder for all with --output-dir")
        elif edits is not None or speaker_map is not None:
            asked = "--speaker-map" if speaker_map is not None else _asked(options)
            raise typer.BadParameter(f"{asked} makes other rows, which need a folder of their own: add --output-dir")
        else:
            for folder in folders:
                _export_in_place(Path(folder), style)
        if with_audio:
            num_failed = _with_audio(results, changes, problems, redact_audio, review, review_passages)
    except BrokenPipeError as error:
        raise StdoutClosed from error
    except OSError as error:
        raise OutputError(str(error.filename or output_dir or "stdout"), error) from error
    for line in changes.lines:
        say(line)
    problems.report_rest()
    if problems.num or num_failed:
        raise typer.Exit(1)


class _Changes(NamedTuple):
    """What is changed in stored results; None: nothing."""

    edits: TextEdits | None
    renaming: Renaming | None

    @property
    def lines(self) -> list[str]:
        """Lines for the user at the end."""
        lines = [] if self.edits is None else list(self.edits.lines)
        if self.renaming is not None and self.renaming.num_without:
            lines.append(f"recordings whose speakers are not in the --speaker-map: {self.renaming.num_without:,}")
        return lines


def _renaming(path: Path) -> Renaming:
    from fastscribe.speakers.persons import read_persons
    from fastscribe.speakers.renaming import Renaming

    try:
        return Renaming(read_persons(path))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file: fastscribe speakers makes it") from None


def _asked(options: Options) -> str:
    """Return the first option that changes texts."""
    return "--remove-fillers" if options.remove_fillers else "--itn" if options.itn else "--redact"


def _with_audio(
    results: list[str],
    changes: _Changes,
    problems: Problems,
    redact_audio: Path | None,
    review: Path | None,
    num_passages: int,
) -> int:
    """Make what needs the recordings. Return the number of results for which that failed."""
    from fastscribe.cli.export_audio import write_redacted_audio, write_review

    num_failed = 0
    if redact_audio is not None:
        num_failed += write_redacted_audio(_usable(results, changes, problems), redact_audio)
    if review is not None:
        num_failed += write_review(_usable(results, changes, problems), review, num_passages)
    return num_failed


def _export_in_place(folder: Path, style: OutputStyle) -> None:
    from fastscribe.results.export import export_in_place, runs_of

    if style.formats == ("jsonl",):
        raise typer.BadParameter("jsonl is what export reads; choose another format")
    if not runs_of(folder):
        raise UsageError(
            f"{folder}: no run's journal is here, so its files need a folder of their own: add -o FOLDER, or give the "
            "folders of the shards if it is merged"
        )
    _report(folder, export_in_place(folder, style, say), style)


def _export_rows(
    results: list[str],
    style: OutputStyle,
    folder: Path,
    changes: _Changes,
    problems: Problems,
    settings: Mapping[str, Any],
) -> None:
    from fastscribe.results.export import export_to_folder

    for given in results:
        if given != "-" and _is_source_of(folder, Path(given)):
            raise UsageError(
                f"{given}: is what --output-dir {folder} holds: fastscribe export {folder} makes files of it there; edited "
                "rows need another folder"
            )
    exported = export_to_folder(_usable(results, changes, problems), style, folder, say, settings)
    if exported.results or not problems.num:
        _check_any(exported.results)
        _report(folder, exported, style)


def _is_source_of(folder: Path, given: Path) -> bool:
    """Return True if the rows in a folder are those that were given, by their file or their folder."""
    rows = folder / "transcripts.jsonl"
    return rows.exists() and given.exists() and (given.samefile(rows) or given.samefile(folder))


def _print_rows(results: list[str], style: OutputStyle, changes: _Changes, problems: Problems) -> None:
    from fastscribe.results.stored import has_tokens
    from fastscribe.results.stream import SINGLE_FORMATS, emit, several, stream_text

    if len(style.formats) > 1:
        raise typer.BadParameter("several formats need --output-dir")
    if sys.stdout is None:
        raise StdoutClosed
    rows = _usable(results, changes, problems)
    first = list(islice(rows, 2))
    if not problems.num:
        _check_any(len(first))
    if len(first) > 1 and style.formats[0] in SINGLE_FORMATS:
        raise several(style.formats[0])
    for result, row in chain(first, rows):
        tokens = has_tokens(row.fields) and not (changes.edits is not None and changes.edits.redacts)
        emit(sys.stdout, stream_text(result, replace(style, tokens=tokens), is_one=len(first) == 1))


def _usable(results: Iterable[str], changes: _Changes, problems: Problems) -> Iterator[Stored]:
    """Yield the stored results, changed and without voice prints, which are not for others; count the rows that are none."""
    from fastscribe.readable.stored import edited
    from fastscribe.results.export import stored_results
    from fastscribe.results.rows import read_rows
    from fastscribe.types import Transcript

    found = stored_results(read_rows(results))
    # The rows are read once for each thing to make.
    if changes.renaming is not None:
        changes.renaming.num_without = 0
        found = changes.renaming.renamed(found)
    if changes.edits is not None:
        changes.edits.left_alone.clear()
        found = edited(found, changes.edits)
    for stored in found:
        if isinstance(stored, ManifestError):
            problems.add([stored])
        else:
            result, row = stored
            yield replace(result, voices=()) if isinstance(result, Transcript) else result, row


def _check_any(num_results: int) -> None:
    if num_results == 0:
        raise UsageError("no results at all: nothing was given to export")


def _report(folder: Path, exported: Exported, style: OutputStyle) -> None:
    verb = "recording has" if exported.failed == 1 else "recordings have"
    what = "JSON alone" if "json" in style.formats else "no files"
    failed = f"; {exported.failed} failed {verb} {what}" if exported.failed and style.formats != ("jsonl",) else ""
    say(f"{folder}: made files for {exported.made} of {exported.results} results, without decoding{failed}")
