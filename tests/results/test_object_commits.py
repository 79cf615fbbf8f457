"""A run into a store that is killed at any write loses nothing that it listed, and can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastscribe.results.entries import PreviousRun
from fastscribe.results.object_journal import ObjectJournal, find_runs

from fastscribe._system import remote
from fastscribe.results.objects import ObjectFolder
from tests.fakes.killed_disk import sources
from tests.fakes.killed_store import URL, KilledStore, contents, files, killed_store, public, run, run_killed


@pytest.fixture
def store() -> Iterator[KilledStore]:
    with killed_store() as found:
        yield found


def listed() -> dict[str, dict[str, int]]:
    """The ids that the journal lists as done, with the sizes of their files. Checks that rows and files are there."""
    objects, folder = contents(), ObjectFolder(URL)
    runs = [one for one in find_runs(objects) if one.runs]
    if not runs:
        return {}
    assert not runs[0].without_rows
    journal = ObjectJournal(folder, runs[0])
    previous: PreviousRun = journal.previous
    live = [index for index in previous.entry_indices.tolist() if previous.entries["state"][index]]
    found = {journal.entry(index).name: previous.sizes(index) for index in live}
    rows = [json.loads(line) for line in journal.join_rows(ordered=False).read_bytes().splitlines()]
    assert len(rows) == len({row["audio_filepath"] for row in rows}) == len(live)
    journal.close()
    folder.close()
    return found


def check_listed(but: tuple[str, ...] = ()) -> set[str]:
    """Check that the store has every file that the journal lists, `but` of inputs that are being done again."""
    objects, found = contents(), listed()
    for name, sizes in found.items():
        if name not in but:
            assert sizes == {format: len(objects[f"{name}.{format}"]) for format in sizes}
    return set(found)


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
    assert len(expected["transcripts.jsonl"].splitlines()) == 4 and "a.wav.txt" in expected
    for kills in every_kill(store, lambda: None, {}, lambda: given):
        done = check_listed()
        written = run(given)
        assert done.isdisjoint(Path(path).name for path in written)
        assert public(contents()) == expected, kills
    assert kills > 10


def test_a_kill_at_any_write_of_a_run_that_replaces_results(store: KilledStore, tmp_path: Path) -> None:
    folder, missing = tmp_path / "in", tmp_path / "missing.wav"
    before = sources(*files(folder, a="one", b="bad", c="three"), missing)
    names = [path.name for path in folder.iterdir()]

    def first_run() -> None:
        files(folder, a="one", b="bad", c="three")
        run(before)
        files(folder, a="four!", b="fine", c="bad")  # a is longer, b is repaired, c is broken now

    first_run()
    after = sources(*sorted(folder.iterdir()))
    run(after)
    expected, kills = public(contents()), 0
    assert len(expected["transcripts.jsonl"].splitlines()) == 3 and "c.wav.txt" not in expected
    for kills in every_kill(store, first_run, {}, lambda: after):
        check_listed(but=tuple(names))
        run(after)
        assert public(contents()) == expected, kills
    assert kills > 10


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_at_any_write_of_overwrite(store: KilledStore, tmp_path: Path, overwrite: bool) -> None:
    given = sources(*files(tmp_path / "in", a="one", b="two"))
    run(given)
    expected, kills = public(contents()), 0
    theirs = {"notes.txt": b"mine", "sub/a.wav.txt": b"mine too"}

    def first_run() -> None:
        run(given)
        for name, content in theirs.items():
            remote.write_object(f"{URL}/{name}", content)

    for kills in every_kill(store, first_run, {"overwrite": True}, lambda: given):
        run(given, overwrite=overwrite)
        assert public(contents()) == {**expected, **theirs}, kills
    assert kills > 10


def test_a_kill_leaves_no_files_of_inputs_that_are_not_given_again(store: KilledStore, tmp_path: Path) -> None:
    given, kills = sources(*files(tmp_path / "in", a="one", b="two", c="three")), 0
    for kills in every_kill(store, lambda: None, {}, lambda: given):
        run(given[2:])
        ours = {f"{name}.{format}" for name, sizes in listed().items() for format in sizes}
        assert set(public(contents())) == {*ours, "transcripts.jsonl", "report.json"}, kills
    assert kills > 10
