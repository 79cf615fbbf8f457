"""What is left to transcribe, and which part of it a worker gets next. Pure: no Ray, no files, no clock.

A chunk is a number of recordings of about a given length of audio. Chunks get smaller towards the end, so that no worker is
left with a long one while the others idle. The recordings of a worker that died go out again in smaller chunks, each on a
worker of its own, until the one that ends its worker is alone: that one is given up, and the others are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fastscribe.types import Source

MAX_ITEMS = 4096  # in a chunk
_PARTS = 8  # of a chunk whose worker died
_SHARES = 2  # chunks that each worker should still get, at the least, from what waits
_FIRST_SECONDS_PER_BYTE = 1 / 16_000  # of a compressed recording; a run soon learns its own


@dataclass(frozen=True)
class Item:
    """A recording that waits for its result.

    Attributes:
        source: The recording.
        seconds: Its length: stated by a manifest, or estimated.
        num_bytes: Size of its file, from which `seconds` was estimated; 0 if it was not.
        deaths: Workers that died while they had it and had not sent its result.
    """

    source: Source
    seconds: float
    num_bytes: int = 0
    deaths: int = 0


@dataclass(eq=False)
class Chunk:
    """Recordings that one worker gets at once.

    Attributes:
        items: Those without a result yet, by position in the chunk.
        seconds: Length of the audio when it was made.
        is_suspect: A worker died of these recordings. No other chunk waits behind such a one.
    """

    items: dict[int, Item]
    seconds: float
    is_suspect: bool = False


class ChunkQueue:
    """The recordings that no worker has. Longest first within each group that was added.

    Args:
        max_deaths: Workers that a recording may cost before it is given up.
    """

    def __init__(self, max_deaths: int) -> None:
        self._max_deaths = max_deaths
        self._items: deque[Item] = deque()
        self._again: deque[Chunk] = deque()
        self._seconds = 0.0

    def __len__(self) -> int:
        return len(self._items) + sum(len(chunk.items) for chunk in self._again)

    @property
    def seconds(self) -> float:
        """Audio that waits."""
        return self._seconds + sum(chunk.seconds for chunk in self._again)

    def add(self, items: Iterable[Item]) -> None:
        """Append recordings."""
        for item in sorted(items, key=lambda item: -item.seconds):
            self._items.append(item)
            self._seconds += item.seconds

    def take(self, target_s: float, min_s: float, num_workers: int, is_idle: bool) -> Chunk | None:
        """Return the next chunk; None if there is none for this worker now.

        Args:
            target_s: Audio that a chunk should hold if enough is left for the other workers.
            min_s: Audio that it should hold however little is left.
            num_workers: Workers that share what waits.
            is_idle: The worker has no other chunk; else it gets no suspect one.
        """
        if self._again:
            return self._again.popleft() if is_idle or not self._again[0].is_suspect else None
        share_s = self._seconds / (_SHARES * num_workers) if num_workers > 1 else self._seconds
        most_s = max(min_s, min(target_s, share_s))
        items: list[Item] = []
        seconds = 0.0
        while self._items and len(items) < MAX_ITEMS and (not items or seconds + self._items[0].seconds <= most_s):
            items.append(self._items.popleft())
            seconds += items[-1].seconds
        self._seconds = max(0.0, self._seconds - seconds) if self._items else 0.0
        return Chunk(dict(enumerate(items)), seconds) if items else None

    def put_back(self, chunk: Chunk) -> None:
        """Take back a chunk that its worker has not begun, or lost through no fault of the recordings."""
        if chunk.items:
            self._again.append(_chunk(chunk.items.values(), chunk.is_suspect))

    def split(self, chunk: Chunk) -> list[Item]:
        """Take back what is left of a chunk whose worker died of it; return the recordings that are given up."""
        items = [replace(item, deaths=item.deaths + 1) for item in chunk.items.values()]
        if len(items) == 1 and items[0].deaths >= self._max_deaths:
            return items
        size = -(-len(items) // _PARTS) if len(items) > 1 else 1
        for begin in range(0, len(items), size):
            self._again.append(_chunk(items[begin : begin + size], is_suspect=True))
        return []


class LengthEstimate:
    """Seconds of audio in a file of a size, learnt from the files that are done."""

    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0

    def seconds(self, num_bytes: int) -> float:
        """Return the likely length of a file."""
        return num_bytes * (self._seconds / self._bytes if self._bytes else _FIRST_SECONDS_PER_BYTE)

    def learn(self, num_bytes: int, seconds: float) -> None:
        """Note a file's true length."""
        self._bytes, self._seconds = self._bytes + num_bytes, self._seconds + seconds


def _chunk(items: Iterable[Item], is_suspect: bool) -> Chunk:
    numbered = dict(enumerate(items))
    return Chunk(numbered, sum(item.seconds for item in numbered.values()), is_suspect)
