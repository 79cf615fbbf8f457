"""After a cut at any byte, or an edit by hand, finished results stay and the rest is done again."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastscribe._system import safe_files
from fastscribe.errors import UsageError
from fastscribe.results.journal import NO_STATE, Entry, header_line, read_journal
from fastscribe.results.paths import Paths
from fastscribe.results.repair import check_unedited, repair
from tests.fakes.killed_disk import ROWS_ALONE, run, sources, state_of
from tests.results.test_output import Place


class Corpus:
    """Inputs with similar names: one twice, one broken and one missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("1/a.wav", "one"), ("1/b.wav", "two"), ("2/b.wav", "three"), ("1/a.mp3", "four")):
            self.put(name, text)
        self.put("1/c.wav", "bad")
        self.names = ["1/a.wav", "1/b.wav", "1/c.wav", "1/b.wav", "1/missing.wav", "2/b.wav", "1/a.mp3"]

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1000, 1000))

    def go(self, seed: int, **options: Any) -> Callable[[Path], list[str]]:
        inputs = sources(*(self.folder / name for name in self.names))
        return lambda folder: run(folder, inputs, random.Random(seed), **options)


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(safe_files, "_syncfs", lambda: lambda descriptor: 0)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path / "in")


@pytest.mark.parametrize("tail", [b"", b"\0", b"\0" * 5000])
def test_a_journal_cut_anywhere_is_repaired(tmp_path: Path, corpus: Corpus, tail: bytes) -> None:
    corpus.go(0, style=ROWS_ALONE)(tmp_path / "whole")
    whole = (tmp_path / "whole" / "transcripts.jsonl").read_bytes()
    expected, content = state_of(tmp_path / "whole", False), (tmp_path / "whole" / "journal.jsonl").read_bytes()
    first_end, lines = content.index(b"\n") + 1, content.splitlines(keepends=True)
    ends = np.cumsum([len(line) for line in lines]).tolist()
    has_entry = [b'"key"' in line for line in lines]
    for cut in {*range(0, first_end + 40, 9), *range(first_end, len(content), 83), *ends, *(end - 1 for end in ends)}:
        folder = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / "journal.jsonl").write_bytes(content[:cut] + tail)
        if cut < first_end:  # no run of ours leaves a journal without its first line, and the rows may be someone's
            with pytest.raises(UsageError, match=r"transcripts\.jsonl"):
                corpus.go(1, style=ROWS_ALONE)(folder)
            assert (folder / "transcripts.jsonl").read_bytes() == whole
        else:
            num_lost = sum(is_entry and end > cut for is_entry, end in zip(has_entry, ends, strict=True))
            assert len(corpus.go(1, style=ROWS_ALONE)(folder)) == num_lost
            assert state_of(folder, False) == expected, (
                cut
            )  # rows without their lines are our own, so nothing is beside
        shutil.rmtree(folder)


@pytest.mark.parametrize("tail", [b"", b"\0" * 300])
def test_rows_cut_anywhere_are_repaired(tmp_path: Path, corpus: Corpus, tail: bytes) -> None:
    """A power cut may leave cut rows beside a complete journal."""
    corpus.go(0)(tmp_path / "whole")
    expected, content = state_of(tmp_path / "whole", False), (tmp_path / "whole" / "transcripts.jsonl").read_bytes()
    for cut in range(0, len(content), 123 if tail else 41):
        folder = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / "transcripts.jsonl").write_bytes(content[:cut] + tail)
        assert len(corpus.go(1)(folder)) == content[cut:].count(b"\n")
        (folder / "transcripts.cut-off.jsonl").unlink(missing_ok=True)
        assert state_of(folder, False) == expected
        shutil.rmtree(folder)


def edit_longer(rows: list[bytes]) -> list[bytes]:
    return [rows[0], rows[1].replace(b"}", b', "checked": true}'), *rows[2:]]


