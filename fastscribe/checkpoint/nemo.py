"""NeMo checkpoints: a .nemo tar (plain or gzip), or the same unpacked, without NeMo.

The archive holds model_config.yaml (the model section, with `target` naming the class), model_weights.ckpt (a torch
state dict) and artifacts that the YAML refers to as `nemo:<member>`. Only the tokenizer is needed of those.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

import yaml

from fastscribe.checkpoint import names
from fastscribe.checkpoint.nemo_config import model_config
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import Checkpoint, Section, load_torch, odd_values_refused
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.tokenizer import Tokenizer, from_characters, from_sentencepiece

CONFIG_NAME = "model_config.yaml"
WEIGHTS_NAME = "model_weights.ckpt"
_MAX_MEMBERS = 10_000
_MAX_TEXT_BYTES = 16 << 20  # config or tokenizer
_MAX_DEPTH = 100  # of nested YAML
_MAX_WEIGHTS_BYTES = 64 << 30


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML; 1e-5 is a number, as for NeMo's loader (YAML 1.1 wants 1.0e-5)."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))

OpenMember = Callable[[str], tuple[IO[bytes], int]]  # name -> seekable file, size; raises CheckpointError


def read_archive(path: Path) -> Checkpoint:
    """Raises CheckpointError where the tar is unsafe, damaged, or not a supported model."""
    try:
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                return _read_gzip(path)
            return _read_tar(path, path)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise CheckpointError(path, f"not a readable .nemo file: {error}") from error


def _read_gzip(path: Path) -> Checkpoint:
    """Weights need seeking, so the tar inside is unpacked to an unnamed file, up to the size a model may have."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as unpacked, gzip.open(path) as packed:
        size = 0
        while block := packed.read(1 << 20):
            size += len(block)
            if size > _MAX_WEIGHTS_BYTES or size > max(1 << 30, 100 * path.stat().st_size):
                raise CheckpointError(path, "refused: unpacks to an absurd size")
            unpacked.write(block)
        unpacked.flush()
        return _read_tar(Path(unpacked.name), path)


def _read_tar(tar_path: Path, where: Path) -> Checkpoint:
    with tarfile.open(tar_path, "r:") as archive:
        with odd_values_refused(where):
            members = _safe_members(archive, tar_path.stat().st_size, where)

        def open_member(name: str) -> tuple[IO[bytes], int]:
            if name not in members:
                raise CheckpointError(where, f"holds no {name}")
            file = archive.extractfile(members[name])
            assert file is not None  # _safe_members keeps regular files only
            return file, members[name].size

        return _read(open_member, where)


def _safe_members(archive: tarfile.TarFile, tar_bytes: int, where: Path) -> dict[str, tarfile.TarInfo]:
    """Regular files by plain name. Raises CheckpointError for links, devices, paths that leave the folder and bombs."""
    members: dict[str, tarfile.TarInfo] = {}
    for number, member in enumerate(archive):
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or number >= _MAX_MEMBERS:
            raise CheckpointError(where, f"refused: member {member.name!r} leaves the folder, or there are too many")
        if not (member.isfile() or member.isdir()) or member.issparse():
            raise CheckpointError(where, f"refused: member {member.name!r} is a link, a device or a sparse file")
        if not 0 <= member.size <= tar_bytes:
            raise CheckpointError(where, f"refused: member {member.name!r} claims {member.size} bytes")
        if member.isfile():
            members[str(name)] = member
    return members


def read_folder(folder: Path) -> Checkpoint:
    def open_member(name: str) -> tuple[IO[bytes], int]:
        member = folder / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(folder, f"refused: {name!r} leaves the folder")
        try:
            return member.open("rb"), member.stat().st_size
        except OSError as error:
            raise CheckpointError(member, error.strerror or "cannot be opened") from error
        except ValueError as error:  # a NUL in the name
            raise CheckpointError(folder, f"{name!r} is not a file name") from error

    return _read(open_member, folder)


def _read(open_member: OpenMember, where: Path) -> Checkpoint:
    config = parse_yaml(_text(open_member, CONFIG_NAME, where), where)
    tokenizer = _tokenizer(config, open_member, where)
    with odd_values_refused(f"{where}: {CONFIG_NAME}"):
        model = model_config(config, len(tokenizer.pieces), where)
        validate(model, where)
    file, size = open_member(WEIGHTS_NAME)
    with file:
        weights = names.from_nemo(load_torch(file, size, f"{where}: {WEIGHTS_NAME}"), model.encoder)
    return Checkpoint(where, "nemo", model, tokenizer, weights)


def _text(open_member: OpenMember, name: str, where: Path) -> bytes:
    file, size = open_member(name)
    with file:
        if size > _MAX_TEXT_BYTES:
            raise CheckpointError(where, f"refused: {name} claims {size} bytes")
        return file.read()


def _refuse_deep_nesting(text: bytes, where: object) -> None:
    """libyaml's loader recurses without a limit and would crash the interpreter; its events come one by one."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise CheckpointError(where, f"{CONFIG_NAME} is not safe YAML: nested deeper than {_MAX_DEPTH}")


def parse_yaml(text: bytes, where: object) -> Section:
    try:
        _refuse_deep_nesting(text, where)
        values = yaml.load(text, Loader=_Loader)
    except CheckpointError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(where, f"{CONFIG_NAME} is not safe YAML: {' '.join(str(error)[:500].split())}") from error
    return Section(values, "", where)


def _tokenizer(config: Section, open_member: OpenMember, where: Path) -> Tokenizer:
    if "tokenizer" not in config:
        return _characters(config, where)
    section = config.part("tokenizer")
    section.choose("type", "bpe", ("bpe",))
    member = section.take("model_path", str).removeprefix("nemo:")
    try:
        return from_sentencepiece(_text(open_member, member, where))
    except RuntimeError as error:
        raise CheckpointError(where, f"{member} is not a SentencePiece model: {error}") from error


def _characters(config: Section, where: Path) -> Tokenizer:
    candidates = [config.values.get("labels")]
    for section in ("joint", "decoder"):
        part = config.values.get(section)
        candidates.append(part.get("vocabulary") if isinstance(part, dict) else None)
    labels = next((c for c in candidates if c), None)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UnsupportedCheckpoint(where, "labels", labels, "a tokenizer section or a list of characters")
    return from_characters(labels)
