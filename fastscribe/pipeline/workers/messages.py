"""What the coordinator and a device's process say to each other: pickles of the classes below over the process's own pipes.

Recordings are sent to a process once and named by their index from then on (Sent); utterances name their channel. Samples and
encoded bytes that the caller holds in memory go with their recording, because no path names them: of an array the recording's
part, of a file all bytes, once for all recordings in it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock
from typing import Any, BinaryIO, TypeAlias, cast
from weakref import WeakValueDictionary

from fastscribe.audio.media import EncodedBytes, FileObject, held_memory
from fastscribe.config import Options
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import ModelFacts
from fastscribe.types import AudioInfo, Failure, File, Hypothesis, Samples, UtteranceKey

# An utterance's key, and its number of samples, which the process may correct. A batch has each key once.
Span: TypeAlias = tuple[UtteranceKey, int]


# --- to a device's process -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """The first message: the model to load. `device`, `processors` and `memory_share` are the process's own."""

    model: str
    dtype: str
    options: Options
    device: str = "auto"
    processors: int = 1
    memory_share: float = 1.0


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
    keys: tuple[UtteranceKey, ...]
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


class Sent:
    """The recordings of a run that a process has, and the caller's encoded files, which several of them may share."""

    def __init__(self) -> None:
        self._recordings: dict[int, int] = {}  # index: id of the caller's data, or 0
        self._unopened: set[int] = set()  # of these, those that it was sent unopened, and has not answered
        self._finished: list[int] = []  # of these, those that have their results
        self._files: dict[int, _SentFile] = {}  # by the id of their data
        self._numbers = count()

    def lacks(self, audio: AudioInfo) -> bool:
        """Return True if the process must get a recording: for the first time, or because another process has opened it."""
        return audio.index not in self._recordings or (audio.unread is None and audio.index in self._unopened)

    def opened(self, indices: Iterable[int]) -> None:
        """The process has opened recordings."""
        self._unopened.difference_update(indices)

    def add(self, audio: AudioInfo) -> AudioInfo:
        """Return a recording as the process needs it: without the caller's manifest row and key, and with data that can travel.

        Raises whatever the caller's file object raises.
        """
        sent = replace(audio, row=None, given_key=None)
        if audio.unread is not None:
            source = audio.unread
            sent = replace(
                sent, unread=replace(source, file=self._portable(source.file, audio.index), row=None, given_key=None)
            )
        elif isinstance(audio.file, Samples):
            part_SC = audio.file.samples_SC[audio.start : audio.start + audio.num_samples]
            sent = replace(sent, file=Samples(part_SC, audio.file.sample_rate, audio.file.identity), start=0)
        else:
            sent = replace(sent, file=self._portable(audio.file or audio.path, audio.index))
        self._recordings.setdefault(audio.index, 0)
        (self._unopened.discard if audio.unread is None else self._unopened.add)(audio.index)
        return sent

    def release(self, index: int) -> None:
        """A recording has its result."""
        if index in self._recordings:
            self._unopened.discard(index)
            self._finished.append(index)

    def forget(self, send: Callable[[object], None]) -> None:
        """Let the process forget what is released. Recordings that share data with it are sent before, if they are at hand."""
        if not self._finished:
            return
        send(Forget(tuple(self._finished)))
        for index in self._finished:
            file = self._files.get(data := self._recordings.pop(index, 0))
            if file is not None:
                file.indices.discard(index)
                if not file.indices:
                    del self._files[data]
        self._finished.clear()

    def _portable(self, file: File, index: int) -> File:
        """Return the file in a form that can travel. The process may have another working folder than this one."""
        if isinstance(file, str):
            return file if os.path.isabs(file) else os.path.join(os.getcwd(), file)
        if not isinstance(file, (EncodedBytes, FileObject)):
            return file
        data, _ = held_memory(file)
        content = None
        if data not in self._files:
            with closing(file.open()) as opened:
                content = opened.read()
            self._files[data] = _SentFile(file, next(self._numbers), set())
        known = self._files[data]
        known.indices.add(index)
        self._recordings[index] = data
        return cast(File, _Parcel(known.number, content, file.identity))


@dataclass
class _SentFile:
    """A caller's encoded file that a process has. It is kept alive, so that its id stays its own."""

    file: File
    number: int
    indices: set[int]  # the recordings in it


@dataclass(frozen=True)
class _Parcel:
    """An encoded file on its way. It arrives as EncodedBytes, the same ones for all parcels of a number."""

    number: int
    content: bytes | None  # None: sent before
    identity: str

    def __reduce__(self) -> tuple[Callable[..., EncodedBytes], tuple[int, bytes | None, str]]:
        return _unpacked, (self.number, self.content, self.identity)


def _unpacked(number: int, content: bytes | None, identity: str) -> EncodedBytes:
    if content is None:
        return _arrived[number]
    file = _arrived[number] = EncodedBytes(content, identity)
    return file


_arrived: WeakValueDictionary[int, EncodedBytes] = WeakValueDictionary()  # in the process, while a recording needs it


def to_return(probed: AudioInfo) -> AudioInfo:
    """Return a recording that a process has opened as the coordinator needs it: without the data, which it has."""
    return replace(probed, file="", unread=None)


def returned(probed: AudioInfo, audio: AudioInfo) -> AudioInfo:
    """Return a recording that a process has opened, with what the coordinator kept of it."""
    assert audio.unread is not None
    file = audio.unread.file if audio.unread.file != audio.unread.path else ""
    return replace(probed, file=file, row=audio.row, given_key=audio.given_key)
