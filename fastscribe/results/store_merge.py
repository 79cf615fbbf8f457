"""`fastscribe merge` at a URL: download each shard into a temporary folder, merge it there, and write both files back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from fastscribe.errors import UsageError
from fastscribe.results.entries import Paths, in_the_way
from fastscribe.results.merge import MergeResult, merge
from fastscribe.results.object_folder import ObjectFolder
from fastscribe.results.published import keep_if_edited, publish
from fastscribe.results.store_journal import STATE, StoredRuns, StoreJournal, find_runs

_MARKER = f"{STATE}/merged.json"  # says that a merge wrote the files of these names
_ROWS, _REPORT = "transcripts.jsonl", "report.json"


def merge_store(url: str, ordered: bool) -> MergeResult:
    """Merge the shards of a run. Readers see the old files or the new ones; the report comes last.

    Args:
        url: Where the shards wrote, and where the merged files go.
        ordered: Sort the rows by input; otherwise they are in the order of the shards.

    Returns:
        The shards that were found.

    Raises:
        UsageError: There are no shards, or shards of different runs, or an object that no merge wrote is in the way.
        OSError: The store cannot be read or written, or the temporary folder is full.
    """
    with closing(ObjectFolder(url)) as folder, TemporaryDirectory(prefix="fastscribe-") as temp:
        shards = [runs for runs in find_runs(name for name, _ in folder.list(STATE)) if runs.runs]
        if any(runs.shard.count == 1 for runs in shards):
            raise UsageError(f"{url}: holds the results of a run that was not divided into shards: nothing to merge")
        if not shards:
            raise UsageError(f"{url}: no shards here (transcribe --shard I/N -o {url} makes them)")
        foreign = [] if folder.exists(_MARKER) else [name for name in (_ROWS, _REPORT) if folder.exists(name)]
        if foreign:
            raise in_the_way([folder.url_of(name) for name in foreign])
        for runs in shards:
            _download(folder, runs, Path(temp))
        merged = merge([Path(temp)], Path(temp), ordered)
        folder.delete([_REPORT])  # until the new one is there, the rows may be newer
        publish(folder, _ROWS, _MARKER, Path(temp) / _ROWS)
        folder.upload(_REPORT, Path(temp) / _REPORT)
        return merged


def merged_files(folder: ObjectFolder) -> list[str]:
    """Return the names of the files of an earlier merge. Raises OSError."""
    return [_REPORT, _ROWS] if folder.exists(_MARKER) else []


def remove_merged(folder: ObjectFolder) -> None:
    """Delete the files of an earlier merge. Raises OSError."""
    keep_if_edited(folder, _ROWS, _MARKER)
    folder.delete(merged_files(folder))
    folder.delete([_MARKER])


def _download(folder: ObjectFolder, runs: StoredRuns, directory: Path) -> None:
    """Write a shard's files as a run into a folder would have written them."""
    paths = Paths(directory, runs.shard.suffix)
    with closing(StoreJournal(folder, runs)) as journal:
        copyfile(journal.join_rows(ordered=False), paths.rows)
        copyfile(journal.paths.journal, paths.journal)
    report = folder.read_if_there(paths.report.name)
    if report:
        paths.report.write_bytes(report)
