"""Lines of the journal are read as they were written, and reading ends at the first that is not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.config import CHANGES_OF_TEXT, FILE_FORMATS
from fastscribe.errors import UsageError
from fastscribe.results.fingerprint import option_name
from fastscribe.results.journal import (
    ENTRY,
    NO_FILE,
    SYNCED,
    Entry,
    FileMark,
    Journal,
    check_same_settings,
    header_line,
    is_row,
    last_run,
    name_key,
    parse_entry,
    read_entries,
    read_header,
    read_journal,
    run_line,
)

U32, U64, I63 = (st.integers(0, (1 << bits) - 1) for bits in (32, 64, 63))
MARKS = st.builds(FileMark, st.integers(0, 1 << 40), U32, U32)
ENTRIES = st.builds(
    lambda offsets, **fields: Entry(begin=min(offsets), end=max(offsets), **fields),
    st.tuples(I63, I63),
    id=st.text(),
    key=U64,
    state=U64,
    order=I63,
    failed=st.booleans(),
    audio_s=st.floats(0, 1e6).map(lambda length_s: round(length_s, 3)),
    for_list=st.booleans(),
    name=st.text(),
    input_bytes=st.none() | I63,
    files=st.dictionaries(st.sampled_from(FILE_FORMATS), MARKS),
    former=st.dictionaries(st.sampled_from(FILE_FORMATS), st.lists(U32, max_size=4).map(tuple)),
)
GOOD = Entry("a", 1, 2, 0, 0, 0, True, name="x/a", files={"srt": FileMark(3, 4, 5)})
FINGERPRINT = {"model": "sha256:1", "--dtype": "fp32", "--channel": ["a"], "gone": 1}


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join([header_line(FINGERPRINT), *lines]))
    return path


@settings(max_examples=200)
@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    line = entry.line()
    assert parse_entry(line) == entry and line.count(b"\n") == 1
    assert parse_entry(line[:-1]) is None


def test_the_journal_knows_its_entries(tmp_path: Path) -> None:
    files = {"srt": FileMark(7, 1, 99), "json": FileMark(1 << 40, 2)}
    first = Entry("é", 5, 6, 10, 20, 3, False, 1.5, name="É", files=files)
    journal = read_journal(write(tmp_path / "journal.jsonl", GOOD.line(), first.line()))
    assert journal.header == FINGERPRINT
    assert [journal.entry(journal.find(key) or 0) for key in (1, 5)] == [GOOD, first]  # type: ignore[arg-type]
    assert journal.find(2) is None
    assert journal.sizes(1) == {"srt": 7, "json": NO_FILE - 1}
    assert [journal.layout(1, format) for format in ("srt", "json", "vtt")] == [99, 0, 0]
    assert [journal.has_name(name_key(name)) for name in ("e\u0301", "x/A", "b")] == [True, True, False]
    names = ("key", "state", "begin", "end", "order", "failed", "audio_s", "for_list")
    assert journal.entries[list(names)][1].item() == (5, 6, 10, 20, 3, False, 1.5, False)


def test_a_journal_cut_anywhere_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    lines = [header_line(FINGERPRINT), run_line({"device": "cpu"}), GOOD.line(), SYNCED, GOOD._replace(key=2).line()]
    ends = np.cumsum([len(line) for line in lines]).tolist()
    content, path = b"".join(lines), tmp_path / "journal.jsonl"
    for cut in range(ends[0], len(content) + 1):
        for tail in (b"", b"\0", b"\0" * 5000):
            path.write_bytes(content[:cut] + tail)
            journal, num_whole = read_journal(path), sum(end <= cut for end in ends)
            assert journal.end == ends[num_whole - 1]
            assert (len(journal.entries), journal.num_synced) == ((0, 0, 0, 1, 1, 2)[num_whole], num_whole >= 4)
            assert journal.facts == ({"device": "cpu"} if num_whole >= 2 else {})
            assert len(list(read_entries(path))) == len(journal.entries)


@pytest.mark.parametrize(
    "changed",
    [{"row": [5, 2]}, {"row": [0]}, {"row": [0, 1 << 63]}, {"row": [0, float("inf")]}, {"key": "x"}, {"key": "-1"},
     {"state": f"{1 << 64:x}"}, {"index": -1}, {"index": None}, {"audio_s": "x"}, {"files": {"srt": [1, "x", 1]}},
     {"files": {"srt": [1, "1"]}}, {"files": {"srt": [-1, "1", 1]}}, {"files": {"srt": [1, f"{1 << 32:x}", 1]}},
     {"files": []}, {"former": {"srt": ["x"]}}, {"former": 1}, {"input_bytes": "x"}],
)  # fmt: skip
def test_invalid_lines_end_a_journal(tmp_path: Path, changed: dict[str, Any]) -> None:
    bad = json.dumps({**json.loads(GOOD.line()), **changed}).encode() + b"\n"
    path = write(tmp_path / "journal", GOOD.line(), bad, GOOD.line())
    assert list(read_entries(path)) == [GOOD]
    assert len(read_journal(path).entries) == 1


def test_what_the_last_run_stated_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "journal", run_line({"request": "a"}), GOOD.line(), SYNCED, run_line({"request": "b"}))
    with path.open("rb") as file:
        assert last_run(file, path)[1:] == ({"request": "b"},)
    assert read_journal(path).facts == {"request": "b"}
    path = write(path, run_line({"request": "a"}), b'{"run": 5}\n', GOOD.line())
    assert len(read_journal(path).entries) == 0


@given(st.lists(st.integers(0, 6), max_size=30))
def test_the_last_line_of_a_key_counts(keys: list[int]) -> None:
    entries = np.zeros(len(keys), ENTRY)
    entries["key"] = [key * 3 for key in keys]
    entries["state"] = [key != 4 for key in keys]  # 0: the entry has no result any more, and is an owner of files
    journal = Journal(entries=entries)
    last = {key * 3: place for place, key in enumerate(keys)}
    assert {key: journal.find(key) for key in range(20)} == {key: last.get(key) for key in range(20)}
    assert set(np.flatnonzero(journal.is_live)) == {place for key, place in last.items() if key != 12}


def test_what_runs_may_have_left_under_a_name() -> None:
    entry = GOOD._replace(
        files={"srt": FileMark(1, 10, 0), "vtt": FileMark(1, 20, 0)}, former={"srt": (1, 2, 3, 4), "txt": (5,)}
    )
    assert entry.left() == {"srt": (10, 1, 2, 3), "vtt": (20,), "txt": (5,)}


def test_other_settings_are_named(tmp_path: Path) -> None:
    other = {"model": "sha256:1", "--dtype": "bf16", "--channel": ("a", "é"), "new": None, "--beam": 1}
    with pytest.raises(UsageError) as raised:
        check_same_settings(tmp_path, FINGERPRINT, other)
    said = str(raised.value)
    for part in ('--dtype was "fp32", is "bf16"', '--channel was ["a"], is ["a", "é"]', "gone was 1, is not there",
                 "new was not there, is not set", "--overwrite", "another folder", str(tmp_path)):  # fmt: skip
        assert part in said
    assert "model was" not in said and "--beam" not in said and "to go on" not in said
    before = {"--boost": "sha256:1", "--itn": True, "--language": "en", "--dtype": "bf16"}
    with pytest.raises(UsageError) as raised:
        check_same_settings(tmp_path, before, {"--remove-fillers": True, "--dtype": "fp32"})
    said = str(raised.value)
    assert "--boost was a list of phrases, is not given; --itn was true, is not given" in said
    assert "--language" not in said and "sha256" not in said
    assert said.endswith(
        "to go on here, run it with --boost and the same phrases, with --itn, with --dtype bf16, without --remove-fillers"
    )
    with pytest.raises(UsageError, match=r"to go on here, run it with --remove-fillers, with --language de$"):
        check_same_settings(tmp_path, {"--remove-fillers": True, "--language": "de"}, {})
    new_alone = "another folder \\(new recordings alone may go there, and fastscribe export -o joins the results\\)"
    with pytest.raises(
        UsageError, match=rf"\(--boost: other phrases were given\): use {new_alone}, .* with --boost and the same"
    ):
        check_same_settings(tmp_path, {"--boost": "sha256:1"}, {"--boost": "sha256:2"})
    check_same_settings(tmp_path, FINGERPRINT, {**FINGERPRINT, "--channel": ("a",)})
    for change in map(option_name, CHANGES_OF_TEXT):  # with which the language is there, although no option gave it
        with pytest.raises(UsageError, match=rf"\({change} was not given, is true\).*, run it without {change}$"):
            check_same_settings(tmp_path, {}, {change: True, "--language": "en"})


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"[]\n", b"{}\n", b"hello", b"\xff\xfe\n", b'{"fastscribe_journal": 4, "fingerprint": 5}\n',
                b'{"fastscribe_journal": 99, "fingerprint": {}}\n']
)  # fmt: skip
def test_a_file_that_is_no_journal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises(
        UsageError, match="another version of fastscribe" if b"99" in content or b"5" in content else "move it away"
    ):
        read_header(tmp_path / "journal.jsonl")


def test_a_row_is_one_whole_line() -> None:
    assert [is_row(row) for row in (b"{}\n", b"{}", b"{\n}\n", b" {}\n", b"", b"\0\0\n")] == [True] + [False] * 5
