"""NeMo checkpoints: a .nemo tar (plain or gzip), or the same unpacked, without NeMo.

The archive holds model_config.yaml (the model section, with `target` naming the class), model_weights.ckpt (a torch
state dict) and artifacts that the YAML refers to as `nemo:<member>`. Only the tokenizer is needed of those. canary-1b-v2 holds
a second model beside the first, a CTC aligner, under names of its own.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml

from fastscribe._system.safe_open import safe_open
from fastscribe.checkpoint import names, tar
from fastscribe.checkpoint.lazy_weights import LazyWeights
from fastscribe.checkpoint.nemo_config import model_config
from fastscribe.checkpoint.nemo_heads import heads_of
from fastscribe.checkpoint.random_access import FileBytes, MemoryBytes, RandomAccess, read
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import (
    MAX_CONFIG_BYTES,
    Checkpoint,
    Section,
    check_aligner,
    fitting,
    odd_values_refused,
    one_line,
)
from fastscribe.checkpoint.weights import load_torch
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.text.tokenizer import (
    MAX_PIECES,
    MAX_TOKENIZER_BYTES,
    Tokenizer,
    from_characters,
    from_pieces,
    from_sentencepiece,
)

CONFIG_NAME = "model_config.yaml"
WEIGHTS_NAME = "model_weights.ckpt"
ALIGNER_CONFIG_NAME = "timestamps_asr_model_config.yaml"
ALIGNER_WEIGHTS_NAME = "timestamps_asr_model_weights.ckpt"
USES_ALIGNER_KEY = "restore_timestamps_model"  # of the config: false leaves the aligner alone
RANDOM_KEY = "random_weights"  # of the config, as scripts/goldens/make_random_parakeet.py writes it
_MAX_DEPTH = 100  # of nested YAML
_MAX_EVENTS = 300_000  # of YAML: about its values
_MAX_LANGUAGES = 64  # with a tokenizer each
_MAX_SCALAR = 1 << 16  # characters of one
_MAX_DIGITS = 1000  # of a number
# Weights hardly compress; an archive that unpacks to more than so many times its size is a bomb.
_MAX_UNPACKED_RATIO = 20
_ALWAYS_UNPACKED_BYTES = 64 << 20


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's loader, if PyYAML has it
    """Safe YAML; 1e-5 is a number, as for NeMo's loader (YAML 1.1 wants 1.0e-5), and a key comes once, as for it.

    Merge keys, which NeMo does not write, are refused: a few lines of them can stand for billions of entries.
    """

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys) or any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("a key comes twice, or merges what lies elsewhere")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _MAX_DIGITS:  # Python would refuse to show it, long after this
            raise yaml.YAMLError(f"a number of {len(node.value):,} digits")
        number: int = super().construct_yaml_int(node)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))

OpenMember = Callable[[str], RandomAccess]  # by name; raises CheckpointError


def read_archive(path: Path) -> Checkpoint:
    """Raises CheckpointError where the tar is unsafe, damaged, or not a supported model."""
    try:
        with safe_open(path) as file:
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
    whole = FileBytes.of(file)
    members = {member.name: member for member in tar.members(file, whole.num_bytes, path)}

    def open_member(name: str) -> RandomAccess:
        if name not in members:
            raise CheckpointError(path, f"holds no {name}")
        return whole.part(members[name].start, members[name].num_bytes)

    return _read(open_member, path, _has_aligner(members.__contains__))


def _read_gzip(path: Path, file: IO[bytes]) -> Checkpoint:
    """gzip cannot seek, so the unpacked weights stay in memory until the model is built: its peak is higher by their size."""
    limit = max(_ALWAYS_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * os.fstat(file.fileno()).st_size)
    contents: dict[str, bytes] = {}
    with gzip.GzipFile(fileobj=file) as packed:
        for member in tar.members(packed, limit, path):
            if member.name in (WEIGHTS_NAME, ALIGNER_WEIGHTS_NAME) or member.num_bytes <= MAX_TOKENIZER_BYTES:
                contents[member.name] = packed.read(member.num_bytes)

    def open_member(name: str) -> RandomAccess:
        if name not in contents:
            raise CheckpointError(path, f"holds no {name}")
        return MemoryBytes(contents[name])

    return _read(open_member, path, _has_aligner(contents.__contains__))


def read_folder(folder: Path) -> Checkpoint:
    def open_member(name: str) -> RandomAccess:
        if tar.leaves_folder(name):
            raise CheckpointError(folder, f"refused: {name!r} leaves the folder")
        try:
            with safe_open(folder / name) as file:
                return FileBytes.of(file)
        except OSError as error:
            raise CheckpointError(folder / name, error.strerror or "cannot be opened") from error
        except ValueError as error:  # a NUL in the name
            raise CheckpointError(folder, f"{name!r} is not a file name") from error

    return _read(open_member, folder, _has_aligner(lambda name: os.path.lexists(folder / name)))


def _has_aligner(holds: Callable[[str], bool]) -> bool:
    """One of its two members is enough: the other is then missed by name."""
    return holds(ALIGNER_CONFIG_NAME) or holds(ALIGNER_WEIGHTS_NAME)


def _read(open_member: OpenMember, where: Path, has_aligner: bool) -> Checkpoint:
    checkpoint, config = _read_model(open_member, where, CONFIG_NAME, WEIGHTS_NAME)
    if not has_aligner or config.values.get(USES_ALIGNER_KEY) is False:
        return checkpoint
    aligner, _ = _read_model(open_member, where, ALIGNER_CONFIG_NAME, ALIGNER_WEIGHTS_NAME)
    check_aligner(aligner.config, checkpoint.config, f"{where}: {ALIGNER_CONFIG_NAME}")
    if aligner.tokenizer.kind == "aggregate":  # it encodes a text by the tokenizer of its language
        raise UnsupportedCheckpoint(f"{where}: {ALIGNER_CONFIG_NAME}", "tokenizer.type", "agg", "bpe")
    tokenizer = fitting(checkpoint.tokenizer, checkpoint.config, has_aligner=True)
    return replace(checkpoint, tokenizer=tokenizer, aligner=aligner)


def _read_model(
    open_member: OpenMember, where: Path, config_name: str, weights_name: str
) -> tuple[Checkpoint, Section]:
    """One of the models of an archive, and its YAML."""
    what: object = where if config_name == CONFIG_NAME else f"{where}: {config_name}"
    config = parse_yaml(_content(open_member, config_name, MAX_CONFIG_BYTES, where), where, config_name)
    config.where = what  # which errors about its keys name
    stored_weights = cache(lambda: load_torch(open_member(weights_name), f"{where}: {weights_name}"))
    with odd_values_refused(f"{where}: {config_name}"):
        tokenizer = _tokenizer(config, open_member, what)
        model = model_config(config, heads_of(config, stored_weights), len(tokenizer.pieces), what)
        validate(model, what)
    weights = names.from_nemo(stored_weights(), model.encoder)
    is_random = config.values.get(RANDOM_KEY) is True
    return Checkpoint(where, "nemo", model, fitting(tokenizer, model), LazyWeights(weights), is_random), config


def _content(open_member: OpenMember, name: str, max_bytes: int, where: object) -> bytes:
    member = open_member(name)
    if member.num_bytes > max_bytes:
        raise CheckpointError(where, f"refused: {name} claims {member.num_bytes} bytes")
    return read(member, 0, member.num_bytes)


def _refuse_huge(text: bytes, where: object, name: str) -> None:
    """libyaml's loader recurses without a limit and would crash the interpreter; its events come one by one."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise CheckpointError(where, f"{name} is not safe YAML: nested deeper than {_MAX_DEPTH}")
        if number > _MAX_EVENTS or (isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_SCALAR):
            raise CheckpointError(where, f"{name} is not safe YAML: too many values, or too long a one")


