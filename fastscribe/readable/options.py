"""Options that change texts, of the commands that write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fastscribe.cli.app import option, options_in
from fastscribe.cli.export_part import ExportPart, Stored
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_part import RunPart
from fastscribe.config import Options, RedactName
from fastscribe.errors import ManifestError, UsageError
from fastscribe.rooms import enter

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


class ChangesPart(ExportPart):
    """Changes the texts of stored results, and makes what needs their recordings.

    Args:
        options: Which changes.
        redact_audio: Folder for redacted copies of the recordings; None: none are made.
        review: The page of the least certain passages; None: there is none.
        num_passages: How many passages it has at most.

    Raises:
        MissingExtra: The extra of --itn is not installed.
        UsageError: An option does not have the language, or the room of pages is missing.
    """

    def __init__(self, options: Options, redact_audio: Path | None, review: Path | None, num_passages: int) -> None:
        from fastscribe.readable.edits import TextEdits

        if review is not None:
            enter("report", "review_page", "--review")  # now, before anything is written
        self._options = options
        self._edits = TextEdits.of_model(options, (), says_language=True)
        self._redact_audio, self._review, self._num_passages = redact_audio, review, num_passages
        if self._edits is not None:
            self.changes = "--remove-fillers" if options.remove_fillers else "--itn" if options.itn else "--redact"
            self.redacts = self._edits.redacts
        self.writes = "" if redact_audio is None and review is None else "--review and --redact-audio"

    @property
    def settings(self) -> Mapping[str, Any]:
        from fastscribe.results.fingerprint import text_settings

        return text_settings(self._options)

    def changed(self, results: Iterable[Stored | ManifestError]) -> Iterable[Stored | ManifestError]:
        """Return the results with changed texts, and what cannot be changed as an error."""
        from fastscribe.readable.stored import edited

        if self._edits is None:
            return results
        self._edits.left_alone.clear()
        return edited(results, self._edits)

    def write(self, read: Callable[[], Iterable[Stored]]) -> int:
        """Make the copies and the page."""
        from fastscribe.readable.export_audio import write_redacted_audio, write_review

        num_failed = 0
        if self._redact_audio is not None:
            num_failed += write_redacted_audio(read(), self._redact_audio)
        if self._review is not None:
            num_failed += write_review(read(), self._review, self._num_passages)
        return num_failed

    @property
    def lines(self) -> Sequence[str]:
        """What the changes left as it was."""
        return () if self._edits is None else self._edits.lines


def _of_export(
    remove_fillers: RemoveFillers = False,
    itn: Itn = False,
    redact: Redact = None,
    redact_list: RedactList = None,
    language: Annotated[
        str | None, _option("--language", "-l", help="Language of the texts.\fDefault: the one that each row says.")
    ] = None,
    redact_audio: Annotated[
        Path | None,
        _option(
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
) -> ExportPart:
    return ChangesPart(
        text_options(remove_fillers, itn, redact, redact_list, language), redact_audio, review, review_passages
    )


OPTIONS = {
    "export": AddedOptions(_of_export, after="--output-dir"),
    "transcribe": AddedOptions(_of_transcribe, after="--ordered"),
}
