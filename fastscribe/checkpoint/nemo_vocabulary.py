"""Vocabularies of NeMo checkpoints beyond one SentencePiece model whose path names a file of the archive. Pure.

A vocabulary may be a list of characters or one of several languages, and a path may be of the machine that trained the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from fastscribe.checkpoint.value import Section
from fastscribe.config import MAX_PIECES
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.text.tokenizer import Tokenizer, from_characters, from_pieces

_MAX_LANGUAGES = 64  # each has a tokenizer
_HASH = re.compile(r"^[0-9a-f]{32}_")  # what NeMo puts in front of a file's name


def member_of_path(path: str, members: Collection[str], where: object) -> str:
    """Return the member with the longest end of the path, or the only one of its name with another hash in front.

    Args:
        path: A path of any system, absolute or not, which is no member's name.
        members: Names of the files of the archive or folder.
        where: The checkpoint, for messages.

    Raises:
        CheckpointError: There is none, or several may be meant.
    """
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")]
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    found = [end for end in ends if end in members][:1]
    if not found and parts:
        name = _HASH.sub("", parts[-1])
        found = [member for member in members if _HASH.sub("", member.rpartition("/")[2]) == name]
    if len(found) == 1:
        return found[0]
    there = ", ".join(sorted(found or (member for member in members if member.endswith(".model")))[:3])
    cure = f"; of {there}, one may be meant: unpack it, write nemo:FILE there in the config, and give the folder"
    raise CheckpointError(where, f"holds no {path}, which a model_path names" + (cure if there else ""))


def aggregate(
    languages: Section, read: Callable[[Section], Tokenizer], where: object
) -> tuple[Tokenizer, dict[str, Tokenizer]]:
    """Return the tokenizer of the section tokenizer.langs, and those that it is made of by language.

    Args:
        languages: The section.
        read: Reads the tokenizer of a language's section.
        where: The checkpoint, for messages.

    Raises:
        UnsupportedCheckpoint: There are too many languages or pieces.
    """
    if not 0 < len(languages.values) <= _MAX_LANGUAGES:
        supported = f"1 to {_MAX_LANGUAGES}"
        raise UnsupportedCheckpoint(where, "number of tokenizer.langs", len(languages.values), supported)
    pieces: list[str] = []
    parts: dict[str, Tokenizer] = {}
    for name in languages.values:
        parts[name] = read(languages.part(name))
        pieces += parts[name].pieces
        if len(pieces) > MAX_PIECES:
            raise UnsupportedCheckpoint(where, "tokenizer.langs", f"{len(pieces):,} pieces", f"up to {MAX_PIECES:,}")
    return from_pieces(pieces, {name: part.files["tokenizer.model"] for name, part in parts.items()}), parts


def characters(config: Section, where: object) -> Tokenizer:
    """Return the tokenizer of a config without a section tokenizer. Raises UnsupportedCheckpoint."""
    candidates = [config.values.get("labels")]
    for section in ("joint", "decoder"):
        part = config.values.get(section)
        candidates.append(part.get("vocabulary") if isinstance(part, dict) else None)
    labels = next((c for c in candidates if c), None)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UnsupportedCheckpoint(where, "labels", labels, "a tokenizer section or a list of characters")
    return from_characters(labels)
