"""A folder of results, with a file a format. The only code, with resume/, that touches output files.

It holds `transcripts.jsonl`, which grows by a row an input, for each other format a file an input, whole or not there
at all, and the journal. An input's files are written first, its row next, its line in the journal last, so whoever has the
line has the rest. Before a run asks for results it tells the folder of every input in order (`expect`), which settles the names
of files whatever the order of completion, and asks what is done already (`is_done`).

Nothing here catches a full disk: the OSError is the run loop's, and writing the same input again afterwards is allowed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from fastscribe.audio.source import Source
from fastscribe.config import OutputStyle
from fastscribe.errors import UsageError
from fastscribe.output.names import OutputNames, Rename, name_key, names_of
from fastscribe.output.writers import render
from fastscribe.resume import journal
from fastscribe.resume.entries import Entry, Paths, free_name
from fastscribe.resume.folder_lock import FolderLock
from fastscribe.resume.journal import Appender
from fastscribe.resume.ledger import Expected, Ledger
from fastscribe.resume.shards import WHOLE, Shard
from fastscribe.resume.tidy import finish_tidying, tidy
from fastscribe.types import Failure, Transcript
from fastscribe.unfinished import part_of

_RESERVED = {"json": "report"}  # report.json is the run's own
_CLEARING_S = 5.0  # how long another shard may take to clear a folder


class Totals(NamedTuple):
    """Of all runs into a folder; `not_given` are inputs that earlier runs had and the last one was not given."""

    files: int = 0
    failed: int = 0
    audio_s: float = 0.0
    not_given: int = 0


class FolderOutput:
    """Writes results below `directory`, which is made if need be, and goes on where an earlier run of the same kind stopped.

    `fingerprint` is all that decides results besides the inputs. `transcripts.jsonl` without a journal is moved out of the
    way. Raises UsageError for a folder in use, or with results of another kind unless `overwrite` is asked for; OSError.
    """

    def __init__(
        self,
        directory: Path,
        style: OutputStyle,
        fingerprint: Mapping[str, Any],
        shard: Shard = WHOLE,
        *,
        overwrite: bool = False,
        retry_failed: bool = False,
        ordered: bool = False,
    ) -> None:
        self._directory, self._style, self._shard = Path(directory), style, shard
        self._formats = tuple(format for format in style.formats if format != "jsonl")
        self._ordered, self._overwrite = ordered, overwrite
        self._all_names = OutputNames(_RESERVED[format] for format in self._formats if format in _RESERVED)
        self._guard = threading.Lock()  # of the five below
        self._names: dict[int, str] = {}  # by index: what an input's files will be called, without a format's extension
        self._former: dict[int, str] = {}  # what they would have been called before
        self._indices: dict[str, int] = {}  # the other way round
        self._textless: set[str] = set()  # names whose input failed: a text there is an earlier run's
        self._elsewhere: set[str] = set()  # names whose input has its files under the longer name that it may yet get
        self._new = Totals()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._paths = Paths(self._directory, shard.suffix)
        self._lock = FolderLock(self._paths.lock)
        try:
            self._journal = self._open_journal(fingerprint, overwrite)
            self._ledger = Ledger(shard, self._journal.earlier, retry_failed)
            self._rows: Appender | None = None
            if "jsonl" in style.formats:
                self._rows = Appender(self._paths.rows.open("ab", buffering=0))
            self.report_path.unlink(missing_ok=True)  # an earlier run's would be read as this one's
        except BaseException:
            self._lock.close()
            raise

    def _open_journal(self, fingerprint: Mapping[str, Any], overwrite: bool) -> journal.Journal:
        if overwrite:
            for paths in other_divisions(self._directory, self._shard):
                _clear_away(paths)
            _start_over(self._paths)
        check_division(self._directory, self._shard)
        finish_tidying(self._paths)
        if journal.has_begun(self._paths):
            return journal.resume(self._paths, {**fingerprint, "shard": str(self._shard)})
        if self._paths.rows.exists() and self._paths.rows.stat().st_size:
            self._paths.rows.rename(free_name(self._paths.rows, "previous"))
        return journal.begin(self._paths, {**fingerprint, "shard": str(self._shard)})

    @property
    def report_path(self) -> Path:
        return self._paths.report

    def __enter__(self) -> FolderOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(finished=kind is None)

    def close(self, finished: bool = True) -> None:
        """Puts rows in order where that is needed, unless the run did not finish; then the next one does.

        What is known only of inputs that were no recordings, and are none of this run's any more, goes: a bad row of a
        manifest that has been put right, a path that has been corrected.
        """
        earlier = self._journal.earlier
        try:
            if self._rows is not None:
                self._rows.close()
            self._journal.close()
            is_dropped = earlier.entries["for_list"] & ~earlier.is_met
            has_replaced = earlier.is_replaced.any() or len(earlier) < len(earlier.entries)
            if finished and (self._ordered or has_replaced or is_dropped.any()):
                tidy(self._paths, self._ordered, earlier.entries["order"], is_dropped)
        finally:
            self._lock.close()

    def totals(self) -> Totals:
        """What the folder will hold of all runs into it when this one has finished."""
        earlier = self._journal.earlier
        counts = np.zeros(len(earlier.entries), bool)
        counts[earlier.places] = True
        counts &= ~earlier.is_replaced & (earlier.is_met | ~earlier.entries["for_list"])
        before = earlier.entries[counts]
        return Totals(
            files=self._new.files + len(before),
            failed=self._new.failed + int(before["failed"].sum()),
            audio_s=self._new.audio_s + float(before["audio_s"].sum()),
            not_given=int((counts & ~earlier.is_met).sum()),
        )

    @property
    def failed_before(self) -> int:
        return self._ledger.failed_before

    def expect(self, source: Source | Failure) -> bool:
        """Settles the names of an input's files, in all shards alike; see Ledger."""
        is_ours = self._ledger.expect(source)
        if self._formats:
            with self._guard:
                name = self._claim(source.id)
                if is_ours:
                    self._names[source.index], self._indices[name] = name, source.index
        return is_ours

    def _claim(self, id: str) -> str:
        name, renames = self._all_names.claim(id)
        for rename in renames:
            index = self._indices.pop(rename.old, None)
            if index is not None:
                self._names[index], self._indices[rename.new], self._former[index] = rename.new, index, rename.old
            self._rename(rename, index)
        return name

    def is_done(self, source: Source | Failure) -> bool:
        """See Ledger. An input whose files another one's took the place of is not done."""
        if not self._ledger.is_done(source, partial(self._is_kept, source)):
            return False
        with self._guard:
            place = self._journal.earlier.find(self._ledger[source.index].key)
            assert place is not None
            self._remember(source.index, place)
            self._forget(source.index)
        return True

    def _is_kept(self, source: Source | Failure, place: int) -> bool:
        """Whether its files are there and its own still, under the name that it has or had or gets once another comes near
        it."""
        if not self._formats:
            return True
        with self._guard:
            name, former = self._names[source.index], self._former.get(source.index)
        short, full = names_of(source.id)
        later = full + name.removeprefix(short)
        key, written = self._journal.earlier.entries[["key", "name"]][place].item()
        possible = [one for one in (name, former, later) if one is not None and name_key(one) == written]
        if not possible or self._journal.earlier.owner(possible[0]) != key:
            return False
        formats = {"json"} & set(self._formats) if self._journal.earlier.entries["failed"][place] else self._formats
        places = (name, former, later)
        return any(all(self._path(one, format).exists() for format in formats) for one in places if one is not None)

    def _remember(self, index: int, place: int) -> None:
        """Of an input that is done: what a later rename must know."""
        if self._formats:
            name = self._names[index]
            failed, written = self._journal.earlier.entries[["failed", "name"]][place].item()
            if failed:
                self._textless.add(name)
            if written not in (name_key(name), name_key(self._former.get(index, name))):
                self._elsewhere.add(name)

    def _forget(self, index: int) -> None:
        if self._formats:
            del self._indices[self._names.pop(index)]
            self._former.pop(index, None)
        self._ledger.settle(index)

    def write(self, result: Transcript | Failure) -> None:
        """All formats of one result. On return they are with the operating system. Raises OSError where that fails."""
        item = result if isinstance(result, Failure) else result.audio
        expected = self._ledger[item.index]
        with self._guard:
            name = self._names[item.index] if self._formats else ""
            if self._formats:
                self._write_files(name, result, expected)
            self._write_row(result, expected, name)
            self._forget(item.index)
        if expected.place is not None:
            self._journal.earlier.is_replaced[expected.place] = True
        failed = isinstance(result, Failure)
        audio_s = 0.0 if isinstance(result, Failure) else result.audio.duration_s
        self._new = Totals(self._new.files + 1, self._new.failed + failed, self._new.audio_s + audio_s)

    def _write_row(self, result: Transcript | Failure, expected: Expected, name: str) -> None:
        begin, end = 0, 0
        if self._rows is not None:
            begin = self._rows.end
            self._rows.append(self._render(result, "jsonl").encode())
            end = self._rows.end
        try:
            self._journal.append(_entry(result, expected, begin, end, name))
        except BaseException:
            if self._rows is not None:
                self._rows.take_back(begin)
            raise

    def _write_files(self, name: str, result: Transcript | Failure, expected: Expected) -> None:
        (self._textless.add if isinstance(result, Failure) else self._textless.discard)(name)
        has_files, expected.may_have_files = expected.may_have_files, True
        for format in self._formats:
            path, text = self._path(name, format), self._render(result, format)
            if text or isinstance(result, Transcript):
                _write_whole(path, text.encode(), self._part(name, format))
            elif (has_files or expected.place is not None or self._overwrite) and path.is_file():
                path.unlink()

    def _render(self, result: Transcript | Failure, format: str) -> str:
        return render(result, format, self._style.tokens, self._style.subtitles)

    def _rename(self, rename: Rename, index: int | None) -> None:
        """`index` is None once the input is finished. Files of an input that had the name in another run stay."""
        old, new = rename
        if old in self._elsewhere:
            return
        if index is not None and self._journal.earlier.owner(old) not in (None, self._ledger[index].key):
            return
        for format in self._formats:
            if format == "json" or old not in self._textless:
                with suppress(FileNotFoundError):  # nor need another shard's file be there
                    os.replace(self._path(old, format), self._path(new, format))
            for name in rename:
                self._part(name, format).unlink(missing_ok=True)  # of a run that was killed
        if old in self._textless:
            self._textless.remove(old)
            self._textless.add(new)

    def _path(self, name: str, format: str) -> Path:
        return self._directory / f"{name}.{format}"

    def _part(self, name: str, format: str) -> Path:
        """Until it is whole; a name of this shard's own, so that what a killed run left can be removed safely."""
        return part_of(self._path(name, f"{format}{self._shard.suffix}"))


