"""Write files: atomically, durably, and never through a link or over a file that is not ours.

A file is first written under a hidden temporary name, synced, and renamed, so that after a crash or a power cut its name
has the old content or the new, never half of it. _system/file_kinds.py reads. The order in which file systems make
operations durable: T. S. Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, BinaryIO

from fastscribe._system.file_kinds import InTheWay, check_regular, is_regular, status_of

if sys.platform != "win32":
    import fcntl

_LINK_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _LINK_FLAGS
_SYNCFS_REPORTS_ERRORS = (5, 8)  # the first such Linux
_CAN_OPEN_FOLDERS = os.name != "nt"
_SYNC_FLAGS = os.O_RDONLY if _CAN_OPEN_FOLDERS else os.O_RDWR  # Windows syncs only what was opened to write
_RETRY_DELAYS_S = (0.01, 0.03, 0.1, 0.3, 0.6)


def temp_path_for(path: Path) -> Path:
    """Temporary name of `path`, beside it: hidden, the same in every run, and not `X.part`, which browsers use."""
    return path.with_name(f".{path.name}.fastscribe.part")


def open_new(path: Path) -> BinaryIO:
    """Create and open a file for writing. Raises FileExistsError if anything has the name, a dangling link included."""
    return os.fdopen(os.open(path, _NEW_FLAGS, 0o666), "wb")


def open_temp(path: Path) -> BinaryIO:
    """Create the temporary file of `path`; one that a killed run left is removed. Raises InTheWay, OSError."""
    temp = temp_path_for(path)
    try:
        return open_new(temp)
    except FileExistsError:
        check_regular(temp)
        remove(temp)
        return open_new(temp)


def open_append(path: Path) -> BinaryIO:
    """Open a file for unbuffered appending, and create it if it is missing. Raises InTheWay for what is no regular file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _LINK_FLAGS
    check_regular(path)
    file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InTheWay(path)
    return file


def discard_temp(path: Path) -> None:
    """Remove the temporary file of `path`, if there is one."""
    if is_regular(temp_path_for(path)):
        with suppress(OSError):
            os.unlink(temp_path_for(path))


