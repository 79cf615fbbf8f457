"""IndicConformer: checkpoints of AI4Bharat's fork of NeMo, whose vocabulary and outputs are in equal parts for each language.

The tokenizer's languages lie one behind the other, 256 pieces each, in the order of tokenizer.langs. Tokens count from the
language's first one, everywhere but in the CTC head:

- The CTC head has a row for every token of all languages, and one for the blank. A language's scores are its own rows and the
  blank's; the softmax is over these (`multisoftmax`).
- The joint network has an output layer for each language, of its tokens and a blank (`multilingual`, `language_keys`).
- The predictor has an embedding for every token of all languages, but the tokens that it is told count from the language's
  first one. So all languages share the first rows, and the others are unused. Before the first token it is told zeros, as in
  training. (The fork's batch decoder tells it zeros in the first frame alone, and then, until the first token, the row that
  follows the shared ones, which no training step has touched.)

So the model of one language is a plain hybrid with a small vocabulary, made here of the rows that it needs. Everything else in
fastscribe sees that alone. docs/models.md has the sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource, sources_of
from fastscribe.checkpoint.value import Checkpoint, Section, adapt_tokenizer
from fastscribe.config import ModelConfig
from fastscribe.errors import UnsupportedCheckpoint, UsageError
from fastscribe.languages import AUTO, find_language, language_tag, list_languages, nearest_languages
from fastscribe.text.tokenizer import Tokenizer

_OUTPUT = "transducer.joint.output."
_SHARED_ROWS = "transducer.predictor.embedding.weight"
_OWN_ROWS = ("ctc.output.weight", "ctc.output.bias")


def language_heads(config: Section, is_hybrid: bool) -> tuple[str, ...]:
    """Return the languages of a NeMo checkpoint with outputs for each, in the vocabulary's order.

    Args:
        config: The whole model_config.yaml, with a tokenizer of the type "multilingual".
        is_hybrid: True if the model has a transducer and a CTC head.

    Raises:
        UnsupportedCheckpoint: The parts of the config disagree.
    """
    if not is_hybrid:
        raise UnsupportedCheckpoint(config.where, "tokenizer.type", "multilingual", "bpe, agg; multilingual in hybrids")
    languages = tuple(config.part("tokenizer").part("langs").values)
    untagged = next((name for name in languages if language_tag(name) != name), None)
    if untagged is not None:
        raise UnsupportedCheckpoint(config.where, "tokenizer.langs", untagged, "codes of languages")
    for section in (config.part("decoder"), config.part("aux_ctc").part("decoder")):
        section.choose("multisoftmax", None, (True,))
    joint = config.part("joint")
    joint.choose("multilingual", None, (True,))
    keys = joint.take("language_keys", list)
    if sorted(map(str, keys)) != sorted(languages):
        supported = f"those of tokenizer.langs: {list_languages(languages)}"
        raise UnsupportedCheckpoint(config.where, "joint.language_keys", keys, supported)
    return languages


def check_vocabularies(config: Section, vocabularies: Mapping[str, Tokenizer]) -> None:
    """Check that the languages' parts of the outputs are equal, and in the order in which other keys of the config list them.

    The fork writes all pieces in the order of the outputs, and its classes take tables that it computes from the order.

    Args:
        config: The whole model_config.yaml, of a checkpoint with outputs for each language.
        vocabularies: The languages' tokenizers, in the order of tokenizer.langs.

    Raises:
        UnsupportedCheckpoint: The vocabularies differ in size, or a key names another order.
    """
    sizes = {name: len(tokenizer.pieces) for name, tokenizer in vocabularies.items()}
    if len(set(sizes.values())) > 1:
        raise UnsupportedCheckpoint(config.where, "pieces of tokenizer.langs", sizes, "one number for all languages")
    decoder, joint, ctc = config.part("decoder"), config.part("joint"), config.part("aux_ctc").part("decoder")
    for section, key in ((config, "labels"), (joint, "vocabulary"), (ctc, "vocabulary")):
        _check_pieces(section, key, vocabularies)
    size = next(iter(sizes.values()))
    first = {name: number * size for number, name in enumerate(vocabularies)}
    _check_table(joint, "token_id_offsets", first)
    masks = {name: [start <= row < start + size for row in range(len(first) * size)] for name, start in first.items()}
    for section in (decoder, joint, ctc):
        _check_table(section, "language_masks", {name: [*mask, True] for name, mask in masks.items()})


def _check_pieces(section: Section, key: str, vocabularies: Mapping[str, Tokenizer]) -> None:
    """Raise UnsupportedCheckpoint if there is a list of all pieces, and it differs from the tokenizers' in their order."""
    stated = section.get(key, None)
    if not stated:
        return
    expected = [(name, piece) for name, tokenizer in vocabularies.items() for piece in tokenizer.pieces]
    if not isinstance(stated, list) or len(stated) != len(expected):
        supported = f"the {len(expected)} pieces of tokenizer.langs"
        raise UnsupportedCheckpoint(section.where, section.path(key), stated, supported)
    for number, (found, (name, piece)) in enumerate(zip(stated, expected, strict=True)):
        if found != piece:
            supported = f"{piece!r} of {name}, by the order of tokenizer.langs"
            raise UnsupportedCheckpoint(section.where, f"{section.path(key)}.{number}", found, supported)


