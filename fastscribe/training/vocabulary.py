"""The tokenizer of a recipe: trained from the training texts, or read from a SentencePiece model. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fastscribe._system.safe_open import safe_read
from fastscribe.errors import UsageError, first_line
from fastscribe.text.tokenizer import MAX_TOKENIZER_BYTES, Tokenizer, from_sentencepiece
from fastscribe.training.bpe import VocabularyTooLarge, train_vocabulary
from fastscribe.training.model_recipe import ModelChanges, ModelRecipe

_IN_FOLDER = "tokenizer.model"


def make_tokenizer(
    texts: Sequence[str], model: ModelRecipe | ModelChanges, say: Callable[[str], None], where: str | Path
) -> Tokenizer:
    """Return a tokenizer that keeps spaces before punctuation, because clean_text removes them before training.

    Args:
        texts: the training texts; not used with `model.tokenizer`.
        model: the recipe's section.
        say: called with a line if the default size gives way to few texts.
        where: the recipe's name in error messages.

    Raises:
        UsageError: the texts yield no such vocabulary, or the file is no SentencePiece model.
    """
    if model.tokenizer is not None:
        tokenizer = _read(Path(model.tokenizer), f"{where}: model.tokenizer")
    else:
        try:
            tokenizer = from_sentencepiece(_train(texts, model, say))
        except UsageError as error:
            raise UsageError(f"{where}: model.vocab_size: {error}") from error
    return replace(tokenizer, attached="nowhere")


def _train(texts: Sequence[str], model: ModelRecipe | ModelChanges, say: Callable[[str], None]) -> bytes:
    """Train the vocabulary. The default size of a new model gives way to the most that the texts yield."""
    size, kind = model.vocab_size, model.vocabulary or ModelRecipe.vocabulary
    assert size is not None
    try:
        return train_vocabulary(texts, size, kind)
    except VocabularyTooLarge as error:
        if isinstance(model, ModelChanges) or size != ModelRecipe.vocab_size:
            raise
        say(f"model.vocab_size {size}: these texts yield {error.max_size} pieces, so the vocabulary has these")
        return train_vocabulary(texts, error.max_size, kind)


def _read(path: Path, where: str) -> Tokenizer:
    file = path / _IN_FOLDER if path.is_dir() else path
    try:
        return from_sentencepiece(safe_read(file, MAX_TOKENIZER_BYTES))
    except OSError as error:
        raise UsageError(f"{where}: {file}: cannot be read: {error.strerror or error}") from error
    except (RuntimeError, ValueError) as error:
        wanted = "give a file that SentencePiece wrote (.model) or a folder with its tokenizer.model"
        raise UsageError(f"{where}: {file}: no SentencePiece model ({first_line(error)}); {wanted}") from error
