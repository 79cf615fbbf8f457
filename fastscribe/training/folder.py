"""A folder as a manifest: recordings with a text file of the same name beside each (`a.wav`, `a.txt`).

The headers of recordings are read; nothing else of them is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fastscribe._system.safe_open import safe_read
from fastscribe.audio.failures import system_problem
from fastscribe.audio.folders import walk
from fastscribe.audio.formats import CONTAINER_EXTENSIONS, is_audio_name
from fastscribe.audio.probe import probe
from fastscribe.errors import AudioError, UsageError
from fastscribe.training.bpe import clean_text
from fastscribe.training.corpus import Example, ManifestPart
from fastscribe.training.rows import ReadRequest
from fastscribe.types import Source

_MAX_TEXT_BYTES = 1 << 20


def folder_examples(part: ManifestPart, number: int, read_request: ReadRequest) -> Iterator[Example]:
    """Yield the paired recordings. Raises UsageError if one or its text cannot be read, or there is no pair."""
    texts = {}
    recordings, containers = [], []
    for name in walk(part.path):
        if isinstance(name, OSError):
            raise UsageError(f"{name.filename}: {system_problem(name)}")
        stem, extension = os.path.splitext(name)
        if extension.lower() == ".txt":
            texts[stem] = os.path.join(part.path, name)
        elif extension[1:].lower() in CONTAINER_EXTENSIONS:
            containers.append((stem, os.path.join(part.path, name)))
        elif is_audio_name(name):
            recordings.append((stem, os.path.join(part.path, name)))
    known = {stem for stem, _ in recordings}
    # A video beside the sound that was taken from it is the same recording.
    recordings += [(stem, path) for stem, path in containers if stem not in known]
    if part.non_speech:
        yield from _silent_folder(part, number, [path for _, path in recordings])
        return
    pairs = [(path, texts[stem]) for stem, path in recordings if stem in texts]
    if not pairs:
        raise UsageError(f"{part.path}: no recording here has a .txt of the same name beside it")
    try:
        request = read_request({})
    except ValueError as error:
        raise UsageError(f"{part.path}: {error}") from error
    for path, text_path in pairs:
        yield replace(_paired_example(number, path, text_path), request=request)
    for path in (path for stem, path in recordings if stem not in texts):
        yield Example(path, "", 0.0, part=number)  # counted only: there may be a million, so none is opened


def _silent_folder(part: ManifestPart, number: int, paths: Sequence[str]) -> Iterator[Example]:
    """Yield the recordings of a folder without speech. Raises UsageError if one cannot be read, or there is none."""
    if not paths:
        raise UsageError(f"{part.path}: no recordings here")
    for path in paths:
        try:
            duration_s = probe(Source(path, path, path)).duration_s
        except AudioError as error:
            raise UsageError(f"{error}; put it right, or take it away") from error
        yield Example(path, "", duration_s, part=number, non_speech=True)


def _paired_example(number: int, path: str, text_path: str) -> Example:
    try:
        text = safe_read(Path(text_path), _MAX_TEXT_BYTES).decode("utf-8-sig")
        duration_s = probe(Source(path, path, path)).duration_s
    except AudioError as error:
        raise UsageError(f"{error}; put it right, or take its .txt away") from error
    except OSError as error:
        raise UsageError(f"{text_path}: {system_problem(error)}") from error
    except ValueError as error:
        problem = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(f"{text_path}: {problem}") from error
    return Example(path, clean_text(text), duration_s, part=number)
