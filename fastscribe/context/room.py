"""The context room's door: what the core asks it for (rooms.py). It imports only what it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastscribe.types import Phrase

if TYPE_CHECKING:
    import torch

    from fastscribe.context.constraints import Constraints
    from fastscribe.context.language_filter import LanguageFilter
    from fastscribe.decode.scorer import FusedModel
    from fastscribe.text.tokenizer import Tokenizer


def language_rules(
    tokenizer: Tokenizer, known: Sequence[str], language: str | None, boost: tuple[Phrase, ...]
) -> LanguageFilter:
    """Return what keeps the recordings of a run to a language. As LanguageFilter()."""
    from fastscribe.context.language_filter import LanguageFilter

    return LanguageFilter(tokenizer, known, language, boost)


def build_constraints(
    phrases: tuple[Phrase, ...],
    tokenizer: Tokenizer,
    path: object,
    device: torch.device,
    say: Callable[[str], None],
    languages: LanguageFilter | None,
    num_labels: int,
) -> Constraints:
    """Return what the rows of a run's batches may not write, and what they should rather write.

    Args:
        phrases: As for Booster.
        tokenizer: As for Booster.
        path: As for Booster.
        device: The decoder's.
        say: As for Booster.
        languages: Has the tokens of each language; None: the model has one language, or a prompt for it.
        num_labels: Of the vocabulary, without blank.

    Raises:
        UsageError: The vocabulary can write none of the phrases.
        CheckpointError: There are phrases, and the tokenizer cannot encode text.
    """
    from fastscribe.context.booster import Booster
    from fastscribe.context.constraints import Constraints
    from fastscribe.context.vocabulary_mask import VocabularyMasks

    masks = None if languages is None else VocabularyMasks(languages, num_labels, device)
    return Constraints(Booster(phrases, tokenizer, path, device, say, languages), masks)


def fused_model(model: Any) -> FusedModel | None:
    """Return the tables of Checkpoint.fused_model on the CPU; None if it does not count."""
    from fastscribe.context import language_model

    if model.fusion.weight == model.fusion.bonus == 0:
        return None
    if isinstance(model, language_model.LanguageModel):
        return language_model.LazyTables(model)
    from fastscribe.context import fusion

    return fusion.tables_of(model)
