"""`--overwrite` at a URL: delete what the journals list, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fastscribe.results.edits import Edits
from fastscribe.results.entries import Paths
from fastscribe.results.object_folder import Listing, ObjectFolder
from fastscribe.results.published import keep_if_edited
from fastscribe.results.shards import Shard
from fastscribe.results.store_commit import keep_edited
from fastscribe.results.store_journal import (
    StoredRuns,
    begun_by_all,
    entries_of,
    journal_name,
    published_name,
    rows_name,
    run_name,
)
from fastscribe.results.store_lock import check_dead
from fastscribe.results.store_merge import merged_files, remove_merged


def clear(
    folder: ObjectFolder, shard: Shard, shards: Sequence[StoredRuns], say: Callable[[str], object]
) -> list[StoredRuns]:
    """Delete the results of this shard, and of runs that divided the inputs differently.

    Args:
        folder: The output URL's objects.
        shard: This run's, which is locked.
        shards: All runs.
        say: Shows one line to the user, before a wait and about files that someone edited.

    Returns:
        The runs that stay: other shards of this run.

    Raises:
        UsageError: A run that divides the inputs differently is at work.
        OSError: The store cannot be read or written.
    """
    former = _former(shard, shards)
    locks = [name for runs in former for name in runs.alive if runs.shard != shard]
    check_dead(folder, locks, say)
    edits = Edits()
    for runs in former:
        _remove(folder, runs, edits)
    folder.delete(locks)
    if shard.count == 1:
        remove_merged(folder)
    for line in edits.lines():
        say(line)
    return [runs for runs in shards if runs not in former]


def removable(folder: ObjectFolder, shard: Shard, shards: Sequence[StoredRuns]) -> set[str]:
    """Return the names of the results that `clear` with the same arguments deletes. Raises OSError."""
    names = set(merged_files(folder)) if shard.count == 1 else set()
    for runs in _former(shard, shards):
        paths = Paths(Path(), runs.shard.suffix)
        names |= {paths.report.name, paths.rows.name, *begun_by_all(folder, runs), *_listed_sizes(folder, runs)}
    return names


def _former(shard: Shard, shards: Iterable[StoredRuns]) -> list[StoredRuns]:
    return [runs for runs in shards if runs.shard == shard or runs.shard.count != shard.count]


def _listed_sizes(folder: ObjectFolder, runs: StoredRuns) -> dict[str, int]:
    """Return the sizes in bytes of the files that a shard's journal lists, by name."""
    entries = entries_of(folder, runs)
    return {f"{entry.name}.{format}": size for entry in entries for format, size in entry.sizes.items()}


def _remove(folder: ObjectFolder, runs: StoredRuns, edits: Edits) -> None:
    """Delete results first and the journal last: after a kill, it lists what is left. Edited files are kept beside."""
    sizes = _listed_sizes(folder, runs)
    begun = begun_by_all(folder, runs)
    listing = Listing(folder.list() if sizes or begun else ())
    present = [name for name in {**begun, **sizes} if listing.size(name) is not None]
    edited = [name for name in present if listing.size(name) not in (sizes.get(name), begun.get(name))]
    for name, copy in folder.map(
        lambda name: (name, keep_edited(folder, name)), (one for one in edited if one in sizes)
    ):
        if copy is not None:
            edits.set_aside[folder.url_of(name)] = copy
    folder.delete(name for name in present if name in sizes or name not in edited)
    paths = Paths(Path(), runs.shard.suffix)
    keep_if_edited(folder, paths.rows.name, published_name(runs.shard))
    folder.delete([paths.report.name, paths.rows.name, published_name(runs.shard)])
    folder.delete(map(journal_name, runs.commits))
    folder.delete(map(rows_name, [*runs.commits, *runs.unfinished]))
    folder.delete(map(run_name, reversed(runs.runs)))
