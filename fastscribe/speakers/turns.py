"""Turns of speakers: from a speaker model's probabilities, or read from another tool's RTTM (NIST's).

Shapes: T frames, N speakers.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from fastscribe.errors import AudioError, UsageError
from fastscribe.types import AudioInfo, Float32Array, Turn

_THRESHOLD = 0.5  # a speaker speaks while the probability is above it; NeMo's default too
_OVERLAP_SHARE = 3  # a window shares 1/3 of its length with the next one


def windows(num_frames: int, max_frames: int) -> list[tuple[int, int]]:
    """Return the windows (begin, end) in frames that cover a recording; neighbours overlap, none is longer than max_frames."""
    if num_frames <= max_frames:
        return [(0, num_frames)]
    step = max(1, max_frames - max_frames // _OVERLAP_SHARE)
    begins = [*range(0, num_frames - max_frames, step), num_frames - max_frames]
    return [(begin, begin + max_frames) for begin in begins]


def stitched(parts: Sequence[tuple[int, Float32Array]]) -> Float32Array:
    """Return the probabilities [T, N] of a recording from those of its windows.

    A window numbers its speakers by itself. They get the numbers with which they agree best where the window overlaps the ones
    before; who is silent there gets a number that is left. Each window counts from the middle of that overlap on.

    Args:
        parts: First frame and probabilities [T, N] of each window, in order.
    """
    whole_TN = parts[0][1]
    for begin, part_TN in parts[1:]:
        shared = min(len(whole_TN) - begin, len(part_TN))
        order = _matched(whole_TN[begin : begin + shared], part_TN[:shared])
        own = shared // 2
        whole_TN = np.concatenate([whole_TN[: begin + own], part_TN[own:, order]])
    return whole_TN


def _matched(before_TN: Float32Array, after_TN: Float32Array) -> list[int]:
    """Return, for each speaker before, the number of the same speaker after: the best agreement first."""
    agreement_NN = before_TN.T.astype(np.float64) @ after_TN
    order = [0] * len(agreement_NN)
    for _ in order:
        before, after = np.unravel_index(int(agreement_NN.argmax()), agreement_NN.shape)
        order[before] = int(after)
        agreement_NN[before], agreement_NN[:, after] = -1.0, -1.0
    return order


def turns_of(
    speakers_TN: Float32Array, frame_s: float, duration_s: float, names: Sequence[str] | None = None
) -> tuple[Turn, ...]:
    """Return the turns, in the order in which they begin. Turns of different speakers may overlap.

    Args:
        speakers_TN: Probability that each speaker speaks.
        frame_s: Length of a frame in seconds.
        duration_s: Length of the recording, beyond which no turn lasts.
        names: Of the speakers, in the order in which they begin to speak; "speaker 3" is the third one without a name.
    """
    is_speech_TN = np.pad(speakers_TN > _THRESHOLD, ((1, 1), (0, 0)))
    change_TN = np.diff(is_speech_TN.astype(np.int8), axis=0)
    found = []
    for number in range(speakers_TN.shape[1]):
        begins, ends = (np.flatnonzero(change_TN[:, number] == sign) for sign in (1, -1))
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        found += [(begin * frame_s, min(end * frame_s, duration_s), number) for begin, end in spans]
    found.sort()
    numbers = list(dict.fromkeys(number for _, _, number in found))
    name_of = {number: speaker_name(place, names) for place, number in enumerate(numbers)}
    return tuple(Turn(start_s, end_s, name_of[number]) for start_s, end_s, number in found if start_s < end_s)


def speaker_name(place: int, names: Sequence[str] | None) -> str:
    """Return the name of a speaker, counted from 0 in the order in which they begin to speak."""
    return names[place] if names is not None and place < len(names) else f"speaker {place + 1}"


_MIN_FIELDS = 8


class RttmTurns:
    """The turns of `--rttm`: of a file with any number of recordings, or of a folder with a file for each recording.

    A file in a folder has the recording's name, with its folders, or without them: `calls/a.rttm` or `a.rttm` for calls/a.wav.
    In one file, the second field names the recording in the same ways, with or without its extension; it is read once, here.

    Args:
        path: A file or a folder.

    Raises:
        UsageError: It is missing, cannot be read, or holds a line that is no RTTM.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._by_recording: dict[str, list[Turn]] | None = None
        self._file_digest = b""
        if not self.path.exists():
            raise UsageError(f"--rttm {path}: no such file or folder")
        self._state = _state(self.path)
        if not self.path.is_dir():
            content = _content(self.path)
            self._by_recording, self._file_digest = _parsed(content, self.path), hashlib.sha256(content).digest()

    @property
    def has_changed(self) -> bool:
        """Return True if the file is another one than when it was read. A folder's files are read when they are needed."""
        return self._by_recording is not None and self._state != _state(self.path)

    def of(self, audio: AudioInfo) -> tuple[Turn, ...]:
        """Return a recording's turns, on its own clock.

        Raises:
            AudioError: There are none of this recording, or its file in the folder is damaged.
        """
        for name in _recording_names(audio):
            turns = self._turns(name)
            if turns is not None:
                return _clipped(turns, audio.start / audio.sample_rate, audio.duration_s)
        raise AudioError(audio.path, f"{self.path} has no turns of its speakers")

    def digest(self) -> str:
        """Return a digest of the content. Raises UsageError naming a file that cannot be read."""
        digest = hashlib.sha256()
        if self._by_recording is not None:
            digest.update(b".\0" + self._file_digest)
        else:
            for file in sorted(self.path.rglob("*.rttm")):
                if not file.is_dir():
                    digest.update(os.fsencode(file.relative_to(self.path).as_posix()) + b"\0")
                    digest.update(hashlib.sha256(_content(file)).digest())
        return "sha256:" + digest.hexdigest()[:32]

    def _turns(self, name: str) -> list[Turn] | None:
        if self._by_recording is not None:
            return self._by_recording.get(name)
        file = self.path / f"{name}.rttm"
        if ".." in PurePosixPath(name).parts or not file.is_file():
            return None
        try:
            return [turn for turns in _parsed(_content(file), file).values() for turn in turns]
        except UsageError as error:
            raise AudioError(str(file), str(error)) from error