def _entry(result: Transcript | Failure, expected: Expected, begin: int, end: int, name: str) -> Entry:
    at = expected.key, expected.state, begin, end
    if isinstance(result, Failure):
        return Entry(result.id, *at, result.index, True, 0.0, result.stage == "input", name)
    return Entry(result.audio.id, *at, result.audio.index, False, result.audio.duration_s, False, name)


def other_divisions(directory: Path, shard: Shard) -> list[Paths]:
    """Of runs into this folder that divided the inputs otherwise."""
    found = (Paths.of_journal(path) for path in sorted(directory.glob("journal*.jsonl")))
    return [paths for paths in found if paths is not None and paths.num_shards != shard.count]


def check_division(directory: Path, shard: Shard) -> None:
    """Raises UsageError where there is another."""
    for paths in other_divisions(directory, shard):
        raise UsageError(
            f"{directory}: holds {paths.journal.name}, of a run divided otherwise than {shard}: use another folder, or "
            "--overwrite to start over"
        )


def _clear_away(paths: Paths) -> None:
    """Not under a run that is at work; but other shards of this one may be clearing away the same."""
    deadline = monotonic() + _CLEARING_S
    while paths.journal.exists():
        try:
            with closing(FolderLock(paths.lock)):
                _start_over(paths)
        except UsageError:
            if monotonic() > deadline:
                raise
            sleep(0.05)


def _start_over(paths: Paths) -> None:
    """Removes what an earlier run left; files of these names that no run wrote are somebody's, and stay."""
    if paths.is_ours:
        for path in (paths.swap, paths.journal, paths.rows, paths.report):
            path.unlink(missing_ok=True)
    elif paths.journal.exists():
        paths.journal.rename(free_name(paths.journal, "previous"))
    finish_tidying(paths)


def _write_whole(path: Path, content: bytes, part: Path) -> None:
    """Under the name `part`, in the same folder, first: a reader sees the old file, the new one, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