def parse_yaml(text: bytes, where: object, name: str = CONFIG_NAME) -> Section:
    try:
        _refuse_huge(text, where, name)
        return Section(yaml.load(text, Loader=_Loader), "", where)
    except CheckpointError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(where, f"{name} is not safe YAML: {one_line(error)}") from error


def _tokenizer(config: Section, open_member: OpenMember, where: object) -> Tokenizer:
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
        if len(pieces) > MAX_PIECES:
            raise UnsupportedCheckpoint(where, "tokenizer.langs", f"{len(pieces):,} pieces", f"up to {MAX_PIECES:,}")
    return from_pieces(pieces)


def _sentencepiece(section: Section, open_member: OpenMember, where: object) -> Tokenizer:
    section.choose("type", "bpe", ("bpe",))
    member = section.take("model_path", str).removeprefix("nemo:")
    try:
        return from_sentencepiece(_content(open_member, member, MAX_TOKENIZER_BYTES, where))
    except CheckpointError:
        raise
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(where, f"{member} is not a SentencePiece model: {one_line(error)}") from error


def _characters(config: Section, where: object) -> Tokenizer:
    candidates = [config.values.get("labels")]
    for section in ("joint", "decoder"):
        part = config.values.get(section)
        candidates.append(part.get("vocabulary") if isinstance(part, dict) else None)
    labels = next((c for c in candidates if c), None)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UnsupportedCheckpoint(where, "labels", labels, "a tokenizer section or a list of characters")
    return from_characters(labels)
