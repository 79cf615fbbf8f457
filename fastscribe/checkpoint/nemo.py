"""NeMo checkpoints: a .nemo tar (plain or gzip), or the same unpacked, without NeMo.

The archive holds model_config.yaml (the model section, with `target` naming the class), model_weights.ckpt (a torch
state dict) and artifacts that the YAML refers to as `nemo:<member>`. Only the tokenizer is needed of those.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from fastscribe.checkpoint import names, tar
from fastscribe.checkpoint.nemo_config import model_config
from fastscribe.checkpoint.nemo_heads import heads_of
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import MAX_CONFIG_BYTES, Checkpoint, Section, fitting, odd_values_refused, one_line
from fastscribe.checkpoint.weights import load_torch
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.regular_file import open_regular
from fastscribe.tokenizer import MAX_TOKENIZER_BYTES, Tokenizer, from_characters, from_pieces, from_sentencepiece

CONFIG_NAME = "model_config.yaml"
WEIGHTS_NAME = "model_weights.ckpt"
RANDOM_KEY = "random_weights"  # of the config, as scripts/make_random_parakeet.py writes it
_MAX_DEPTH = 100  # of nested YAML
_MAX_EVENTS = 300_000  # of YAML: about its values
_MAX_LANGUAGES = 64  # with a tokenizer each
_MAX_SCALAR = 1 << 16  # characters of one
# Weights hardly compress; an archive that unpacks to more than so many times its size is a bomb.
_MAX_UNPACKED_RATIO = 20
_ALWAYS_UNPACKED_BYTES = 64 << 20


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML; 1e-5 is a number, as for NeMo's loader (YAML 1.1 wants 1.0e-5), and a key comes once, as for it.

    Merge keys, which NeMo does not write, are refused: a few lines of them can stand for billions of entries.
    """

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys) or any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("a key comes twice, or merges what lies elsewhere")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))

OpenMember = Callable[[str], tuple[IO[bytes], int]]  # name -> seekable file, size; raises CheckpointError


