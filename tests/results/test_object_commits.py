"""A run into a store that is killed at any write loses nothing that it listed, and can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from fastscribe._system import remote
from fastscribe.results.objects import ObjectFolder
from fastscribe.results.parts import Parts, find_runs
from tests.fakes.killed_disk import sources
from tests.fakes.killed_store import URL, KilledStore, contents, files, killed_store, public, run, run_killed


@pytest.fixture
def store() -> Iterator[KilledStore]:
    with killed_store() as found:
        yield found


def listed() -> dict[str, int]:
    """The files of results that the journal has, with their CRC-32. Checks that each result has one row."""
    folder = ObjectFolder(URL)
    runs = [one for one in find_runs(folder.list()) if one.runs]
    if not runs:
        folder.close()
        return {}
    parts = Parts(folder, runs[0])
    entries = [parts.journal.entry(index) for index in parts.journal.entry_indices.tolist()]
    rows = [json.loads(line) for line in parts.join_rows(ordered=False).read_bytes().splitlines()]
    assert len(rows) == len({row["audio_filepath"] for row in rows}) == len(entries)
    parts.close()
    folder.close()
    return {f"{entry.name}.{format}": mark.crc for entry in entries for format, mark in entry.files.items()}


def every_kill(store: KilledStore, prepare: Any, attempt: dict[str, Any], inputs: Any) -> Iterator[int]:
    """Prepare a store and kill an attempt, before each of its writes."""
    number = 0
    while True:
        store._store._fs.store.clear()
        prepare()
        if not run_killed(store, number, inputs(), **attempt):
            return
        yield number
        number += 1


def test_a_kill_at_any_write_of_a_first_run(store: KilledStore, tmp_path: Path) -> None:
    given = sources(*files(tmp_path / "in", a="one", b="bad", c="three"), tmp_path / "missing.wav")
    run(given)
    expected, kills = public(contents()), 0
    assert len(expected["transcripts.jsonl"].splitlines()) == 4 and "a.txt" in expected
    for kills in every_kill(store, lambda: None, {}, lambda: given):
        done = {name.rpartition(".")[0] for name in listed()}
        written = run(given)
        assert done.isdisjoint(Path(path).stem for path in written)
        assert public(contents()) == expected, kills
        assert listed().items() <= {name: crc32(content) for name, content in expected.items()}.items()
    assert kills > 8


def test_a_kill_at_any_write_of_a_run_that_replaces_results(store: KilledStore, tmp_path: Path) -> None:
    folder, missing = tmp_path / "in", tmp_path / "missing.wav"
    before = sources(*files(folder, a="one", b="bad", c="three"), missing)

    def first_run() -> None:
        files(folder, a="one", b="bad", c="three")
        run(before)
        files(folder, a="four!", b="fine", c="bad")  # a is longer, b is repaired, c is broken now

    first_run()
    after = sources(*sorted(folder.iterdir()))
    run(after)
    expected, kills = public(contents()), 0
    assert len(expected["transcripts.jsonl"].splitlines()) == 3 and "c.txt" not in expected
    for kills in every_kill(store, first_run, {}, lambda: after):
        run(after)
        assert public(contents()) == expected, kills
    assert kills > 8


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_at_any_write_of_overwrite(store: KilledStore, tmp_path: Path, overwrite: bool) -> None:
    given = sources(*files(tmp_path / "in", a="one", b="two"))
    run(given)
    expected, kills = public(contents()), 0
    theirs = {"notes.txt": b"mine", "sub/a.txt": b"mine too"}

    def first_run() -> None:
        run(given)
        for name, content in theirs.items():
            remote.write_object(f"{URL}/{name}", content)

    for kills in every_kill(store, first_run, {"overwrite": True}, lambda: given):
        run(given, overwrite=overwrite)
        assert public(contents()) == {**expected, **theirs}, kills
    assert kills > 8


def test_a_kill_leaves_no_files_that_no_row_has(store: KilledStore, tmp_path: Path) -> None:
    """Nor does a row lack its files, although its input is not given again."""
    given, kills = sources(*files(tmp_path / "in", a="one", b="two", c="three")), 0
    for kills in every_kill(store, lambda: None, {}, lambda: given):
        run(given[2:])
        assert set(public(contents())) == {*listed(), "transcripts.jsonl", "report.json"}, kills
    assert kills > 8
