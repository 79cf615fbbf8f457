"""The life of an output URL: lock, resume or overwrite, commit, and at the end join the rows.

Order: the lock comes first and goes last, and no result is changed before all checks have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

from fastscribe.audio.inputs import expand
from fastscribe.audio.repeats import Repeats
from fastscribe.config import OutputStyle
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.edits import Edits
from fastscribe.results.entries import FILE_FORMATS, SUBTITLES, Paths, PreviousRun, in_the_way
from fastscribe.results.file_names import file_formats
from fastscribe.results.in_the_way import MAX_INPUTS, check_any_input
from fastscribe.results.names import OutputNames
from fastscribe.results.object_folder import Listing, ObjectFolder
from fastscribe.results.published import publish
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.results.store_commit import StoreCommitter
from fastscribe.results.store_journal import (
    STATE,
    StoredRuns,
    StoreJournal,
    WrittenFiles,
    alive_name,
    begun_by_all,
    find_runs,
    folder_of,
    header,
    published_name,
    run_name,
)
from fastscribe.results.store_lock import StoreLock
from fastscribe.results.store_overwrite import clear, removable
from fastscribe.types import Failure

RESERVED_NAMES = ("report",)  # .json


@dataclass(frozen=True)
class StoreRun:
    """What a run writes to which URL."""

    url: str
    style: OutputStyle
    fingerprint: Mapping[str, Any]  # all that decides results besides the inputs
    shard: Shard = UNSHARDED
    inputs: Sequence[str] = ()  # as the user gave them
    overwrite: bool = False  # remove the results of earlier runs
    retry_failed: bool = False  # transcribe inputs again that failed in an earlier run

    @property
    def formats(self) -> tuple[str, ...]:
        return file_formats(self.style.formats)

    @property
    def header(self) -> dict[str, Any]:
        return {**self.fingerprint, "shard": str(self.shard)}

    @property
    def public_names(self) -> tuple[str, str]:
        """Names of the rows and of the report."""
        paths = Paths(Path(), self.shard.suffix)
        return paths.rows.name, paths.report.name

    def file_names(self) -> Iterator[str]:
        """Yield the names of the files of the first 100,000 inputs."""
        names = OutputNames(RESERVED_NAMES)
        given = expand((one for one in self.inputs if one != "-"), repeats=Repeats())
        for source in islice(given, MAX_INPUTS if self.formats else 0):
            name = names.take_full(source.id)
            if self.shard.holds(source.id) and not isinstance(source, Failure):
                yield from (f"{name}.{format}" for format in self.formats)


class StoredResults:
    """The results of earlier runs of a shard, as far as they can be read without the lock.

    Args:
        run: The present run.
        folder: The output URL's objects.
        shards: Its runs by shard, from `find_shards`.

    Raises:
        UsageError: The URL holds results of another kind, or an object that no run wrote is in the way.
        OSError: The store cannot be read.
    """

    def __init__(self, run: StoreRun, folder: ObjectFolder, shards: Sequence[StoredRuns]) -> None:
        self._run, self._folder = run, folder
        _check_sharding(run, shards)
        self.runs = next((one for one in shards if one.shard == run.shard), StoredRuns(run.shard))
        self.journal = StoreJournal(folder, self.runs)
        try:
            self.journal.check(run.header)
            self._written = WrittenFiles(self.journal.previous.entries)
            self._begun = begun_by_all(folder, self.runs)
            self._num_foreign, self._left = 0, list[str]()
            self.edits = Edits()
            self.has_files = bool(run.formats or self._written)
            self.listing = Listing(self._list() if self.has_files else ())
            self._check_free()
        except BaseException:
            self.journal.close()
            raise

    def _list(self) -> Iterator[tuple[str, int]]:
        for file, size in self._folder.list():
            is_result = file.rpartition(".")[2] in FILE_FORMATS and not file.startswith(f"{STATE}/")
            if is_result and not _is_listed(self.journal.previous, file):
                if self._written.has(file, size) or self._begun.get(file) == size:
                    self._left.append(file)
                else:
                    self._num_foreign += 1
            yield file, size

    def _is_ours(self, file: str, size: int) -> bool:
        is_listed = _is_listed(self.journal.previous, file)
        return is_listed or self._written.has(file, size) or self._begun.get(file) == size

    def is_in_the_way(self, file: str) -> bool:
        """Return True if an object of this name was there before the run, and no run wrote it."""
        size = self.listing.size(file)
        return size is not None and not self._is_ours(file, size)

    def is_edited(self, name: str, format: str) -> bool:
        """Return True if the object that the journal lists has another size now, and no run wrote it."""
        previous, file = self.journal.previous, f"{name}.{format}"
        listed, size = previous.find_by_name(name), self.listing.size(file)
        if listed is None or size is None or self._begun.get(file) == size:
            return False
        return previous.sizes(listed).get(format, size) != size

    def outdated(self, entry_index: int, name: str, style: int) -> list[str]:
        """Return the formats whose file an earlier result lacks, or has in another style.

        A file that someone edited is neither: it stays, and `edits` lists it. An edit that keeps the size is noticed only
        where the style is another.

        Args:
            entry_index: The result's journal entry.
            name: The name of its files in this run.
            style: fingerprint.style_key of this run's subtitles.

        Raises:
            OSError: The store cannot be read.
        """
        previous = self.journal.previous
        has_failed, styles = previous.entries[["failed", "styles"]][entry_index].item()
        sizes = previous.sizes(entry_index) if previous.find_by_name(name) == entry_index else {}
        other = {format for format, key in zip(SUBTITLES, styles, strict=True) if key != style}
        formats = [format for format in self._run.formats if format == "json" or not has_failed]
        is_right = {format for format, size in sizes.items() if self.listing.size(f"{name}.{format}") == size}
        outdated = [format for format in formats if format not in is_right or format in other]
        edited = {
            format
            for format in outdated
            if self.is_edited(name, format) or (format in is_right and self._is_rewritten(entry_index, name, format))
        }
        self.edits.kept |= dict.fromkeys(self._folder.url_of(f"{name}.{format}") for format in sorted(edited))
        return [format for format in outdated if format not in edited]

    def _is_rewritten(self, entry_index: int, name: str, format: str) -> bool:
        """Return True if an object of the size that the journal lists has other content than the journal's checksum says."""
        file, crc = f"{name}.{format}", self.journal.entry(entry_index).checksums.get(format)
        is_begun = self._begun.get(file) == self.listing.size(file)
        return crc is not None and not is_begun and crc32(self._folder.read_if_there(file)) != crc

    def undo(self) -> None:
        """Delete files that a killed run has left: of a commit that it had begun, and of replaced results. Needs the lock."""
        self._folder.delete(self._left)

    def _check_free(self) -> None:
        """Raise UsageError if an object that no run wrote has the name of an output, as far as this is known now."""
        taken = [] if self.runs.runs else [name for name in self._run.public_names if self._folder.exists(name)]
        names = self._run.file_names() if self._num_foreign else ()
        taken += [name for name in names if self.is_in_the_way(name)]
        if taken:
            raise in_the_way([self._folder.url_of(name) for name in taken])


