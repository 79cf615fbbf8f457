"""Prepare the data of a run: read manifests, split off a validation set, train a vocabulary if needed, tokenise."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.text_layout import count_of, first_of
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.checkpoint.validate import validate as check_config
from fastscribe.config import ModelConfig
from fastscribe.errors import UsageError, first_line
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.languages import language_tag
from fastscribe.text.tokenizer import MAX_TOKENIZER_BYTES, Tokenizer, from_sentencepiece
from fastscribe.training.backgrounds import BackgroundCorpus
from fastscribe.training.bpe import TextEncoder, VocabularyTooLarge, train_vocabulary
from fastscribe.training.changed_model import Head, change_model
from fastscribe.training.corpus import Corpus, Example, Examples, LeftOutRow, ManifestPart
from fastscribe.training.example_choice import EpochDraw, split_validation
from fastscribe.training.manifest import (
    LACKS_LETTERS,
    ExampleLimits,
    ReadRequest,
    check_most_usable,
    no_request,
    read_manifests,
    tokenise,
)
from fastscribe.training.model_recipe import ModelChanges, ModelRecipe
from fastscribe.training.network import loss_of
from fastscribe.training.prompts import PromptedEncoder, PromptReader
from fastscribe.training.recipe import AugmentConfig, Recipe, check_used
from fastscribe.training.scoring import Scoring, ValidationSet, choose_scoring, is_one_language
from fastscribe.types import Float64Array

_MIN_VALIDATION = 10  # recordings
_TOKENIZER_FILE = "tokenizer.model"  # in a folder
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
    return _Preparation(recipe, init, say, where).data()


@dataclass(frozen=True)
class _Preparation:
    """The steps of prepare(), with what all of them need. Each raises UsageError."""

    recipe: Recipe
    init: Checkpoint | None
    say: Callable[[str], None]
    where: str | Path

    def data(self) -> TrainingData:
        recipe, init, where, say = self.recipe, self.init, self.where, self.say
        if init is not None:
            check_trainable(init.config, f"--init {init.path}")
        elif recipe.optimiser.lora is not None:
            raise UsageError(f"{where}: optimiser.lora: adapters are for a model that has learnt: name one with --init")
        data, limits = recipe.data, recipe.data.limits
        read_request = self._request_reader()
        corpus = read_manifests(data.train, limits, read_request=read_request, say=say)
        if doubled := _doubled(corpus.examples):
            say(doubled)
        if corpus.examples.non_speech.all():
            raise UsageError(f"{where}: data.train: nothing with speech to train on: {corpus}")
        if read_request is not no_request and corpus.examples.non_speech.any():
            raise UsageError(
                f"{where}: data.train: non_speech: an attention decoder cannot learn from recordings without speech"
            )
        validation_sets: tuple[ValidationSet, ...] = ()
        left_out: tuple[LeftOutRow, ...] = ()
        if data.validation:
            validation, validation_sets, left_out = self._read_validation(read_request)
        else:
            training, validation = self._split(corpus.examples)
            corpus = Corpus(training, corpus.left_out)
        if len(validation) < _MIN_VALIDATION:
            count = count_of(len(validation), "recording")
            say(f"{count} to validate with: the word error rate is a rough estimate")
        scoring = self._scoring(validation)
        checkpoint, new_heads = self._checkpoint(corpus.examples)
        loss_of(recipe.loss, checkpoint.config)
        check_used(recipe, checkpoint.config, where)
        encode, limits, num_prompt = _encoder(checkpoint, limits)
        corpus = self._tokenise(corpus, encode, limits)
        check_most_usable(corpus, data.limits, "train on")
        self._check_validation_texts(validation, encode)
        if data.validation and (shared := _shared(corpus.examples, validation)):
            of_all = f"{len(shared):,} of the {count_of(len(validation), 'recording')}"
            said = f"{of_all} to validate with are also trained on, such as {shared[0]}"
            say(f"{said}: their error rate says little about other speech")
        drawn = EpochDraw(corpus.examples, recipe.run.seed)(0)
        start_s = checkpoint.config.trained_utterance_s
        longest_s = trained_utterance_s(checkpoint, corpus.examples.durations_s[drawn])
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, trained_utterance_s=longest_s))
        scored = (validation, checkpoint, validation_sets, scoring, new_heads, num_prompt)
        return TrainingData(corpus, *scored, _backgrounds(recipe.augment, say), start_s, (*corpus.left_out, *left_out))

    @property
    def _has_new_vocabulary(self) -> bool:
        return isinstance(self.recipe.model, ModelChanges) and self.recipe.model.has_new_vocabulary

    def _request_reader(self) -> ReadRequest:
        """Return what reads a row's prompt: of an attention decoder alone."""
        if self.init is None or self.init.config.aed is None:
            return no_request
        try:
            return PromptReader.of(self.init, self.recipe.data.language)
        except ValueError as error:
            raise UsageError(f"{self.where}: {error}") from error

    def _read_validation(
        self, read_request: ReadRequest
    ) -> tuple[tuple[Example, ...], tuple[ValidationSet, ...], tuple[LeftOutRow, ...]]:
        """Return the examples of all manifests, the sets that they are, if several, and the rows that are left out.

        A set is named by its file, or by its path if files have the same name.
        """
        parts, limits = self.recipe.data.validation, self.recipe.data.limits
        stems = [Path(part.path).stem for part in parts]
        examples, left_out, sets = list[Example](), list[LeftOutRow](), list[ValidationSet]()
        for number, (part, stem) in enumerate(zip(parts, stems, strict=True)):
            found = read_manifests([part], limits, "validate with", read_request, say=self.say)
            check_most_usable(found, limits, "validate with")
            if found.left_out:
                self.say(f"to validate with: {found}")
            decides = part.decides or not any(other.decides for other in parts)
            name = stem if stems.count(stem) == 1 else part.path
            sets.append(ValidationSet(name, len(found.examples), decides, part.non_speech))
            examples += (replace(example, part=number) for example in found.examples)
            left_out += found.left_out
        if all(one.non_speech for one in sets if one.decides):
            problem = "only manifests with speech have an error rate; let one decide"
            raise UsageError(f"{self.where}: data.validation: {problem}")
        return tuple(examples), tuple(sets) if len(sets) > 1 else (), tuple(left_out)

    def _split(self, examples: Examples) -> tuple[Examples, tuple[Example, ...]]:
        """Split off what validates: by `validation_share`, but at least a tenth of the recordings, up to ten.

        With fewer, the best model is luck. Those without speech are to train on.
        """
        seed, share, non_speech = self.recipe.run.seed, self.recipe.data.validation_share, examples.non_speech
        speech = examples.take(~non_speech)
        min_count = max(1, min(_MIN_VALIDATION, len(speech) // 10))
        training, validation, by_share = split_validation(speech, seed=seed, share=share, min_count=min_count)
        if by_share is not None:
            by = f"validation_share {share:g} gives {by_share:,} of {len(speech):,} recordings"
            self.say(f"{by}: {len(validation):,} instead")
        return training.joined(examples.take(non_speech)), tuple(validation)

    def _scoring(self, validation: Sequence[Example]) -> Scoring:
        """Return how validation scores, by the languages that a model knows; say so if the texts had to decide."""
        data = self.recipe.data
        requested = {example.request.target_language for example in validation if example.request is not None}
        language = None if requested else data.language
        known = self.init.languages if self.init is not None and not self._has_new_vocabulary else ()
        known, texts = tuple(sorted(requested)) or known, (example.text for example in validation)
        try:
            scoring = choose_scoring(language, data.normalizer, data.metric, known, texts)
        except UsageError as error:
            raise UsageError(f"{self.where}: {error}") from error
        if language is None and not is_one_language(known) and "auto" in (data.normalizer, data.metric):
            self.say(f"validation: {scoring} (data.language, data.normalizer and data.metric set them)")
        return scoring

    def _checkpoint(self, examples: Examples) -> tuple[Checkpoint, frozenset[Head]]:
        """Return the checkpoint to start from, a new one without weights or a changed one, and heads that are new in it."""
        recipe, init, where = self.recipe, self.init, self.where
        tokenizer = self._tokenizer(examples) if init is None or self._has_new_vocabulary else None
        if init is None:
            assert isinstance(recipe.model, ModelRecipe) and tokenizer is not None
            config = recipe.model.config(len(tokenizer.pieces))
            check_config(config, f"{where}: model")
            return Checkpoint(Path("new"), "fastscribe", config, tokenizer, {}), frozenset()
        if not isinstance(recipe.model, ModelChanges):
            return init, frozenset()
        changed = change_model(init, recipe.model, tokenizer, recipe.run.seed, where)
        checkpoint = changed.checkpoint
        check_config(checkpoint.config, f"{where}: model")
        if tokenizer is not None:
            shared = f"{changed.num_shared:,} are in that of --init and keep their weights"
            self.say(f"a new vocabulary of {len(tokenizer.pieces):,} pieces; {shared}")
            if init.language_model is not None:
                self.say("the language model of --init is left out: it is for the old vocabulary")
            if (language := recipe.data.language) is not None and (tag := language_tag(language)):
                checkpoint = replace(checkpoint, languages=(tag,))
        return checkpoint, changed.new_heads

    def _tokenizer(self, examples: Examples) -> Tokenizer:
        """Return the recipe's: trained from the texts, or read from a SentencePiece model.

        It keeps spaces before punctuation, because clean_text removes them before training.
        """
        if (path := self.recipe.model.tokenizer) is not None:
            tokenizer = self._read_tokenizer(Path(path))
        else:
            try:
                tokenizer = from_sentencepiece(self._train_vocabulary([text for text in examples.iter_texts() if text]))
            except UsageError as error:
                raise UsageError(f"{self.where}: model.vocab_size: {error}") from error
        return replace(tokenizer, attached="nowhere")

    def _train_vocabulary(self, texts: Sequence[str]) -> bytes:
        """Train the vocabulary. The default size of a new model gives way to the most that the texts yield."""
        model = self.recipe.model
        size, kind = model.vocab_size, model.vocabulary or ModelRecipe.vocabulary
        assert size is not None
        try:
            return train_vocabulary(texts, size, kind)
        except VocabularyTooLarge as error:
            if isinstance(model, ModelChanges) or size != ModelRecipe.vocab_size:
                raise
            yielded = f"these texts yield {error.max_size} pieces, so the vocabulary has these"
            self.say(f"model.vocab_size {size}: {yielded}")
            return train_vocabulary(texts, error.max_size, kind)

    def _read_tokenizer(self, path: Path) -> Tokenizer:
        file = path / _TOKENIZER_FILE if path.is_dir() else path
        try:
            return from_sentencepiece(safe_read(file, MAX_TOKENIZER_BYTES))
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
            raise UsageError(f"{self.where}: model.tokenizer: {file}: {problem}") from error
        except (RuntimeError, ValueError) as error:
            wanted = "give a file that SentencePiece wrote (.model) or a folder with its tokenizer.model"
            problem = f"no SentencePiece model ({first_line(error)}); {wanted}"
            raise UsageError(f"{self.where}: model.tokenizer: {file}: {problem}") from error

    def _tokenise(self, corpus: Corpus, encode: TextEncoder | PromptedEncoder, limits: ExampleLimits) -> Corpus:
        """Tokenise. Say what of the texts the vocabulary cannot write, and how a model gets another one."""
        is_kept = self.init is not None and not self._has_new_vocabulary
        vocabulary = "the vocabulary of --init" if is_kept else "the vocabulary"
        cure = f"; {_NEW_VOCABULARY}" if is_kept and isinstance(encode, TextEncoder) else ""  # Canary keeps its own
        try:
            tokenised = tokenise(corpus, encode, limits, encode.changes.lacking)
        except UsageError as error:
            raise UsageError(f"{error}{cure}") from error
        if any(row.reason == LACKS_LETTERS for row in tokenised.left_out):
            self.say(f"{vocabulary} lacks letters of the texts{cure}")
            cure = ""
        if count := encode.changes.num_texts:
            of_all = f"{count:,} of {count_of(len(corpus.examples), 'text')}"
            self.say(f"{vocabulary} cannot write {of_all} as they are, and {encode.changes}{cure}")
        return tokenised

    def _check_validation_texts(self, validation: Sequence[Example], encode: TextEncoder | PromptedEncoder) -> None:
        """Say which recordings no model with this vocabulary could write right. They stay: users will have such, too."""
        encode.changes.lacking.clear()
        lacking = [one for one in validation if not one.non_speech and encode(one.text, one.request) is None]
        if lacking:
            letters = first_of(list(dict.fromkeys(" ".join(encode.changes.lacking.values()).split())), _MAX_LETTERS)
            self.say(
                f"texts to validate with that have letters which the vocabulary lacks ({letters}): {len(lacking):,} of "
                f"{len(validation):,}; these letters count as errors; the first is of {lacking[0].path}"
            )


def _encoder(init: Checkpoint, limits: ExampleLimits) -> tuple[TextEncoder | PromptedEncoder, ExampleLimits, int]:
    """Return the encoder of texts, the limits of their tokens, and the length of their prompts."""
    if init.config.aed is None:
        return TextEncoder(init.tokenizer), limits, 0
    encode = PromptedEncoder(init)
    num_prompt = encode.num_prompt
    return encode, replace(limits, max_tokens=init.config.aed.max_tokens, extra_tokens=num_prompt + 1), num_prompt


def _backgrounds(augment: AugmentConfig, say: Callable[[str], None]) -> BackgroundCorpus:
    """Read the manifests of noise and rooms; a row's text does not count."""
    limits = ExampleLimits(min_duration_s=0.0, max_duration_s=_LONGEST_S)
    kinds = ((augment.noise_manifest, "take noise from"), (augment.room_manifest, "take rooms from"))
    found: list[Examples | None] = []
    for path, purpose in kinds:
        part = [ManifestPart(path, non_speech=True)] if path is not None else []
        found.append(read_manifests(part, limits, purpose, ignores_texts=True, say=say).examples if part else None)
    return BackgroundCorpus(*found)


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


def _shared(training: Examples, validation: Sequence[Example]) -> list[str]:
    """Return the paths of recordings, or of their parts, that are in both sets."""
    places = {_place(one): one.path for one in validation}
    names = {os.path.basename(path) for path in places.values()}  # most of millions are told apart by these
    return sorted(
        {places[place] for one in training if os.path.basename(one.path) in names if (place := _place(one)) in places}
    )


def _doubled(examples: Examples) -> str:
    """Say how many rows come again, and how many have another text for a recording; nothing if there are none."""
    spans = (hash((*_place(one), one.channel, one.request)) for one in examples)
    spans_R, texts_R = np.fromiter(spans, np.int64), np.fromiter(map(hash, examples.iter_texts()), np.int64)
    different = np.sort(np.unique(np.stack([spans_R, texts_R], axis=1), axis=0, return_index=True)[1])
    again = np.setdiff1d(np.arange(len(examples)), different)
    other_texts = np.delete(different, np.unique(spans_R[different], return_index=True)[1])
    found = []
    for what, indices in (("rows that come again", again), ("rows with another text of a recording", other_texts)):
        if len(indices):
            one = examples[int(indices[0])]
            place = f"{examples.parts[one.part].path}: line {one.line}" if one.line else one.path
            found.append(f"{what}: {len(indices):,}, such as {place}")
    return f"to train on: {'; '.join(found)}" if found else ""


def _place(example: Example) -> tuple[object, ...]:
    return os.path.abspath(example.path), example.start, example.offset_s
