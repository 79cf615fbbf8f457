"""Names are given in the order of the inputs, once, and are the same in every shard and in every later run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.results.journal import Entry, Journal, header_line, name_key, read_journal
from fastscribe.results.names import Names, base_name, candidates

KEYS = {"a.wav": 1, "a.mp3": 2, "a.flac": 3}


def names_of(journals: Sequence[Journal] = (), formats: Sequence[str] = ("txt",), there: Iterable[str] = ()) -> Names:
    return Names(journals, formats, set(there).__contains__)


def journal_of(path: Path, *named: tuple[str, int, str]) -> Journal:
    """Return the journal of these (id, key, name)."""
    entries = [Entry(id, key, 5, 0, 0, 0, False, name=name) for id, key, name in named]
    path.write_bytes(header_line({}) + b"".join(entry.line() for entry in entries))
    return read_journal(path)


def letters(name: str, key: int, number: int = 6) -> str:
    """Return a name with the letters of a key."""
    return next(one for one in candidates(f"{name}.wav", key) if len(one) == len(name) + 1 + number)


def test_the_first_of_equal_names_has_no_letters() -> None:
    names = names_of()
    assert names.name_of("x/a.wav", 1) == "x/a"
    assert [names.name_of(f"x/{id}", 2) for id in ("a.mp3", "A.flac")] == [letters("x/a", 2), letters("x/A", 2, 8)]
    assert names.name_of("a.wav", 3) == "a"


def test_letters_are_the_same_in_every_version() -> None:
    assert list(candidates("talk.wav", 7))[:3] == ["talk", "talk-fplb6d", "talk-fplb6dbv"]


def test_case_and_forms_of_unicode_do_not_tell_names_apart() -> None:
    assert name_key("É/a") == name_key("e\u0301/A") != name_key("e/a")
    assert name_key("Straße") == name_key("STRASSE")
    names = names_of()
    assert names.name_of("A.wav", 1) == "A" and names.name_of("a.wav", 2) == letters("a", 2)


def test_a_journal_keeps_its_names(tmp_path: Path) -> None:
    """Also where an earlier input of this run would take it, or where the id has become another."""
    own = journal_of(tmp_path / "own", ("a.mp3", 2, "a"), ("old/b.wav", 4, "old/b"))
    other = journal_of(tmp_path / "other", ("a.flac", 3, letters("a", 3)), ("c.wav", 5, "c"))
    third = journal_of(tmp_path / "third", ("e.wav", 8, "e"), ("old/d.wav", 7, "old/d"))
    names = names_of([own, other, third], there=["a.txt", "c.txt"])
    assert [names.name_of(id, key) for id, key in KEYS.items()] == [letters("a", 1), "a", letters("a", 3)]
    assert [names.name_of("b.wav", 4), names.name_of("d.wav", 7)] == ["old/b", "old/d"]
    assert names.name_of("c.mp3", 6) == letters("c", 6)
    assert names.foreign == {}
    assert names.name_of("c.wav", 5, is_ours=False) == ""


def test_every_shard_gives_the_same_names() -> None:
    held = {"a.wav": 1, "a.mp3": 0, "a.flac": 1}
    found = [[names.name_of(id, KEYS[id], held[id] == shard) for id in KEYS] for shard, names in
             ((0, names_of()), (1, names_of()))]  # fmt: skip
    assert found[0] == found[1] == ["a", letters("a", 2), letters("a", 3)]


def test_somebodys_file_keeps_its_name() -> None:
    names = names_of(formats=("srt", "json"), there=["a.json", f"{letters('a', 2)}.srt", "b.txt"])
    assert [names.name_of(id, KEYS[id]) for id in ("a.wav", "a.mp3")] == [letters("a", 1), letters("a", 2, 8)]
    assert names.name_of("b.wav", 7) == "b"  # no format of this run
    assert names.foreign == {"a.json": letters("a", 1), f"{letters('a', 2)}.srt": letters("a", 2, 8)}
    assert names_of(there=["a.txt"]).name_of("a.wav", 1, is_ours=False) == "a"  # its own shard looks


def test_the_runs_own_report_keeps_its_name() -> None:
    ids = ["report.wav", "Report.shard-0-of-2.wav", "speakers.wav", "x/report.wav"]
    names = names_of()  # whatever the formats: a later run may write JSON
    assert [names.name_of(id, 1) != base_name(id) for id in ids] == [True, True, True, False]


def test_cuts_are_named_by_their_offset() -> None:
    assert base_name("d/a.wav@1500") == "d/a_1500"
    assert base_name("rec@5.wav") == "rec@5"
    names = names_of()
    assert [names.name_of("a.wav@0", key) for key in (1, 2)] == ["a_0", letters("a_0", 2)]


PARTS = st.sampled_from(["a", "A", "b", "a.2", "a.wav", "..", ".", "", "é", "\udce9", "x" * 300, "\0", "c\\d"])
IDS = st.builds(
    lambda parts, extension, cut: "/".join(parts) + extension + cut,
    st.lists(PARTS, min_size=1, max_size=3),
    st.sampled_from(["", ".wav", ".WAV", ".mp3", ".2.wav", ".wav.mp3"]),
    st.sampled_from(["", "", "@5"]),
)


@settings(max_examples=200)
@given(st.lists(IDS, max_size=14))
def test_every_input_gets_its_own_name(ids: list[str]) -> None:
    names = names_of(formats=("json",))
    found = {name_key(names.name_of(id, key)) for key, id in enumerate(ids, start=1)}
    assert len(found) == len(ids) and name_key("report") not in found


@settings(max_examples=100)
@given(st.one_of(IDS, st.text()), st.integers(1, 9))
def test_names_stay_below_the_folder(id: str, key: int) -> None:
    for name in candidates(id, key):
        parts = name.split("/")
        assert not {"", ".", ".."} & set(parts) and "\0" not in name
        assert all(len(part.encode()) <= 233 for part in parts)  # with the longest letters


@pytest.mark.parametrize("id", ["d/" * 3000 + "a.wav", "x" * 5000])
def test_long_names_are_cut_and_stay_apart(id: str) -> None:
    name = base_name(id)
    assert len(name.encode()) <= 1202 and name != base_name("e" + id)
