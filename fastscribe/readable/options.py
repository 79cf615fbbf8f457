"""Options that change texts, of the commands that write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, get_args

import typer

from fastscribe.cli.app import options_in
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_part import RunPart
from fastscribe.config import Options, RedactName
from fastscribe.errors import UsageError

_option = options_in("Output")
KINDS = get_args(RedactName)

RemoveFillers = Annotated[
    bool,
    _option(
        "--remove-fillers",
        help='Remove "um", "uh" and the like.\fThe list is that of the language, which the model says or --language. JSON '
        "keeps them in removed_words.",
    ),
]
Itn = Annotated[
    bool,
    _option(
        "--itn",
        everyday=True,
        help='Write numbers in figures: "$23".\fEnglish, Chinese and Japanese; needs the extra itn. In JSON, words that were '
        "written have the spoken ones as original.",
    ),
]
Redact = Annotated[
    list[str] | None,
    _option(
        "--redact",
        metavar=",".join(KINDS),
        help="Replace numbers or names by [number], [name].\fnumbers: in figures or words, and e-mail addresses. names: those "
        "of --redact-list. They are in no output. For the audio see fastscribe export --redact-audio.",
    ),
]
RedactList = Annotated[
    Path | None,
    _option("--redact-list", metavar="FILE", help="Names for --redact names, one on each line."),
]


def check_text_options(redact: Iterable[str] | None, redact_list: Path | None) -> dict[str, tuple[str, ...]]:
    """Return the values of Options.redact and Options.redact_names.

    Args:
        redact: Values of --redact, with commas or repeated.
        redact_list: File of names.

    Raises:
        typer.BadParameter: A kind is unknown, there is none, or names and their list do not come together.
        UsageError: The file cannot be read, or has no names.
    """
    kinds = tuple(dict.fromkeys(kind.strip() for value in redact or () for kind in value.split(",") if kind.strip()))
    for kind in kinds:
        if kind not in KINDS:
            raise typer.BadParameter(f"--redact {kind}: not one of {', '.join(KINDS)}")
    if redact and not kinds:
        raise typer.BadParameter(f"--redact names nothing to redact: give {' or '.join(KINDS)}")
    if "names" in kinds and redact_list is None:
        raise typer.BadParameter(
            "--redact names needs --redact-list FILE, with a name on each line: nothing here tells names from other words"
        )
    if redact_list is not None and "names" not in kinds:
        raise typer.BadParameter("--redact-list needs --redact names")
    return {"redact": kinds, "redact_names": () if redact_list is None else _names(redact_list)}


def text_options(
    remove_fillers: bool,
    itn: bool,
    redact: Iterable[str] | None,
    redact_list: Path | None,
    language: str | None,
) -> Options:
    """Return Options with nothing but the changes of texts.

    Raises as check_text_options(), and typer.BadParameter if there is a language, and nothing to change.
    """
    chosen = check_text_options(redact, redact_list)
    if language is not None and not (remove_fillers or itn or redact):
        raise typer.BadParameter("--language needs --remove-fillers, --itn or --redact")
    return Options(remove_fillers=remove_fillers, itn=itn, language=language, **chosen)  # type: ignore[arg-type]


def _names(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
        raise UsageError(f"--redact-list {path}: {problem}") from error
    names = tuple(dict.fromkeys(" ".join(line.split()) for line in lines if any(map(str.isalnum, line))))
    if not names:
        raise UsageError(f"--redact-list {path}: has no names: write one on each line")
    return names


def _of_transcribe(
    context: typer.Context,
    remove_fillers: RemoveFillers = False,
    itn: Itn = False,
    redact: Redact = None,
    redact_list: RedactList = None,
) -> RunPart:
    redaction = check_text_options(redact, redact_list)
    if redaction["redact"] and value_of(context, "tokens"):
        raise typer.BadParameter("--tokens and --redact exclude each other: tokens spell the words that are redacted")
    return RunPart(remove_fillers=remove_fillers, itn=itn, **redaction)


OPTIONS = {"transcribe": AddedOptions(_of_transcribe, after="--ordered")}
