"""Reader of NeMo checkpoints: a .nemo tar (plain or gzip), or the unpacked folder. NeMo is not needed.

The archive holds model_config.yaml (the model section, in which `target` names the class), model_weights.ckpt (a torch state
dict) and artifacts that the YAML refers to as `nemo:<member>`. Of these only the tokenizer is read. canary-1b-v2 also holds
a CTC aligner under separate names.

A vocabulary is one SentencePiece model, one of each language, or a list of characters. A path may be of the machine that
trained the model.
"""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml

from fastscribe._system.file_kinds import safe_open
from fastscribe.checkpoint import names, tar
from fastscribe.checkpoint.lazy_weights import FileBytes, LazyWeights, MemoryBytes, RandomAccess
from fastscribe.checkpoint.nemo_config import CLASSES, heads_of, model_config
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import (
    MAX_CONFIG_BYTES,
    Checkpoint,
    Section,
    adapt_tokenizer,
    check_aligner,
    one_line,
    report_invalid_config,
)
from fastscribe.checkpoint.value import NEMO_CONFIG_NAME as CONFIG_NAME
from fastscribe.checkpoint.weights import load_torch
from fastscribe.config import MAX_PIECES
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.languages import language_tag
from fastscribe.rooms import refuse_side_model
from fastscribe.text.tokenizer import MAX_TOKENIZER_BYTES, Tokenizer, from_characters, from_pieces, from_sentencepiece

WEIGHTS_NAME = "model_weights.ckpt"
ALIGNER_CONFIG_NAME = "timestamps_asr_model_config.yaml"
ALIGNER_WEIGHTS_NAME = "timestamps_asr_model_weights.ckpt"
USES_ALIGNER_KEY = "restore_timestamps_model"  # config key; false ignores the aligner
RANDOM_KEY = "random_weights"  # config key, which nemo_export.py writes
_MAX_DEPTH = 100  # of nested YAML
_MAX_EVENTS = 500_000  # of the YAML parser, about one per value; IndicConformer's masks can have 372,000
_MAX_SCALAR = 1 << 16  # characters
_MAX_DIGITS = 1000  # of a number
# Weights hardly compress, so an archive with a larger ratio is a decompression bomb.
_MAX_UNPACKED_RATIO = 20
_ALWAYS_UNPACKED_BYTES = 64 << 20
_MAX_LANGUAGES = 64  # each has a tokenizer
_HASH = re.compile(r"^[0-9a-f]{32}_")  # what NeMo puts in front of a file's name


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's loader, if PyYAML has it
    """Safe YAML. As in NeMo's loader, 1e-5 is a number (YAML 1.1 requires 1.0e-5) and duplicate keys are an error.

    Merge keys are refused: NeMo does not write them, and a few lines of them can expand to billions of entries.
    """

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(keys) or any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("a key comes twice, or is a merge key")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _MAX_DIGITS:  # Python cannot print such a number in a later message
            raise yaml.YAMLError(f"a number of {len(node.value):,} digits")
        number: int = super().construct_yaml_int(node)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))

Members = Mapping[str, RandomAccess]  # the files of an archive by name; members[name] raises CheckpointError


class _Archive(dict[str, RandomAccess]):
    """The members of a .nemo file."""

    def __init__(self, path: Path, members: Iterable[tuple[str, RandomAccess]]) -> None:
        super().__init__(members)
        self._path = path

    def __missing__(self, name: str) -> RandomAccess:
        from fastscribe.checkpoint.other_files import missing_member

        raise CheckpointError(self._path, missing_member(name, self, self._path))


