"""A folder of results, with a file a format. The only code, with resume/, that touches output files.

It holds `transcripts.jsonl`, which grows by a row an input, for each other format a file an input, whole or not there
at all, and the journal. A result's files get temporary names at once; commit.py gives them their own, adds the row and then
the journal line, for many results together. Before a run asks for results it tells the folder of every input in order
(`expect`), which settles the names of files whatever the order of completion, and asks what is done already (`is_done`).

A file that the journal does not list is never replaced or removed: the result that needs its name is an InTheWay error.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from fastscribe._system.safe_files import (
    Barrier,
    InTheWay,
    discard_temp,
    is_truncated_or_blank,
    keep_edited_copy,
    open_append,
    remove,
    status_of,
    sync_folder,
    temp_path_for,
    write_temp,
)
from fastscribe.config import OutputStyle
from fastscribe.errors import UsageError
from fastscribe.output.in_the_way import RESERVED, check_any_input, check_inputs
from fastscribe.output.names import OutputNames, Rename, name_key, names_of
from fastscribe.output.writers import render
from fastscribe.resume import journal
from fastscribe.resume.commit import Appender, BlockFile, Committer, discard_temps, finished_item, redo, rename_item
from fastscribe.resume.compact import compact, finish_compaction
from fastscribe.resume.entries import (
    NO_FILE,
    NO_STATE,
    Entry,
    Paths,
    PreviousRun,
    in_the_way,
    load_entries_and_names,
    read_entries,
)
from fastscribe.resume.folder_lock import FolderLock
from fastscribe.resume.ledger import Ledger, PendingEntry
from fastscribe.resume.merge import merged_files
from fastscribe.resume.shards import UNSHARDED, Shard
from fastscribe.types import Failure, Source, Transcript

_CLEAR_TIMEOUT_S = 5.0  # how long another shard may take to clear a folder


class Totals(NamedTuple):
    """Of all runs into a folder; `not_given` are inputs that earlier runs had and the last one was not given."""

    files: int = 0
    failed: int = 0
    audio_s: float = 0.0
    not_given: int = 0


class FolderOutput:
    """Writes results below `directory`, which is made if need be, and goes on where an earlier run of the same kind stopped.

    Args:
        fingerprint: All that decides results besides the inputs.
        inputs: Inputs whose outputs' names are looked at before anything is written.

    Raises:
        UsageError: The folder is in use, holds results of another kind and `overwrite` is false, or has a file that no run
            wrote where this one would write.
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        style: OutputStyle,
        fingerprint: Mapping[str, Any],
        shard: Shard = UNSHARDED,
        *,
        overwrite: bool = False,
        retry_failed: bool = False,
        ordered: bool = False,
        inputs: Sequence[str] = (),
    ) -> None:
        self._directory, self._style, self._shard = Path(directory), style, shard
        self._formats = tuple(format for format in style.formats if format != "jsonl")
        self._ordered = ordered
        self._output_names = OutputNames(RESERVED[format] for format in self._formats if format in RESERVED)
        self._guard = threading.Lock()  # of the six below
        self._names: dict[int, str] = {}  # by index: what an input's files will be called, without a format's extension
        self._previous_names: dict[int, str] = {}  # what they would have been called before
        self._indices: dict[str, int] = {}  # the other way round
        self._failed_names: set[str] = set()  # names whose input failed, so that only JSON is ours
        self._renamed_names: set[str] = (
            set()
        )  # names whose input has its files under the longer name that it may yet get
        self._finished: set[int] = set()  # keys of names whose files are there; with a single shard all others are
        self._new = Totals()
        _make_folder(self._directory)
        self._paths = Paths(self._directory, shard.suffix)
        self._lock = FolderLock(self._paths.lock)
        try:
            self._journal = self._open_journal(fingerprint, overwrite, retry_failed, inputs)
            self._ledger = Ledger(shard, self._journal.previous, retry_failed)
            self._rows: Appender | None = None
            if "jsonl" in style.formats:
                self._rows = Appender(open_append(self._paths.rows), self._paths.rows)
            remove(self.report_path)  # an earlier run's would be read as this one's
            sync_folder(self._directory)
            self._committer = Committer(self._paths, self._rows, self._journal.file)
        except InTheWay as error:
            self._lock.close()
            raise in_the_way([str(error.filename)]) from None
        except BaseException:
            self._lock.close()
            raise

    def _open_journal(
        self, fingerprint: Mapping[str, Any], overwrite: bool, retry_failed: bool, inputs: Sequence[str]
    ) -> journal.Journal:
        paths, shard = self._paths, self._shard
        look = partial(check_inputs, self._directory, self._formats, inputs, shard)
        if overwrite:
            check_any_input(inputs)
            former = [*other_shardings(self._directory, shard), *([paths] if paths.has_begun else [])]
            merged = merged_files(self._directory) if shard.count == 1 else ()
            paths.check(besides=merged)
            look([PreviousRun(load_entries_and_names(one.journal)[0]) for one in former])
            for other in other_shardings(self._directory, shard):
                _remove_sharding(other)
            _start_over(paths)
            for path in merged:
                remove(path)
        check_sharding(self._directory, shard)
        paths.check()
        if not paths.has_begun:
            return journal.begin(paths, {**fingerprint, "shard": str(shard)})
        finish_compaction(paths)
        opened = journal.resume(paths, {**fingerprint, "shard": str(shard)})
        try:
            look([opened.previous], Ledger(shard, PreviousRun(opened.previous.entries), retry_failed))
        except BaseException:
            opened.close()
            raise
        return opened

    @property
    def report_path(self) -> Path:
        return self._paths.report

    def __enter__(self) -> FolderOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(finished=kind is None)

    def flush(self) -> None:
        """Wait until all results are on the disk. Raises OutputError."""
        self._committer.flush()

    def close(self, finished: bool = True) -> None:
        """Wait until all results are on the disk; then put rows in order where needed, unless the run did not finish.

        What is known only of inputs that were no recordings, and are none of this run's any more, goes: a bad row of a
        manifest that has been put right, a path that has been corrected. Raises OutputError.
        """
        previous = self._journal.previous
        try:
            try:
                self._committer.close()
            finally:
                self._journal.close()
                if self._rows is not None:
                    self._rows.close()
            is_dropped = previous.entries["for_list"] & ~previous.is_in_this_run
            has_replaced = previous.is_replaced.any() or len(previous) < len(previous.entries)
            if finished and (self._ordered or has_replaced or is_dropped.any()):
                compact(self._paths, self._ordered, previous.entries["order"], is_dropped)
        finally:
            self._lock.close()

    def totals(self) -> Totals:
        """What the folder will hold of all runs into it when this one has finished."""
        previous = self._journal.previous
        counts = np.zeros(len(previous.entries), bool)
        counts[previous.entry_indices] = True
        counts &= previous.entries["state"] != NO_STATE
        counts &= ~previous.is_replaced & (previous.is_in_this_run | ~previous.entries["for_list"])
        before = previous.entries[counts]
        return Totals(
            files=self._new.files + len(before),
            failed=self._new.failed + int(before["failed"].sum()),
            audio_s=self._new.audio_s + float(before["audio_s"].sum()),
            not_given=int((counts & ~previous.is_in_this_run).sum()),
        )

    @property
    def failed_before(self) -> int:
        return self._ledger.failed_before

    def expect(self, source: Source | Failure) -> bool:
        """Settles the names of an input's files, in all shards alike; see Ledger."""
        is_ours = self._ledger.expect(source)
        if self._formats:
            with self._guard:
                name = self._reserve(source.id)
                if is_ours:
                    self._names[source.index], self._indices[name] = name, source.index
        return is_ours

    def _reserve(self, id: str) -> str:
        name, renames = self._output_names.claim(id)
        for rename in renames:
            index = self._indices.pop(rename.old, None)
            if index is not None:
                self._names[index], self._indices[rename.new], self._previous_names[index] = (
                    rename.new,
                    index,
                    rename.old,
                )
            self._rename(rename, index)
        return name

    def is_done(self, source: Source | Failure) -> bool:
        """See Ledger. An input is not done if one of its files is missing, has another size, or is another input's now."""
        if not self._ledger.is_done(source, partial(self._has_own_files, source)):
            return False
        with self._guard:
            entry_index = self._journal.previous.find(self._ledger[source.index].key)
            assert entry_index is not None
            self._restore(source.index, entry_index)
            self._release(source.index)
        return True

    def _has_own_files(self, source: Source | Failure, entry_index: int) -> bool:
        """Whether its files are there and its own still, under a name that this run would find them by."""
        if not self._formats:
            return True
        previous = self._journal.previous
        with self._guard:
            name = self._current_name(source, entry_index)
            if name is None or previous.find_by_name(name) != entry_index:
                return False
        sizes = previous.sizes(entry_index)
        if not previous.entries["failed"][entry_index] and sizes.keys() != set(self._formats):
            return False
        return all(_size(self._path(name, format)) == size for format, size in sizes.items())

    def _current_name(self, source: Source | Failure, entry_index: int) -> str | None:
        """The name of an earlier result's files, if it is one that the input has, had, or gets once another comes near it."""
        name, former = self._names[source.index], self._previous_names.get(source.index)
        short, full = names_of(source.id)
        written = int(self._journal.previous.entries["name"][entry_index])
        possible = (name, former, full + name.removeprefix(short))
        return next((one for one in possible if one is not None and name_key(one) == written), None)

    def _restore(self, index: int, entry_index: int) -> None:
        """Note what a later rename must know of an input that is done; make up for one that has been."""
        if not self._formats:
            return
        name, former = self._names[index], self._previous_names.get(index)
        failed, written = self._journal.previous.entries[["failed", "name"]][entry_index].item()
        if failed:
            self._failed_names.add(name)
        self._add_finished(name)
        if written == name_key(name):
            return
        if former is not None and written == name_key(former):
            self._move(Rename(former, name), self._journal.previous.sizes(entry_index))
        else:
            self._renamed_names.add(name)

    def _release(self, index: int) -> None:
        if self._formats:
            del self._indices[self._names.pop(index)]
            self._previous_names.pop(index, None)
        self._ledger.mark_done(index)

    def write(self, result: Transcript | Failure) -> None:
        """Queue all formats of one result; they are on the disk soon after, and after `flush`.

        Raises:
            InTheWay: A file that no run wrote has the name of one of its files.
            OSError: A file cannot be written. The same input may be written again afterwards, as a Failure.
            OutputError: An earlier result could not be put in its place. The run cannot go on.
        """
        item = result if isinstance(result, Failure) else result.audio
        pending = self._ledger[item.index]
        with self._guard:
            name = self._names[item.index] if self._formats else ""
            files = self._write_files(name, result) if self._formats else []
            try:
                obsolete = self._obsolete(name, item.id, pending, files) if self._formats else []
                row = self._render(result, "jsonl").encode() if self._rows is not None else b""
                begin = self._committer.rows_end
                sizes = {file.name.removeprefix(f"{name}."): file.size for file in files}
                entry = _entry(result, pending, begin, begin + len(row), name)._replace(sizes=sizes)
                self._committer.add(finished_item(entry, row, files, obsolete))
            except BaseException:
                discard_temps(self._directory, files)
                raise
            if self._formats:
                (self._failed_names.add if isinstance(result, Failure) else self._failed_names.discard)(name)
                self._add_finished(name)
            self._release(item.index)
        if pending.entry_index is not None:
            self._journal.previous.is_replaced[pending.entry_index] = True
        failed = isinstance(result, Failure)
        audio_s = 0.0 if isinstance(result, Failure) else result.audio.duration_s
        self._new = Totals(self._new.files + 1, self._new.failed + failed, self._new.audio_s + audio_s)

    def _write_files(self, name: str, result: Transcript | Failure) -> list[BlockFile]:
        """The temporary files. A Failure whose file is in the way goes without: its row and stderr tell of it."""
        previous = self._journal.previous
        listed = previous.sizes(previous.find_by_name(name))
        files: list[BlockFile] = []
        try:
            for format in self._formats:
                content = self._render(result, format).encode()
                if not content and isinstance(result, Failure):
                    continue
                path, temp = self._path(name, format), self._shard_path(name, format)
                try:
                    self._check_after_renames(name, path, listed.get(format), content)
                except InTheWay:
                    if isinstance(result, Failure):
                        continue
                    raise
                self._write_temp(path.parent, temp, content)
                files.append(
                    BlockFile(
                        f"{name}.{format}",
                        self._relative(temp_path_for(temp)),
                        len(content),
                        crc32(content),
                        format in listed,
                    )
                )
        except BaseException:
            discard_temps(self._directory, files)
            raise
        return files

    def _write_temp(self, folder: Path, temp: Path, content: bytes) -> None:
        try:
            self._committer.watch(folder)
            write_temp(temp, content)
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)
            self._committer.watch(folder)
            write_temp(temp, content)

    def _check_after_renames(self, name: str, path: Path, size: int | None, content: bytes) -> None:
        """_check_replaceable, once a file that is being renamed to make room for this one is gone."""
        try:
            self._check_replaceable(path, size, content)
        except InTheWay:
            if not self._committer.is_queued(name):
                raise
            self._committer.flush()
            self._check_replaceable(path, size, content)

    def _check_replaceable(self, path: Path, size: int | None, content: bytes) -> None:
        """Raise InTheWay unless `path` is free, or is a file that the journal lists, with this size when it was written.

        A listed file that someone edited since is kept beside, as `x.previous.srt`.
        """
        status = status_of(path)
        if status is None:
            return
        if size is None or not stat.S_ISREG(status.st_mode):
            raise InTheWay(path)
        if _size(path) != size and not is_truncated_or_blank(path, content):
            keep_edited_copy(path)

    def _obsolete(self, name: str, id: str, pending: PendingEntry, files: Sequence[BlockFile]) -> list[str]:
        """Return listed files that the new result makes obsolete, under other names; no later result owns them."""
        previous, written = self._journal.previous, {file.name for file in files}
        found = []
        entry_indices = {previous.find_by_name(name): name}
        if pending.entry_index is not None and not previous.are_files_replaced[pending.entry_index]:
            entry_indices.setdefault(pending.entry_index, self._journal.name_of(pending.entry_index))
        for entry_index, former in entry_indices.items():
            if entry_index is None or previous.find_by_name(former) != entry_index:
                continue
            for format, size in previous.sizes(entry_index).items():
                path = self._path(former, format)
                if f"{former}.{format}" not in written and _size(path) is not None:
                    self._check_replaceable(path, size, b"")
                    found.append(f"{former}.{format}")
            previous.are_files_replaced[entry_index] = True
        return found

    def _render(self, result: Transcript | Failure, format: str) -> str:
        return render(result, format, self._style.tokens, self._style.subtitles)

    def _rename(self, rename: Rename, index: int | None) -> None:
        """Make room for another input. `index` is None once the input is finished; the others' files are not there yet.

        Files of an input that had the name in another run stay.
        """
        if rename.old in self._renamed_names:
            return
        if index is None and (self._shard.count == 1 or name_key(rename.old) in self._finished):
            formats = {"json"} & set(self._formats) if rename.old in self._failed_names else self._formats
            self._move(rename, formats)
        if rename.old in self._failed_names:
            self._failed_names.remove(rename.old)
            self._failed_names.add(rename.new)
        for format in self._formats:  # temporary files of a run that was killed; this one has written neither name
            for name in rename if index is not None else (rename.new,):
                discard_temp(self._shard_path(name, format))

    def _move(self, rename: Rename, formats: Iterable[str]) -> None:
        """Rename a finished input's files. They stay if a file is in the way."""
        if self._committer.is_queued(rename.old):
            self._committer.flush()
        formats = [format for format in formats if _size(self._path(rename.old, format)) is not None]
        if formats and all(status_of(self._path(rename.new, format)) is None for format in formats):
            self._committer.add(rename_item(rename, formats))
            self._add_finished(rename.new)

    def _add_finished(self, name: str) -> None:
        if self._shard.count > 1:
            self._finished.add(name_key(name))

    def _path(self, name: str, format: str) -> Path:
        return self._directory / f"{name}.{format}"

    def _shard_path(self, name: str, format: str) -> Path:
        """A name of this shard's own, so that a temporary file that a killed run left can be removed safely."""
        return self._path(name, f"{format}{self._shard.suffix}")

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self._directory)


