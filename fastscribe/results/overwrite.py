"""`--overwrite`: remove what earlier runs wrote into a folder, by their journals, and nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

from fastscribe._system.safe_files import Barrier, is_truncated_or_blank, keep_edited_copy, remove, sync_folder
from fastscribe.errors import UsageError
from fastscribe.results.commit import redo
from fastscribe.results.compact import finish_compaction
from fastscribe.results.edits import Edits
from fastscribe.results.entries import (
    NO_FILE,
    Paths,
    PreviousRun,
    has_checksum,
    load_entries_and_names,
    read_entries,
    recorded_size,
)
from fastscribe.results.folder_lock import FolderLock
from fastscribe.results.shards import Shard

_CLEAR_TIMEOUT_S = 5.0  # until another shard of this run must have cleared the folder


def other_shardings(directory: Path, shard: Shard) -> list[Paths]:
    """Return the paths of runs into this folder that divided the inputs differently."""
    found = (Paths.from_journal(path) for path in sorted(directory.glob("journal*.jsonl")))
    return [paths for paths in found if paths is not None and paths.num_shards != shard.count]


def check_sharding(directory: Path, shard: Shard) -> None:
    """Raise UsageError if a run into this folder divided the inputs differently."""
    for paths in other_shardings(directory, shard):
        raise UsageError(
            f"{directory}: holds {paths.journal.name}, of a run divided otherwise than {shard}: use another folder, or "
            "--overwrite to start over"
        )


def remove_sharding(paths: Paths, edits: Edits) -> None:
    """Remove the results of a run that divided the inputs differently, unless it is at work.

    Other shards of this run may be removing them too, so a held lock is retried for a while.

    Args:
        paths: The run's files.
        edits: Receives the files that someone edited.

    Raises:
        UsageError: Another run holds the lock.
        OSError: A file cannot be removed.
    """
    deadline = monotonic() + _CLEAR_TIMEOUT_S
    while paths.journal.exists():
        try:
            with closing(FolderLock(paths.lock)):
                remove_results(paths, edits)
        except UsageError:
            if monotonic() > deadline:
                raise
            sleep(0.05)


def remove_results(paths: Paths, edits: Edits) -> None:
    """Remove what the journal lists, and the journal last: after a kill or a power cut, it lists what is left.

    Args:
        paths: The run's files.
        edits: Receives the files that someone edited; they are kept beside.

    Raises:
        OSError: A file cannot be removed.
    """
    if not paths.is_ours:
        return
    if paths.has_begun:
        finish_compaction(paths)
        redo(paths)
        with closing(Barrier()) as barrier:
            folders = _remove_listed(paths, barrier, edits)
            for path in (*([paths.rows] if paths.has_rows else []), paths.report):
                remove(path)
            barrier.watch(paths.directory)
            barrier.wait((), [paths.directory, *folders])
    remove(paths.journal)
    sync_folder(paths.directory)


def _remove_listed(paths: Paths, barrier: Barrier, edits: Edits) -> set[Path]:
    """Remove the files that the journal lists; keep edited ones beside. Return their folders."""
    entries, new_names = load_entries_and_names(paths.journal)
    previous, folders = PreviousRun(entries), set()
    for entry_index, (entry, _) in enumerate(read_entries(paths.journal)):
        name = new_names.get(entry_index, entry.name)
        if previous.find_by_name(name) != entry_index:
            continue
        for format, size in entry.sizes.items():
            path = paths.directory / f"{name}.{format}"
            found = recorded_size(path)
            if found is None:
                continue
            is_as_written = found == min(size, NO_FILE - 1) and has_checksum(path, entry.checksums.get(format))
            if not is_as_written and not is_truncated_or_blank(path, b""):
                edits.set_aside[str(path)] = keep_edited_copy(path).name
            barrier.watch(path.parent)
            remove(path)
            folders.add(path.parent)
    return folders