def _recording_names(audio: AudioInfo) -> Iterator[str]:
    """Yield the names that a recording may have in files of other tools."""
    id = re.sub(r"@[0-9]+$", "", audio.id)
    for name in (id, PurePosixPath(id).name, PurePosixPath(audio.path).name):
        for form in (name, name.removesuffix(PurePosixPath(name).suffix)):
            yield form
            yield re.sub(r"\s", "_", form)


def _clipped(turns: Iterable[Turn], start_s: float, duration_s: float) -> tuple[Turn, ...]:
    """Return the turns within a part of a recording, on the part's clock, in the order in which they begin."""
    moved = (Turn(max(0.0, one.start_s - start_s), min(duration_s, one.end_s - start_s), one.speaker) for one in turns)
    return tuple(sorted(turn for turn in moved if turn.start_s < turn.end_s))


def _state(path: Path) -> tuple[int, ...] | None:
    """Return numbers that change with a file's content; None: it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"--rttm {path}: {error.strerror}") from error


def _parsed(content: bytes, path: Path) -> dict[str, list[Turn]]:
    """Return the turns by recording. Raises UsageError naming the line."""
    found: dict[str, list[Turn]] = {}
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"--rttm {path}: no UTF-8 text") from error
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields or fields[0].startswith(";") or fields[0] != "SPEAKER":
            if fields and not (fields[0].startswith(";") or re.fullmatch("[A-Z][A-Z-]*", fields[0])):
                raise UsageError(f"--rttm {path}: line {number} is no RTTM: it begins with {fields[0][:40]!r}")
            continue
        try:
            if len(fields) < _MIN_FIELDS:
                raise ValueError
            start_s, length_s = float(fields[3]), float(fields[4])
            if not (0 <= start_s < math.inf and 0 <= length_s < math.inf):
                raise ValueError
        except ValueError:
            wanted = "SPEAKER RECORDING CHANNEL START LENGTH <NA> <NA> NAME <NA> <NA>, in seconds"
            raise UsageError(f"--rttm {path}: line {number} is not {wanted}") from None
        found.setdefault(fields[1], []).append(Turn(start_s, start_s + length_s, fields[7]))
    return found