def _size(path: Path) -> int | None:
    """Bytes as the journal keeps them; None for what is no regular file."""
    status = status_of(path)
    return min(status.st_size, NO_FILE - 1) if status is not None and stat.S_ISREG(status.st_mode) else None


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def _entry(result: Transcript | Failure, pending: PendingEntry, begin: int, end: int, name: str) -> Entry:
    at = pending.key, pending.state, begin, end
    if isinstance(result, Failure):
        return Entry(result.id, *at, result.index, True, 0.0, result.stage == "input", name)
    return Entry(result.audio.id, *at, result.audio.index, False, result.audio.duration_s, False, name)


def other_shardings(directory: Path, shard: Shard) -> list[Paths]:
    """Of runs into this folder that divided the inputs otherwise."""
    found = (Paths.from_journal(path) for path in sorted(directory.glob("journal*.jsonl")))
    return [paths for paths in found if paths is not None and paths.num_shards != shard.count]


def check_sharding(directory: Path, shard: Shard) -> None:
    """Raises UsageError where there is another."""
    for paths in other_shardings(directory, shard):
        raise UsageError(
            f"{directory}: holds {paths.journal.name}, of a run divided otherwise than {shard}: use another folder, or "
            "--overwrite to start over"
        )


def _remove_sharding(paths: Paths) -> None:
    """Not under a run that is at work; but other shards of this one may be clearing away the same."""
    deadline = monotonic() + _CLEAR_TIMEOUT_S
    while paths.journal.exists():
        try:
            with closing(FolderLock(paths.lock)):
                _start_over(paths)
        except UsageError:
            if monotonic() > deadline:
                raise
            sleep(0.05)


