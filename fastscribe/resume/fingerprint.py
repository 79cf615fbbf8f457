"""What decides a run's results besides its inputs, as plain values that can be compared and shown."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastscribe.config import Options, OutputStyle

_FORMAT_VERSION = 1  # of the output; a change to what rows or files hold is a new one
# Options that change how fast results come, and not what they are.
_SPEED_ONLY = frozenset(("cuda_graphs", "batch_frames", "batch_size", "window", "threads"))
# Options that only some models follow; a run that does without them need not know them.
_MODEL_DEPENDENT = frozenset(("language", "target_language", "pnc", "timestamps"))
_RESOLVED_LATER = frozenset(("beam",))  # by the options; `resolved` has it
_DEFAULTS = Options()
_MODEL_SUFFIXES = frozenset(
    (".nemo", ".safetensors", ".json", ".yaml", ".yml", ".model", ".vocab", ".ckpt", ".bin", ".txt")
)
_MODEL_FILES = frozenset(("language_model.safetensors.gz",))
_MODEL_FOLDERS = ("", "aligner")  # in which a model's files lie
_BLOCK_BYTES = 1 << 25
_READ_BYTES = 1 << 18  # fits a processor's own cache, so a block costs no memory and no page faults


def fingerprint(model_digest: str, resolved: Mapping[str, Any], options: Options, style: OutputStyle) -> dict[str, Any]:
    """By the names that the command line has for them. `resolved` has what was chosen in the end where an option may leave
    that open: dtype, decoder, attention, and a beam of more than one."""
    chosen = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    defaulted = {name for name in _MODEL_DEPENDENT if chosen[name] == getattr(_DEFAULTS, name)}
    shaping = {name: value for name, value in chosen.items() if name not in _SPEED_ONLY | _RESOLVED_LATER | defaulted}
    named = {
        f"--{name.replace('_', '-')}": value for name, value in {**shaping, **resolved, **_style_fields(style)}.items()
    }
    return {"model": model_digest, **named, "--format": sorted(style.formats), "output format": _FORMAT_VERSION}


def _style_fields(style: OutputStyle) -> dict[str, Any]:
    """What matters to one of the formats."""
    formats = set(style.formats)
    fields = dataclasses.asdict(style.subtitles) if {"srt", "vtt"} & formats else {}
    if "vtt" not in formats:
        fields.pop("highlight_words", None)
    return {**fields, "tokens": style.tokens} if {"json", "jsonl"} & formats else fields


def model_digest(path: str | os.PathLike[str]) -> str:
    """Of a checkpoint's content, wherever it lies: its file, or a folder's files that a checkpoint may be made of.

    SHA-256 over the SHA-256 of blocks of 32 MB, so that all processors share the work. Raises OSError.
    """
    root = Path(path)
    files = [root] if root.is_file() else _model_files(root)
    digest = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for file in files:
            if file.is_file():
                name = b"" if file == root else os.fsencode(file.relative_to(root).as_posix()) + b"\0"
                digest.update(name)
                for block in pool.map(_block_digest, *zip(*_blocks(file), strict=True)):
                    digest.update(block)
    return "sha256:" + digest.hexdigest()[:32]


def _model_files(root: Path) -> list[Path]:
    folders = [root / name for name in _MODEL_FOLDERS if (root / name).is_dir()]
    return [entry for folder in folders for entry in sorted(folder.iterdir()) if _is_model_file(entry)]


def _is_model_file(entry: Path) -> bool:
    return entry.suffix in _MODEL_SUFFIXES or entry.name in _MODEL_FILES


def _blocks(file: Path) -> Iterator[tuple[Path, int]]:
    size = file.stat().st_size
    yield from ((file, start) for start in range(0, max(1, size), _BLOCK_BYTES))


def _block_digest(file: Path, start: int) -> bytes:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_READ_BYTES))
    with file.open("rb", buffering=0) as opened:
        opened.seek(start)
        left = _BLOCK_BYTES
        while left and (count := opened.readinto(buffer[:left])):
            digest.update(buffer[:count])
            left -= count
    return digest.digest()
