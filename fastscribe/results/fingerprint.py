"""The fingerprint of a run: all that decides its results besides the inputs, as values that can be compared and printed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

from fastscribe.config import (
    CHANGES_OF_TEXT,
    CHANNELS,
    ModelConfig,
    Options,
    OutputStyle,
    SpeakerNames,
    SubtitleStyle,
    streaming_text,
)

_FORMAT_VERSION = 1  # of the output; raise it when the content of rows or files changes
# Options that change the speed only.
_SPEED_ONLY = frozenset(("cuda_graphs", "batch_frames", "batch_size", "window", "threads"))
_LAYOUT = frozenset(("speaker_names",))  # rows keep the names of their run, files have the last ones
# Options that only some models or runs have; left out at their default.
_OPTIONAL = frozenset(
    ("language", "target_language", "pnc", "timestamps", "nbest", "align_with", "speakers", "boost")
).union(("speaker_streaming", "remove_fillers", "itn", "rttm", "voices", "lm", "lm_weight"))
_RESOLVED_LATER = frozenset(("beam",))  # `resolved` has the value
_DEFAULTS = Options()
_MODEL_SUFFIXES = frozenset(
    (".nemo", ".safetensors", ".json", ".yaml", ".yml", ".model", ".vocab", ".ckpt", ".bin", ".txt")
)
_MODEL_FILES = frozenset(("language_model.safetensors.gz",))
_MODEL_FOLDERS = ("", "aligner")  # subfolders with model files
_BLOCK_BYTES = 1 << 25
_READ_BYTES = 1 << 18  # fits into a processor's cache


def fingerprint(model_digest: str, resolved: Mapping[str, Any], options: Options, style: OutputStyle) -> dict[str, Any]:
    """Return the fingerprint, by the names of the command line's options.

    Formats, the layout of subtitles and names of speakers are no part of it: a run can make their files from the rows.

    Args:
        model_digest: From model_digest().
        resolved: Effective values of options that have an automatic default: dtype, decoder, attention, and a beam above 1.
        options: The run's options.
        style: The formats and their options; `tokens` alone counts, because it changes the rows.
    """
    chosen = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    chosen["boost"] = _DEFAULTS.boost
    if options.boost:
        from fastscribe.context.phrases import digest

        chosen["boost"] = digest(options.boost)
    if options.speaker_streaming is not None:
        chosen["speaker_streaming"] = streaming_text(options.speaker_streaming)
    defaulted = {name for name in _OPTIONAL if chosen[name] == getattr(_DEFAULTS, name)}
    defaulted |= set() if chosen["track"] else {"track"}  # 0 is the default too
    shaping = {
        name: value for name, value in chosen.items() if name not in _SPEED_ONLY | _LAYOUT | _RESOLVED_LATER | defaulted
    }
    named = {option_name(name): value for name, value in {**shaping, **resolved, "tokens": style.tokens}.items()}
    return {"model": model_digest, **named, "output format": _FORMAT_VERSION}


def text_settings(options: Options) -> dict[str, Any]:
    """Return the part of a fingerprint that tells how texts are changed."""
    chosen = {name: getattr(options, name) for name in ("language", *CHANGES_OF_TEXT)}
    return {option_name(name): value for name, value in chosen.items() if value != getattr(_DEFAULTS, name)}


def option_name(field: str) -> str:
    """Return the option of a field of Options, as a command takes it."""
    return f"--{field.replace('_', '-')}"


def language_settings(
    options: Options,
    config: ModelConfig,
    pieces: Sequence[str],
    has_prompt: bool,
    spoken: str | None,
    edits: str | None,
) -> dict[str, str]:
    """Return the part of a fingerprint about languages: equal for options that give the same results.

    Args:
        options: The run's options.
        config: The model's.
        pieces: The tokenizer's.
        has_prompt: The decoder has a prompt for the language.
        spoken: Tag of the one language that the model writes; None: not known.
        edits: Tag of the language whose rules change the texts; None: none do.
    """
    from fastscribe.families.conformer.config import language_prompt_of

    language: str | None
    target: str | None = None
    if has_prompt:
        from fastscribe.decode.prompt import DEFAULT_LANGUAGE, prompt_languages

        language, target = prompt_languages(pieces, options)
        target = None if target == language else target
        language = None if edits is None and language == DEFAULT_LANGUAGE else language
    elif (prompt := language_prompt_of(config)) is not None:
        from fastscribe.families.nemotron import choose_language

        index = choose_language(prompt, options.language)
        names = sorted(name for name, number in prompt.languages.items() if number == index != prompt.index)
        language = names[0] if names else edits
    else:
        language = spoken or edits
    return {name: tag for name, tag in (("language", language), ("target_language", target)) if tag is not None}


def layout_keys(style: OutputStyle) -> tuple[int, int]:
    """Return 32 bits that stand for the layout of subtitles, never 0, and 32 for the names of speakers; 0: there are none."""
    return _key(style.subtitles), 0 if style.speaker_names is None else _key(style.speaker_names)


def _key(style: SubtitleStyle | SpeakerNames) -> int:
    text = json.dumps(dataclasses.asdict(style), sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") or 1


def model_digest(path: str | os.PathLike[str]) -> str:
    """Return a digest of a checkpoint's content: of its file, or of the model files in its folder.

    It is the SHA-256 of the SHA-256 of blocks of 32 MiB, so that all processors share the work. Raises OSError.
    """
    root = Path(path)
    folders = [root / name for name in _MODEL_FOLDERS if (root / name).is_dir()]
    found = [entry for folder in folders for entry in sorted(folder.iterdir())]
    models = [entry for entry in found if entry.suffix in _MODEL_SUFFIXES or entry.name in _MODEL_FILES]
    digest = hashlib.sha256()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for file in [root] if root.is_file() else models:
            if file.is_file():
                name = b"" if file == root else os.fsencode(file.relative_to(root).as_posix()) + b"\0"
                digest.update(name)
                begins = range(0, max(1, file.stat().st_size), _BLOCK_BYTES)
                for block in pool.map(_block_digest, repeat(file), begins):
                    digest.update(block)
    return "sha256:" + digest.hexdigest()[:32]


def content_digests(options: Options) -> dict[str, str]:
    """Return the digests of the models that options name, by the option's name.

    Args:
        options: The run's options.

    Raises:
        OSError: A file cannot be read.
    """
    models = {name: getattr(options, name) for name in ("align_with", "lm", "speakers", "voices")}
    named = {name: path for name, path in models.items() if path is not None and (name, path) != ("speakers", CHANNELS)}
    return {name: model_digest(path) for name, path in named.items()}


def _block_digest(file: Path, start: int) -> bytes:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_READ_BYTES))
    with file.open("rb", buffering=0) as opened:
        opened.seek(start)
        left = _BLOCK_BYTES
        while left and (count := opened.readinto(buffer[:left])):
            digest.update(buffer[:count])
            left -= count
    return digest.digest()
