"""What the coordinator and a device's process say to each other: pickles of the classes below over the process's own pipes.

Recordings are sent to a process once and named by their index from then on. Samples and encoded bytes that the caller holds
in memory go with their recording, because no path names them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, BinaryIO, TypeAlias

from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.config import Options
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import ModelFacts
from fastscribe.types import AudioInfo, Failure, File, Hypothesis

Span: TypeAlias = tuple[int, int, int]  # recording's index, start, num_samples of an utterance
Key: TypeAlias = tuple[int, int]  # the same without the length, which the process may correct; unique in a batch


# --- to a device's process -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """The first message: the model to load. `device` and `processors` are the process's own."""

    model: str
    dtype: str
    options: Options
    device: str = "auto"
    processors: int = 1


@dataclass(frozen=True)
class Begin:
    """A run begins. Messages of other runs are dropped."""

    run: int
    budget: Budget


@dataclass(frozen=True)
class Work:
    """Decode a batch, with the recordings that the process does not know yet. `batch` is its number in the run."""

    run: int
    batch: int
    spans: tuple[Span, ...]
    recordings: tuple[AudioInfo, ...]


@dataclass(frozen=True)
class Cancel:
    """Another process decodes what is left of a batch: leave it out if there is still time. No answer is needed."""

    run: int
    batch: int


@dataclass(frozen=True)
class Forget:
    """These recordings have their results."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class End:
    """The run has ended: drop what is in flight."""

    run: int


# --- to the coordinator ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    facts: ModelFacts
    budget: Budget
    max_in_flight: int
    peak_bytes: int


@dataclass(frozen=True)
class Refused:
    """The process cannot work and ends: an error of errors.py by its name, or another one."""

    error_type: str
    message: str


@dataclass(frozen=True)
class Say:
    """A line for the user."""

    line: str


@dataclass(frozen=True)
class Results:
    """Results of one batch, or of a part of it: all are hypotheses, or all are failures. `batch` is as in Work.

    `probed` has the recordings that were opened only now. `stage_s` and `busy_s` are what has come since the last message;
    `budget_frames` is the budget, which may have shrunk.
    """

    run: int
    batch: int
    keys: tuple[Key, ...]
    results: Sequence[Hypothesis | Failure]
    probed: Mapping[int, AudioInfo]
    stage_s: Mapping[str, float]
    busy_s: float
    peak_bytes: int
    budget_frames: float


@dataclass(frozen=True)
class Hungry:
    """Nothing is left to do but to wait for files that hang: further batches are welcome."""

    run: int


class Channel:
    """Both directions of a process's pipes. Several threads may send.

    Args:
        reader: Where messages come from.
        writer: Where messages go.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer, self._lock = reader, writer, Lock()

    def send(self, message: object) -> None:
        """Send a message. Raises OSError or ValueError if the other side is gone."""
        with self._lock:
            pickle.dump(message, self._writer, pickle.HIGHEST_PROTOCOL)
            self._writer.flush()

    def receive(self) -> Any:
        """Wait for a message. Return None if the other side is gone."""
        try:
            return pickle.load(self._reader)  # from our own process alone
        except (
            EOFError,
            OSError,
            ValueError,
            pickle.UnpicklingError,
        ):  # UnpicklingError: cut off by the death of the writer
            return None


def to_send(audio: AudioInfo) -> AudioInfo:
    """Return a recording as a process needs it: without the caller's manifest row and key, and with data that can travel."""
    source = audio.unread
    if source is not None:
        source = replace(source, file=_portable(source.file), row=None, given_key=None)
    return replace(audio, file=_portable(audio.file), row=None, given_key=None, unread=source)


def to_return(probed: AudioInfo) -> AudioInfo:
    """Return a recording that a process has opened as the coordinator needs it: without the data, which it has."""
    return replace(probed, file="", unread=None)


def returned(probed: AudioInfo, audio: AudioInfo) -> AudioInfo:
    """Return a recording that a process has opened, with what the coordinator kept of it."""
    assert audio.unread is not None
    file = audio.unread.file if audio.unread.file != audio.unread.path else ""
    return replace(probed, file=file, row=audio.row, given_key=audio.given_key)


def _portable(file: File) -> File:
    """Return the file in a form that can travel."""
    if isinstance(file, FileObject):
        with closing(file.open()) as opened:
            return EncodedBytes(opened.read(), file.identity)
    return file
