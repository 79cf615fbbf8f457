"""Prepare the data of a run: read manifests, split off a validation set, train a vocabulary if needed, tokenise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.checkpoint.validate import validate as check_config
from fastscribe.config import EncoderConfig, ModelConfig
from fastscribe.errors import UsageError
from fastscribe.text.tokenizer import from_sentencepiece
from fastscribe.training.augment_config import AugmentConfig
from fastscribe.training.backgrounds import BackgroundCorpus
from fastscribe.training.bpe import TextEncoder, VocabularyTooLarge, train_vocabulary
from fastscribe.training.corpus import Corpus, Example, Examples, ManifestPart
from fastscribe.training.manifest import ExampleLimits, read_manifests, tokenise
from fastscribe.training.mixing import EpochDraw
from fastscribe.training.network import loss_of
from fastscribe.training.recipe import DataRecipe, ModelRecipe, Recipe
from fastscribe.training.scoring import Scoring, ValidationSet, choose_scoring, is_one_language
from fastscribe.training.split import count_by_share, has_two_sentences, split_validation
from fastscribe.types import Float64Array

_MIN_VALIDATION = 10  # recordings
_LONGEST_S = 1e9  # of noise, which is never read whole
_TRAINED_SHARE = 0.99  # of the examples are at most as long as the model's trained_utterance_s


@dataclass(frozen=True)
class TrainingData:
    """The tokenised training set, the validation set and the starting checkpoint."""

    corpus: Corpus
    validation: tuple[Example, ...]
    checkpoint: Checkpoint  # config and tokenizer; weights if the run starts from a trained model
    validation_sets: tuple[ValidationSet, ...] = ()  # in the order of `validation`; empty: it is one set
    scoring: Scoring = Scoring()  # noqa: RUF009 - frozen
    backgrounds: BackgroundCorpus = BackgroundCorpus()  # noqa: RUF009 - frozen

    @cached_property
    def digest(self) -> str:
        """Identity of the examples to train on."""
        return self.corpus.examples.digest()


def prepare(
    recipe: Recipe,
    init: Checkpoint | None,
    say: Callable[[str], None] = lambda line: None,
    where: str | Path = "the recipe",
) -> TrainingData:
    """Read the manifests, train a vocabulary unless `init` has one, and tokenise. Write nothing.

    Args:
        recipe: the run's settings.
        init: the checkpoint to start from; None trains from scratch.
        say: called with each line for the user.
        where: the recipe's name in error messages.

    Raises:
        UsageError: A manifest, a recipe key or the checkpoint cannot be used.
    """
    if init is not None:
        check_trainable(init.config, f"--init {init.path}")
    data, limits = recipe.data, recipe.data.limits
    corpus = read_manifests(data.train, limits)
    if corpus.examples.non_speech.all():
        raise UsageError(f"{where}: data.train: nothing with speech to train on: {corpus}")
    validation_sets: tuple[ValidationSet, ...] = ()
    if data.validation:
        validation, validation_sets = _read_validation(data.validation, limits, say, where)
    else:
        training, validation = _split(corpus.examples, recipe.run.seed, data.validation_share, say)
        corpus = Corpus(training, corpus.left_out)
    if len(validation) < _MIN_VALIDATION:
        say(f"{len(validation)} recordings to validate with: their word error rate is a rough estimate")
    scoring = _scoring(data, init, validation, where, say)
    if init is None:
        init = _new_checkpoint(recipe, corpus.examples.iter_texts(), say, where)
    loss_of(recipe.loss, init.config)
    if not init.config.durations and recipe.loss.is_for_tdt:
        say("loss.sigma and loss.omega are for TDT: this model has no durations and does without them")
    corpus = tokenise(corpus, TextEncoder(init.tokenizer), limits)
    drawn = EpochDraw(corpus.examples, recipe.run.seed)(0)
    longest_s = trained_utterance_s(init, corpus.examples.durations_s[drawn])
    init = replace(init, config=replace(init.config, trained_utterance_s=longest_s))
    return TrainingData(corpus, validation, init, validation_sets, scoring, _backgrounds(recipe.augment))


def _backgrounds(augment: AugmentConfig) -> BackgroundCorpus:
    """Read the manifests of noise and rooms; a row's text does not count."""
    limits = ExampleLimits(min_duration_s=0.0, max_duration_s=_LONGEST_S)
    kinds = ((augment.noise_manifest, "take noise from"), (augment.room_manifest, "take rooms from"))
    read = (
        None if path is None else read_manifests([ManifestPart(path, non_speech=True)], limits, purpose).examples
        for path, purpose in kinds
    )
    return BackgroundCorpus(*read)