def _start_over(paths: Paths) -> None:
    """Remove what the journal lists, and the journal last; a kill or a power cut leaves it until all the rest is gone."""
    if not paths.is_ours:
        return
    if paths.has_begun:
        finish_compaction(paths)
        redo(paths)
        with closing(Barrier()) as barrier:
            folders = _remove_listed(paths, barrier)
            for path in (*([paths.rows] if paths.has_rows else []), paths.report):
                remove(path)
            barrier.watch(paths.directory)
            barrier.wait((), [paths.directory, *folders])
    remove(paths.journal)
    sync_folder(paths.directory)


def _remove_listed(paths: Paths, barrier: Barrier) -> set[Path]:
    """Remove the files that the journal lists; one that was edited is kept beside. Returns their folders."""
    entries, new_names = load_entries_and_names(paths.journal)
    previous, folders = PreviousRun(entries), set()
    for entry_index, (entry, _) in enumerate(read_entries(paths.journal)):
        name = new_names.get(entry_index, entry.name)
        if previous.find_by_name(name) != entry_index:
            continue
        for format, size in entry.sizes.items():
            path = paths.directory / f"{name}.{format}"
            found = _size(path)
            if found is not None:
                if found != min(size, NO_FILE - 1) and not is_truncated_or_blank(path, b""):
                    keep_edited_copy(path)
                barrier.watch(path.parent)
                remove(path)
                folders.add(path.parent)
    return folders
