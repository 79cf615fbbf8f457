"""After a kill at any call, a cut at any byte, or an edit by hand, finished results stay and the rest is done again."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastscribe.results.block import Appender
from fastscribe.results.entries import Entry, PreviousRun
from fastscribe.results.output_run import OutputRun
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastscribe._system import safe_files
from fastscribe._system.safe_files import open_append
from fastscribe.config import OutputStyle, SubtitleStyle
from fastscribe.errors import UsageError
from fastscribe.results import entries as lines
from fastscribe.results import journal, storage_folder
from fastscribe.results.output import open_journaled
from fastscribe.results.paths import Paths, read_header
from tests.fakes.killed_disk import EVERY_FORMAT, ROWS_ALONE, STYLE, run, sources, state_of
from tests.helpers.power_cut import Disk, State, blocks_of_three, remake, watched


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

    def change(self) -> None:
        """Two inputs change; the broken one is repaired and the missing one appears."""
        self.put("1/a.wav", "another one")
        self.put("2/b.wav", "bad")
        self.put("1/c.wav", "whole")
        self.put("1/missing.wav", "found")
        self.put("0/first.wav", "new")
        self.names = ["0/first.wav", *self.names]

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


def prepare(corpus: Corpus, folder: Path, is_changed: bool, style: OutputStyle = STYLE) -> None:
    if is_changed:
        corpus.go(0, style=style)(folder)
        corpus.change()
    else:
        folder.mkdir()


def ends_alike(whole: Path, out: Path, state: State, ordered: bool, go: Callable[[Path], object]) -> None:
    """Resume after a kill; assert that the folder equals that of an undisturbed run, without leftovers."""
    go(remake(out, state))
    assert state_of(out, ordered) == state_of(whole, ordered)


@pytest.mark.linux
@pytest.mark.parametrize(
    ("is_changed", "ordered", "has_syncfs"), [(False, True, True), (True, False, False), (True, True, True)]
)
def test_kill_or_power_cut_loses_nothing(
    tmp_path: Path, corpus: Corpus, is_changed: bool, ordered: bool, has_syncfs: bool
) -> None:
    style = STYLE if is_changed else EVERY_FORMAT
    prepare(corpus, tmp_path / "whole", is_changed, style)
    go = corpus.go(3, ordered=ordered, retry_failed=True, style=style)
    disk = Disk(tmp_path / "whole", seed=1)
    with blocks_of_three(), watched(disk, has_syncfs):
        go(tmp_path / "whole")
    assert disk.durable_state == disk.visible_state  # a run that has ended has nothing left to lose
    assert len(disk.states) > 60
    for state in random.Random(2).sample(disk.states, 30):
        ends_alike(tmp_path / "whole", tmp_path / "out", state, ordered, go)


@pytest.mark.linux
@pytest.mark.parametrize("has_syncfs", [False, True])
def test_kill_or_power_cut_while_other_formats_are_made(tmp_path: Path, corpus: Corpus, has_syncfs: bool) -> None:
    """The files come from the rows, without decoding; an edited file stays."""
    corpus.go(0, style=OutputStyle(("txt", "srt")))(tmp_path / "whole")
    (tmp_path / "whole" / "a.wav.txt").write_text("One\n")  # of the same size
    style = OutputStyle(("txt", "json", "srt"), subtitles=SubtitleStyle(max_line_width=9))
    go = corpus.go(3, style=style)
    disk = Disk(tmp_path / "whole", seed=1)
    with blocks_of_three(), watched(disk, has_syncfs):
        assert go(tmp_path / "whole") == []
    assert disk.durable_state == disk.visible_state
    assert (tmp_path / "whole" / "a.wav.txt").read_text() == "One\n"  # the layout of subtitles is not its
    for state in random.Random(2).sample(disk.states, 20):
        assert go(remake(tmp_path / "out", state)) == []
        assert state_of(tmp_path / "out", False) == state_of(tmp_path / "whole", False)


@pytest.mark.linux
def test_power_cut_while_sorting_or_dropping_rows(tmp_path: Path, corpus: Corpus) -> None:
    prepare(corpus, tmp_path / "whole", True, ROWS_ALONE)
    go = corpus.go(3, ordered=True, retry_failed=True, style=ROWS_ALONE)
    disk = Disk(tmp_path / "whole", seed=1)
    with watched(disk), pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "before", lambda: None)  # the states of the run itself have their own test
        compact = storage_folder.compact

        def watched_compact(*arguments: Any) -> None:
            patch.undo()
            compact(*arguments)

        patch.setattr(storage_folder, "compact", watched_compact)
        go(tmp_path / "whole")
    assert len(disk.states) > 10
    for state in disk.states:
        ends_alike(tmp_path / "whole", tmp_path / "out", state, True, go)


@pytest.mark.linux
@pytest.mark.parametrize("is_changed", [False, True])
def test_power_cut_during_a_repair(tmp_path: Path, corpus: Corpus, is_changed: bool) -> None:
    prepare(corpus, tmp_path / "whole", is_changed)
    go = corpus.go(5, retry_failed=True)
    first = Disk(tmp_path / "whole", seed=3)
    with blocks_of_three(), watched(first):
        go(tmp_path / "whole")
    rng = random.Random(4)
    for state in rng.sample(first.states, 3):
        second = Disk(remake(tmp_path / "out", state), seed=5)
        with blocks_of_three(), watched(second):
            go(tmp_path / "out")
        for later in rng.sample(second.states, 3):
            ends_alike(tmp_path / "whole", tmp_path / "out", later, False, go)


@pytest.mark.linux
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_killed_again_and_again(
    tmp_path_factory: pytest.TempPathFactory, seed: int, is_changed: bool, ordered: bool
) -> None:
    """Each attempt finishes inputs in its own order and gets a little further."""
    folder = tmp_path_factory.mktemp("killed")
    corpus = Corpus(folder / "in")
    prepare(corpus, folder / "out", is_changed)
    shutil.copytree(folder / "out", folder / "whole")
    corpus.go(3, ordered=ordered)(folder / "whole")
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 4)):
        disk = Disk(folder / "out", seed)
        with blocks_of_three(), watched(disk):
            corpus.go(rng.getrandbits(30), ordered=ordered)(folder / "out")
        remake(folder / "out", rng.choice(disk.states))
    go = corpus.go(rng.getrandbits(30), ordered=ordered)
    go(folder / "out")
    assert state_of(folder / "out", ordered) == state_of(folder / "whole", ordered)
    assert go(folder / "out") == []  # nothing is left
    shutil.rmtree(folder)


@pytest.mark.parametrize("tail", [b"", b"\0", b"\0" * 5000])
def test_a_journal_cut_anywhere_is_repaired(tmp_path: Path, corpus: Corpus, tail: bytes) -> None:
    corpus.go(0, style=ROWS_ALONE)(tmp_path / "whole")
    expected, content = state_of(tmp_path / "whole", False), (tmp_path / "whole" / "journal.jsonl").read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    step = 3 if tail else 1  # whether a tail ends a line matters
    in_first, in_others = range(0, ends[0] + 40, 3 * step), range(ends[0], len(content), 29 * step)
    for cut in {*in_first, *in_others, *ends, *(end - 1 for end in ends)}:
        folder = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / "journal.jsonl").write_bytes(content[:cut] + tail)
        if cut < ends[0]:  # no run of ours leaves a journal without its first line, and the rows may be someone's
            with pytest.raises(UsageError, match=r"transcripts\.jsonl"):
                corpus.go(1, style=ROWS_ALONE)(folder)
            assert (folder / "transcripts.jsonl").read_bytes() == (
                tmp_path / "whole" / "transcripts.jsonl"
            ).read_bytes()
            shutil.rmtree(folder)
            continue
        assert len(corpus.go(1, style=ROWS_ALONE)(folder)) == len(ends) - sum(end <= cut for end in ends)
        kept = [folder.joinpath(f"transcripts.{what}.jsonl") for what in ("cut-off", "previous")]
        for path in kept:  # more rows than a kill leaves without their lines
            if path.exists():
                assert path.read_bytes() in (tmp_path / "whole" / "transcripts.jsonl").read_bytes()
                path.unlink()
        assert state_of(folder, False) == expected, cut
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
    "turned round": lambda rows: rows[::-1],
    "appended": lambda rows: [*rows, b"a line of mine\n"],
    "object appended": lambda rows: [*rows, b'{"mine": 1}\n'],
    "two of them": lambda rows: [*rows, rows[0], rows[1]],
    "text": lambda rows: [b"instead\n"],
}


@pytest.mark.parametrize("kind", EDITS)
def test_edits_by_hand_survive(tmp_path: Path, corpus: Corpus, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    corpus.go(0)(tmp_path / "out")
    path = tmp_path / "out" / "transcripts.jsonl"
    rows = EDITS[kind](path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(rows))
    corpus.go(1)(tmp_path / "out")
    left = b"".join(found.read_bytes() for found in sorted((tmp_path / "out").glob("transcripts*")))
    for row in rows:
        assert row in left
    assert "transcripts.cut-off.jsonl; their inputs are done again" in capsys.readouterr().out
    assert len(path.read_bytes().splitlines()) == len(corpus.names)


def test_edit_noticed_late_is_an_error(tmp_path: Path, corpus: Corpus) -> None:
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


def test_an_edit_among_very_many_rows_is_an_error(tmp_path: Path) -> None:
    paths, fingerprint = Paths(tmp_path, ""), {"model": "m"}
    journal.begin(paths, fingerprint)
    written = Appender(open_append(paths.journal), paths.journal)
    row = b'{"audio_filepath": "a", "error": {}}\n'
    for number in range(1500):
        entry = Entry("a", number + 1, 0, number * len(row), (number + 1) * len(row), number, False)
        written.append(entry.line())
    written.close()
    paths.rows.write_bytes(b" " + row * 1500)
    with pytest.raises(UsageError, match="changed"):
        journal.resume(paths, fingerprint)
    paths.rows.write_bytes(row * 1500)
    resumed = journal.resume(paths, fingerprint)
    assert len(resumed.previous) == 1500


def test_foreign_write_during_the_run_stops_it(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    for change in (lambda: os.replace(shutil.copy(path, tmp_path / "copy"), path), lambda: path.write_bytes(b"mine")):
        rows = Appender(open_append(path), path)
        rows.append(b"first\n")
        change()
        before = path.read_bytes()
        with pytest.raises(OSError, match="changed by someone else"):
            rows.append(b"second\n")
        assert path.read_bytes() == before
        rows.close()


FINGERPRINT = {"model": "sha256:1", "--dtype": "fp32", "--channel": ["a"], "gone": 1}


def test_other_settings_are_named(tmp_path: Path) -> None:
    paths = Paths(tmp_path, "")
    journal.begin(paths, FINGERPRINT)
    content = paths.journal.read_bytes()
    other = {"model": "sha256:1", "--dtype": "bf16", "--channel": ("a", "é"), "new": None}
    with pytest.raises(UsageError) as raised:
        journal.resume(paths, other)
    said = str(raised.value)
    for temp in ('--dtype was "fp32", is "bf16"', '--channel was ["a"], is ["a", "é"]', "gone was 1, is not there",
                 "new was not there, is not set", "--overwrite", "another folder", str(tmp_path)):  # fmt: skip
        assert temp in said
    assert "model was" not in said
    assert paths.journal.read_bytes() == content
    journal.resume(paths, {**FINGERPRINT, "--channel": ("a",)})


@pytest.mark.parametrize(
    "content", [b"hello\n", b"[]\n", b"{}\n", b"hello", b"\xff\xfe\n", b'{"fastscribe_journal": 1, "fingerprint": 5}\n']
)
def test_file_that_is_no_journal_is_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=r"move it away|another version"):
        open_journaled(tmp_path, OutputRun(STYLE, {}))
    assert (tmp_path / "journal.jsonl").read_bytes() == content


def test_a_journal_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"fastscribe_journal": 99, "fingerprint": {}}\n')
    with pytest.raises(UsageError, match="another version of fastscribe"):
        read_header(tmp_path / "journal.jsonl")


@pytest.mark.parametrize(
    "changed",
    [{"row": [5, 2]}, {"row": [0]}, {"row": [0, 1 << 63]}, {"row": [0, float("inf")]}, {"key": "x"}, {"key": "-1"},
     {"state": f"{1 << 64:x}"}, {"index": -1}, {"index": None}, {"audio_s": "x"}],
)  # fmt: skip
def test_invalid_lines_end_a_journal(tmp_path: Path, changed: dict[str, Any]) -> None:
    good = Entry("a", 1, 2, 0, 0, 0, True)
    bad = json.dumps({**json.loads(good.line()), **changed}).encode() + b"\n"
    (tmp_path / "journal").write_bytes(b"header\n" + good.line() + bad + good.line())
    assert [entry for entry, _ in lines.read_entries(tmp_path / "journal")] == [good]
    assert len(lines.load_entries(tmp_path / "journal")) == 1


@given(st.lists(st.integers(0, 6), max_size=30))
def test_the_last_line_of_a_key_counts(keys: list[int]) -> None:
    entries = np.zeros(len(keys), lines.ENTRY)
    entries["key"] = [key * 3 for key in keys]
    previous = PreviousRun(entries)
    last = {key * 3: place for place, key in enumerate(keys)}
    assert len(previous) == len(last)
    assert {key: previous.find(key) for key in range(20)} == {key: last.get(key) for key in range(20)}