def _read_validation(
    parts: Sequence[ManifestPart], limits: ExampleLimits, say: Callable[[str], None], where: str | Path
) -> tuple[tuple[Example, ...], tuple[ValidationSet, ...]]:
    """Return the examples of all manifests, and the sets that they are, if they are several.

    A set is named by its file, or by its path if files have the same name.
    """
    stems = [Path(part.path).stem for part in parts]
    examples: list[Example] = []
    sets = []
    for part, stem in zip(parts, stems, strict=True):
        found = read_manifests([part], limits, "validate with")
        if found.left_out:
            say(f"to validate with: {found}")
        decides = part.decides or not any(other.decides for other in parts)
        name = stem if stems.count(stem) == 1 else part.path
        sets.append(ValidationSet(name, len(found.examples), decides, part.non_speech))
        examples += found.examples
    if all(one.non_speech for one in sets if one.decides):
        raise UsageError(f"{where}: data.validation: only manifests with speech have an error rate; let one decide")
    return tuple(examples), tuple(sets) if len(sets) > 1 else ()


def _scoring(
    data: DataRecipe,
    init: Checkpoint | None,
    validation: Sequence[Example],
    where: str | Path,
    say: Callable[[str], None],
) -> Scoring:
    """Return how validation scores; say so if the texts had to decide."""
    known = init.languages if init is not None else ()
    try:
        scoring = choose_scoring(
            data.language, data.normalizer, data.metric, known, (example.text for example in validation)
        )
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if data.language is None and not is_one_language(known) and "auto" in (data.normalizer, data.metric):
        say(f"validation: {scoring} (data.language, data.normalizer and data.metric set them)")
    return scoring


def _vocabulary(texts: Sequence[str], model: ModelRecipe, say: Callable[[str], None]) -> bytes:
    """Train the vocabulary. A size that was left at the default gives way to the most that the texts yield."""
    try:
        return train_vocabulary(texts, model.vocab_size, model.vocabulary)
    except VocabularyTooLarge as error:
        if model.vocab_size != ModelRecipe.vocab_size:
            raise
        say(
            f"model.vocab_size {model.vocab_size}: these texts yield {error.max_size} pieces, so the vocabulary has these"
        )
        return train_vocabulary(texts, error.max_size, model.vocabulary)


def trained_utterance_s(init: Checkpoint, durations_s: Float64Array) -> float | None:
    """Return the length that 99 % of an epoch's examples do not exceed, in tenths of a second, rounded up; 1 s at least.

    A model that has learnt before keeps a greater length. If it states none, it may have heard any: None.
    """
    before_s = init.config.trained_utterance_s
    if init.weights and before_s is None:
        return None
    longest_s = float(np.sort(durations_s)[math.ceil(_TRAINED_SHARE * len(durations_s)) - 1])
    return max(1.0, math.ceil(longest_s * 10) / 10, before_s or 0.0)


def check_trainable(config: ModelConfig, what: str) -> None:
    """Raise UsageError, which begins with `what`, if this architecture cannot be trained."""
    if not isinstance(config.encoder, EncoderConfig) or config.aed is not None:
        kinds = "FastConformer transducers and CTC models"
        raise UsageError(f"{what}: only {kinds} can be trained, not Canary or convolutional ones")
    if config.encoder.contexts or config.encoder.language_prompt is not None:
        raise UsageError(f"{what}: a streaming model, which learns several contexts at once, cannot be trained here")


def _split(
    examples: Examples, seed: int, share: float, say: Callable[[str], None]
) -> tuple[Examples, tuple[Example, ...]]:
    """Split by `share`; those without speech are to train on."""
    non_speech = examples.non_speech
    if not non_speech.any():
        training, validation = _split_speech(examples, seed, share, say)
        return training, tuple(validation)
    training, validation = _split_speech(examples.take(~non_speech), seed, share, say)
    return training.joined(examples.take(non_speech)), tuple(validation)


def _split_speech(examples: Examples, seed: int, share: float, say: Callable[[str], None]) -> tuple[Examples, Examples]:
    """Split by `share`, but take at least a tenth of the recordings, up to ten: with fewer, the best model is luck."""
    if not has_two_sentences(examples):
        raise UsageError(
            f"{len(examples):,} recording{'s' * (len(examples) > 1)} of one sentence: too few to train on some and "
            "validate with others; give more, or others as data.validation"
        )
    by_share = count_by_share(examples, seed=seed, share=share)
    min_count = max(1, min(_MIN_VALIDATION, len(examples) // 10))
    if min_count <= by_share < len(examples):
        return split_validation(examples, seed=seed, share=share)
    count = min(max(min_count, round(share * len(examples))), len(examples) - 1)
    training, validation = split_validation(examples, seed=seed, count=count)
    say(f"validation_share {share:g} gives {by_share:,} of {len(examples):,} recordings: {len(validation):,} instead")
    return training, validation


def _new_checkpoint(recipe: Recipe, given: Iterable[str], say: Callable[[str], None], where: str | Path) -> Checkpoint:
    """Return a new checkpoint with a vocabulary and a config, without weights."""
    texts = [text for text in given if text]
    try:
        model = _vocabulary(texts, recipe.model, say)
    except UsageError as error:
        raise UsageError(f"{where}: model.vocab_size: {error}") from error
    tokenizer = replace(from_sentencepiece(model), attached="nowhere")
    config = recipe.model.config(len(tokenizer.pieces))
    check_config(config, f"{where}: model")
    return Checkpoint(Path("new"), "fastscribe", config, tokenizer, {})
