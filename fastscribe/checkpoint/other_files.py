"""What a file or folder is that is no model, and the command that makes one of it. Imported when such a file comes.

It looks at first bytes, at names in archives and at the strings of a pickle. Nothing is unpacked, and no code of a file runs.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import IO, Any

from fastscribe._system.file_kinds import safe_open
from fastscribe.audio.first_bytes import HEAD_BYTES, has_known_format, is_text
from fastscribe.checkpoint.value import CONFIG_NAME, NEMO_CONFIG_NAME

_HEAD_BYTES = 64
_WEIGHTS_NAME = "model_weights.ckpt"  # in a .nemo file
_COMPRESSED = (  # first bytes, and the program that packs and unpacks them
    (b"BZh", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x1f\x8b", "gzip"),
)
_PACKED_SUFFIXES = (".bz2", ".bzip2", ".zst", ".zstd", ".xz", ".lz4", ".gz")
_WANTED = "give the model's .nemo file, or its folder"
_OTHERS = (
    (b"GGUF", f"weights in GGUF, for llama.cpp and its relatives: {_WANTED}"),
    (b"<!DOCTYPE html", "a web page, not the model: the download failed; download it anew"),
    (b"<html", "a web page, not the model: the download failed; download it anew"),
    (b"\x89HDF", f"weights in HDF5: {_WANTED}"),
)
# What stands for a model in an archive or a folder, the best first.
_MODELS = (".nemo", NEMO_CONFIG_NAME, CONFIG_NAME, ".ckpt", ".pt", ".pth")
_NEMO_CLASS = re.compile(r"(nemo\.collections\.(?:\w+\.)+)(\w*Model\w*)")
_IN_DOUBLE_QUOTES = re.compile(r'[^"$`!\\]*')  # what a shell leaves as it is between them
_MAX_PICKLE_BYTES = 32 << 20  # training states take some for each weight
_MAX_NAMES = 5_000  # of a folder


def what_it_is(path: Path) -> str | None:
    """Return what a file is and what to do, for a message; None if it looks like nothing that is known. Raises OSError."""
    with safe_open(path) as file:
        head = file.read(_HEAD_BYTES)
        if head.startswith(b"PK"):
            return _zip(path, file)
    if has_known_format(head[:HEAD_BYTES]):
        return "a recording, not a model: it is an input of fastscribe transcribe"
    for magic, program in _COMPRESSED:
        if head.startswith(magic):
            new = _unpacked_file(path)
            return f"compressed with {program}: `{program} -dc {quote(str(path))} > {quote(new)}`, then give {new}"
    if head.startswith(b"7z\xbc\xaf\x27\x1c"):
        return _archive("a 7z archive", "7z x {path} -o{folder}", path)
    if head.startswith(b"Rar!"):
        return _archive("a RAR archive", "unrar x {path} {folder}/", path)
    if head.startswith(b"version https://git-lfs"):
        return f"a Git LFS pointer, not the model: `git -C {quote(str(path.parent))} lfs pull` downloads it"
    known = next((what for magic, what in _OTHERS if head[: len(magic)].lower() == magic.lower()), None)
    if known is not None:
        return known
    if head.startswith(b"\x80\x02\x8a\x0al\xfc\x9c"):  # how torch.save of versions before 1.6 begins
        return _weights_alone(path)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30:  # safetensors
        return _weights_alone(path)
    if path.suffix == ".onnx":
        return f"an ONNX model, which fastscribe does not run: {_WANTED}"
    return f"a text file: {_WANTED}" if head and is_text(head) else None


def missing_member(name: str, names: Iterable[str], path: Path) -> str:
    """Return the message for a tar without a file that a .nemo archive has: what it holds in its place, and what to do."""
    folder = _folder_for(path)
    found = _to_give(names, folder) if name == NEMO_CONFIG_NAME else None
    cure = f": `mkdir {quote(folder)} && tar -xf {quote(str(path))} -C {quote(folder)}`, then give {found}"
    return f"holds no {name}" + (cure if found else "")


def no_model(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the message for a folder without a model, or with a config.json of NeMo's encoder alone."""
    if config:
        name = config.get("nemo_model_name", "the model")
        return f"{CONFIG_NAME} describes NeMo's encoder alone; give the .nemo file of {name}"
    below = (path for pattern in ("*", "*/*", "*/*/*") for path in folder.glob(pattern))
    names = [path.relative_to(folder).as_posix() for path in islice(below, _MAX_NAMES)]
    found = _to_give(names, str(folder))
    problem = f"not a model folder: holds no {CONFIG_NAME}, {NEMO_CONFIG_NAME} or .nemo file"
    return problem + (f"; give {found}" if found else "")


