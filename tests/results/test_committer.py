"""What is committed together, what stops a run, and what becomes of files that somebody edited."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from fastscribe.errors import OutputError
from fastscribe.results.committer import Committer
from fastscribe.results.formats.writers import to_object
from fastscribe.results.journal import Entry
from fastscribe.results.storage import ROWS, Item, NewFile, Pace
from fastscribe.results.storage_folder import FolderStorage

ROW = b'{"audio_filepath": "a"}\n'
OURS = (crc32(b"old"),)


def item(number: int, *files: NewFile) -> Item:
    return Item(Entry("a", number, 1, 0, 0, number, False), ROW, files=files)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[FolderStorage]:
    opened = FolderStorage(tmp_path)
    opened.lock(print)
    opened.open({}, {}, print)
    yield opened
    opened.close(None)


def test_results_gather_until_a_commit_is_due(storage: FolderStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full queues, large ones and a flush do not wait for the pause; `add` waits for room."""
    taken, commit = list[int](), storage.commit
    monkeypatch.setattr(storage, "commit", lambda items: taken.append(len(items)) or commit(items))
    monkeypatch.setattr(FolderStorage, "pace", Pace(8, 4, 3 * len(ROW), 3600.0, 3600.0))
    committer = Committer(storage)
    for number in range(5):
        committer.add(item(number))
    committer.flush()
    assert taken == [3, 2]
    monkeypatch.setattr(FolderStorage, "pace", Pace(2, 4, 1 << 20, 3600.0, 3600.0))
    slow = Committer(storage)
    for number in (5, 6):
        slow.add(item(number))
    waiting = threading.Thread(target=slow.add, args=(item(7),))
    waiting.start()
    assert taken == [3, 2] and waiting.is_alive()
    slow.flush()
    waiting.join(60)
    for one in (committer, slow):
        one.close()
    assert sum(taken) == 8 and storage.read(ROWS) == ROW * 8


def test_what_belongs_together_is_committed_at_once(storage: FolderStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, commit = list[int](), storage.commit
    monkeypatch.setattr(storage, "commit", lambda items: taken.append(len(items)) or commit(items))
    committer = Committer(storage)
    committer.add(item(1), item(2))
    committer.close()
    assert taken == [2]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError(None, "it was changed"), ValueError("a defect")]
)
def test_what_stops_a_run_is_raised_by_every_method(
    storage: FolderStorage, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(storage, "write", fail)
    committer = Committer(storage)
    committer.add(item(1, NewFile("a.txt", b"new")))
    for call in (committer.flush, lambda: committer.add(item(2)), committer.close):
        with pytest.raises(OutputError, match=str(getattr(error, "strerror", error))):
            call()
    assert storage.read(ROWS) == ROW


def test_a_defect_is_called_one_and_has_its_place(storage: FolderStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "commit", lambda items: to_object(None))  # type: ignore[arg-type]
    committer = Committer(storage)
    committer.add(item(1))
    with pytest.raises(
        OutputError, match=r"a defect of fastscribe, AttributeError .* in fastscribe/results/.*, line \d+"
    ):
        committer.close()


def test_a_newer_row_is_the_last_one_whatever_the_older_lacks(
    storage: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_text("a file where a folder belongs")
    committer = Committer(storage)
    old, new = item(1, NewFile("x/a.txt", b"old")), item(1, NewFile("a.txt", b"new"))
    assert old.entry is not None and new.entry is not None
    for one in (old, new._replace(entry=new.entry._replace(state=77))):
        committer.add(one)
        committer.flush()
    committer.close()
    journal = storage.load(storage.shard)
    assert journal.entries["state"][journal.find(new.entry.key)] == 77


@pytest.mark.parametrize("content", [b"new", None])
@pytest.mark.parametrize("found", [b"old", b"", b"\0" * 9, b"ne", b"OLD", b"newer", None])
def test_a_file_is_replaced_or_removed_only_if_a_run_wrote_it(
    storage: FolderStorage, tmp_path: Path, found: bytes | None, content: bytes | None
) -> None:
    """A power cut leaves it empty, or as zeros, or as a beginning of what was to be there."""
    path = tmp_path / "a.txt"
    if found is not None:
        path.write_bytes(found)
    is_edit = found in (b"OLD", b"newer") or (found == b"ne" and content is None)
    committer = Committer(storage)
    committer.add(Item(None, files=(NewFile("a.txt", content, OURS),)))
    committer.close()
    assert (path.read_bytes() if path.exists() else None) == (found if is_edit else content)
    assert list(committer.kept) == ["a.txt"] * is_edit and not committer.not_written


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["file", "link", "folder", "fifo"])
@pytest.mark.parametrize("former", [(), OURS])
def test_what_no_run_wrote_stays(storage: FolderStorage, tmp_path: Path, kind: str, former: tuple[int, ...]) -> None:
    path, target = tmp_path / "a.txt", tmp_path / "target"
    target.write_text("mine")
    {
        "file": lambda: path.write_text("mine"),
        "link": lambda: path.symlink_to(target),
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
    }[kind]()
    before = os.lstat(path)
    committer = Committer(storage)
    committer.add(item(1, NewFile("a.txt", b"new", former), NewFile("b.txt", b"new")))
    committer.close()
    assert os.lstat(path) == before and target.read_text() == "mine"
    assert list(committer.kept) == ["a.txt"] and storage.read("b.txt") == b"new"
