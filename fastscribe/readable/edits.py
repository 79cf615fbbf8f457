"""What Options change in a transcript before it is written: fillers, numbers in figures, in this order.

A run applies it to each result, and `fastscribe export` to stored ones. What it needs to know of a language is settled at the
start: a run that could not do what was asked for must not begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from fastscribe.config import CHANGES_OF_TEXT, Options
from fastscribe.errors import ManifestError, UsageError
from fastscribe.languages import written_language
from fastscribe.readable.fillers import FILLER_LANGUAGES, without_fillers
from fastscribe.readable.itn import ITN_LANGUAGES, Itn
from fastscribe.readable.words import edit_alternatives, edit_segments, with_own_words
from fastscribe.results.fingerprint import option_name
from fastscribe.results.rows import ResultRow
from fastscribe.types import Failure, Transcript, Word

Stored = tuple[Transcript | Failure, ResultRow]
# That an option has rules for, of each change of the text; empty: it changes all texts alike, whatever their language.
LANGUAGES_OF_CHANGES: dict[str, Collection[str]] = {"--remove-fillers": FILLER_LANGUAGES, "--itn": ITN_LANGUAGES}


class TextEdits:
    """Changes the texts of results. One thread uses it.

    Attributes:
        language: Code of the language of all texts; None: each transcript says its own.
        left_alone: Numbers of transcripts that an option left as they were, by the option and the language ("": not known).
    """

    def __init__(self, options: Options, language: str | None = None, of_run: str | None = None) -> None:
        """Prepare what the options ask for.

        Args:
            options: remove_fillers and itn are used.
            language: Tag of the language of all texts; None: each transcript says its own.
            of_run: That of stored transcripts that say none.

        Raises:
            MissingExtra: The extra of `itn` is not installed.
            UsageError: An option does not have the language.
        """
        self._options, self.language, self._of_run = options, _code(language), _code(of_run)
        self._itn: dict[str, Itn] = {}
        self.left_alone: Counter[tuple[str, str]] = Counter()
        for option in _bound_to_language(options):
            if self.language is not None and self.language not in LANGUAGES_OF_CHANGES[option]:
                known = ", ".join(sorted(LANGUAGES_OF_CHANGES[option]))
                raise UsageError(f"{option}: has no rules for the language {language}, only for {known}")
        if options.itn:
            self._itn_of(self.language or "en")

    def __reduce__(self) -> tuple[type[TextEdits], tuple[Options, str | None]]:
        """Another process gets what the options ask for, without counts."""
        return TextEdits, (self._options, self.language)

    @classmethod
    def of_model(cls, options: Options, known: Sequence[str], says_language: bool) -> TextEdits:
        """Return the edits of a run.

        Args:
            options: As the constructor's, and the language.
            known: Tags of the model's languages; empty if it does not state them.
            says_language: The model says which language it heard.

        Raises:
            MissingExtra: As the constructor.
            UsageError: As the constructor, or the language is not known.
        """
        language = written_language((options.target_language, options.language), known)
        bound = _bound_to_language(options)
        if language is None and not says_language and bound:
            raise UsageError(f"{bound[0]}: this model does not say which language it writes: add --language")
        return cls(options, language)

    def apply(self, transcript: Transcript) -> Transcript:
        """Return a transcript with its text changed. Each of its segments has its own words."""
        language = _code(transcript.audio.language) or self.language or _code(transcript.language) or self._of_run
        if self._options.remove_fillers and self._has("--remove-fillers", language):
            transcript = _without_fillers(transcript, language or "")
        if self._options.itn and self._has("--itn", language):
            itn = self._itn_of(language or "")
            transcript = edit_alternatives(edit_segments(transcript, itn.written), itn.written)
        return transcript

    def apply_to_stored(self, results: Iterable[Stored | ManifestError]) -> Iterator[Stored | ManifestError]:
        """Yield results of results.export.stored_results() with changed texts, and what cannot be changed as an error.

        Raises:
            UsageError: The language of the first transcript is not known.
        """
        known, bound = None, _bound_to_language(self._options)
        for stored in results:
            if isinstance(stored, ManifestError):
                yield stored
                continue
            result, row = stored
            if isinstance(result, Failure):
                yield stored
            elif bound and not (
                known := known or self.language or result.audio.language or result.language or self._of_run
            ):
                raise UsageError(f"{bound[0]}: the language of {result.audio.path} is not known: add --language")
            elif (own := with_own_words(result)) is None:
                yield row.problem("the texts of its segments are not made of its words, so they cannot be told apart")
            else:
                yield self.apply(own), row

    def _has(self, option: str, language: str | None) -> bool:
        if language not in LANGUAGES_OF_CHANGES[option]:
            self.left_alone[option, language or ""] += 1
        return language in LANGUAGES_OF_CHANGES[option]

    def _itn_of(self, language: str) -> Itn:
        if language not in self._itn:
            self._itn[language] = Itn(language)
        return self._itn[language]

    @property
    def lines(self) -> list[str]:
        """A line for the user about each option and language that left transcripts as they were."""
        return [_left_line(option, language, num) for (option, language), num in sorted(self.left_alone.items())]


def _bound_to_language(options: Options) -> list[str]:
    """Return the options that change texts and are set, of those with rules for some languages."""
    asked = [option_name(name) for name in CHANGES_OF_TEXT if getattr(options, name)]
    return [option for option in asked if LANGUAGES_OF_CHANGES[option]]


def _code(tag: str | None) -> str | None:
    """Return the language of a tag without its region."""
    return tag and tag.partition("-")[0]


def _left_line(option: str, language: str, num: int) -> str:
    transcripts = "1 transcript has" if num == 1 else f"{num:,} transcripts have"
    spoken = f"the language {language}" if language else "no known language (add --language)"
    return f"{option}: {transcripts} {spoken}: left as they were"


def _without_fillers(transcript: Transcript, language: str) -> Transcript:
    fillers: list[Word] = []

    def edit(words: Sequence[Word]) -> list[Word]:
        kept, removed = without_fillers(words, language)
        fillers.extend(removed)
        return kept

    edited = edit_segments(transcript, edit)
    edited = edit_alternatives(edited, lambda words: without_fillers(words, language)[0])
    return replace(edited, removed_words=(*edited.removed_words, *fillers))
