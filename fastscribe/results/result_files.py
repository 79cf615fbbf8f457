"""Files of results: what a result gives, and which files of earlier results are missing or laid out otherwise.

A file is only read if it would be replaced or removed. Else one look at its size decides, as the journal knows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any
from zlib import crc32

import numpy as np

from fastscribe.audio.failures import NOT_THERE
from fastscribe.config import FILE_FORMATS, OutputStyle, SpeakerNames
from fastscribe.results.committer import Committer, is_ours, without_frames
from fastscribe.results.fingerprint import layout_keys
from fastscribe.results.formats.writers import LAID_OUT, content_of
from fastscribe.results.journal import FIELDS, NO_FILE, NO_STATE, Entry, FileMark, Journal, PendingInput, is_row
from fastscribe.results.names import Names
from fastscribe.results.storage import ROWS, Item, NewFile, Storage
from fastscribe.results.stored import to_result
from fastscribe.types import Failure, Source, Transcript

_NAMING = {"json", "md", "ctm", "rttm"}  # formats that have the path or the name of the recording


class ResultFiles:
    """Makes what a commit needs of a result, and files of earlier results again from their rows. A run calls begin() first.

    Attributes:
        style: The formats and their options.
        formats: Those of the run that are a file for each input.
        names: Gives the files' names.
        num_made_again: Earlier results that got files.
        not_made: Why files of earlier results could not be made.
        laid_out_again: Formats of files that had another "layout", or other "names" of speakers.
        taken: What results have become that recordings from elsewhere took over, by their former places in the journal.

    Args:
        storage: Where the files are.
        journal: Earlier results.
        committer: Queue of all changes.
    """

    def __init__(self, storage: Storage, journal: Journal, committer: Committer) -> None:
        self.num_made_again = 0
        self.not_made: list[OSError] = []
        self.laid_out_again: dict[str, set[str]] = {}
        self.taken: dict[int, Entry] = {}
        self._storage, self._journal, self._committer = storage, journal, committer
        self._lock = Lock()  # of what is counted

    def begin(self, style: OutputStyle, names: Names) -> None:
        """Take the style of a run, and what gives names to its files."""
        self.style = replace(style, formats=style.formats or self._journal.formats or ("jsonl",))
        self.formats, self.names = file_formats(self.style.formats), names
        self._layout, self._names_layout = layout_keys(style)

    @property
    def with_other_names(self) -> list[str]:
        """The formats whose files have other names of speakers than this run's files."""
        if not self._names_layout:
            return []
        none = {0, layout_keys(OutputStyle(speaker_names=SpeakerNames()))[1]}
        same = none if self._names_layout in none else {self._names_layout}
        found = {format: self._journal.layouts_of(format) for format in FILE_FORMATS if format not in self.formats}
        return [format for format, all in found.items() if any(one is None or one >> 32 not in same for one in all)]

    # --- new results

    def item(self, pending: PendingInput, result: Transcript | Failure) -> Item:
        """Return what a commit needs of a new result, in the run's formats.

        Files of the result that it replaces go if it does not write them.
        """
        item = result if isinstance(result, Failure) else result.audio
        old = None if pending.entry_index is None else self._journal.entry(pending.entry_index)
        name, former = pending.name, {}
        if old is not None:
            name, former = name or old.name, old.left()
        # With another upper half of the state, the next run tries the input again.
        may_pass = isinstance(result, Failure) and result.may_pass
        contents = self._contents(result, self.formats)
        entry = Entry(
            id=item.id,
            key=pending.key,
            state=pending.state ^ may_pass << 63,
            begin=0,
            end=0,
            order=item.index,
            failed=isinstance(result, Failure),
            audio_s=0.0 if isinstance(item, Failure) else round(item.duration_s, 3),  # as its row has it
            for_list=isinstance(result, Failure) and (result.stage == "input" or result.message.startswith(NOT_THERE)),
            name=name,
            input_bytes=pending.num_bytes,
            files=self._marks(contents),
            former=former,
        )
        files = [
            NewFile(f"{name}.{format}", contents.get(format), former.get(format, ()))
            for format in {**contents, **former}
        ]
        return Item(entry, content_of(result, "jsonl", self.style), files=tuple(files))

    def _contents(self, result: Transcript | Failure, formats: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of a result's files by format. A Failure has JSON alone."""
        found = {format: content_of(result, format, self.style) for format in formats}
        return {format: content for format, content in found.items() if content or not isinstance(result, Failure)}

    def _marks(self, contents: dict[str, bytes]) -> dict[str, FileMark]:
        return {
            format: FileMark(len(content), crc32(content), self._names_layout << 32 | self._layout_of(format))
            for format, content in contents.items()
        }

    def _layout_of(self, format: str) -> int:
        return self._layout if format in LAID_OUT else 0

    # --- earlier results

    def complete(self, pending: PendingInput, order: int) -> bool:
        """Return True if an earlier result has its files, or if what it lacks is queued; False if its row is no result.

        A recording that is elsewhere now takes the result over. An edited file stays, and so does the result if a file or a
        store cannot be read. Called from several threads.

        Args:
            pending: The input that has the result.
            order: Its position in this run.
        """
        entry_index = pending.entry_index
        assert entry_index is not None
        try:
            if pending.is_moved and not pending.is_out_of_reach:
                self._take_over(entry_index, pending, order)
            missing = self._missing(entry_index, pending.name)
            return not missing or self._make(entry_index, pending.name, missing, order)
        except OSError as error:
            self.not_made.append(without_frames(error))
            return True

    def _take_over(self, entry_index: int, pending: PendingInput, order: int) -> None:
        """Give a result to a recording that is elsewhere now. Its row stays, and so do its files.

        A recording with another name takes the files along, edits and all, in place of those of a result of its own.
        """
        if entry_index in self.taken:
            return
        old = self._journal.entry(entry_index)
        entry = old._replace(
            key=pending.key,
            state=pending.state & ~FIELDS | old.state & FIELDS,
            order=order,
            name=pending.name or old.name,
            input_bytes=pending.num_bytes,
        )
        own: dict[str, tuple[int, ...]] = {}  # of a result of its own, with the CRC-32 of what runs left there
        if (own_index := self._journal.find(pending.key)) is not None:
            self._journal.is_replaced[own_index] = True
            newer = self._journal.entry(own_index)
            own = {f"{newer.name}.{format}": crcs for format, crcs in newer.left().items()}
        files = {file: NewFile(file, None, crcs) for file, crcs in own.items()}
        former = []
        for format in old.left() if entry.name != old.name else ():
            before, file = f"{old.name}.{format}", f"{entry.name}.{format}"
            if self._storage.size(before) is not None:
                content = self._storage.read(before)
                files[file] = NewFile(file, content, own.get(file, ()))
                former.append((file, NewFile(before, None, (crc32(content),))))
        item = Item(entry, self._storage.read(ROWS, old.begin, old.end), has_new_row=False, files=tuple(files.values()))
        self._committer.add(item, forgotten(old))  # at once: a kill between the two would leave both
        if files:
            self._committer.flush()  # a commit makes them durable before the former ones go
            gone = tuple(one for file, one in former if file not in self._committer.kept)
            self._committer.kept.update((one.name, True) for file, one in former if file in self._committer.kept)
            self._committer.add(item._replace(files=gone))
            self._storage.sync([])  # a store lists them then
        self.taken[entry_index] = entry

    def _entry(self, entry_index: int) -> Entry:
        """Return an entry, or what it has become."""
        return self.taken.get(entry_index) or self._journal.entry(entry_index)

    def _missing(self, entry_index: int, name: str) -> list[str]:
        """Return the formats whose file is not there, or has another layout and is as its run wrote it."""
        sizes = self._journal.sizes(entry_index)
        missing, has_failed = [], bool(self._journal.entries["failed"][entry_index])
        for format in (one for one in self.formats if one == "json" or not has_failed):
            file = f"{name}.{format}"
            size = self._storage.size(file)
            if size is None:
                missing.append(format)
            elif format not in sizes and is_ours(self._storage, NewFile(file, b"", self._former(entry_index, format))):
                missing.append(format)  # of a result that this one has replaced
            elif min(size, NO_FILE - 1) != sizes.get(format):
                self._committer.kept[file] = bool(self._other_look(entry_index, format))
            elif other := self._other_look(entry_index, format):
                if is_ours(self._storage, NewFile(file, b"", self._former(entry_index, format))):
                    missing.append(format)
                    self.laid_out_again.setdefault(other, set()).add(format)
                else:
                    self._committer.kept[file] = True
        return missing

    def _former(self, entry_index: int, format: str) -> tuple[int, ...]:
        """Return the CRC-32 of what runs have left in a file of a result."""
        return self._journal.entry(entry_index).left().get(format, ())

    def _other_look(self, entry_index: int, format: str) -> str:
        """Return "layout" or "names" if that of a file is not this run's, else "". A run without names keeps those there."""
        found = self._journal.layout(entry_index, format)
        names, layout = (0, None) if found is None else divmod(found, 1 << 32)
        if layout != self._layout_of(format):
            return "layout"
        return "" if self._names_layout in (0, names) else "names"

    def _make(self, entry_index: int, name: str, formats: Sequence[str], order: int) -> bool:
        """Queue files of an earlier result. Return False if its row is no result."""
        entry = self._entry(entry_index)
        row = self._storage.read(ROWS, entry.begin, entry.end)
        try:
            result = to_result(json.loads(row), entry.id, entry.audio_s, order)
        except ValueError:
            return False
        self._queue(
            entry_index, Item(entry._replace(name=name, order=order), row, False), self._contents(result, formats)
        )
        with self._lock:
            self.num_made_again += 1
        return True

    def _queue(self, entry_index: int, item: Item, contents: dict[str, bytes]) -> None:
        """Queue an earlier result with these contents of its files. Other files, and what is known of them, stay."""
        entry = item.entry
        assert entry is not None
        former = entry.left()
        files = (NewFile(f"{entry.name}.{format}", found, former.get(format, ())) for format, found in contents.items())
        made = entry._replace(files={**entry.files, **self._marks(contents)}, former=former)
        self._committer.add(item._replace(entry=made, files=tuple(files)))
        self._journal.replace_files(entry_index, made)

    def renew(self, pending: PendingInput, source: Source | Failure) -> bool | None:
        """Queue an earlier result with the fields and path that its input has now, which only its row and its JSON have.

        Its other files stay, and those of the run that are missing are made. Called from several threads.

        Returns:
            False if its row is no result. None if the row cannot be read, so that it stays as it is.
        """
        assert pending.entry_index is not None
        try:
            if pending.is_moved:
                self._take_over(pending.entry_index, pending, source.index)
            old = self._entry(pending.entry_index)
            row = self._storage.read(ROWS, old.begin, old.end)
            result = to_result(json.loads(row), source.id, old.audio_s, source.index)
            name = pending.name or old.name
            own = old.files.keys() & (_NAMING if pending.is_moved else {"json"})
            formats = dict.fromkeys([*self._missing(pending.entry_index, name), *sorted(own)])
        except OSError as error:
            self.not_made.append(without_frames(error))
            return None
        except ValueError:
            return False
        row_before = result.row if isinstance(result, Failure) else result.audio.row
        fields = {**(row_before or {}), "audio_filepath": source.path} if pending.listed_fields else source.row
        if isinstance(result, Failure):
            result = replace(result, path=source.path, row=fields)
        else:
            result = replace(result, audio=replace(result.audio, path=source.path, row=fields))
        entry = old._replace(
            id=source.id,
            key=pending.key,
            state=pending.state,
            order=source.index,
            name=name,
            input_bytes=pending.num_bytes,
            row_crc=None,
        )
        renewed = Item(entry, content_of(result, "jsonl", self.style), is_renewed=True)
        self._queue(pending.entry_index, renewed, self._contents(result, formats))
        return True

    def recover(self) -> None:
        """Look into the files of the last commits of an earlier run that did not end well: a power cut may have taken them.

        A file that is missing or damaged is made again of its row; one of a replaced result is replaced or removed.
        """
        journal = self._journal
        found: list[str] = []
        queued: dict[int, list[str]] = {}  # formats, by entry index
        behind = journal.entry_indices[journal.entry_indices >= journal.num_synced]
        for entry_index in np.sort(behind[journal.entries["name"][behind] != 0]).tolist():
            entry = journal.entry(entry_index)
            has_row = entry.state != NO_STATE
            try:
                formats = [format for format in entry.files if has_row and not self._is_whole(entry, format)]
                if formats and self._make(entry_index, entry.name, formats, entry.order):
                    queued[entry_index] = formats
            except OSError as error:
                self.not_made.append(without_frames(error))
                self._committer.lack(None)
            gone = [(format, crcs) for format, crcs in entry.former.items() if format not in entry.files]
            self._committer.add(
                Item(None, files=tuple(NewFile(f"{entry.name}.{format}", None, crcs) for format, crcs in gone))
            )
            found += (f"{entry.name}.{format}" for format in entry.left())
        self._committer.flush()
        for entry_index, formats in queued.items():
            name = journal.entry(entry_index).name
            self.num_made_again -= all(f"{name}.{format}" in self._committer.kept for format in formats)
        if found:
            self._storage.sync(found)

    def _is_whole(self, entry: Entry, format: str) -> bool:
        file = f"{entry.name}.{format}"
        size = self._storage.size(file)
        return size == entry.files[format].size and crc32(self._storage.read(file)) == entry.files[format].crc


def row_of(storage: Storage, entry: Entry) -> dict[str, Any]:
    """Return a result's row; {} if it cannot be read, or someone edited it."""
    with suppress(OSError, ValueError):
        row = storage.read(ROWS, entry.begin, entry.end)
        return dict(json.loads(row)) if is_row(row) else {}
    return {}


def path_of(storage: Storage, entry: Entry) -> str:
    """Return the path that a result's row has; "" as row_of()."""
    return str(row_of(storage, entry).get("audio_filepath", ""))


def forgotten(old: Entry) -> Item:
    """Return what drops an entry whose files are another one's now."""
    return Item(old._replace(state=NO_STATE, begin=0, end=0, name="", files={}, former={}), has_new_row=False)


def file_formats(formats: Iterable[str]) -> tuple[str, ...]:
    """Return the formats that are a file for each input."""
    return tuple(format for format in formats if format != "jsonl")
