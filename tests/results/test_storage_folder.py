"""Files of a folder are written whole, never through a link, and nothing is appended to what somebody else has changed."""

from __future__ import annotations

import io
import os
import re
import shutil
from pathlib import Path

import pytest

from fastscribe._system import safe_files
from fastscribe._system.file_kinds import InTheWay, starts_with
from fastscribe._system.safe_files import open_append, temp_path_for
from fastscribe.results.shards import UNSHARDED, Shard
from fastscribe.results.storage_folder import Appender, FolderStorage
from tests.results.test_output import Place, put, spoken


def opened(folder: Path) -> FolderStorage:
    storage = FolderStorage(folder)
    storage.lock(print)
    storage.open({}, {}, print)
    return storage


def test_a_file_is_written_whole_and_only_where_nothing_is(tmp_path: Path) -> None:
    storage = opened(tmp_path / "out")
    storage.write("x/y/a.txt", b"one", replaces=False)
    with pytest.raises(InTheWay, match=re.escape(str(tmp_path / "out" / "x" / "y" / "a.txt"))):
        storage.write("x/y/a.txt", b"two", replaces=False)
    assert storage.read("x/y/a.txt") == b"one" and storage.size("x/y/a.txt") == 3
    storage.write("x/y/a.txt", b"three", replaces=True)
    assert storage.read("x/y/a.txt", 1, 3) == b"hr"
    storage.remove(["x/y/a.txt", "x/y/b.txt", "gone/c.txt"])
    assert storage.size("x/y/a.txt") is None and storage.size("x") == -1
    assert not list((tmp_path / "out").rglob(".*part"))
    storage.close(None)


def test_a_temporary_name_is_never_followed(tmp_path: Path) -> None:
    target, temp = tmp_path / "target", temp_path_for(tmp_path / "out" / "a.txt")
    target.write_text("mine")
    storage = opened(tmp_path / "out")
    temp.symlink_to(target)
    with pytest.raises(FileExistsError, match=r"a\.txt"):
        storage.write("a.txt", b"new", replaces=False)
    assert target.read_text() == "mine" and temp.is_symlink()
    storage.close(None)


def test_temporary_files_of_a_killed_run_go(tmp_path: Path) -> None:
    """Also if the file itself is as it should be, so that nothing writes it again."""
    place = Place(tmp_path)
    output = place.opened("txt")
    put(output, spoken("x/a.wav"))
    output.close(finished=False)
    mine = temp_path_for(tmp_path / "x" / "b.txt")
    for path in (temp_path_for(tmp_path / "x" / "a.txt"), mine):
        path.write_text("half")
    place.run([], "txt")
    assert list(tmp_path.rglob(".*.part")) == [mine] and place.contents()["x/a.txt"] == "x/a.wav"


def test_shards_of_a_folder(tmp_path: Path) -> None:
    for index in (1, 0):
        Place(tmp_path).run(["a.wav"], "txt", shard=Shard(index, 2))
    storage = FolderStorage(tmp_path, Shard(1, 2))
    assert storage.lock(print) == [Shard(0, 2), Shard(1, 2)]
    assert sum(len(storage.load(shard).entries) for shard in (Shard(0, 2), Shard(1, 2))) == 1
    storage.close(None)
    assert FolderStorage(tmp_path).load(UNSHARDED).header is None


def test_a_row_that_does_not_fit_is_rolled_back(tmp_path: Path) -> None:
    class FullDisk(io.FileIO):
        is_full = False

        def write(self, content: bytes) -> int:  # type: ignore[override]
            if not self.is_full:
                return super().write(content[:5])
            super().write(content[:3])
            raise OSError(28, "No space left on device")

    path = tmp_path / "rows"
    with FullDisk(path, "a") as file:
        rows = Appender(file, path)
        rows.append(b"first row\n")
        file.is_full = True
        with pytest.raises(OSError, match="No space"):
            rows.append(b"second row\n")
        file.is_full = False
        rows.append(b"third row\n")
    assert path.read_bytes() == b"first row\nthird row\n"


def test_a_change_by_somebody_else_stops_the_run(tmp_path: Path) -> None:
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


def test_zeros_before_users_data_are_not_our_file(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(5000) + b"precious")
    assert not starts_with(path, re.compile(b"ours"))
    path.write_bytes(bytes(5000))
    assert starts_with(path, re.compile(b"ours"))


def test_a_file_that_is_moved_away_does_not_stop_a_run_without_syncfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_files, "_syncfs", lambda: None)
    storage = opened(tmp_path)
    storage.write("x/a.txt", b"text", replaces=False)
    os.rename(tmp_path / "x", tmp_path / "elsewhere")
    storage.commit([])
    storage.close(None)
