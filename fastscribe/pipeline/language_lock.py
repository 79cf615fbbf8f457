"""Whether a run keeps recordings to a language. The room context has the rules, for a run or a row that names a language."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import Options
from fastscribe.families.conformer.config import language_prompt_of
from fastscribe.languages import AUTO

if TYPE_CHECKING:
    from fastscribe.context.language_filter import LanguageFilter

LanguageLock: TypeAlias = "LanguageFilter"


def lock_of(checkpoint: Checkpoint, options: Options, has_prompt: bool) -> LanguageLock | None:
    """Return what keeps recordings to a language; None for models with one language or with a prompt for it.

    None also if the option names the language of the aligner, or if neither it nor the model names a language.

    Args:
        checkpoint: The model.
        options: The run's language and phrases.
        has_prompt: The decoder has a prompt for the language.

    Raises:
        UsageError: No token of the model has letters of the language.
    """
    is_told = has_prompt or language_prompt_of(checkpoint.config) is not None
    names_none = not checkpoint.languages and options.language in (None, AUTO)
    if is_told or checkpoint.has_aligner_of_a_language or len(checkpoint.languages) == 1 or names_none:
        return None
    from fastscribe.context.language_filter import LanguageFilter

    return LanguageFilter(checkpoint.tokenizer, checkpoint.languages, options.language, options.boost)
