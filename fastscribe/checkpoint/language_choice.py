"""Which language a model is told, and what keeps a run to one. Nothing here needs the model itself."""

from __future__ import annotations

from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import Options
from fastscribe.context.language_filter import LanguageFilter
from fastscribe.families.conformer.config import language_prompt_of


def language_filter_of(checkpoint: Checkpoint, options: Options, has_prompt: bool) -> LanguageFilter | None:
    """Return what keeps recordings to a language; None for models with one language or with a prompt for it.

    None also if the option names the language of the aligner.

    Args:
        checkpoint: The model.
        options: The run's language and phrases.
        has_prompt: The decoder has a prompt for the language.
    """
    is_told = has_prompt or language_prompt_of(checkpoint.config) is not None
    if is_told or has_aligner_of_a_language(checkpoint) or len(checkpoint.languages) == 1:
        return None
    return LanguageFilter(checkpoint.tokenizer, checkpoint.languages, options.language, options.boost)


def has_aligner_of_a_language(checkpoint: Checkpoint) -> bool:
    """Return True if the option `language` chose the aligner's head."""
    return checkpoint.aligner is not None and checkpoint.aligner.config.language is not None
