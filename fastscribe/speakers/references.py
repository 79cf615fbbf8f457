"""Read who says what, and when, from the files that people own: RTTM, STM, SegLST and JSONL.

- RTTM (NIST) has the turns of speakers: `SPEAKER recording channel start length <NA> <NA> speaker <NA> <NA>`. A folder has a
  file for each recording, with its name, as for `--rttm`.
- STM (NIST) has words too: `recording channel speaker start end [<label>] words`. Segments whose words are
  `ignore_time_segment_in_scoring` are left out. Alternatives in braces are not understood.
- SegLST (CHiME's JSON) is a list of {"session_id", "speaker", "start_time", "end_time", "words"}.
- JSONL has rows as transcribe writes them, corrected by hand: "audio_filepath", and "segments" with "speaker", "start", "end"
  and "text".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe.errors import ManifestError, UsageError
from fastscribe.results.rows import read_rows
from fastscribe.speakers.rttm import clipped, read_rttm, recording_names
from fastscribe.types import AudioInfo, Turn

OPTION = "--speaker-references"
_KINDS = {".rttm": "RTTM", ".stm": "STM", ".json": "SegLST", ".jsonl": "JSONL"}
_IGNORED = "ignore_time_segment_in_scoring"


class Speech(NamedTuple):
    """What a speaker says in a span, in seconds on the file's clock."""

    start_s: float
    end_s: float
    speaker: str
    text: str


class Reference(NamedTuple):
    """A recording's reference.

    Attributes:
        turns: Who speaks when.
        texts: All that a speaker says, by speaker; None: the references have no words.
    """

    turns: tuple[Turn, ...]
    texts: Mapping[str, str] | None


class SpeakerReferences:
    """References by recording: turns of RTTM, and words of the other formats, whose times are turns where there is no RTTM.

    Args:
        paths: Files, or folders with files of one format each.

    Raises:
        UsageError: A file is missing, damaged, or of another format.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._turns: dict[str, list[Turn]] = {}
        self._speech: dict[str, list[Speech]] = {}
        self._found: set[str] = set()
        for path in map(Path, paths):
            for file, name in _files(path):
                self._read(file, name)
        self.has_words = bool(self._speech)
        if not (self._speech or self._turns):
            raise UsageError(f"{OPTION}: the files have no speakers")

    def of(self, audio: AudioInfo, offset_s: float = 0.0, part_s: float | None = None) -> Reference | None:
        """Return a recording's reference on its own clock; None if there is none.

        Args:
            audio: The recording, or the part of a file, which has the words of the segments whose middle is in it.
            offset_s: Where the part begins in its file, in seconds.
            part_s: Its length in seconds; None: it goes on to the end, and has the words of segments that end later too.
        """
        names = list(recording_names(audio))
        turns, speech = (_first(found, names) for found in (self._turns, self._speech))
        self._found |= {name for name in (turns, speech) if name is not None}
        if (turns if speech is None else speech) is None:
            return None
        own = self._speech.get(speech or "", [])
        spans = self._turns[turns] if turns is not None else [Turn(*one[:3]) for one in own]
        length_s = part_s or audio.duration_s or math.inf  # a failed recording's is unknown
        texts: dict[str, list[str]] = {}
        for one in sorted(own, key=lambda one: one.start_s):
            if 0 <= (one.start_s + one.end_s) / 2 - offset_s < (part_s or math.inf):
                texts.setdefault(one.speaker, []).append(one.text)
        joined = {speaker: " ".join(parts) for speaker, parts in texts.items()}
        return Reference(clipped(spans, offset_s, length_s), joined if speech is not None else None)

    def unused(self) -> list[str]:
        """Return the names of recordings that no result was for."""
        return sorted((self._turns.keys() | self._speech.keys()) - self._found)

    def _read(self, file: Path, name: str | None) -> None:
        kind = file.suffix.lower()
        if kind == ".rttm":
            for recording, turns in read_rttm(file, OPTION).items():
                self._turns.setdefault(recording if name is None else name, []).extend(turns)
            if name is not None:
                self._turns.setdefault(name, [])  # a recording without speakers
            return
        readers = {".stm": _read_stm, ".json": _read_seglst, ".jsonl": _read_rows}
        for recording, speech in readers[kind](file):
            found = self._speech.setdefault(recording, [])
            found += [speech] if speech is not None else []


def _first(found: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in found), None)


def _files(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield files; those of RTTM in a folder with the name of their recording."""
    if not path.exists():
        raise UsageError(f"{OPTION} {path}: no such file or folder")
    if not path.is_dir():
        if path.suffix.lower() not in _KINDS:
            known = ", ".join(f"{kind} ({name})" for kind, name in _KINDS.items())
            raise UsageError(f"{OPTION} {path}: the name ends in none of {known}")
        yield path, None
        return
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _KINDS and file.is_file())
    if not files:
        raise UsageError(f"{OPTION} {path}: no {', '.join(_KINDS)} file in this folder")
    kinds = {file.suffix.lower() for file in files}
    if len(kinds) > 1:
        raise UsageError(f"{OPTION} {path}: files of several formats ({', '.join(sorted(kinds))}): name those to take")
    for file in files:
        yield file, file.relative_to(path).with_suffix("").as_posix() if kinds == {".rttm"} else None


def _read_stm(file: Path) -> Iterator[tuple[str, Speech]]:
    for number, line in enumerate(_text(file).splitlines(), start=1):
        if not line.strip() or line.startswith(";;"):
            continue
        fields = line.split(maxsplit=5)
        try:
            recording, _, speaker, start, end = fields[:5]
            speech = _speech(start, end, speaker, re.sub(r"^<[^>]*>\s*", "", "".join(fields[5:])))
        except ValueError:
            wanted = "RECORDING CHANNEL SPEAKER START END [<LABEL>] WORDS, in seconds"
            raise UsageError(f"{OPTION} {file}: line {number} is not {wanted}") from None
        if speech.text.strip().lower() != _IGNORED:
            yield recording, speech


def _read_seglst(file: Path) -> Iterator[tuple[str, Speech]]:
    try:
        segments = json.loads(_text(file))
        if not isinstance(segments, list):
            raise TypeError
        for one in segments:
            speech = _speech(one["start_time"], one["end_time"], str(one["speaker"]), one["words"])
            yield str(one["session_id"]), speech
    except (KeyError, TypeError, ValueError):
        wanted = "a list of objects with session_id, speaker, start_time, end_time and words"
        raise UsageError(f"{OPTION} {file}: is not SegLST: {wanted}") from None


def _read_rows(file: Path) -> Iterator[tuple[str, Speech | None]]:
    for row in read_rows([str(file)]):
        if isinstance(row, ManifestError):
            raise UsageError(f"{OPTION}: {row}")
        try:
            path, segments = str(row.fields["audio_filepath"]), row.fields["segments"]
            offset_s = float(row.fields.get("offset") or 0.0)
            yield path, None
            for one in segments:
                start, end = float(one["start"]) + offset_s, float(one["end"]) + offset_s
                yield path, _speech(start, end, str(one["speaker"]), one["text"])
        except (KeyError, TypeError, ValueError):
            wanted = "audio_filepath, and segments with speaker, start, end and text"
            raise UsageError(f"{OPTION} {file}: line {row.line} has no {wanted}") from None


def _speech(start: str | float, end: str | float, speaker: str, text: str) -> Speech:
    speech = Speech(float(start), float(end), speaker, text)
    if not (isinstance(text, str) and 0 <= speech.start_s <= speech.end_s < math.inf):
        raise ValueError
    return speech


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise UsageError(f"{OPTION} {file}: {problem}") from error
