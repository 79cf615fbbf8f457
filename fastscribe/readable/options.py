"""Options that change texts, of the commands that write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fastscribe.cli.app import options_in
from fastscribe.cli.room_options import AddedOptions, value_of
from fastscribe.cli.run_hooks import ExportHook, RunHook, Stored
from fastscribe.config import CHANGES_OF_TEXT, Options
from fastscribe.errors import ManifestError
from fastscribe.languages import written_language
from fastscribe.readable.edits import TextEdits
from fastscribe.results.fingerprint import option_name, text_settings

_option = options_in("Output")

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


def _of_transcribe(remove_fillers: RemoveFillers = False, itn: Itn = False) -> RunHook:
    return RunHook(remove_fillers=remove_fillers, itn=itn)


class ChangesHook(ExportHook):
    """Changes the texts of stored results.

    Args:
        options: Which changes.
        of_run: Language of the run, for rows that say none.

    Raises:
        MissingExtra: The extra of --itn is not installed.
        UsageError: An option does not have the language.
    """

    def __init__(self, options: Options, of_run: str | None = None) -> None:
        self._stated = replace(options, language=options.language or of_run)
        self._edits = TextEdits(options, written_language([options.language], ()), of_run)
        self.changes = next(option_name(name) for name in CHANGES_OF_TEXT if getattr(options, name))

    @property
    def settings(self) -> Mapping[str, Any]:

        return text_settings(self._stated)

    def changed(self, results: Iterable[Stored | ManifestError]) -> Iterable[Stored | ManifestError]:
        """Return the results with changed texts, and what cannot be changed as an error."""
        self._edits.left_alone.clear()
        return self._edits.apply_to_stored(results)

    @property
    def lines(self) -> Sequence[str]:
        """What the changes left as it was."""
        return self._edits.lines


def _of_export(
    context: typer.Context,
    remove_fillers: RemoveFillers = False,
    itn: Itn = False,
    language: Annotated[
        str | None,
        _option(
            "--language", "-l", help="Language of the texts.\fDefault: the one that each row says, or that of the run."
        ),
    ] = None,
) -> ExportHook | None:
    changes = Options(remove_fillers=remove_fillers, itn=itn)
    if not changes.changes_text:
        if language is not None:
            raise typer.BadParameter(f"--language needs {' or '.join(map(option_name, CHANGES_OF_TEXT))}")
        return None
    from fastscribe.results.export import language_in

    of_run = language_in(map(Path, value_of(context, "results")))
    return ChangesHook(replace(changes, language=language), of_run)


OPTIONS = {
    "export": AddedOptions(_of_export, after="--output-dir"),
    "transcribe": AddedOptions(_of_transcribe, after="--ordered"),
}