def _check_overwrite(run: StoreRun, folder: ObjectFolder, shards: Sequence[StoredRuns]) -> None:
    """Raise UsageError, before anything is deleted, if an object that no run wrote has the name of an output."""
    ours = removable(folder, run.shard, shards)
    results = (found for found in folder.list() if not found[0].startswith(f"{STATE}/"))
    foreign = Listing(found for found in results if found[0] not in ours)
    taken = [name for name in run.public_names if foreign.size(name) is not None]
    if len(foreign):
        taken += [name for name in run.file_names() if foreign.size(name) is not None]
    if taken:
        raise in_the_way([folder.url_of(name) for name in taken])


def _is_listed(previous: PreviousRun, file: str) -> bool:
    name, _, format = file.rpartition(".")
    return format in previous.sizes(previous.find_by_name(name))


def _check_sharding(run: StoreRun, shards: Iterable[StoredRuns]) -> None:
    for other in shards:
        if other.shard.count != run.shard.count:
            raise UsageError(
                f"{run.url}: holds results of shard {other.shard}, of a run divided otherwise than {run.shard}: use another "
                "folder, or --overwrite to start over"
            )


def find_shards(folder: ObjectFolder) -> list[StoredRuns]:
    """Return all runs into a URL. Raises OSError."""
    return find_runs(name for name, _ in folder.list(STATE))


class OpenStore:
    """A locked output URL with its journal and its committer.

    Args:
        run: What this run writes.
        say: Shows one line to the user.

    Raises:
        UsageError: Another run writes there, or the URL holds results of another kind that `overwrite` does not remove, or an
            object that no run wrote is in the way.
        OSError: The store cannot be read or written.
    """

    def __init__(self, run: StoreRun, say: Callable[[str], object]) -> None:
        self.folder = ObjectFolder(run.url)
        self._run = run
        self._lock: StoreLock | None = None
        try:
            self._open(run, say)
        except BaseException:
            self._end()
            raise

    def _open(self, run: StoreRun, say: Callable[[str], object]) -> None:
        found = {one.shard: one for one in find_shards(self.folder)}
        name = found.get(run.shard, StoredRuns(run.shard)).new_run()
        lock = StoreLock(self.folder, alive_name(name))
        lock.acquire(self._locks, say)
        self._lock = lock
        shards = [one for one in find_shards(self.folder) if one.runs]
        if run.overwrite:
            check_any_input(run.inputs)
            _check_overwrite(run, self.folder, shards)
            shards = clear(self.folder, run.shard, shards, say)
        self.results = results = StoredResults(run, self.folder, shards)
        results.undo()
        self.is_published = bool(results.runs.runs) and all(map(self.folder.exists, run.public_names))
        content = header(run.header)
        self.folder.put(run_name(name), content)
        has_conditions = not run.formats or self.folder.refuses_to_replace(run_name(name), content)
        if not has_conditions:
            say(
                f"{run.url}: this store cannot refuse to replace an object: let no other program write there during the run"
            )
        self.folder.delete(run.public_names[1:])  # an earlier run's report would be read as this one's
        self.committer = StoreCommitter(self.folder, name, results.journal, lock, has_conditions, results.edits)

    def publish(self, ordered: bool) -> None:
        """Join all rows, and replace those of an earlier run. Raises OutputError."""
        rows, _ = self._run.public_names
        try:
            publish(self.folder, rows, published_name(self._run.shard), self.results.journal.join_rows(ordered))
        except OSError as error:
            raise OutputError(str(error.filename or self.folder.url_of(rows)), error) from error

    def put_report(self, content: bytes) -> None:
        """Write the report. Raises OutputError."""
        _, report = self._run.public_names
        try:
            self.folder.put(report, content)
        except OSError as error:
            raise OutputError(str(error.filename), error) from error

    def close(self) -> None:
        """Commit all results and release the lock. Raises OutputError."""
        try:
            self.committer.close()
        finally:
            self._end()

    def _locks(self) -> list[str]:
        found = find_runs(name for name, _ in self.folder.list(folder_of(self._run.shard)))
        return [name for runs in found for name in runs.alive]

    def _end(self) -> None:
        try:
            if self._lock is not None:
                self._lock.release()
        except OSError:  # another run waits until the lock is stale; the results are complete
            pass
        finally:
            if hasattr(self, "results"):
                self.results.journal.close()
            self.folder.close()
