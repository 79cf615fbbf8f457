"""The dtype of a folder's earlier results, in which a run that may choose its dtype goes on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fastscribe.errors import UsageError
from fastscribe.results.paths import Paths, read_header
from fastscribe.results.shards import Shard


def earlier_dtype(folder: Path, shard: Shard) -> str | None:
    """Return the dtype of the shard's earlier results, or of another shard's of as many; None if there are none."""
    own = Paths(folder, shard.suffix).journal
    others = sorted(folder.glob(f"journal.shard-*-of-{shard.count}.jsonl")) if shard.count > 1 else []
    for journal in (own, *others):
        with suppress(UsageError, OSError):  # the run itself says what is wrong with its journal
            paths = Paths.from_journal(journal)
            if paths is not None and paths.has_begun and (found := read_header(journal).get("--dtype")):
                return str(found)
    return None