class _Folder(dict[str, Any]):
    """The files of an unpacked archive by name, each opened when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        files = (path for pattern in ("*", "*/*") for path in folder.glob(pattern))
        super().__init__((path.relative_to(folder).as_posix(), None) for path in files)

    def __getitem__(self, name: str) -> RandomAccess:
        folder = self._folder
        if tar.leaves_folder(name):
            raise CheckpointError(folder, f"refused: {name!r} leaves the folder")
        try:
            with safe_open(folder / name) as file:
                return FileBytes.of(file)
        except OSError as error:
            raise CheckpointError(folder / name, error.strerror or "cannot be opened") from error
        except ValueError as error:  # a NUL in the name
            raise CheckpointError(folder, f"{name!r} is not a file name") from error


def read(path: Path) -> Checkpoint:
    """Read a .nemo file, or an unpacked one.

    Returns:
        The checkpoint, with lazy weights.

    Raises:
        CheckpointError: the archive is unsafe, damaged or not a supported model.
    """
    members = open_members(path)
    checkpoint, config = _read_model(members, path, CONFIG_NAME, WEIGHTS_NAME)
    # Either member of the aligner will do; a missing one is an error later.
    has_aligner = ALIGNER_CONFIG_NAME in members or ALIGNER_WEIGHTS_NAME in members
    if not has_aligner or config.values.get(USES_ALIGNER_KEY) is False:
        return checkpoint
    aligner, _ = _read_model(members, path, ALIGNER_CONFIG_NAME, ALIGNER_WEIGHTS_NAME)
    check_aligner(aligner.config, checkpoint.config, f"{path}: {ALIGNER_CONFIG_NAME}")
    if aligner.tokenizer.kind == "aggregate":  # encoding needs to know the language
        raise UnsupportedCheckpoint(f"{path}: {ALIGNER_CONFIG_NAME}", "tokenizer.type", "agg", "bpe")
    tokenizer = adapt_tokenizer(checkpoint.tokenizer, checkpoint.config, has_aligner=True)
    return replace(checkpoint, tokenizer=tokenizer, aligner=aligner)


def open_config(path: Path) -> tuple[Members, Section]:
    """Return the members of an archive, as open_members(), and its YAML.

    Raises:
        CheckpointError: As open_members(), or the YAML is unsafe or damaged, or memory does not suffice.
    """
    try:
        members = open_members(path)
        return members, parse_yaml(content(members, CONFIG_NAME, MAX_CONFIG_BYTES, path), path)
    except MemoryError as error:
        raise CheckpointError(path, "needs more memory than there is") from error


def open_members(path: Path) -> Members:
    """Return the members of a .nemo file, of an unpacked one, or of the only .nemo file in a folder.

    Raises:
        CheckpointError: there is no such path, it is none of these, or the archive is unsafe or damaged.
    """
    if not path.is_dir():
        if not path.exists():
            raise CheckpointError(path, "no such file or folder")
        return _open_archive(path)
    if (path / CONFIG_NAME).is_file():
        return _Folder(path)
    found = sorted(path.glob("*.nemo"))
    if len(found) != 1:
        raise CheckpointError(path, f"holds {len(found)} .nemo files; give the one to use")
    return _open_archive(found[0])


def _open_archive(path: Path) -> Members:
    try:
        with safe_open(path) as file:
            if os.fstat(file.fileno()).st_size == 0:  # files of /proc too have size 0, and reading them may block
                raise CheckpointError(path, "is empty")
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return _Archive(path, (_gzip_members if is_packed else _tar_members)(path, file))
    except CheckpointError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        from fastscribe.checkpoint.other_files import what_it_is

        known = what_it_is(path) if isinstance(error, tarfile.TarError) else None
        raise CheckpointError(path, known or f"not a readable .nemo file: {one_line(error)}") from error


def _tar_members(path: Path, file: IO[bytes]) -> Iterator[tuple[str, RandomAccess]]:
    whole = FileBytes.of(file)
    return ((one.name, whole.part(one.start, one.num_bytes)) for one in tar.members(file, whole.num_bytes(), path))


def _gzip_members(path: Path, file: IO[bytes]) -> Iterator[tuple[str, RandomAccess]]:
    """Unpack a compressed archive. gzip cannot seek, so the weights stay in memory until the model is built."""
    limit = max(_ALWAYS_UNPACKED_BYTES, _MAX_UNPACKED_RATIO * os.fstat(file.fileno()).st_size)
    with gzip.GzipFile(fileobj=file) as packed:
        for member in tar.members(packed, limit, path):
            if member.name in (WEIGHTS_NAME, ALIGNER_WEIGHTS_NAME) or member.num_bytes <= MAX_TOKENIZER_BYTES:
                yield member.name, MemoryBytes(packed.read(member.num_bytes))


def _read_model(members: Members, where: Path, config_name: str, weights_name: str) -> tuple[Checkpoint, Section]:
    """Read one of the models of an archive, and its YAML."""
    what: object = where if config_name == CONFIG_NAME else f"{where}: {config_name}"
    config = parse_yaml(content(members, config_name, MAX_CONFIG_BYTES, where), where, config_name)
    config.where = what  # for messages about its keys
    if str(config.values.get("target")).rpartition(".")[2] not in CLASSES:
        refuse_side_model(config.values, where)
    stored_weights = cache(lambda: load_torch(members[weights_name], f"{where}: {weights_name}"))
    with report_invalid_config(f"{where}: {config_name}"):
        tokenizer, vocabularies = _tokenizer(config, members, what)
        model = model_config(config, heads_of(config, stored_weights), len(tokenizer.pieces), what)
        validate(model, what)
        if model.language_heads:
            from fastscribe.families.indic import check_vocabularies

            check_vocabularies(config, vocabularies)
    others: names.Pairs = ()
    if model.aed is not None:
        from fastscribe.families.canary import nemo as canary

        others = canary.NAMES
    weights = names.from_nemo(stored_weights(), model.encoder, others)
    tokenizer = adapt_tokenizer(tokenizer, model)
    is_random = config.values.get(RANDOM_KEY) is True
    languages = () if model.aed else _languages(config)
    checkpoint = Checkpoint(where, "nemo", model, tokenizer, LazyWeights(weights), is_random, languages=languages)
    return replace(checkpoint, vocabularies=vocabularies if model.language_heads else {}), config


def _languages(config: Section) -> tuple[str, ...]:
    """Return the languages of an aggregate tokenizer, which has a vocabulary for each; none for other tokenizers."""
    section = config.values.get("tokenizer")
    stated = section.get("langs") if isinstance(section, dict) else None
    return tuple(tag for name in stated if (tag := language_tag(str(name)))) if isinstance(stated, dict) else ()


def content(members: Members, name: str, max_bytes: int, where: object) -> bytes:
    """Return a member's bytes. Raises CheckpointError if there are more than `max_bytes`, or they cannot be read."""
    member = members[name]
    num_bytes = member.num_bytes()
    if num_bytes > max_bytes:
        raise CheckpointError(where, f"refused: {name} claims {num_bytes} bytes")
    try:
        return member.content(0, num_bytes)
    except (EOFError, OSError) as error:
        raise CheckpointError(where, f"{name} cannot be read: {one_line(error)}") from error


