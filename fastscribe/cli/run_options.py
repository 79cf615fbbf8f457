"""Options that the commands share which make results of recordings: transcribe and align."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fastscribe._system.urls import is_url
from fastscribe.cli.app import is_on_terminal, local_file, options_in
from fastscribe.cli.job import check_output_dir
from fastscribe.cli.run_hooks import AllowedFailures
from fastscribe.config import MIN_LINE_WIDTH, OUTPUT_FORMATS, OutputFormat, OutputStyle, SubtitleStyle
from fastscribe.errors import UsageError
from fastscribe.results.interfaces import Moved, OutputRun
from fastscribe.results.shards import choose_shard
from fastscribe.types import Channel

_basic_option, _audio_option, _output_option = options_in("Basics"), options_in("Audio"), options_in("Output")
_job_option, _message_option = options_in("Big jobs"), options_in("Messages and reports")

OutputDir = Annotated[
    str | None,
    _basic_option(
        "--output-dir",
        "-o",
        everyday=True,
        help="Folder or URL for results. Default: stdout.\fThe same command resumes.",
    ),
]
Device = Annotated[str, _basic_option("--device", everyday=True, help="auto, cpu, cuda or cuda:1 ...")]
Quiet = Annotated[
    bool,
    _basic_option("--quiet", "-q", everyday=True, help="Print failures and warnings only.\fNo progress, no report."),
]
ChannelText = Annotated[
    str | None,
    _audio_option(
        "--channel",
        metavar="N|center",
        help="Channel from 0, or center. Default: a mix.\fIt is the mean. Of surround sound, it is the centre channel, "
        "where films have their dialogue, and the front channels where that is silent. A recording without the "
        "channel that you name is mixed, and its row says so.",
    ),
]
Tokens = Annotated[bool, _output_option("--tokens", help="Also write tokens, their times and confidence.")]
Ordered = Annotated[
    bool, _output_option("--ordered", help="Write rows in the order of the inputs.\fDefault: of completion.")
]
RetryFailed = Annotated[
    bool,
    _job_option(
        "--retry-failed", help="Retry files that failed in an earlier run.\fThat run wrote into the same folder."
    ),
]
MovedText = Annotated[
    str | None,
    _job_option(
        "--moved",
        metavar="OLD=NEW",
        help="Take over results of a folder or file that is elsewhere now.\fThe output folder has results of recordings in "
        "OLD, and they are in NEW: those of the same name and size are not decoded again. OLD and NEW may be "
        "names of one file, whose size or length has to be the same. none: these are other recordings.",
    ),
]
AllowFailures = Annotated[
    str | None,
    _job_option(
        "--allow-failures",
        metavar="N|P%",
        help="Exit with 0 while no more recordings fail.\fA number, or a share such as 0.5%, of this run and earlier ones, "
        "or in merge of all shards. Else the exit code is 1 if a recording failed in this run or in a shard, and 3 if some "
        "did in earlier runs only.",
    ),
]
Overwrite = Annotated[
    bool,
    _job_option(
        "--overwrite",
        everyday=True,
        help="Remove the folder's results, and start over.\fOnly files listed in the folder's journal are removed. "
        "If single files alone are given, results of other recordings are not: the command ends with exit code 2.",
    ),
]
Verbose = Annotated[
    bool,
    _message_option(
        "--verbose", "-v", help="Print the whole report at the end.\fTime by stage, padding, memory and so on."
    ),
]
NoProgress = Annotated[bool, _message_option("--no-progress", help="Print no progress.")]
LogFile = Annotated[
    Path | None,
    _message_option(
        "--log-file", callback=local_file, help="Append messages with times to this file.\fIt is new or an earlier log."
    ),
]


def channel_of(text: str | None) -> Channel | None:
    """Return the value of --channel. Raises BadParameter."""
    if text is None:
        return None
    if text == "center":
        return "center"
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a channel from 0 nor center", param_hint="--channel")
    return int(text)


def allowed_failures(text: str | None) -> AllowedFailures:
    """Return the value of --allow-failures. Raises BadParameter."""
    number, percent = (text or "0").strip(), False
    if number.endswith("%"):
        number, percent = number[:-1].strip(), True
    pattern = r"\d{1,3}(\.\d+)?" if percent else r"\d{1,12}"
    if not re.fullmatch(pattern, number, re.ASCII) or (percent and float(number) > 100):
        raise typer.BadParameter(
            f"{text!r} is neither a number nor a share such as 0.5%", param_hint="--allow-failures"
        )
    return AllowedFailures(float(number) / 100, True) if percent else AllowedFailures(float(number))


def make_style(
    format: Iterable[str] | None,
    tokens: bool,
    subtitles: SubtitleStyle,
    output_dir: str | None,
    for_terminal: OutputFormat,
) -> OutputStyle:
    """Return the formats and their options.

    Args:
        format: As given; None: those of the folder's results, and on stdout rows of JSON.
        tokens: Also write tokens, which JSON alone has.
        subtitles: Layout of subtitles.
        output_dir: Where the results go; None: stdout.
        for_terminal: What a person on a terminal reads in place of JSON, where no format was given.

    Raises:
        UsageError: A format is unknown.
        typer.BadParameter: Several formats need --output-dir.
    """
    is_read = output_dir is None and not tokens and is_on_terminal()
    default: tuple[OutputFormat, ...] = (for_terminal if is_read else "jsonl",) if output_dir is None else ()
    style = OutputStyle(parse_formats(format) or default, tokens, subtitles)
    if output_dir is None and len(style.formats) > 1:
        raise typer.BadParameter("several formats need --output-dir")
    return style


def make_output(
    style: OutputStyle,
    inputs: Sequence[str],
    output_dir: str | None,
    shard: str | None,
    *,
    overwrite: bool,
    retry_failed: bool,
    ordered: bool,
    moved: str | None,
) -> OutputRun:
    """Return what a run writes and where.

    Raises:
        UsageError: There is a file in place of the folder, or a shard or --moved is none.
        typer.BadParameter: Options need --output-dir.
    """
    place: Path | str | None = None
    if output_dir is not None:
        check_output_dir(output_dir)
        place = output_dir if is_url(output_dir) else Path(output_dir)
    for name, given in (("--retry-failed", retry_failed), ("--overwrite", overwrite), ("--moved", moved is not None)):
        if given and output_dir is None:
            raise typer.BadParameter(f"{name} needs --output-dir")
    places = None if moved is None else Moved.of(moved)
    own = choose_shard(shard, os.environ)
    return OutputRun(style, {}, own, inputs, overwrite, retry_failed, ordered, moved=places, place=place)


# Options for the layout of subtitles, of the commands that write them.


DEFAULTS = SubtitleStyle()
DEFAULT_CHARS_PER_SECOND = DEFAULTS.max_chars_per_second or 0.0

_option = options_in("Subtitles")

MaxLineWidth = Annotated[
    int,
    _option(
        "--max-line-width",
        min=MIN_LINE_WIDTH,
        help="Columns per line.\fWide characters (Chinese ...) take two.",
    ),
]
MaxLines = Annotated[int, _option("--max-lines", min=1, help="Lines per cue.")]
MaxCueS = Annotated[float, _option("--max-cue-s", min=0, help="Maximum length of a cue.")]
MinCueS = Annotated[
    float, _option("--min-cue-s", min=0, help="Minimum length of a cue.\fThe next cue may start sooner.")
]
MaxCharsPerSecond = Annotated[
    float,
    _option(
        "--max-chars-per-second",
        min=0,
        help="Reading speed; 0 = no limit.\fIt is exceeded where the next cue starts sooner.",
    ),
]
HighlightWords = Annotated[bool, _option("--highlight-words", help="In VTT, underline words as they are spoken.")]


_DOCUMENTS = ("word", "doc", "docx", "odt", "rtf", "pdf")


def parse_formats(values: Iterable[str] | None) -> tuple[OutputFormat, ...]:
    """Return the formats that --format names, in capitals too, in order and each once.

    Raises:
        UsageError: One is unknown.
    """
    known: dict[str, OutputFormat] = {format: format for format in OUTPUT_FORMATS}
    names = [name.strip().lower() for value in values or () for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        document = "; pandoc makes a document of what -f md writes" if unknown[0] in _DOCUMENTS else ""
        raise UsageError(f"--format {unknown[0]}: not one of {', '.join(known)}{document}")
    return tuple(dict.fromkeys(known[name] for name in names))
