"""What a run writes, what it gives its results to (a stream, stream.py; a folder or a store, output.py), and its ledger."""

from __future__ import annotations

import os
import shlex
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe._system.urls import is_url
from fastscribe.config import OutputStyle
from fastscribe.errors import UsageError
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.types import Failure, Source

NUM_FAILED = 3  # inputs that failed in an earlier run and are named
UNKNOWN_PLACE = "OLD"
NOT_MOVED = "none"  # as --moved has it


class Ledger:
    """Decides which inputs this run transcribes: all of its shard's, because nothing of earlier runs is kept.

    One that knows earlier results overrides is_done(). `lock` guards everything in a ledger that several threads change.

    Args:
        shard: The part of the inputs that this run transcribes.
    """

    earlier_formats: Sequence[str] = ()  # those of files that the run takes from earlier results

    def __init__(self, shard: Shard = UNSHARDED) -> None:
        self.lock = threading.Lock()
        self.num_given = 0  # inputs of all shards so far
        self.num_done = 0  # inputs that an earlier run has done, of those that were looked at
        self.num_renewed = 0  # inputs that are done, and have rows that get the fields that their list has now
        self.num_replaced = 0  # results that have taken the place of one whose row had another `duration`
        self.num_out_of_reach = 0  # inputs that are done, whose recordings are not there or out of reach now
        self.listed_fields = Counter[str]()  # of inputs that are done as an earlier list had them, and come without one
        # Inputs with a result whose recording, or a field of the list that decides the text, was another one.
        self.num_changed = 0
        self.failed_before = 0  # inputs that failed in an earlier run and are not retried
        self.first_failed: list[str] = []  # paths of the first of them
        self._shard = shard

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard. Called once per input, in order, from one thread."""
        self.num_given += 1
        return self._shard.holds(source.id)

    def skip(self, source: Source | Failure) -> bool:
        """Settle an input if an earlier run has done it. Return False if it is left to this run. Several threads call it."""
        return self.is_done(source) and self.settle(source)

    def is_done(self, source: Source | Failure) -> bool:
        """Return True if an earlier run has done the input. It changes nothing."""
        return False

    def settle(self, source: Source | Failure) -> bool:
        """Count an input that is done, and make what its result lacks. Return False if it needs transcription after all."""
        with self.lock:
            self.num_done += 1
        return True


class Moved(NamedTuple):
    """A recording or a folder of some when results were made, and now: absolute paths. Both are "" if nothing has moved."""

    old: str
    new: str

    @classmethod
    def of(cls, text: str) -> Moved:
        """Return the value of --moved. Raises UsageError."""
        if text == NOT_MOVED:
            return cls("", "")
        old, equals, new = text.partition("=")
        if not (equals and old and new):
            raise UsageError(
                f"--moved {text}: not OLD=NEW, the path of a folder or file when results were made and now, or {NOT_MOVED}"
            )
        if is_url(old) or is_url(new):
            raise UsageError(
                f"--moved {text}: takes over results of files alone, as the size of a URL is not known before"
            )
        return cls(os.path.abspath(old), os.path.abspath(new))

    def __str__(self) -> str:
        if self.old != UNKNOWN_PLACE:
            return f"--moved {shlex.quote('='.join(self))}"
        return f"--moved {shlex.quote('='.join(self))} (with the folder in which they were as {UNKNOWN_PLACE})"

    def before(self, identity: str) -> str | None:
        """Return where a recording was; None if it is neither the new place nor below it."""
        rest = identity.removeprefix(self.new)
        return self.old + rest if rest != identity and rest[:1] in ("", "/", os.sep) else None


@dataclass(frozen=True)
class OutputRun:
    """What a run writes and where, as its caller states it.

    Attributes:
        style: The formats and their options. A stream has the first format alone; elsewhere rows are always written.
        fingerprint: All that decides results besides the inputs. A stream needs none. None: whatever the journal's is.
        shard: The part of the inputs that this run transcribes.
        inputs: As the user gave them.
        overwrite: Remove the results of earlier runs first.
        retry_failed: Transcribe inputs again that failed in an earlier run.
        ordered: Write rows in the order of the inputs.
        facts: What the journal keeps of the run for the next one.
        moved: Where the recordings of earlier results are now.
        place: The folder, or the URL of a store; None: stdout.
        quiet: Name no edited files that the run would not have changed.
    """

    style: OutputStyle
    fingerprint: Mapping[str, Any] | None
    shard: Shard = UNSHARDED
    inputs: Sequence[str] = ()
    overwrite: bool = False
    retry_failed: bool = False
    ordered: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    moved: Moved | None = None
    place: Path | str | None = None
    quiet: bool = False

    @property
    def is_stdout(self) -> bool:
        return self.place is None

    @property
    def directory(self) -> Path | None:
        return self.place if isinstance(self.place, Path) else None

    @property
    def url(self) -> str | None:
        return self.place if isinstance(self.place, str) else None

    @property
    def where(self) -> str:
        return "stdout" if self.place is None else str(self.place)

    @property
    def header(self) -> dict[str, Any] | None:
        return None if self.fingerprint is None else {**self.fingerprint, "shard": str(self.shard)}
