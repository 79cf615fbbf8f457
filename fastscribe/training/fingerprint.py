"""Fingerprint of a run: the values that must not change if a resumed run is to equal an uninterrupted one.

It covers the content of the manifests but not the paths of the recordings: a corpus may move.
"""

from __future__ import annotations

import hashlib
from ast import literal_eval
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

import torch

from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.training.corpus import Example, Examples
from fastscribe.training.recipe import Recipe

_MAX_SHOWN = 3
_ABSENT = "not given"
_FREE = {
    "model": ("tokenizer",),
    "run": ("epochs", "max_steps", "patience", "validate_epochs", "save_minutes", "log_to"),
    "data": ("train", "validation", "threads", "cache_gb"),
    "augment": ("noise_manifest", "room_manifest"),
    "batch": ("gradient_checkpointing",),
}


def fingerprint(recipe: Recipe, checkpoint: Checkpoint, data: str, validation: Sequence[Example]) -> dict[str, str]:
    """Digest each part of a run that decides its result.

    Args:
        data: digest of the examples to train on.
        checkpoint: with weights if the run starts from it.
    """
    sections = {section.name: _stated(getattr(recipe, section.name)) for section in fields(recipe)}
    for section, names in _FREE.items():
        for name in names:
            sections[section][1].pop(name, None)
    if checkpoint.weights:
        del sections["model"]
    files = checkpoint.tokenizer.files
    return {
        "recipe": repr(sections),
        "model": repr(_stated(checkpoint.config)),
        "vocabulary": _digest(part for name in sorted(files) for part in (name.encode(), files[name])),
        "starting weights": _digest(_stored(checkpoint)),
        "data": data,
        # Of which manifest they are does not matter: each is validated once.
        "validation set": Examples.of(replace(example, part=0) for example in validation).digest(),
    }


def named_difference(part: str, before: str, now: str, config: Any = None) -> str:
    """Name a part that differs, with the first keys that do, if the part holds keys: "recipe (optimiser.dropout ..)".

    Args:
        part: A name of fingerprint().
        before: Its value in the earlier run.
        now: Its value in this run.
        config: What this run has as the part, whose classes have the defaults.
    """
    if part not in ("recipe", "model"):
        return f"{part} (rows of data.train)" if part == "data" else part
    try:
        stored, given = _leaves(literal_eval(before)), _leaves(literal_eval(now))
    except (ValueError, SyntaxError):  # a value that is no literal, such as inf
        return part
    defaults = _leaves(_defaults(config))
    stored, given = {**defaults, **stored}, {**defaults, **given}
    names = [name for name in {**given, **stored} if stored.get(name) != given.get(name)]
    changes = [f"{name} was {stored.get(name, _ABSENT)}, is {given.get(name, _ABSENT)}" for name in names[:_MAX_SHOWN]]
    more = f"; and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return f"{part} ({'; '.join(changes)}{more})" if names else part


def _leaves(stated: Any, name: str = "") -> dict[str, str]:
    """Return the values in what _stated() made, by their names with dots."""
    if isinstance(stated, tuple) and len(stated) == 2 and isinstance(stated[1], dict):  # (type, fields)
        stated = stated[1]
    if not isinstance(stated, dict):
        return {name: repr(stated)}
    return {
        leaf: value
        for key, held in stated.items()
        for leaf, value in _leaves(held, f"{name}.{key}" if name else key).items()
    }


def _defaults(config: Any) -> Any:
    """Return the defaults in a config by their names. A field without a default has its own value."""
    if not is_dataclass(config):
        return config
    held = {one.name: getattr(config, one.name) if one.default is MISSING else one.default for one in fields(config)}
    return {name: _defaults(value) for name, value in held.items()}


def _stated(value: Any) -> Any:
    """Reduce a config to the fields that differ from their defaults."""
    if isinstance(value, tuple):
        return tuple(map(_stated, value))
    if not is_dataclass(value):
        return value
    held = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return type(value).__name__, {name: _stated(one) for name, (one, default) in held.items() if one != default}


def _stored(checkpoint: Checkpoint) -> Iterator[bytes]:
    for name in sorted(checkpoint.weights):  # one tensor at a time in memory
        tensor = checkpoint.weights[name]
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
