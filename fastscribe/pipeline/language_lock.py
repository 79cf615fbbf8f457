"""Keeps recordings to a language. The room context has the rules, for a run or a row that names a language."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import Options
from fastscribe.families.conformer.config import language_prompt_of
from fastscribe.languages import AUTO, names_language
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Failure, Phrase, Source

if TYPE_CHECKING:
    from fastscribe.context.language_filter import LanguageFilter


class LanguageLock:
    """Keeps the recordings of a run to the language of the run, or of their rows. Its methods may be called by several threads.

    Rows count if the model states several languages, or if the run has one.
    """

    def __init__(
        self, tokenizer: Tokenizer, known: Sequence[str], language: str | None, boost: tuple[Phrase, ...] = ()
    ) -> None:
        """Prepare the run's language.

        Args:
            tokenizer: The model's.
            known: Tags of the model's languages; empty if it does not state them.
            language: Tag of the run's language; AUTO is the same as None.
            boost: The run's phrases to boost.

        Raises:
            UsageError: No token of the model has letters of the language.
        """
        self._given = tokenizer, known, language, boost
        self._reads_rows = len(known) > 1
        self._mutex = Lock()
        self._rules: LanguageFilter | None = None
        if language not in (None, AUTO):
            self.rules()

    def rules(self) -> LanguageFilter:
        """Return the rules, which are built once."""
        with self._mutex:
            if self._rules is None:
                from fastscribe.context.language_filter import LanguageFilter

                self._rules = LanguageFilter(*self._given)
            return self._rules

    @property
    def language(self) -> str | None:
        """Tag of the language that the run is kept to; None: of none, or its texts can have all tokens."""
        return None if self._rules is None else self._rules.language

    @property
    def num_excluded(self) -> int | None:
        """Number of tokens that it leaves out; None: there is no language, or its letters are not known."""
        return None if self._rules is None else self._rules.num_excluded

    @property
    def lines(self) -> list[str]:
        """Lines for the user about rows that named a language and phrases without effect, if there were any."""
        return [] if self._rules is None else self._rules.lines

    def take_lines(self) -> list[str]:
        """Return `lines`, and count from zero again."""
        return [] if self._rules is None else self._rules.take_lines()

    def apply(self, source: Source) -> Source | Failure:
        """Return the source with the language that it is kept to, or the Failure of a row whose language is unusable."""
        if self._rules is None and not (self._reads_rows and names_language(source.row)):
            return source
        return self.rules().apply(source)


def lock_of(checkpoint: Checkpoint, options: Options, has_prompt: bool) -> LanguageLock | None:
    """Return what keeps recordings to a language; None for models with one language or with a prompt for it.

    None also if the option names the language of the aligner.

    Args:
        checkpoint: The model.
        options: The run's language and phrases.
        has_prompt: The decoder has a prompt for the language.
    """
    is_told = has_prompt or language_prompt_of(checkpoint.config) is not None
    if is_told or checkpoint.has_aligner_of_a_language or len(checkpoint.languages) == 1:
        return None
    return LanguageLock(checkpoint.tokenizer, checkpoint.languages, options.language, options.boost)
