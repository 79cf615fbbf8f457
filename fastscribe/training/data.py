"""Prepare the data of a run: read manifests, split off a validation set, train a vocabulary if needed, tokenise."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fastscribe._system.text_layout import count_of, first_of
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.checkpoint.validate import validate as check_config
from fastscribe.config import ModelConfig
from fastscribe.errors import UsageError
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.languages import language_tag
from fastscribe.training.augment_config import AugmentConfig
from fastscribe.training.backgrounds import BackgroundCorpus
from fastscribe.training.bpe import TextEncoder
from fastscribe.training.changed_model import ChangedModel, Head, change_model
from fastscribe.training.corpus import Corpus, Example, Examples, LeftOutRow, ManifestPart
from fastscribe.training.manifest import (
    LACKS_LETTERS,
    ExampleLimits,
    check_most_usable,
    no_request,
    read_manifests,
    tokenise,
)
from fastscribe.training.mixing import EpochDraw
from fastscribe.training.model_recipe import ModelChanges, ModelRecipe
from fastscribe.training.network import loss_of
from fastscribe.training.prompts import PromptedEncoder, PromptReader
from fastscribe.training.recipe import DataRecipe, Recipe, check_used
from fastscribe.training.rows import ReadRequest
from fastscribe.training.scoring import Scoring, ValidationSet, choose_scoring, is_one_language
from fastscribe.training.split import count_by_share, has_two_sentences, split_validation
from fastscribe.training.vocabulary import make_tokenizer
from fastscribe.types import Float64Array

_MIN_VALIDATION = 10  # recordings
_NEW_VOCABULARY = "model.vocab_size or model.tokenizer in a recipe gives it a new one"
_MAX_LETTERS = 8  # in a message
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
    new_heads: frozenset[Head] = frozenset()  # of a trained model, those that no training has touched yet
    num_prompt: int = 0  # tokens at each example's beginning that an attention decoder is given
    backgrounds: BackgroundCorpus = BackgroundCorpus()  # noqa: RUF009 - frozen
    start_utterance_s: float | None = None  # what the starting checkpoint states, before this run's examples
    left_out: tuple[LeftOutRow, ...] = ()  # rows of all manifests to train on and to validate with

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
    """Read the manifests, make the vocabulary or take that of `init`, and tokenise. Write nothing.

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
    elif recipe.optimiser.lora is not None:
        raise UsageError(f"{where}: optimiser.lora: adapters are for a model that has learnt: name one with --init")
    data, limits = recipe.data, recipe.data.limits
    read_request = _request_reader(data, init, where)
    corpus = read_manifests(data.train, limits, read_request=read_request)
    if corpus.examples.non_speech.all():
        raise UsageError(f"{where}: data.train: nothing with speech to train on: {corpus}")
    if read_request is not no_request and corpus.examples.non_speech.any():
        raise UsageError(
            f"{where}: data.train: non_speech: an attention decoder cannot learn from recordings without speech"
        )
    validation_sets: tuple[ValidationSet, ...] = ()
    left_out: tuple[LeftOutRow, ...] = ()
    if data.validation:
        validation, validation_sets, left_out = _read_validation(data.validation, limits, say, where, read_request)
    else:
        training, validation = _split(corpus.examples, recipe.run.seed, data.validation_share, say)
        corpus = Corpus(training, corpus.left_out)
    if len(validation) < _MIN_VALIDATION:
        count = count_of(len(validation), "recording")
        say(f"{count} to validate with: the word error rate is a rough estimate")
    has_new_vocabulary = isinstance(recipe.model, ModelChanges) and recipe.model.has_new_vocabulary
    known = init.languages if init is not None and not has_new_vocabulary else ()
    scoring = _scoring(data, known, validation, where, say)
    is_kept, new_heads = init is not None and not has_new_vocabulary, frozenset[Head]()
    if init is None:
        init = _new_checkpoint(recipe, corpus.examples, say, where)
    else:
        changed = _changed(recipe, init, corpus.examples, say, where)
        init, new_heads = changed.checkpoint, changed.new_heads
    loss_of(recipe.loss, init.config)
    check_used(recipe, init.config, where)
    encode, limits, num_prompt = _encoder(init, limits)
    corpus = _tokenise(corpus, encode, limits, is_kept, say)
    check_most_usable(corpus, data.limits, "train on")
    _check_validation_texts(validation, encode, say)
    if data.validation and (shared := _shared(corpus.examples, validation)):
        say(
            f"{len(shared):,} of the {count_of(len(validation), 'recording')} to validate with are also trained on, such as "
            f"{shared[0]}: their error rate says little about other speech"
        )
    drawn = EpochDraw(corpus.examples, recipe.run.seed)(0)
    start_s = init.config.trained_utterance_s
    longest_s = trained_utterance_s(init, corpus.examples.durations_s[drawn])
    init = replace(init, config=replace(init.config, trained_utterance_s=longest_s))
    backgrounds = _backgrounds(recipe.augment)
    left_out = (*corpus.left_out, *left_out)
    return TrainingData(
        corpus, validation, init, validation_sets, scoring, new_heads, num_prompt, backgrounds, start_s, left_out
    )