def write_atomic(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Replace `path` by this content, or by what the function writes; on return it is durable.

    Args:
        path: Is missing, or a regular file that the caller has checked to be ours.
        content: Bytes, or a function that writes to the file that it is given.

    Raises:
        OSError: With the name of `path`. The old content stays.
    """
    check_regular(path)
    try:
        with open_temp(path) as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            sync(file)
        rename_into_place(path)
        sync_folder(path.parent)
    except InTheWay:
        raise
    except OSError as error:
        discard_temp(path)
        raise with_path(error, path) from error
    except BaseException:
        discard_temp(path)
        raise


def write_whole(path: str, content: bytes, replaces: bool) -> None:
    """Write a file under its temporary name and rename it, without a sync. Paths of texts take half of the time of Path's.

    Args:
        path: Is missing, or a regular file that the caller has checked to be ours.
        content: The file's.
        replaces: False: nothing may have the name.

    Raises:
        FileNotFoundError: There is no such folder.
        InTheWay: Something has the name.
        OSError: With the name of `path`.
    """
    folder, name = os.path.split(path)
    temp = os.path.join(folder, f".{name}.fastscribe.part")
    try:
        try:
            descriptor = os.open(temp, _NEW_FLAGS, 0o666)
        except FileExistsError:  # a killed run has left it
            discard_temp(Path(path))
            descriptor = os.open(temp, _NEW_FLAGS, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if not replaces and status_of(path) is not None:
            raise InTheWay(path)
        replace(temp, path)
    except OSError as error:
        discard_temp(Path(path))
        raise error if isinstance(error, InTheWay) else with_path(error, path) from error


def rename_into_place(path: Path) -> None:
    """Give the temporary file of `path` its name."""
    replace(temp_path_for(path), path)


def replace(old: Path | str, new: Path | str) -> None:
    """Rename a file over another, if there is one. Raises OSError."""
    _patiently(os.replace, old, new)


def _patiently(action: Callable[..., None], *paths: Path | str) -> None:
    """Retry for a second on Windows, where a file that another program has open (a virus scanner) cannot be moved."""
    for delay_s in _RETRY_DELAYS_S if os.name == "nt" else ():
        try:
            return action(*paths)
        except PermissionError:
            time.sleep(delay_s)
    action(*paths)


def remove(path: Path | str) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        _patiently(os.unlink, path)


def with_path(error: OSError, path: Path | str) -> OSError:
    """The same error with `path` as its file name; a full disk is often reported without one."""
    return type(error)(error.errno, error.strerror or str(error), str(path))


def unused_name(path: Path, what: str) -> Path:
    """First free name of x.what.jsonl, x.what.2.jsonl .."""
    number, name = 1, path.with_suffix(f".{what}{path.suffix}")
    while status_of(name) is not None:
        number += 1
        name = path.with_suffix(f".{what}.{number}{path.suffix}")
    return name


# --- durability ------------------------------------------------------------------------------------------------------


def sync(file: IO[Any]) -> None:
    """Wait until a file's content is on the disk. Raises OSError."""
    file.flush()
    sync_descriptor(file.fileno())


def sync_descriptor(descriptor: int) -> None:
    """Wait until what was written to a descriptor is on the disk. Raises OSError."""
    if sys.platform == "darwin":  # fsync there leaves it in the disk's own cache
        with suppress(OSError):  # not all file systems can; fsync is then the best there is
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_path(path: Path | str) -> None:
    """Wait until the content of a file, or the entries of a folder, are on the disk. Raises OSError with the name."""
    descriptor = os.open(path, _SYNC_FLAGS)
    try:
        sync_descriptor(descriptor)
    except OSError as error:
        raise with_path(error, path) from error
    finally:
        os.close(descriptor)


def sync_folder(folder: Path | str) -> None:
    """Wait until a folder's entries (names added, changed or removed) are on the disk. Raises OSError.

    Some network file systems cannot sync folders; their error is ignored. Windows has no such call: the file system's own
    log decides there when a new name is durable.
    """
    if not _CAN_OPEN_FOLDERS:
        return
    try:
        sync_path(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


class Barrier:
    """Wait for many files at once: one syncfs for each file system, if the system has it.

    A syncfs for a few hundred small files takes about as long as an fsync of a few of them. File systems are kept open,
    because syncfs reports the errors since they were opened.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}  # by device

    def watch(self, folder: Path | str) -> None:
        """Name a folder before files are written into it."""
        if _syncfs() is None:
            return
        device = os.stat(folder).st_dev
        if device not in self._descriptors:
            self._descriptors[device] = os.open(folder, os.O_RDONLY)

    def wait(self, files: Iterable[Path | str], folders: Iterable[Path | str]) -> None:
        """Return when the content of `files` and the entries of `folders` are on the disk.

        Raises:
            OSError: With the name of the file that could not be written.
        """
        syncfs = _syncfs()
        descriptors = list(self._descriptors.values())  # another thread may add one
        if syncfs is not None and not any(map(syncfs, descriptors)):
            return  # else fsync shows which file is at fault
        for file in files:
            with suppress(FileNotFoundError):  # somebody has moved it away
                sync_path(file)
        for folder in folders:
            with suppress(FileNotFoundError):
                sync_folder(folder)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}


@cache
def _syncfs() -> Callable[[int], int] | None:
    """The function; None if the system has none, or one that does not report errors."""
    if sys.platform != "linux":
        return None
    numbers = [int(temp) if temp.isdigit() else 0 for temp in os.uname().release.split("-")[0].split(".")[:2]]
    if tuple(numbers) < _SYNCFS_REPORTS_ERRORS:
        return None
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return function