def _check_yaml_size(text: bytes, where: object, name: str) -> None:
    """Check the parser's events first, because libyaml's loader recurses without a limit and can crash the interpreter."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise CheckpointError(where, f"{name} is not safe YAML: nested deeper than {_MAX_DEPTH}")
        if number > _MAX_EVENTS or (isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_SCALAR):
            raise CheckpointError(where, f"{name} is not safe YAML: too many values, or too long a one")


def parse_yaml(text: bytes, where: object, name: str = CONFIG_NAME) -> Section:
    """Parse a config safely. Raises CheckpointError, with `where` and `name` in its message."""
    try:
        _check_yaml_size(text, where, name)
        return Section(yaml.load(text, Loader=_Loader), "", where)
    except CheckpointError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(where, f"{name} is not safe YAML: {one_line(error)}") from error


def _tokenizer(config: Section, members: Members, where: object) -> tuple[Tokenizer, dict[str, Tokenizer]]:
    """Return the tokenizer, and those that an aggregate is made of by language."""
    if "tokenizer" not in config:
        return _characters(config, where), {}
    section = config.part("tokenizer")
    if section.choose("type", "bpe", ("bpe", "agg", "multilingual")) == "bpe":
        return _sentencepiece(section, members, where), {}
    return _aggregate(section.part("langs"), lambda part: _sentencepiece(part, members, where), where)


def _sentencepiece(section: Section, members: Members, where: object) -> Tokenizer:
    section.choose("type", "bpe", ("bpe",))
    member = section.take("model_path", str).removeprefix("nemo:")
    if member not in members:
        member = _member_of_path(member, members, where)
    try:
        return from_sentencepiece(content(members, member, MAX_TOKENIZER_BYTES, where))
    except CheckpointError:
        raise
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(where, f"{member} is not a SentencePiece model: {one_line(error)}") from error


def _member_of_path(path: str, members: Collection[str], where: object) -> str:
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


def _aggregate(
    languages: Section, read: Callable[[Section], Tokenizer], where: object
) -> tuple[Tokenizer, dict[str, Tokenizer]]:
    """Return the tokenizer of the section tokenizer.langs, and the tokenizer of each of its languages.

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


def _characters(config: Section, where: object) -> Tokenizer:
    """Return the tokenizer of a config without a section tokenizer. Raises UnsupportedCheckpoint."""
    candidates = [config.values.get("labels")]
    for section in ("joint", "decoder"):
        part = config.values.get(section)
        candidates.append(part.get("vocabulary") if isinstance(part, dict) else None)
    labels = next((c for c in candidates if c), None)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UnsupportedCheckpoint(where, "labels", labels, "a tokenizer section or a list of characters")
    return from_characters(labels)
