"""Change the heads of a checkpoint before a run: another vocabulary, other durations, a head more or less.

The encoder, its statistics and the features stay. Of a head that stays, the rows of tokens that both vocabularies have are
copied, as are the blank's, those of the durations, the predictor's LSTM and the joint network's projections; the rest starts
as in a new model. NeMo's change_vocabulary starts the whole predictor and joint network anew (docs/log.md compares both).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from fastscribe.checkpoint.lazy_weights import LazyWeights, sources_of
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import ModelConfig, PredictorConfig
from fastscribe.errors import UsageError
from fastscribe.families.blocks.heads import CtcHead, Transducer
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.text.tokenizer import WORD_MARK, Tokenizer
from fastscribe.training.model_recipe import TRANSDUCER_SIZES, ModelChanges, ModelRecipe, new_joint

Head = Literal["transducer", "ctc"]
_HEADS: tuple[Head, ...] = ("transducer", "ctc")
_EMBEDDING = "transducer.predictor.embedding.weight"
_WITH_DURATIONS = ("transducer.joint.output.weight", "transducer.joint.output.bias")
_ROWS = (_EMBEDDING, *_WITH_DURATIONS, "ctc.output.weight", "ctc.output.bias")  # weights with a row for each token


@dataclass(frozen=True)
class ChangedModel:
    """A checkpoint with other heads.

    Attributes:
        new_heads: heads with weights that no training has touched.
        num_shared: pieces that both vocabularies have; None if the vocabulary stays.
    """

    checkpoint: Checkpoint
    new_heads: frozenset[Head] = frozenset()
    num_shared: int | None = None


def change_model(
    checkpoint: Checkpoint, changes: ModelChanges, tokenizer: Tokenizer | None, seed: int, where: object
) -> ChangedModel:
    """Return the checkpoint with other heads. The weights of its encoder stay lazy.

    Args:
        checkpoint: with weights.
        changes: the recipe's section.
        tokenizer: of the new vocabulary; None keeps it, with language model and languages.
        seed: of the new weights.
        where: the recipe's name in error messages.

    Raises:
        UsageError: this checkpoint cannot be changed so.
    """
    if changes == ModelChanges() and tokenizer is None:
        return ChangedModel(checkpoint)
    config = _changed_config(checkpoint.config, changes, tokenizer, where)
    shared = None if tokenizer is None else _shared_pieces(checkpoint.tokenizer, tokenizer)
    weights = dict(sources_of(checkpoint.weights))
    old_names = {name for name in weights if name.partition(".")[0] in _HEADS}
    old = {name: weights.pop(name) for name in old_names}
    heads = _new_heads(config, seed)
    new_heads = set[Head]()
    for head, name, tensor in _named(heads):
        if name not in old:
            new_heads.add(head)
        elif name not in _ROWS:
            tensor.copy_(old[name].read())
        else:
            pairs = _same_rows(checkpoint.config, config, shared, name in _WITH_DURATIONS)
            tensor[[new for new, _ in pairs]] = old[name].read().float()[[before for _, before in pairs]]
            if len(pairs) < len(tensor):
                new_heads.add(head)
    changed = replace(
        checkpoint, config=config, weights=LazyWeights({**weights, **sources_of({n: t for _, n, t in _named(heads)})})
    )
    if tokenizer is not None:
        changed = replace(changed, tokenizer=tokenizer, language_model=None, languages=())
    return ChangedModel(changed, frozenset(new_heads), None if shared is None else len(shared))


def _changed_config(
    config: ModelConfig, changes: ModelChanges, tokenizer: Tokenizer | None, where: object
) -> ModelConfig:
    if not isinstance(config.encoder, EncoderConfig) or config.aed is not None:
        raise UsageError(f"{where}: model: leave out, only the heads of transducers and CTC models can change")
    had = config.joint is not None
    has_transducer = had if changes.transducer is None else changes.transducer
    has_ctc = config.has_ctc if changes.ctc is None else changes.ctc
    if not (has_transducer or has_ctc):
        raise UsageError(f"{where}: model: no head is left: the model of --init has {' and '.join(config.decoders)}")
    if (had or not has_transducer) and (given := changes.transducer_sizes):
        why = "--init decides, which has a transducer" if had else "for a transducer, which model.transducer: true adds"
        raise UsageError(f"{where}: {', '.join(f'model.{name}' for name in given)}: leave out, {why}")
    if changes.durations is not None and not has_transducer:
        raise UsageError(f"{where}: model.durations: a model without a transducer has none; leave out")
    if not has_transducer:
        config = replace(config, predictor=None, joint=None, durations=())
    elif not had:
        sizes = {**{name: getattr(ModelRecipe, name) for name in TRANSDUCER_SIZES}, **changes.transducer_sizes}
        hidden, num_layers = sizes["predictor_hidden"], sizes["predictor_layers"]
        config = replace(
            config,
            predictor=PredictorConfig(hidden, num_layers),
            joint=new_joint(sizes["joint_hidden"]),
            durations=ModelRecipe.durations,
        )
    if changes.durations is not None:
        config = replace(config, durations=changes.durations)
    if tokenizer is not None:
        config = replace(config, num_labels=len(tokenizer.pieces), language=None)
    return replace(config, has_ctc=has_ctc)


def _new_heads(config: ModelConfig, seed: int) -> nn.Module:
    """Return the heads that training/network.new_model() gives a model, without its encoder."""
    heads = nn.Module()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.joint is not None:
            assert config.predictor is not None
            heads.transducer = Transducer(
                config.predictor, config.joint, config.durations, config.encoder.d_model, config.blank_id
            )
            heads.transducer.predictor.embedding.weight.data[config.blank_id].zero_()
        if config.has_ctc:
            heads.ctc = CtcHead(config.encoder.d_model, config.blank_id + 1)
    return heads.requires_grad_(False)


def _named(heads: nn.Module) -> Iterator[tuple[Head, str, torch.Tensor]]:
    for name, tensor in heads.state_dict().items():
        yield ("ctc" if name.startswith("ctc.") else "transducer"), name, tensor


def _same_rows(
    old: ModelConfig, new: ModelConfig, shared: Mapping[int, int] | None, has_durations: bool
) -> list[tuple[int, int]]:
    """Return which rows of a changed weight are which of the old one: labels, then the blank, then in the joint durations."""
    labels = {i: i for i in range(new.num_labels)} if shared is None else shared
    pairs = [*labels.items(), (new.blank_id, old.blank_id)]
    for i, duration in enumerate(new.durations if has_durations else ()):
        if duration in old.durations:
            pairs.append((new.blank_id + 1 + i, old.blank_id + 1 + old.durations.index(duration)))
    return pairs


def _shared_pieces(old: Tokenizer, new: Tokenizer) -> dict[int, int]:
    """Return the old id of each new piece that the old vocabulary has; its first, if an aggregate has several."""
    ids: dict[str, int] = {}
    for i in range(len(old.pieces)):
        ids.setdefault(_piece(old, i), i)
    return {i: ids[piece] for i in range(len(new.pieces)) if (piece := _piece(new, i)) in ids}


def _piece(tokenizer: Tokenizer, token_id: int) -> str:
    """Return the piece as SentencePiece writes it: vocabularies of letters have a space for a word mark."""
    if token_id in tokenizer.unknown_ids:
        return "<unk>"
    piece = tokenizer.pieces[token_id]
    return WORD_MARK if tokenizer.kind == "character" and piece == " " else piece
