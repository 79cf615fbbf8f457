"""The journal of an output folder: one line for each finished input, written once its outputs are durable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastscribe._system.safe_files import write_atomic
from fastscribe._system.safe_open import safe_open
from fastscribe.errors import UsageError
from fastscribe.results.block import redo
from fastscribe.results.entries import ENTRY, Entry, PreviousRun, is_row, load_entries_and_names, parse_entry
from fastscribe.results.names import name_key
from fastscribe.results.paths import Paths, header_line, read_header
from fastscribe.results.repair import check_unedited, load_intact_entries, repair

_ABSENT = object()
_LEFT_OUT = {"--beam": 1, "--pnc": True}  # values that a fingerprint does not mention


class Journal:
    """The results of earlier runs, as their journal has them. Use `begin` or `resume`.

    Args:
        paths: The folder's files.
        previous: The entries of earlier runs.
        fingerprint: Of the run that wrote them.
        is_new: There was no journal before.
    """

    def __init__(
        self, paths: Paths, previous: PreviousRun, fingerprint: Mapping[str, Any], is_new: bool = False
    ) -> None:
        self.paths, self.previous, self.fingerprint, self.is_new = paths, previous, fingerprint, is_new

    def entry(self, entry_index: int) -> Entry:
        """Return an earlier result's entry, with the name of its files when the journal was opened."""
        ends, names = self.previous.entries["line_end"], self.previous.entries["name"]
        with safe_open(self.paths.journal) as file:
            file.seek(int(ends[entry_index - 1]) if entry_index else len(file.readline()))
            entry = parse_entry(file.readline())
        assert entry is not None
        if names[entry_index] and name_key(entry.name) != names[entry_index]:  # few have been renamed
            return entry._replace(name=self._new_names[entry_index])
        return entry

    @cached_property
    def _new_names(self) -> dict[int, str]:
        """The new names of renamed files, by entry index. They are read once: a run asks for the entries of earlier runs."""
        return load_entries_and_names(self.paths.journal)[1]

    def row(self, entry: Entry) -> bytes:
        """Return an earlier result's row; b"" if it has none."""
        with safe_open(self.paths.rows) as file:
            file.seek(entry.begin)
            row = file.read(entry.end - entry.begin)
        return row if is_row(row) else b""


def begin(paths: Paths, fingerprint: Mapping[str, Any]) -> Journal:
    """Create an empty journal. The caller has checked that there is none. Raises OSError."""
    write_atomic(paths.journal, header_line(fingerprint))
    return Journal(paths, PreviousRun(np.zeros(0, ENTRY)), fingerprint, is_new=True)


def resume(paths: Paths, fingerprint: Mapping[str, Any], say: Callable[[str], object] = print) -> Journal:
    """Repair and open a journal, after finish_compaction.

    Args:
        paths: The folder's files.
        fingerprint: Of this run.
        say: Shows one line to the user if someone edited the rows.

    Raises:
        UsageError: The results are of a run with other settings, or the rows cannot be repaired.
        OSError: A file cannot be written.
    """
    _check_fingerprint(paths, fingerprint)
    redo(paths)
    return Journal(paths, PreviousRun(repair(paths, say)), read_header(paths.journal))


def resume_unedited(paths: Paths) -> Journal:
    """Open a journal, after finish_compaction, whatever its settings. Raise UsageError if someone changed its rows."""
    _check_fingerprint(paths, None)
    redo(paths)
    check_unedited(paths)
    return Journal(paths, PreviousRun(repair(paths)), read_header(paths.journal))


def load_readonly(paths: Paths, fingerprint: Mapping[str, Any]) -> PreviousRun:
    """Return the entries that `resume` would find, without changing a file."""
    _check_fingerprint(paths, fingerprint)
    entries, num_kept = load_intact_entries(paths)
    return PreviousRun(entries[:num_kept])


def _check_fingerprint(paths: Paths, fingerprint: Mapping[str, Any] | None) -> None:
    if fingerprint is not None:
        check_same_settings(paths.directory, read_header(paths.journal), fingerprint)


def check_same_settings(where: Path | str, before: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> None:
    """Raise UsageError if the results there are of a run with other settings.

    Args:
        where: The output folder or URL.
        before: The fingerprint of the earlier run.
        fingerprint: This run's.
    """
    now = json.loads(json.dumps(fingerprint))
    names = [name for name in {**before, **now} if _shown(before, name) != _shown(now, name)]
    if not names:
        return
    differences = "; ".join(f"{name} was {_shown(before, name)}, is {_shown(now, name)}" for name in names)
    why = ", which needs decoding again" if names == ["--tokens"] and now["--tokens"] else ""
    raise UsageError(
        f"{where}: holds results of a run with other settings ({differences}{why}): use another folder, or "
        "--overwrite to start over"
    )


def _shown(fingerprint: Mapping[str, Any], name: str) -> str:
    value = fingerprint.get(name, _LEFT_OUT.get(name, _ABSENT))
    if value is None:
        return "not set"
    return "not there" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
