"""The ledger of a run: which inputs belong to its shard. journal_ledger.py also knows which of them an earlier run has done.

A run calls `expect` for every input in order, and `is_done` before it opens one.
"""

from __future__ import annotations

import threading

from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.types import Failure, Source


class Ledger:
    """Decides which inputs this run transcribes: all of its shard's, because nothing of earlier runs is kept.

    `lock` guards everything in a ledger that several threads change.

    Args:
        shard: The part of the inputs that this run transcribes.
    """

    def __init__(self, shard: Shard = UNSHARDED) -> None:
        self.lock = threading.Lock()
        self.num_given = 0  # inputs of all shards so far
        self.failed_before = 0  # inputs that failed in an earlier run and are not retried
        self._shard = shard

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard. Called once per input, in order, from one thread."""
        self.num_given += 1
        return self._shard.holds(source.id)

    def is_done(self, source: Source | Failure) -> bool:
        """Return True if the input needs no transcription. Called from several threads."""
        return False