EDITS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "longer": edit_longer,
    "shorter": lambda rows: [rows[0][:5] + rows[0][15:], *rows[1:]],
    "last longer": lambda rows: [*rows[:-1], rows[-1].replace(b"}", b" }")],
    "last shorter": lambda rows: [*rows[:-1], rows[-1].replace(b" ", b"")],
    "without the first": lambda rows: rows[1:],
    "without the fourth": lambda rows: rows[:3] + rows[4:],
    "second and last": lambda rows: [*edit_longer(rows)[:-1], rows[-1].replace(b"}", b" }")],
    "turned round": lambda rows: rows[::-1],
    "appended": lambda rows: [*rows, b"a line of mine\n"],
    "object appended": lambda rows: [*rows, b'{"mine": 1}\n'],
    "text": lambda rows: [b"instead\n"],
}
NUM_DONE_AGAIN = {
    **dict.fromkeys(("longer", "shorter", "last longer", "last shorter", "without the first", "without the fourth"), 1),
    **dict.fromkeys(("appended", "object appended"), 0),
    **{"turned round": 5, "second and last": 2},
}


@pytest.mark.parametrize("kind", EDITS)
def test_edits_by_hand_survive(tmp_path: Path, kind: str) -> None:
    place, ids, said = Place(tmp_path), [f"{'x' * number}.wav" for number in range(1, 7)], list[str]()
    place.run(ids, "txt")
    path = tmp_path / "transcripts.jsonl"
    rows = EDITS[kind](path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(rows))
    with pytest.raises(UsageError, match="was changed since its run"):
        check_unedited(Paths(tmp_path, ""), read_journal(tmp_path / "journal.jsonl"))
    done_again = place.run(ids, "txt", say=said.append)
    assert len(done_again) == NUM_DONE_AGAIN.get(kind, len(ids))
    left = b"".join(found.read_bytes() for found in sorted(tmp_path.glob("transcripts*")))
    assert all(row in left for row in rows)
    assert len(said) == 1 and said[0].endswith(" are done again")
    assert ("transcripts.cut-off.jsonl; their inputs" in said[0]) == ("without" not in kind)
    assert sorted(place.rows()) == [f"/in/{id}" for id in ids]
    assert {name: text for name, text in place.contents().items() if name.endswith(".txt")} == {
        id.replace("wav", "txt"): id for id in ids
    }


def test_an_edit_noticed_late_is_an_error(tmp_path: Path, corpus: Corpus) -> None:
    """Two edits keep the file's length, so the offsets between them are wrong."""
    corpus.go(0)(tmp_path / "out")
    path = tmp_path / "out" / "transcripts.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    edited = b"".join([rows[0][:-2] + b" }\n", *rows[1:-2], rows[-2].replace(b": ", b":", 1), rows[-1]])
    path.write_bytes(edited)
    corpus.put("1/a.wav", "another one")
    with pytest.raises(UsageError, match="was changed since the last run"):
        corpus.go(1)(tmp_path / "out")
    assert path.read_bytes().startswith(edited)
    assert corpus.go(1, overwrite=True)(tmp_path / "out")


def written(paths: Paths, *entries: Entry) -> Paths:
    paths.journal.write_bytes(header_line({}) + b"".join(entry.line() for entry in entries))
    return paths


ROW = b'{"audio_filepath": "a", "error": {}}\n'


def entry(number: int, place: int) -> Entry:
    """The entry of a row that is at this place."""
    return Entry("a", number + 1, 7, place * len(ROW), (place + 1) * len(ROW), number, False, name="a")


def test_an_edit_among_very_many_rows_is_an_error(tmp_path: Path) -> None:
    paths = written(Paths(tmp_path, ""), *(entry(number, number) for number in range(5000)))
    journal = read_journal(paths.journal)
    paths.rows.write_bytes(b" " + ROW * 5000)
    with pytest.raises(UsageError, match="changed"):
        repair(paths, journal, print)
    paths.rows.write_bytes(ROW * 5000)
    assert repair(paths, journal, print) is journal


def test_an_entry_that_lost_its_row_still_owns_its_files(tmp_path: Path) -> None:
    """Its state matches no input, so the input is done again and may replace them. Two entries may have one row."""
    entries = [entry(0, 0), entry(1, 1), entry(0, 0)._replace(name="b"), entry(2, 2)]
    paths = written(Paths(tmp_path, ""), *entries)
    paths.rows.write_bytes(ROW * 2 + ROW[:5])
    kept = repair(paths, read_journal(paths.journal), str)
    assert [kept.entry(index) for index in range(4)] == [
        *entries[:3],
        entries[3]._replace(state=NO_STATE, begin=0, end=0),
    ]
    assert kept.is_live.tolist() == [False, True, True, False]
    assert paths.rows.read_bytes() == ROW * 2
    assert repair(paths, kept, pytest.fail) is kept
