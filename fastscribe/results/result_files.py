"""Files of results: one for each input and format, staged until a commit gives them their names.

A file that the journal does not list is never replaced, renamed or removed: InTheWay. A listed file that someone edited
since stays as it is; only if a new result needs its name, it is kept beside, as `x.previous.srt`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from zlib import crc32

from fastscribe._system.file_kinds import InTheWay
from fastscribe.config import OutputStyle, SubtitleStyle
from fastscribe.results.commit import Committer
from fastscribe.results.entries import SUBTITLES, Entry
from fastscribe.results.file_names import NameChange, file_formats
from fastscribe.results.fingerprint import style_key
from fastscribe.results.formats.writers import render
from fastscribe.results.items import Item, StagedFile
from fastscribe.results.journal import Journal
from fastscribe.results.names import Rename
from fastscribe.results.storage import Storage
from fastscribe.results.stored import to_result
from fastscribe.types import Failure, Transcript


class ResultFiles:
    """Writer of results' files. Not thread-safe: callers hold Ledger.lock, except for `outdated` and `stored`.

    Args:
        storage: Where the files are.
        style: The formats; those but jsonl are a file for each input.
        journal: Lists the files of earlier runs.
        committer: Queue of all changes.
    """

    def __init__(self, storage: Storage, style: OutputStyle, journal: Journal, committer: Committer) -> None:
        self.formats = file_formats(style.formats)
        self.storage, self._style = storage, style
        self._journal, self._previous, self._committer = journal, journal.previous, committer
        self._style_key = style_key(style.subtitles)
        self._layouts = {style_key(layout): layout for layout in (SubtitleStyle(), style.subtitles)}

    def outdated(self, entry_index: int, name: str | None) -> list[str]:
        """Return the formats whose file an earlier result lacks, or has damaged or in another style.

        A file that someone edited is none of these: it stays, and the storage's `edits` lists it. An edit that keeps the size
        is noticed only where the style is another, because nothing else makes a run read the files.

        Args:
            entry_index: The result's journal entry.
            name: Its files' name without a format's extension; None: it has no files of its own.
        """
        previous, entry = self._previous, self._previous.entries[entry_index]
        sizes = previous.sizes(entry_index) if name is not None else {}
        styles = dict(zip(SUBTITLES, entry["styles"].tolist(), strict=True))
        return [
            format
            for format in self.formats
            if (format == "json" or not entry["failed"])  # a failed result has JSON alone
            and (
                format not in sizes
                or self._is_outdated(entry_index, name or "", format, styles.get(format, self._style_key))
            )
        ]

    def _is_outdated(self, entry_index: int, name: str, format: str, style: int) -> bool:
        """Return True if a file of an earlier result is missing, damaged or of another style, and nobody's edit."""
        file = f"{name}.{format}"
        found = self.storage.size(file)
        if found is None:
            return True
        if found == self._previous.sizes(entry_index)[format] and style == self._style_key:
            return False
        is_edited = self._is_edited(file, entry_index, format, style)
        if is_edited:
            self.storage.edits.kept[self.storage.path_of(file)] = None
        return not is_edited

    def _is_edited(self, file: str, entry_index: int, format: str, style: int) -> bool:
        """Return True unless a file is as its run wrote it, or as a kill or a power cut may leave it.

        The beginning of a file of subtitles whose layout is neither this run's nor the default counts as edited.
        """

        def written() -> bytes:
            layout = self._layouts.get(style, self._style.subtitles)
            found = self.stored(entry_index)
            return render(found[0], format, self._style.tokens, layout).encode() if found is not None else b""

        return not (self._is_as_written(file, entry_index, format) or self.storage.is_damaged(file, written))

    def name_of(self, entry_index: int) -> str:
        """Return the name of an earlier result's files; "" if it has none."""
        return self._journal.entry(entry_index).name if self._previous.sizes(entry_index) else ""

    def other_layouts(self, entry_index: int) -> set[str]:
        """Return the formats of an earlier result's subtitles that have another layout than this run's."""
        return self._previous.other_layouts(entry_index, self._style_key)

    def make_again(
        self, entry_index: int, name: str, stored: tuple[Transcript | Failure, bytes], formats: Sequence[str]
    ) -> None:
        """Make files from the row of an earlier result, and queue them with their entry.

        Args:
            entry_index: The result's journal entry.
            name: The files' name: the result's own, or a new one if it has none.
            stored: The result and its row, from `stored`, with the input's position.
            formats: Formats of the files.

        Raises:
            InTheWay: A file that the journal does not list has the name of one of them.
            OSError: A file cannot be written.
            OutputError: An earlier result could not be committed.
        """
        result, row = stored
        files = self.write(name, result, formats)
        try:
            entry = self._journal.entry(entry_index)
            kept = entry if entry.name == name else entry._replace(sizes={}, checksums={}, styles={})
            obsolete = [] if kept is entry else self.take_obsolete(name, entry_index, files)
            order = (result if isinstance(result, Failure) else result.audio).index
            entry = self.listed(kept._replace(name=name, order=order), files)
            self._committer.add(Item(name, entry, row, False, tuple(files), tuple(obsolete)))
        except BaseException:
            self.storage.discard(files)
            raise
        self._previous.is_made_again[entry_index] = True

    def stored(self, entry_index: int, order: int = 0) -> tuple[Transcript | Failure, bytes] | None:
        """Return the result in an earlier result's row, and the row; None if there is no such row.

        Args:
            entry_index: The result's journal entry.
            order: The input's position in this run.
        """
        entry = self._journal.entry(entry_index)
        row = self._journal.row(entry)
        try:
            return to_result(json.loads(row), entry.id, entry.audio_s, order), row
        except ValueError:
            return None

    def listed(self, entry: Entry, files: Sequence[StagedFile]) -> Entry:
        """Return the entry with these files, besides those that it lists already."""
        if not files:
            return entry
        new = {file.name.removeprefix(f"{entry.name}."): file for file in files}
        return entry._replace(
            sizes={**entry.sizes, **{format: file.size for format, file in new.items()}},
            checksums={**entry.checksums, **{format: file.crc for format, file in new.items()}},
            styles={**entry.styles, **{format: self._style_key for format in SUBTITLES if format in new}},
        )

    def write(self, name: str, result: Transcript | Failure, formats: Sequence[str] | None = None) -> list[StagedFile]:
        """Stage a result's files.

        Args:
            name: Name of the files without a format's extension.
            result: If another file has the name of a Failure's file, that file is not written; its row and stderr report the
                failure.
            formats: Formats of an earlier result's files, which must all be written; None: the run's.

        Returns:
            The files, for the committer.

        Raises:
            InTheWay: A file that the journal does not list has the name of one of them.
            OSError: A file cannot be written. None stays staged.
        """
        owner = self._previous.find_by_name(name)
        listed = self._previous.sizes(owner)
        files: list[StagedFile] = []
        try:
            for format in self.formats if formats is None else formats:
                content = render(result, format, self._style.tokens, self._style.subtitles).encode()
                if not content and isinstance(result, Failure):
                    continue
                try:
                    self._check_after_renames(name, format, owner, content)
                except InTheWay:
                    if isinstance(result, Failure) and formats is None:
                        continue
                    raise
                files.append(self.storage.stage(f"{name}.{format}", content, is_listed=format in listed))
        except BaseException:
            self.storage.discard(files)
            raise
        return files

    def take_obsolete(self, name: str, entry_index: int | None, files: Sequence[StagedFile]) -> list[str]:
        """Return files of earlier results that a new result makes obsolete. Later calls do not return them again.

        Args:
            name: Name of the new result's files.
            entry_index: Journal entry that the new result replaces, if any.
            files: The new result's files.

        Raises:
            InTheWay: One of them is no regular file now.
        """
        previous, written = self._previous, {file.name for file in files}
        found = []
        entry_indices = {previous.find_by_name(name): name}
        if entry_index is not None and not previous.are_files_replaced[entry_index]:
            entry_indices.setdefault(entry_index, self._journal.entry(entry_index).name)
        for index, former in entry_indices.items():
            if index is None or previous.find_by_name(former) != index:
                continue
            for format in previous.sizes(index):
                file = f"{former}.{format}"
                if file not in written and self.storage.size(file) is not None:
                    self._check_replaceable(file, index, format, b"")
                    found.append(file)
            previous.are_files_replaced[index] = True
        return found

    def apply(self, change: NameChange) -> bool:
        """Rename an input's files because another input has the same name. Files of other runs' inputs keep the old name.

        Returns:
            True if files of an earlier run are renamed.
        """
        rename = change.rename
        is_earlier = bool(change.formats) and self.rename(rename, change.formats)
        for name in (rename.old, rename.new) if change.is_pending else (rename.new,):  # leftovers of a killed run
            for format in self.formats:
                self.storage.discard_stale(f"{name}.{format}")
        return is_earlier

    def rename(self, rename: Rename, formats: Collection[str]) -> bool:
        """Queue the rename of a finished input's files. They keep their name if a file is in the way.

        Args:
            rename: The names.
            formats: Formats of this run; those that an earlier run's entry lists are added.

        Returns:
            True if files of an earlier run are renamed.
        """
        if self._committer.is_queued(rename.old):
            self._committer.flush()
        earlier = self._previous.sizes(self._previous.find_by_name(rename.old))
        formats = dict.fromkeys([*formats, *earlier])
        present = [format for format in formats if self.storage.size(f"{rename.old}.{format}") is not None]
        if not present or any(self.storage.is_taken(f"{rename.new}.{format}") for format in present):
            return False
        moves = tuple((f"{rename.old}.{format}", f"{rename.new}.{format}") for format in present)
        self._committer.add(Item(rename.old, rename=rename, moves=moves))
        return bool(earlier)

    def _check_after_renames(self, name: str, format: str, owner: int | None, content: bytes) -> None:
        """Check that a file can be replaced; wait for a queued rename of the file that is there."""
        file = f"{name}.{format}"
        try:
            self._check_replaceable(file, owner, format, content)
        except InTheWay:
            if not self._committer.is_queued(name):
                raise
            self._committer.flush()
            self._check_replaceable(file, owner, format, content)

    def _check_replaceable(self, file: str, owner: int | None, format: str, content: bytes) -> None:
        """Raise InTheWay unless the name is free or has a regular file that the journal lists. Keep an edited one beside.

        Args:
            file: The name of a result's file.
            owner: The journal entry that lists files of this name, if any.
            format: The file's format.
            content: The new content. A beginning of it, as a power cut leaves files, is no edit.
        """
        if not self.storage.is_taken(file):
            return
        if owner is None or format not in self._previous.sizes(owner):
            if self.storage.is_left_over(file):
                return
            raise InTheWay(self.storage.path_of(file))
        size = self.storage.size(file)
        if size is None:
            raise InTheWay(self.storage.path_of(file))
        has_same_size = size == self._previous.sizes(owner)[format]
        is_as_written = self._is_as_written(file, owner, format) if self.storage.is_local else has_same_size
        if not is_as_written and not self.storage.is_damaged(file, lambda: content):
            self.storage.set_aside(file)

    def _is_as_written(self, file: str, owner: int, format: str) -> bool:
        """Return True if a file's content is what its run wrote."""
        if self.storage.size(file) != self._previous.sizes(owner)[format]:
            return False
        return crc32(self.storage.read(file)) == self._journal.entry(owner).checksums.get(format)
