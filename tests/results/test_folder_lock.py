"""One run per folder; the lock ends with a killed process."""

from __future__ import annotations

import errno
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fastscribe._system import positioned_read
from fastscribe.errors import UsageError
from fastscribe.results import folder_lock
from fastscribe.results.folder_lock import FolderLock

HOLD = """import sys
from pathlib import Path
from fastscribe.results.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"another run is writing here .process {holder.pid} on"):
            FolderLock(path)
        holder.kill()
        holder.wait()
    with closing(FolderLock(path)):
        pass


def test_lock_can_be_closed_twice_and_retaken(tmp_path: Path) -> None:
    for _ in range(2):
        lock = FolderLock(tmp_path / ".lock")
        lock.close()
        lock.close()


@pytest.mark.parametrize("content", [b"x", b"my notes\n", b"process 1"])
def test_a_file_of_the_users_is_refused_and_stays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".lock").write_bytes(content)
    with pytest.raises(UsageError, match="is not a lock of fastscribe's"):
        FolderLock(tmp_path / ".lock")
    assert (tmp_path / ".lock").read_bytes() == content


def test_without_locks_in_the_file_system_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(folder_lock, "lock_descriptor", refuse)
    for _ in range(2):
        with closing(FolderLock(tmp_path / ".lock")):
            assert b"process " in (tmp_path / ".lock").read_bytes()


def test_the_holder_is_named_where_the_first_byte_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pread(descriptor: int, num_bytes: int, position: int) -> bytes:
        if position == 0 and descriptor != held._descriptor:
            raise PermissionError(errno.EACCES, "locked by another process")  # as Windows answers
        return positioned_read.pread(descriptor, num_bytes, position)

    with closing(FolderLock(tmp_path / ".lock")) as held:
        monkeypatch.setattr(folder_lock, "pread", pread)
        with pytest.raises(UsageError, match=r"is writing here \(process \d+ on .* since \d{4}-"):
            FolderLock(tmp_path / ".lock")
