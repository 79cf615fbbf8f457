"""One run in a folder, also when it was killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fastscribe.errors import UsageError
from fastscribe.resume.folder_lock import FolderLock

HOLD = """import sys
from pathlib import Path
from fastscribe.resume.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
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


def test_it_can_be_closed_twice_and_had_again(tmp_path: Path) -> None:
    for _ in range(2):
        lock = FolderLock(tmp_path / ".lock")
        lock.close()
        lock.close()
