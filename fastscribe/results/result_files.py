"""Files of results in an output folder: one for each input and format, under a temporary name until commit.py renames it.

A file that the journal does not list is never replaced, renamed or removed: InTheWay. A listed file that someone edited
since stays as it is; only if a new result needs its name, it is kept beside, as `x.previous.srt`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from zlib import crc32

from fastscribe._system.safe_files import (
    InTheWay,
    discard_temp,
    is_truncated_or_blank,
    keep_edited_copy,
    status_of,
    temp_path_for,
    write_temp,
)
from fastscribe.config import OutputStyle
from fastscribe.results.commit import Committer, PendingFile, discard_temps, finished_item, rename_item
from fastscribe.results.edits import Edits
from fastscribe.results.entries import SUBTITLES, Entry, has_checksum, recorded_size
from fastscribe.results.file_names import NameChange, file_formats
from fastscribe.results.fingerprint import older_style, style_key
from fastscribe.results.formats.writers import render
from fastscribe.results.journal import Journal
from fastscribe.results.names import Rename
from fastscribe.results.stored import to_result
from fastscribe.types import Failure, Transcript


class ResultFiles:
    """Writer of results' files. Not thread-safe: callers hold Ledger.lock, except for `exist`.

    Args:
        directory: The output folder.
        style: The formats; those but jsonl are a file for each input.
        shard_suffix: Suffix of temporary names, so that a shard removes its own leftovers only.
        journal: Lists the files of earlier runs.
        committer: Queue of all changes.
    """

    def __init__(
        self, directory: Path, style: OutputStyle, shard_suffix: str, journal: Journal, committer: Committer
    ) -> None:
        self.formats = file_formats(style.formats)
        self._directory, self._style, self._shard_suffix = directory, style, shard_suffix
        self._journal, self._previous, self._committer = journal, journal.previous, committer
        self._style_key, self._older_layout = style_key(style.subtitles), older_style(journal.fingerprint)
        self._older_style = style_key(self._older_layout)
        self.edits = Edits()

    def outdated(self, entry_index: int, name: str | None) -> list[str]:
        """Return the formats whose file an earlier result lacks, or has damaged or in another style.

        A file that someone edited is none of these: it stays, and `edits` lists it. An edit that keeps the size is noticed
        only where the style is another, because nothing else makes a run read the files.

        Args:
            entry_index: The result's journal entry.
            name: Its files' name without a format's extension; None: it has no files of its own.
        """
        previous, entry = self._previous, self._previous.entries[entry_index]
        sizes = previous.sizes(entry_index) if name is not None else {}
        styles = {format: int(key) or self._older_style for format, key in zip(SUBTITLES, entry["styles"], strict=True)}
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
        path = self._path(name, format)
        found = recorded_size(path)
        if found is None:
            return True
        if found == self._previous.sizes(entry_index)[format] and style == self._style_key:
            return False
        is_edited = self._is_edited(path, entry_index, format, style)
        if is_edited:
            self.edits.kept[str(path)] = None
        return not is_edited

    def _is_edited(self, path: Path, entry_index: int, format: str, style: int) -> bool:
        """Return True unless a file is as its run wrote it, or empty, zeros or a beginning of that, as a power cut leaves it.

        The beginning of a file of subtitles whose layout is neither this run's nor the folder's counts as edited.
        """
        if self._is_as_written(path, entry_index, format):
            return False
        layout = self._older_layout if style == self._older_style else self._style.subtitles
        result = self._stored(self._journal.entry(entry_index))
        written = render(result, format, self._style.tokens, layout) if result is not None else ""
        return not is_truncated_or_blank(path, written.encode())

    def name_of(self, entry_index: int) -> str:
        """Return the name of an earlier result's files; "" if it has none."""
        return self._journal.entry(entry_index).name if self._previous.sizes(entry_index) else ""

    def other_layouts(self, entry_index: int) -> set[str]:
        """Return the formats of an earlier result's subtitles that have another layout than this run's."""
        return self._previous.other_layouts(entry_index, self._style_key)

    def make_again(self, entry_index: int, name: str, order: int, formats: Sequence[str]) -> bool:
        """Make files from the row of an earlier result, and queue them with their entry.

        Args:
            entry_index: The result's journal entry.
            name: The files' name: the result's own, or a new one if it has none.
            order: The input's position.
            formats: Formats of the files.

        Returns:
            False if the row is no result; then nothing was changed.

        Raises:
            InTheWay: A file that the journal does not list has the name of one of them.
            OSError: A file cannot be written.
            OutputError: An earlier result could not be committed.
        """
        entry = self._journal.entry(entry_index)
        result = self._stored(entry, order)
        if result is None:
            return False
        files = self.write(name, result, formats)
        try:
            kept = entry if entry.name == name else entry._replace(sizes={}, checksums={}, styles={})
            obsolete = [] if kept is entry else self.take_obsolete(name, entry_index, files)
            entry = self.listed(kept._replace(name=name, order=order), files)
            self._committer.add(finished_item(entry, b"", files, obsolete))
        except BaseException:
            self.discard(files)
            raise
        self._previous.is_made_again[entry_index] = True
        return True

    def has_row(self, entry_index: int) -> bool:
        """Return True if the row of an earlier result is one, so that files can be made of it."""
        return self._stored(self._journal.entry(entry_index)) is not None

    def _stored(self, entry: Entry, order: int = 0) -> Transcript | Failure | None:
        """Return the result in an earlier result's row; None if there is none."""
        try:
            return to_result(json.loads(self._journal.row(entry)), entry.id, entry.audio_s, order)
        except ValueError:
            return None

    def listed(self, entry: Entry, files: Sequence[PendingFile]) -> Entry:
        """Return the entry with these files, besides those that it lists already."""
        if not files:
            return entry
        new = {file.name.removeprefix(f"{entry.name}."): file for file in files}
        return entry._replace(
            sizes={**entry.sizes, **{format: file.size for format, file in new.items()}},
            checksums={**entry.checksums, **{format: file.crc for format, file in new.items()}},
            styles={**entry.styles, **{format: self._style_key for format in SUBTITLES if format in new}},
        )

    def write(self, name: str, result: Transcript | Failure, formats: Sequence[str] | None = None) -> list[PendingFile]:
        """Write a result's temporary files.

        Args:
            name: Name of the files without a format's extension.
            result: If another file has the name of a Failure's file, that file is not written; its row and stderr report the
                failure.
            formats: Formats of an earlier result's files, which must all be written; None: the run's.

        Returns:
            The files, for the committer.

        Raises:
            InTheWay: A file that the journal does not list has the name of one of them.
            OSError: A file cannot be written. No temporary file is left.
        """
        owner = self._previous.find_by_name(name)
        listed = self._previous.sizes(owner)
        files: list[PendingFile] = []
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
                temp = self._write_temp(name, format, content)
                crc = crc32(content)
                files.append(PendingFile(f"{name}.{format}", temp, len(content), crc, is_replacing=format in listed))
        except BaseException:
            self.discard(files)
            raise
        return files

    def discard(self, files: Iterable[PendingFile]) -> None:
        """Remove temporary files that the committer has not taken."""
        discard_temps(self._directory, files)

    def take_obsolete(self, name: str, entry_index: int | None, files: Sequence[PendingFile]) -> list[str]:
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
                path = self._path(former, format)
                if f"{former}.{format}" not in written and recorded_size(path) is not None:
                    self._check_replaceable(path, index, format, b"")
                    found.append(f"{former}.{format}")
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
                discard_temp(self._shard_path(name, format))
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
        present = [format for format in formats if recorded_size(self._path(rename.old, format)) is not None]
        if not present or any(status_of(self._path(rename.new, format)) is not None for format in present):
            return False
        self._committer.add(rename_item(rename, present))
        return bool(earlier)

    def _write_temp(self, name: str, format: str, content: bytes) -> str:
        """Write a temporary file, and its folder if need be. Return its name, relative to the output folder."""
        path = self._shard_path(name, format)
        try:
            self._committer.watch(path.parent)
            write_temp(path, content)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._committer.watch(path.parent)
            write_temp(path, content)
        return os.path.relpath(temp_path_for(path), self._directory)

    def _check_after_renames(self, name: str, format: str, owner: int | None, content: bytes) -> None:
        """Check that a file can be replaced; wait for a queued rename of the file that is there."""
        path = self._path(name, format)
        try:
            self._check_replaceable(path, owner, format, content)
        except InTheWay:
            if not self._committer.is_queued(name):
                raise
            self._committer.flush()
            self._check_replaceable(path, owner, format, content)

    def _check_replaceable(self, path: Path, owner: int | None, format: str, content: bytes) -> None:
        """Raise InTheWay unless `path` is free or a regular file that the journal lists. Keep an edited one beside.

        Args:
            path: Where a result's file goes.
            owner: The journal entry that lists files of this name, if any.
            format: The file's format.
            content: The new content. A beginning of it, as a power cut leaves files, is no edit.
        """
        if status_of(path) is None:
            return
        if owner is None or format not in self._previous.sizes(owner) or recorded_size(path) is None:
            raise InTheWay(path)
        if not self._is_as_written(path, owner, format) and not is_truncated_or_blank(path, content):
            self.edits.set_aside[str(path)] = keep_edited_copy(path).name

    def _is_as_written(self, path: Path, owner: int, format: str) -> bool:
        """Return True if a file's content is what its run wrote. Entries of older versions tell the size alone."""
        if recorded_size(path) != self._previous.sizes(owner)[format]:
            return False
        entry = self._journal.entry(owner)
        result = None if format in entry.checksums else self._stored(entry)
        if result is None:
            return has_checksum(path, entry.checksums.get(format))
        return path.read_bytes() == render(result, format, self._style.tokens, self._older_layout).encode()

    def _path(self, name: str, format: str) -> Path:
        return self._directory / f"{name}.{format}"

    def _shard_path(self, name: str, format: str) -> Path:
        return self._path(name, format + self._shard_suffix)