def _request_reader(data: DataRecipe, init: Checkpoint | None, where: str | Path) -> ReadRequest:
    """Return what reads a row's prompt: of an attention decoder alone."""
    if init is None or init.config.aed is None:
        return no_request
    try:
        return PromptReader.of(init, data.language)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _encoder(init: Checkpoint, limits: ExampleLimits) -> tuple[TextEncoder | PromptedEncoder, ExampleLimits, int]:
    """Return the encoder of texts, the limits of their tokens, and the length of their prompts."""
    if init.config.aed is None:
        return TextEncoder(init.tokenizer), limits, 0
    encode = PromptedEncoder(init)
    num_prompt = encode.num_prompt
    return encode, replace(limits, max_tokens=init.config.aed.max_tokens, extra_tokens=num_prompt + 1), num_prompt


def _backgrounds(augment: AugmentConfig) -> BackgroundCorpus:
    """Read the manifests of noise and rooms; a row's text does not count."""
    limits = ExampleLimits(min_duration_s=0.0, max_duration_s=_LONGEST_S)
    kinds = ((augment.noise_manifest, "take noise from"), (augment.room_manifest, "take rooms from"))
    found: list[Examples | None] = []
    for path, purpose in kinds:
        part = [ManifestPart(path, non_speech=True)] if path is not None else []
        found.append(read_manifests(part, limits, purpose, ignores_texts=True).examples if part else None)
    return BackgroundCorpus(*found)


def _read_validation(
    parts: Sequence[ManifestPart],
    limits: ExampleLimits,
    say: Callable[[str], None],
    where: str | Path,
    read_request: ReadRequest,
) -> tuple[tuple[Example, ...], tuple[ValidationSet, ...], tuple[LeftOutRow, ...]]:
    """Return the examples of all manifests, the sets that they are, if they are several, and the rows that are left out.

    A set is named by its file, or by its path if files have the same name.
    """
    stems = [Path(part.path).stem for part in parts]
    examples, left_out, sets = list[Example](), list[LeftOutRow](), list[ValidationSet]()
    for part, stem in zip(parts, stems, strict=True):
        found = read_manifests([part], limits, "validate with", read_request)
        check_most_usable(found, limits, "validate with")
        if found.left_out:
            say(f"to validate with: {found}")
        decides = part.decides or not any(other.decides for other in parts)
        name = stem if stems.count(stem) == 1 else part.path
        sets.append(ValidationSet(name, len(found.examples), decides, part.non_speech))
        examples += found.examples
        left_out += found.left_out
    if all(one.non_speech for one in sets if one.decides):
        raise UsageError(f"{where}: data.validation: only manifests with speech have an error rate; let one decide")
    return tuple(examples), tuple(sets) if len(sets) > 1 else (), tuple(left_out)


def _scoring(
    data: DataRecipe,
    known: Sequence[str],
    validation: Sequence[Example],
    where: str | Path,
    say: Callable[[str], None],
) -> Scoring:
    """Return how validation scores, given the languages that a model knows; say so if the texts had to decide."""
    requested = {example.request.target_language for example in validation if example.request is not None}
    language = None if requested else data.language
    known = tuple(sorted(requested)) or known
    try:
        scoring = choose_scoring(
            language, data.normalizer, data.metric, known, (example.text for example in validation)
        )
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if language is None and not is_one_language(known) and "auto" in (data.normalizer, data.metric):
        say(f"validation: {scoring} (data.language, data.normalizer and data.metric set them)")
    return scoring


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
    if config.aed is not None and config.aed.prompt == "cohere":
        raise UsageError(f"{what}: Cohere Transcribe cannot be trained; of the attention decoders, Canary can")
    if not isinstance(config.encoder, EncoderConfig):
        kind = "Granite Speech" if isinstance(config.encoder, GraniteConfig) else "a convolutional model"
        kinds = "FastConformer transducers, CTC models and Canary"
        raise UsageError(f"{what}: only {kinds} can be trained, not {kind}")
    if config.encoder.contexts or config.encoder.language_prompt is not None:
        raise UsageError(f"{what}: a streaming model, which learns several contexts at once, cannot be trained here")


