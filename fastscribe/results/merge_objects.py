"""`fastscribe merge` at a URL: download each shard into a temporary folder, merge it there, and write both files back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from fastscribe.errors import UsageError
from fastscribe.results.merge import MergeResult, merge
from fastscribe.results.objects import ObjectFolder
from fastscribe.results.parts import STATE, Parts, StoredRuns, check_listing, find_runs
from fastscribe.results.paths import Paths, in_the_way
from fastscribe.results.published import publish
from fastscribe.results.storage_object import MERGED, MERGED_FILES


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
        shards = [runs for runs in find_runs(folder.list(STATE)) if runs.runs]
        if any(runs.shard.count == 1 for runs in shards):
            raise UsageError(f"{url}: holds the results of a run that was not divided into shards: nothing to merge")
        if not shards:
            raise UsageError(f"{url}: no shards here (transcribe --shard I/N -o {url} makes them)")
        foreign = [] if folder.exists(MERGED) else [name for name in MERGED_FILES if folder.exists(name)]
        if foreign:
            raise in_the_way(folder.url_of(foreign[0]))
        for runs in shards:
            _download(folder, runs, Path(temp))
        report, rows = MERGED_FILES
        merged = merge([Path(temp)], Path(temp), ordered)
        folder.delete([report])  # until the new one is there, the rows may be newer
        publish(folder, rows, MERGED, Path(temp) / rows)
        folder.upload(report, Path(temp) / report)
        return merged


def _download(folder: ObjectFolder, runs: StoredRuns, directory: Path) -> None:
    """Write a shard's files as a run into a folder would have written them."""
    paths = Paths(directory, runs.shard.suffix)
    with closing(Parts(folder, runs, ())) as parts:
        copyfile(parts.join_rows(ordered=False), paths.rows)
        copyfile(parts.paths.journal, paths.journal)
    report = folder.read_if_there(paths.report.name)
    if report:
        check_listing(folder, runs)
        paths.report.write_bytes(report)