def read_archive(path: Path) -> Checkpoint:
    """Raises CheckpointError where the tar is unsafe, damaged, or not a supported model."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:  # as files of /proc say too, and reading those may wait for ever
                raise CheckpointError(path, "is empty")
            is_gzip = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return _read_gzip(path, file) if is_gzip else _read_tar(path, file)
    except CheckpointError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        raise CheckpointError(path, f"not a readable .nemo file: {one_line(error)}") from error


def _read_tar(path: Path, file: IO[bytes]) -> Checkpoint:
    num_bytes = os.fstat(file.fileno()).st_size
    members = {member.name: member for member in tar.members(file, num_bytes, path)}

    def open_member(name: str) -> tuple[IO[bytes], int]:
        if name not in members:
            raise CheckpointError(path, f"holds no {name}")
        return io.BufferedReader(tar.Slice(file, members[name])), members[name].num_bytes

    return _read(open_member, path)


def _read_gzip(path: Path, file: IO[bytes]) -> Checkpoint:
    """Weights need seeking, which gzip cannot, so what a model needs is kept in memory: twice its weights for a while."""
    limit = max(_ALWAYS_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * os.fstat(file.fileno()).st_size)
    contents: dict[str, bytes] = {}
    with gzip.GzipFile(fileobj=file) as packed:
        for member in tar.members(packed, limit, path):  # type: ignore[arg-type]
            if member.name == WEIGHTS_NAME or member.num_bytes <= MAX_TOKENIZER_BYTES:
                contents[member.name] = packed.read(member.num_bytes)

    def open_member(name: str) -> tuple[IO[bytes], int]:
        if name not in contents:
            raise CheckpointError(path, f"holds no {name}")
        return io.BytesIO(contents[name]), len(contents[name])

    return _read(open_member, path)


def read_folder(folder: Path) -> Checkpoint:
    def open_member(name: str) -> tuple[IO[bytes], int]:
        if tar.leaves_folder(name):
            raise CheckpointError(folder, f"refused: {name!r} leaves the folder")
        try:
            file = open_regular(folder / name)
            return file, os.fstat(file.fileno()).st_size
        except OSError as error:
            raise CheckpointError(folder / name, error.strerror or "cannot be opened") from error
        except ValueError as error:  # a NUL in the name
            raise CheckpointError(folder, f"{name!r} is not a file name") from error

    return _read(open_member, folder)


def _read(open_member: OpenMember, where: Path) -> Checkpoint:
    config = parse_yaml(_content(open_member, CONFIG_NAME, MAX_CONFIG_BYTES, where), where)
    tokenizer = _tokenizer(config, open_member, where)

    @cache
    def stored_weights() -> dict[str, torch.Tensor]:
        file, size = open_member(WEIGHTS_NAME)
        with file:
            return load_torch(file, size, f"{where}: {WEIGHTS_NAME}")

    with odd_values_refused(f"{where}: {CONFIG_NAME}"):
        heads = heads_of(config, stored_weights)
        model = model_config(config, heads, len(tokenizer.pieces), where)
        validate(model, where)
    weights = names.from_nemo(stored_weights(), model.encoder)
    is_random = config.values.get(RANDOM_KEY) is True
    return Checkpoint(where, "nemo", model, fitting(tokenizer, model), weights, is_random)


def _content(open_member: OpenMember, name: str, max_bytes: int, where: Path) -> bytes:
    file, size = open_member(name)
    with file:
        if size > max_bytes:
            raise CheckpointError(where, f"refused: {name} claims {size} bytes")
        return file.read(size)


def _refuse_huge(text: bytes, where: object) -> None:
    """libyaml's loader recurses without a limit and would crash the interpreter; its events come one by one."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise CheckpointError(where, f"{CONFIG_NAME} is not safe YAML: nested deeper than {_MAX_DEPTH}")
        if number > _MAX_EVENTS or (isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_SCALAR):
            raise CheckpointError(where, f"{CONFIG_NAME} is not safe YAML: too many values, or too long a one")


def parse_yaml(text: bytes, where: object) -> Section:
    try:
        _refuse_huge(text, where)
        values = yaml.load(text, Loader=_Loader)
    except CheckpointError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(where, f"{CONFIG_NAME} is not safe YAML: {one_line(error)}") from error
    return Section(values, "", where)


def _tokenizer(config: Section, open_member: OpenMember, where: Path) -> Tokenizer:
    if "tokenizer" not in config:
        return _characters(config, where)
    section = config.part("tokenizer")
    if section.choose("type", "bpe", ("bpe", "agg")) == "bpe":
        return _sentencepiece(section, open_member, where)
    languages = section.part("langs")
    if not 0 < len(languages.values) <= _MAX_LANGUAGES:
        supported = f"1 to {_MAX_LANGUAGES}"
        raise UnsupportedCheckpoint(where, "number of tokenizer.langs", len(languages.values), supported)
    pieces: list[str] = []
    for name in languages.values:
        pieces += _sentencepiece(languages.part(name), open_member, where).pieces
    return from_pieces(pieces)


def _sentencepiece(section: Section, open_member: OpenMember, where: Path) -> Tokenizer:
    section.choose("type", "bpe", ("bpe",))
    member = section.take("model_path", str).removeprefix("nemo:")
    try:
        return from_sentencepiece(_content(open_member, member, MAX_TOKENIZER_BYTES, where))
    except CheckpointError:
        raise
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(where, f"{member} is not a SentencePiece model: {one_line(error)}") from error


def _characters(config: Section, where: Path) -> Tokenizer:
    candidates = [config.values.get("labels")]
    for section in ("joint", "decoder"):
        part = config.values.get(section)
        candidates.append(part.get("vocabulary") if isinstance(part, dict) else None)
    labels = next((c for c in candidates if c), None)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UnsupportedCheckpoint(where, "labels", labels, "a tokenizer section or a list of characters")
    return from_characters(labels)