def _split(
    examples: Examples, seed: int, share: float, say: Callable[[str], None]
) -> tuple[Examples, tuple[Example, ...]]:
    """Split by `share`; those without speech are to train on."""
    non_speech = examples.non_speech
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


def _new_checkpoint(recipe: Recipe, examples: Examples, say: Callable[[str], None], where: str | Path) -> Checkpoint:
    """Return a new checkpoint with a vocabulary and a config, without weights."""
    assert isinstance(recipe.model, ModelRecipe)
    tokenizer = make_tokenizer(_texts(examples), recipe.model, say, where)
    config = recipe.model.config(len(tokenizer.pieces))
    check_config(config, f"{where}: model")
    return Checkpoint(Path("new"), "fastscribe", config, tokenizer, {})


def _texts(examples: Examples) -> list[str]:
    return [text for text in examples.iter_texts() if text]


def _changed(
    recipe: Recipe, init: Checkpoint, examples: Examples, say: Callable[[str], None], where: str | Path
) -> ChangedModel:
    """Return the checkpoint to start from with the changes that the recipe asks for."""
    changes = recipe.model
    if not isinstance(changes, ModelChanges):
        return ChangedModel(init)
    tokenizer = None
    if changes.has_new_vocabulary:
        tokenizer = make_tokenizer(_texts(examples), changes, say, where)
    changed = change_model(init, changes, tokenizer, recipe.run.seed, where)
    check_config(changed.checkpoint.config, f"{where}: model")
    if tokenizer is not None:
        size = len(tokenizer.pieces)
        say(f"a new vocabulary of {size:,} pieces; {changed.num_shared:,} are in that of --init and keep their weights")
        if init.language_model is not None:
            say("the language model of --init is left out: it is for the old vocabulary")
        if (language := recipe.data.language) is not None and (tag := language_tag(language)):
            changed = replace(changed, checkpoint=replace(changed.checkpoint, languages=(tag,)))
    return changed


def _tokenise(
    corpus: Corpus,
    encode: TextEncoder | PromptedEncoder,
    limits: ExampleLimits,
    is_kept: bool,
    say: Callable[[str], None],
) -> Corpus:
    """Tokenise. Say what of the texts the vocabulary cannot write, and how a model gets another one.

    Args:
        is_kept: the vocabulary is that of --init.
    """
    vocabulary = "the vocabulary of --init" if is_kept else "the vocabulary"
    cure = f"; {_NEW_VOCABULARY}" if is_kept and isinstance(encode, TextEncoder) else ""  # Canary keeps its own
    try:
        tokenised = tokenise(corpus, encode, limits, encode.changes.lacking)
    except UsageError as error:
        raise UsageError(f"{error}{cure}") from error
    if any(row.reason == LACKS_LETTERS for row in tokenised.left_out):
        say(f"{vocabulary} lacks letters of the texts{cure}")
        cure = ""
    if count := encode.changes.num_texts:
        of_all = f"{count:,} of {count_of(len(corpus.examples), 'text')}"
        say(f"{vocabulary} cannot write {of_all} as they are, and {encode.changes}{cure}")
    return tokenised


def _check_validation_texts(
    validation: Sequence[Example], encode: TextEncoder | PromptedEncoder, say: Callable[[str], None]
) -> None:
    """Say which recordings no model with this vocabulary could write right. They stay: users will have such, too."""
    encode.changes.lacking.clear()
    lacking = [one for one in validation if not one.non_speech and encode(one.text, one.request) is None]
    if lacking:
        letters = first_of(list(dict.fromkeys(" ".join(encode.changes.lacking.values()).split())), _MAX_LETTERS)
        say(
            f"texts to validate with that have letters which the vocabulary lacks ({letters}): {len(lacking):,} of "
            f"{len(validation):,}; these letters count as errors; the first is of {lacking[0].path}"
        )


def _shared(training: Examples, validation: Sequence[Example]) -> list[str]:
    """Return the paths of recordings, or of their parts, that are in both sets."""
    places = {_place(one): one.path for one in validation}
    names = {os.path.basename(path) for path in places.values()}  # most of millions are told apart by these
    return sorted(
        {places[place] for one in training if os.path.basename(one.path) in names if (place := _place(one)) in places}
    )


def _place(example: Example) -> tuple[object, ...]:
    return os.path.abspath(example.path), example.start, example.offset_s
