"""Compaction leaves the rows that count, sorted if that is asked for, and a kill in between leaves the old pair or the new."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fastscribe._system.safe_files import temp_path_for
from fastscribe.config import OutputStyle
from fastscribe.errors import OutputError, UsageError
from fastscribe.results import compact as compact_module
from fastscribe.results.compact import compact, finish_compaction
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.journal import (
    NO_STATE,
    SYNCED,
    Entry,
    FileMark,
    header_line,
    read_entries,
    read_journal,
    run_line,
)
from fastscribe.results.output import open_journaled
from fastscribe.results.paths import SWAP, Paths
from tests.results.test_output import put, spoken

FACTS, FILES = {"request": "x"}, {"txt": FileMark(1, 2)}


def row(text: str) -> bytes:
    return f'{{"audio_filepath": "{text}"}}\n'.encode()


def write(folder: Path, keys: Sequence[int], orders: Sequence[int]) -> Paths:
    """Write rows and journal. Each row is of an input with this key and order."""
    paths, at, lines, rows = Paths(folder, ""), 0, [header_line({"a": 1}), run_line(FACTS)], b""
    for number, (key, order) in enumerate(zip(keys, orders, strict=True)):
        rows += row("x" * number)
        entry = Entry("a", key, 9, at, len(rows), order, False, name="a", files=FILES, former={"txt": (3,)})
        at = len(rows)
        lines += [entry.line(), SYNCED]
    paths.rows.write_bytes(rows)
    paths.journal.write_bytes(b"".join(lines))
    return paths


@pytest.mark.parametrize("ordered", [False, True])
def test_replaced_rows_go_and_rows_are_sorted(tmp_path: Path, ordered: bool) -> None:
    paths = write(tmp_path, [1, 2, 1, 3], [2, 1, 2, 0])
    compact(paths, ordered)
    places = [3, 1, 2] if ordered else [1, 2, 3]
    assert paths.rows.read_bytes() == b"".join(row("x" * place) for place in places)
    journal, entries = read_journal(paths.journal), list(read_entries(paths.journal))
    assert (journal.header, journal.facts, journal.num_synced) == ({"a": 1}, FACTS, 3)
    assert [(entry.key, entry.order, entry.end - entry.begin) for entry in entries] == [
        {1: (2, 1, len(row("x"))), 2: (1, 2, len(row("xx"))), 3: (3, 0, len(row("xxx")))}[place] for place in places
    ]
    assert all(entry.files == FILES and not entry.former for entry in entries)
    before = paths.journal.stat()
    compact(paths, ordered)
    assert paths.journal.stat().st_mtime_ns == before.st_mtime_ns  # there was nothing to change


def test_the_order_of_this_run_counts(tmp_path: Path) -> None:
    paths = write(tmp_path, [1, 2], [0, 1])
    compact(paths, True, np.array([5, 4]))
    assert [entry.order for entry in read_entries(paths.journal)] == [4, 5]
    assert paths.rows.read_bytes() == row("x") + row("")


@pytest.mark.parametrize("synced", [SYNCED, b""])
def test_an_entry_without_a_result_stays_while_it_owns_files(tmp_path: Path, synced: bytes) -> None:
    """Or while the next run has to look into what it left."""
    paths = write(tmp_path, [1], [0])
    lost = Entry("b", 2, NO_STATE, 0, 0, 1, False, name="b", files=FILES)
    with paths.journal.open("ab") as file:
        file.write(lost.line() + lost._replace(key=3, files={}, former={"txt": (3,)}).line() + synced)
    compact(paths, False)
    assert {entry.key for entry in read_entries(paths.journal)} == ({1, 2} if synced else {1, 2, 3})


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize("renamed", [True, False])
def test_a_kill_leaves_the_old_pair_or_the_new(tmp_path: Path, swap: bool, renamed: bool) -> None:
    paths = write(tmp_path, [1, 1], [0, 0])
    for path in (paths.rows, paths.journal):
        temp_path_for(path).write_bytes(b"new\n")
    if swap:
        paths.swap.write_bytes(SWAP)
        if renamed:
            temp_path_for(paths.rows).replace(paths.rows)
    old = paths.rows.read_bytes()
    finish_compaction(paths)
    assert (paths.rows.read_bytes(), paths.journal.read_bytes() == b"new\n") == (b"new\n" if swap else old, swap)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "transcripts.jsonl"]


def test_a_marker_is_durable_before_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that wrote it may have failed to wait for it; a power cut must not leave the new rows and the old journal."""
    paths, done = write(tmp_path, [1, 1], [0, 0]), list[str]()
    for path in (paths.rows, paths.journal):
        temp_path_for(path).write_bytes(b"new\n")
    paths.swap.write_bytes(SWAP)
    for name in ("sync_folder", "rename_into_place", "remove"):
        inner = getattr(compact_module, name)
        monkeypatch.setattr(compact_module, name, lambda path, name=name, call=inner: done.append(name) or call(path))
    finish_compaction(paths)
    assert done == ["sync_folder", "rename_into_place", "rename_into_place", "sync_folder", "remove", "sync_folder"]


def test_a_full_disk_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = write(tmp_path, [1, 1], [0, 0])
    before = paths.rows.read_bytes(), paths.journal.read_bytes()
    monkeypatch.setattr(compact_module, "sync", fail)
    with pytest.raises(OutputError, match=r"transcripts\.jsonl: its result cannot be written: No space left on device"):
        compact(paths, False)
    assert (paths.rows.read_bytes(), paths.journal.read_bytes()) == before
    assert not list(tmp_path.glob(".*"))


def test_rows_that_were_changed_are_an_error(tmp_path: Path) -> None:
    paths = write(tmp_path, [1, 2], [1, 0])
    paths.rows.write_bytes(paths.rows.read_bytes().replace(b"\n", b" "))
    with pytest.raises(UsageError, match="was changed since the last run"):
        compact(paths, True)


def test_rows_that_are_right_are_not_written_again(tmp_path: Path) -> None:
    """Files of another format give results new lines for the same rows."""
    with open_journaled(tmp_path, OutputRun(OutputStyle(), {})) as output:
        for index, id in enumerate(("a.wav", "b.wav")):
            put(output, spoken(id, index=index))
    rows = os.stat(tmp_path / "transcripts.jsonl")
    run = OutputRun(OutputStyle(("jsonl", "txt")), {})
    with open_journaled(tmp_path, run) as output:
        assert not any(put(output, spoken(id, index=index)) for index, id in enumerate(("a.wav", "b.wav")))
    assert os.stat(tmp_path / "transcripts.jsonl").st_ino == rows.st_ino
    journal = read_journal(tmp_path / "journal.jsonl")
    assert len(journal.entries) == journal.num_synced == 2 and journal.entry(1).files.keys() == {"txt"}
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["a.wav\n", "b.wav\n"]
