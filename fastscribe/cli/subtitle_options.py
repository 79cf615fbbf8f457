"""Options for the layout of subtitles, of the commands that write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastscribe.cli.app import options_in
from fastscribe.config import MIN_LINE_WIDTH, OUTPUT_FORMATS, OutputFormat, SubtitleStyle
from fastscribe.errors import UsageError

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


def parse_formats(values: Iterable[str] | None) -> tuple[OutputFormat, ...]:
    """Return the formats that --format names, in capitals too, in order and each once.

    Raises:
        UsageError: One is unknown.
    """
    known: dict[str, OutputFormat] = {format: format for format in OUTPUT_FORMATS}
    names = [name.strip().lower() for value in values or () for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--format {unknown[0]}: not one of {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in names))