def _zip(path: Path, file: IO[bytes]) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            pickles = [name for name in names if PurePosixPath(name).name == "data.pkl"]
            if pickles and any("/code/" in name for name in names):
                return f"a TorchScript program, and fastscribe runs no code of a checkpoint: {_WANTED}"
            if pickles:
                with archive.open(pickles[0]) as content:
                    return _torch(path, _strings(content.read(_MAX_PICKLE_BYTES)))
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error):
        return "a damaged or partial zip file, such as torch.save writes; copy or download it anew"
    return _archive("a zip archive", "unzip {path} -d {folder}", path, names)


def _strings(content: bytes) -> set[str]:
    """Return the strings of a pickle, as far as it is whole."""
    found: set[str] = set()
    try:
        for _, argument, _ in pickletools.genops(content):
            if isinstance(argument, str):
                found.add(argument)
    except (ValueError, IndexError, UnicodeDecodeError):
        pass
    return found


def _torch(path: Path, strings: set[str]) -> str:
    """Describe what torch.save wrote."""
    if "pytorch-lightning_version" not in strings and "state_dict" not in strings:
        return _weights_alone(path)
    kind = "a Lightning checkpoint" if "pytorch-lightning_version" in strings else "a checkpoint"
    what = f"{kind} of a training run, without the model's tokenizer"
    classes = sorted(match.groups() for text in strings if (match := _NEMO_CLASS.fullmatch(text)))
    if classes and not any(text.startswith("nemo:") for text in strings):
        module, name = classes[0]
        saved = str(path.with_suffix(".nemo"))
        load = f"M.load_from_checkpoint({str(path)!r}, map_location='cpu').save_to({saved!r})"
        command = _python(f"from {module.rstrip('.')} import {name} as M; {load}")
        return f"{what}: `{command}`, where NeMo trained it, makes {saved} of it"
    # Its config names files of a .nemo archive, and NeMo finds them only there.
    folder = _folder_for(path)
    weights = f"torch.load({str(path)!r}, 'cpu', weights_only=False)['state_dict']"
    command = _python(f"import torch; torch.save({weights}, {f'{folder}/{_WEIGHTS_NAME}'!r})")
    unpack = f"mkdir {quote(folder)} && tar -xf MODEL.nemo -C {quote(folder)}"
    return f"{what}: put its weights into the .nemo file that it was trained from, `{unpack} && {command}`, then give {folder}"


def _python(code: str) -> str:
    return f'python -c "{code}"' if _IN_DOUBLE_QUOTES.fullmatch(code) else f"python -c {quote(code)}"


def _weights_alone(path: Path) -> str:
    for config in (NEMO_CONFIG_NAME, CONFIG_NAME):
        if (path.parent / config).is_file():
            return f"the weights alone of a model: give their folder, {path.parent}"
    return f"the weights alone of a model, without its config and tokenizer: {_WANTED}"


def _archive(what: str, command: str, path: Path, names: Iterable[str] | None = None) -> str:
    """Return what an archive is, how to unpack it, and what to give then. `names` of its files: None if not known."""
    folder = _folder_for(path)
    found = f"the model in {folder}" if names is None else _to_give(names, folder)
    if found is None:
        return f"{what} that holds no model: {_WANTED}"
    return f"{what}: `{command.format(path=quote(str(path)), folder=quote(folder))}`, then give {found}"


def _to_give(names: Iterable[str], folder: str) -> str | None:
    """Return the path of the model among files that lie in a folder; None if there is none."""
    kept = sorted(name for name in names if not name.startswith("__MACOSX/"))
    with_weights = {str(PurePosixPath(name).parent) for name in kept if name.endswith(".safetensors")}
    for wanted in _MODELS:
        for path in map(PurePosixPath, kept):
            if wanted.startswith(".") and path.suffix == wanted:
                return f"{folder}/{path}"
            if path.name == wanted and (wanted != CONFIG_NAME or str(path.parent) in with_weights):
                return str(PurePosixPath(folder, path.parent))
    return None


def _unpacked_file(path: Path) -> str:
    name = path.stem if path.suffix.lower() in _PACKED_SUFFIXES else f"{path.stem}-unpacked{path.suffix}"
    return str(path.with_name(name))


def _folder_for(path: Path) -> str:
    """Return the name of a folder to unpack into, which is not there yet."""
    name = str(path.with_suffix(""))
    return name if not Path(name).exists() else f"{name}-unpacked"
