"""What the coordinator says to devices' processes and to helpers, and what they answer: pickles over each process's pipes.

Samples never travel: they lie in memory that all of them share (arena.py). A message is about a batch, or about a piece of work
of many recordings.

The life of a device's process (device.py), as the coordinator sees it (pool.py):

    the process        gets                                says
    is loading         Start                               Ready: it may work; Refused: it cannot, and ends
    waits              Begin: a run                        nothing
    decodes            Work: rows of a batch               Results of some or all of these rows, in any order
    drops what it has  End: the run has ended              nothing; it waits for the next Begin
    cannot go on                                           Refused, and ends
    dies               nothing more                        its pipe closes: its rows go to others, a new process gets Start

It may Say a line at any time. Results of a run that has ended are not looked at.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any, BinaryIO, Literal, TypeAlias

from fastscribe.config import Options
from fastscribe.pipeline.batch_layout import BatchLayout
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.interfaces import ModelFacts
from fastscribe.pipeline.workers.arena import SharedFile
from fastscribe.types import Failure, Hypothesis, Int64Array, Phrase, Purpose

# What helpers do, in the order in which waiting work goes to them: what is nearest to a result first.
Kind: TypeAlias = Literal["text", "read", "prepare"]
KINDS: tuple[Kind, ...] = ("text", "read", "prepare")

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
    shared: SharedFile | None = None


@dataclass(frozen=True)
class Begin:
    """A run begins. Messages of other runs are dropped."""

    run: int
    budget: Budget


@dataclass(frozen=True)
class Work:
    """Decode rows of a batch, whose arrays begin at `place` of the shared memory.

    `batch` is its number in the run. `lengths_B` and `constraints` are of these rows; no constraints: no row has any.
    """

    run: int
    batch: int
    place: int
    layout: BatchLayout
    rows: Sequence[int]
    lengths_B: Int64Array
    purpose: Purpose
    constraints: Sequence[tuple[tuple[Phrase, ...], str | None]] = ()  # AudioInfo.boost and .language


@dataclass(frozen=True)
class End:
    """The run has ended: drop what is in flight."""

    run: int


# --- from a device's process -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The model is loaded."""

    facts: ModelFacts
    budget: Budget
    max_in_flight: int
    peak_bytes: int
    sample_rate: int
    native: bool  # the device resamples


@dataclass(frozen=True)
class Refused:
    """The process cannot work and ends because of this error: one of errors.py, or a RuntimeError with a line of another."""

    error: Exception


@dataclass(frozen=True)
class Say:
    """A line for the user."""

    line: str


@dataclass(frozen=True)
class Results:
    """Results of rows of a batch: hypotheses, or the one failure of them all. `batch` is as in Work.

    `stage_s` and `busy_s` are what has come since the last message; `budget_frames` is the budget, which may have shrunk.
    """

    run: int
    batch: int
    rows: Sequence[int]
    results: Sequence[Hypothesis] | Failure
    stage_s: Mapping[str, float]
    busy_s: float
    peak_bytes: int
    budget_frames: float
    pinned_bytes: int = 0  # of the shared memory


# --- to a helper -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartHelper:
    """The first message."""

    shared: SharedFile
    num_helpers: int
    is_nice: bool = False  # other processes of the run come first


@dataclass(frozen=True)
class Setup:
    """What jobs of the run need: `stages` has something that works for each kind of job, by the kind."""

    stages: Mapping[Kind, Any]


@dataclass(frozen=True)
class Job:
    """Work on items, one after another, or by several threads that wait for a network. `shared` is what they have in common."""

    number: int
    kind: Kind
    shared: Any
    items: Sequence[Any]
    folder: str  # working folder, which relative paths count from
    threads: int = 1


@dataclass(frozen=True)
class Forget:
    """A remote recording has its result: free its bytes."""

    index: int


# --- from a helper ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HelperReady:
    """The helper takes jobs."""


@dataclass(frozen=True)
class Done:
    """Results of a job's items from `first` on, and the processor seconds that they took."""

    job: int
    first: int
    results: Sequence[Any]
    cpu_s: float


def packed(message: object) -> bytes:
    """Return a message as it travels. Raises what pickle raises."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


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
        self.write(packed(message))

    def write(self, content: bytes) -> None:
        """Send a message that is packed already. Raises as send()."""
        with self._lock:
            self._writer.write(content)
            self._writer.flush()

    def receive(self) -> Any:
        """Wait for a message. Return None if the other side is gone."""
        try:
            return pickle.load(self._reader)  # from our own process alone
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            # UnpicklingError: cut off by the death of the writer.
            return None


# What a device's process and a helper have in common: their pipes, and signals, which they leave to the coordinator.
#
# They print nothing: lines for the user are messages, and what libraries print goes to stderr, which the coordinator reads.
# They end at once when the coordinator is gone, however that ended.


def open_channel() -> Channel:
    """Take stdin and stdout for messages; what libraries print goes to stderr, and what they read is empty."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return Channel(os.fdopen(reader, "rb"), os.fdopen(writer, "wb"))


def listen(channel: Channel, receive: Callable[[Any], None]) -> None:
    """Pass messages on in a thread, so that the end of the coordinator ends this process at once, whatever it does."""

    def pass_on() -> None:
        try:
            while (message := channel.receive()) is not None:
                receive(message)
        except BaseException:  # a mistake of ours: a process that hears nothing more would be waited for
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    Thread(target=pass_on, name="inbox", daemon=True).start()