def _check_table(section: Section, key: str, expected: Mapping[str, object]) -> None:
    """Raise UnsupportedCheckpoint if there is a table by language, and it is not the expected one."""
    stated = section.get(key, None)
    if not stated:
        return
    by_name = {str(name): value for name, value in stated.items()} if isinstance(stated, Mapping) else {}
    if by_name.keys() != expected.keys():
        supported = f"those of tokenizer.langs: {list_languages(tuple(expected))}"
        raise UnsupportedCheckpoint(section.where, section.path(key), list(by_name) or stated, supported)
    for number, (name, value) in enumerate(expected.items(), start=1):
        if by_name[name] != value:
            supported = f"that of language {number} of {len(expected)}, as tokenizer.langs orders them"
            raise UnsupportedCheckpoint(section.where, f"{section.path(key)}.{name}", by_name[name], supported)


def of_language(checkpoint: Checkpoint, language: str | None) -> Checkpoint:
    """Return the model of one language; a checkpoint without outputs for each language stays as it is.

    Args:
        checkpoint: The checkpoint, as it is on disk.
        language: Tag of the language; None or AUTO: not given.

    Raises:
        UsageError: The language is missing, or the checkpoint does not have it.
    """
    config = checkpoint.config
    if not config.language_heads:
        return checkpoint
    tag = _choose(checkpoint, language)
    own = replace(config, num_labels=config.labels_per_language, language_heads=(), language=tag)
    weights = LazyWeights(dict(_weights(sources_of(checkpoint.weights), config, tag)))
    tokenizer = adapt_tokenizer(checkpoint.vocabularies[tag], own)
    return replace(checkpoint, config=own, tokenizer=tokenizer, weights=weights, languages=(tag,), vocabularies={})


def _choose(checkpoint: Checkpoint, language: str | None) -> str:
    path, known = checkpoint.path, checkpoint.config.language_heads
    if language is None or language == AUTO:
        raise UsageError(
            f"{path}: has outputs for each of {len(known)} languages ({list_languages(known)}): give one with "
            "--language; where there is no such option, give the folder that fastscribe convert --language makes of it"
        )
    found = find_language(language, known)
    if found is None:
        nearest = list_languages(nearest_languages(language, known))
        raise UsageError(f"{path}: --language {language} is none of its {len(known)} languages; the nearest: {nearest}")
    return found


def _weights(sources: Mapping[str, TensorSource], config: ModelConfig, tag: str) -> Iterable[tuple[str, TensorSource]]:
    size, blank = config.labels_per_language, slice(config.num_labels, config.num_labels + 1)
    first = config.language_heads.index(tag) * size
    for name, source in sources.items():
        if name.startswith(_OUTPUT):
            if name.startswith(f"{_OUTPUT}{tag}."):
                yield _OUTPUT + name.removeprefix(f"{_OUTPUT}{tag}."), source
        elif name == _SHARED_ROWS:
            yield name, source.rows(slice(0, size), num_zeros=1)
        elif name in _OWN_ROWS:
            yield name, source.rows(slice(first, first + size), blank)
        else:
            yield name, source
