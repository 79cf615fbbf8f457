"""NeMo checkpoints: a .nemo tar (plain or gzip), or the same unpacked, without NeMo.

The archive holds model_config.yaml (the model section, with `target` naming the class), model_weights.ckpt (a torch
state dict) and artifacts that the YAML refers to as `nemo:<member>`. Only the tokenizer is needed of those.
"""

from __future__ import annotations

import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

import yaml

from fastscribe.checkpoint import names
from fastscribe.checkpoint.nemo_config import model_config
from fastscribe.checkpoint.value import Checkpoint, Section, load_torch
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.tokenizer import Tokenizer, from_characters, from_sentencepiece

CONFIG_NAME = "model_config.yaml"
WEIGHTS_NAME = "model_weights.ckpt"
_MAX_MEMBERS = 10_000
_MAX_TEXT_BYTES = 64 << 20  # config or tokenizer
_MAX_WEIGHTS_BYTES = 64 << 30

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
        members = _safe_members(archive, where)

        def open_member(name: str) -> tuple[IO[bytes], int]:
            if name not in members:
                raise CheckpointError(where, f"holds no {name}")
            file = archive.extractfile(members[name])
            assert file is not None  # _safe_members keeps regular files only
            return file, members[name].size

        return _read(open_member, where)


def _safe_members(archive: tarfile.TarFile, where: Path) -> dict[str, tarfile.TarInfo]:
    """Regular files by plain name. Raises CheckpointError for links, devices, paths that leave the folder and bombs."""
    members: dict[str, tarfile.TarInfo] = {}
    for number, member in enumerate(archive):
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or number >= _MAX_MEMBERS:
            raise CheckpointError(where, f"refused: member {member.name!r} leaves the folder, or there are too many")
        if not (member.isfile() or member.isdir()):
            raise CheckpointError(where, f"refused: member {member.name!r} is a link or a device")
        if member.size > _MAX_WEIGHTS_BYTES:
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

    return _read(open_member, folder)


def _read(open_member: OpenMember, where: Path) -> Checkpoint:
    config = parse_yaml(_text(open_member, CONFIG_NAME, where), where)
    tokenizer = _tokenizer(config, open_member, where)
    model = model_config(config, len(tokenizer.pieces), where)
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


def parse_yaml(text: bytes, where: object) -> Section:
    try:
        return Section(yaml.safe_load(text), CONFIG_NAME, where)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise CheckpointError(where, f"{CONFIG_NAME} is not safe YAML: {' '.join(str(error).split())}") from error


def _tokenizer(config: Section, open_member: OpenMember, where: Path) -> Tokenizer:
    if "tokenizer" not in config:
        return _characters(config, where)
    section = Section(config.values["tokenizer"], "tokenizer", where)
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
