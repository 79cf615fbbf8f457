"""What is finished in an output folder: one line an input in `journal.jsonl`, written once the input's outputs are durable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastscribe._system.safe_files import open_append, write_atomic
from fastscribe._system.safe_open import safe_open
from fastscribe.errors import UsageError
from fastscribe.output.names import name_key
from fastscribe.resume.commit import Appender, redo
from fastscribe.resume.entries import (
    ENTRY,
    HEADER_KEY,
    VERSION,
    Paths,
    PreviousRun,
    load_entries_and_names,
    parse_entry,
    read_header,
)
from fastscribe.resume.repair import load_intact_entries, repair


class Journal:
    """An open journal. Made by `begin` or `resume`, below."""

    def __init__(self, paths: Paths, previous: PreviousRun) -> None:
        self.paths = paths
        self.previous = previous
        self.file = Appender(open_append(paths.journal), paths.journal)

    def name_of(self, entry_index: int) -> str:
        """The name of an earlier result's files, "" if there are none."""
        ends, names = self.previous.entries["line_end"], self.previous.entries["name"]
        with safe_open(self.paths.journal) as file:
            file.seek(int(ends[entry_index - 1]) if entry_index else len(file.readline()))
            entry = parse_entry(file.readline())
        assert entry is not None
        if names[entry_index] and name_key(entry.name) != names[entry_index]:  # few have been renamed
            return load_entries_and_names(self.paths.journal)[1][entry_index]
        return entry.name

    def close(self) -> None:
        self.file.close()


def begin(paths: Paths, fingerprint: Mapping[str, Any]) -> Journal:
    """An empty journal; there must be none."""
    header = json.dumps({HEADER_KEY: VERSION, "fingerprint": fingerprint}, ensure_ascii=False) + "\n"
    write_atomic(paths.journal, header.encode())
    return Journal(paths, PreviousRun(np.zeros(0, ENTRY)))


def resume(paths: Paths, fingerprint: Mapping[str, Any]) -> Journal:
    """The journal that is there, repaired, after finish_compaction. Raises UsageError where it is another kind of run's."""
    _check_fingerprint(paths, fingerprint)
    redo(paths)
    return Journal(paths, PreviousRun(repair(paths)))


def load_readonly(paths: Paths, fingerprint: Mapping[str, Any]) -> PreviousRun:
    """What is finished, as `resume` would find it, from files that are left as they are."""
    _check_fingerprint(paths, fingerprint)
    entries, num_kept = load_intact_entries(paths)
    return PreviousRun(entries[:num_kept])


def _check_fingerprint(paths: Paths, fingerprint: Mapping[str, Any]) -> None:
    before, now = read_header(paths.journal), json.loads(json.dumps(fingerprint))
    if before == now:
        return
    names = [name for name in [*before, *(set(now) - set(before))] if _shown(before, name) != _shown(now, name)]
    differences = "; ".join(f"{name} was {_shown(before, name)}, is {_shown(now, name)}" for name in names)
    raise UsageError(
        f"{paths.directory}: holds results of a run with other settings ({differences}): use another folder, or "
        "--overwrite to start over"
    )


def _shown(fingerprint: Mapping[str, Any], name: str) -> str:
    return json.dumps(fingerprint[name], ensure_ascii=False) if name in fingerprint else "not there"
