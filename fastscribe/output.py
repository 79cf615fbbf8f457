"""Where results go: a folder with a file a format, or a stream. The only code, with journal.py, that touches output files.

A folder holds `transcripts.jsonl`, which grows by a row an input, for each other format a file an input, whole or not there
at all, and the journal. An input's files are written first, its row next, its line in the journal last, so whoever has the
line has the rest. Before a run asks for results it tells a folder of every input in order (`expect`), which settles the names
of files whatever the order of completion, and asks what is done already (`is_done`).

Nothing here catches a full disk: the OSError is the run loop's, and writing the same input again afterwards is allowed.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from fastscribe import journal
from fastscribe.audio.source import Source
from fastscribe.config import OutputStyle
from fastscribe.errors import UsageError
from fastscribe.folder_lock import FolderLock
from fastscribe.journal import Appender, Entry, Paths
from fastscribe.ledger import Expected, Ledger
from fastscribe.output_names import OutputNames, Rename, name_key, names_of
from fastscribe.shards import WHOLE, Shard
from fastscribe.types import Failure, Transcript
from fastscribe.writers import render

_RESERVED = {"json": "report"}  # report.json is the run's own


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
        self._replaced_any = False
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
        fingerprint = {**fingerprint, "shard": str(self._shard)}
        others = _other_journals(self._directory, self._shard)
        if overwrite:
            for path in others:
                paths = Paths(self._directory, path.stem.removeprefix("journal"))
                with closing(FolderLock(paths.lock)):  # not under a run that is at work
                    _start_over(paths)
            _start_over(self._paths)
        elif others:
            raise UsageError(
                f"{self._directory}: holds {others[0].name}, of a run divided otherwise than {self._shard}: use another "
                "folder, or --overwrite to start over"
            )
        journal.finish_tidying(self._paths)
        if journal.has_begun(self._paths):
            return journal.resume(self._paths, fingerprint)
        if self._paths.rows.exists() and self._paths.rows.stat().st_size:
            self._paths.rows.rename(journal.free_name(self._paths.rows, "previous"))
        return journal.begin(self._paths, fingerprint)

    @property
    def report_path(self) -> Path:
        return self._paths.report

    def __enter__(self) -> FolderOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(tidy=kind is None)

    def close(self, tidy: bool = True) -> None:
        """Puts rows in order where that is needed, unless `tidy` is False; then the next run does."""
        earlier = self._journal.earlier
        try:
            if self._rows is not None:
                self._rows.close()
            self._journal.close()
            has_replaced = self._replaced_any or len(earlier) < len(earlier.entries)
            if tidy and (self._ordered or has_replaced):
                journal.tidy(self._paths, self._ordered, earlier.entries["order"])
        finally:
            self._lock.close()

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
        """Whether its files are its own still, and under the name that it has or had or gets once another comes near it."""
        if not self._formats:
            return True
        with self._guard:
            name, former = self._names[source.index], self._former.get(source.index)
        short, full = names_of(source.id)
        later = full + name.removeprefix(short)
        key, written = self._journal.earlier.entries[["key", "name"]][place].item()
        possible = [one for one in (name, former, later) if one is not None and name_key(one) == written]
        return bool(possible) and self._journal.earlier.owner(possible[0]) == key

    def _remember(self, index: int, place: int) -> None:
        """Of an input that is done: what a later rename must know."""
        if self._formats:
            name, (failed, written) = (
                self._names[index],
                self._journal.earlier.entries[["failed", "name"]][place].item(),
            )
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
        self._replaced_any |= expected.is_replacing

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
                _write_whole(path, text.encode())
            elif (has_files or expected.is_replacing or self._overwrite) and path.is_file():
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
            if index is not None:
                _part(self._path(old, format)).unlink(missing_ok=True)  # of a run that was killed
        if old in self._textless:
            self._textless.remove(old)
            self._textless.add(new)

    def _path(self, name: str, format: str) -> Path:
        return self._directory / f"{name}.{format}"


class StreamOutput:
    """Writes results in the first of the formats to a text stream such as stdout: UTF-8 whatever the locale, flushed each time.

    With `ordered` a result waits until those of all inputs before it are out. BrokenPipeError is left to the caller, and
    so is the stream: it is not closed.
    """

    failed_before = 0
    report_path = None

    def __init__(self, stream: TextIO, style: OutputStyle, shard: Shard = WHOLE, *, ordered: bool = False) -> None:
        self._stream, self._style = stream, style
        self._shard, self._ordered = shard, ordered
        self._order: deque[int] = deque()  # indices of inputs that are not out yet
        self._held: dict[int, str] = {}

    def __enter__(self) -> StreamOutput:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets out what waited for an input that never came."""
        for index in sorted(self._held):
            self._put(self._held.pop(index))

    def expect(self, source: Source | Failure) -> bool:
        """See Ledger."""
        if not self._shard.holds(source.id):
            return False
        if self._ordered:
            self._order.append(source.index)
        return True

    def is_done(self, source: Source | Failure) -> bool:
        """Nothing is remembered of a stream."""
        return False

    def write(self, result: Transcript | Failure) -> None:
        text = render(result, self._style.formats[0], self._style.tokens, self._style.subtitles)
        if not self._ordered:
            self._put(text)
            return
        self._held[result.index if isinstance(result, Failure) else result.audio.index] = text
        while self._order and self._order[0] in self._held:
            self._put(self._held.pop(self._order.popleft()))

    def _put(self, text: str) -> None:
        raw = getattr(self._stream, "buffer", None)  # StringIO has none
        if raw is None:
            self._stream.write(text)
        else:
            self._stream.flush()
            raw.write(text.encode())
            raw.flush()
        self._stream.flush()


def _entry(result: Transcript | Failure, expected: Expected, begin: int, end: int, name: str) -> Entry:
    failed = isinstance(result, Failure)
    item, audio_s = (result, 0.0) if isinstance(result, Failure) else (result.audio, result.audio.duration_s)
    return Entry(item.id, expected.key, expected.state, begin, end, item.index, failed, audio_s, name)


def _other_journals(directory: Path, shard: Shard) -> list[Path]:
    """Journals of runs that divided the inputs otherwise."""
    own = {f"journal{Shard(index, shard.count).suffix}.jsonl" for index in range(shard.count)}
    return sorted(path for path in directory.glob("journal*.jsonl") if path.name not in own)


def _start_over(paths: Paths) -> None:
    for path in (paths.swap, paths.journal, paths.rows, paths.report):
        path.unlink(missing_ok=True)
    journal.finish_tidying(paths)


def _write_whole(path: Path, content: bytes) -> None:
    """Under a temporary name in the same folder first: a reader sees the old file, the new one, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part(path)
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")
