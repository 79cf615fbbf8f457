"""List the states of a disk that a kill or a power cut can leave, at every change that a program makes below a folder.

The model promises no more than POSIX. Synced data are there. Of the rest, each change of a name and each file's content is
there, or not, or the content is torn: truncated, or zeros. A rename is atomic. Content is what the real files hold at the
moment; patched functions of `os` track changes of names.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import compress, product
from pathlib import Path
from typing import Any

import pytest
from fastscribe.results.commit import Committer

from fastscribe._system import safe_files
from fastscribe.errors import OutputError

FileId = tuple[int, int]  # inode, and how often it has been used before
State = Mapping[str, bytes | None]  # by path below the folder; None for folders
_PATIENCE_S = 60
# On Python 3.10 a Path calls functions that pathlib took from os when it was imported.
_PATHLIB_CALLS = getattr(pathlib, "_NormalAccessor", None)
_MAX_WHOLE = 3  # changes of names of which every subset is tried


class Killed(BaseException):
    """Raised in the middle of a run to stop it."""


class Disk:
    """Tracks changes below `root`, and records each state that they could leave once."""

    def __init__(self, root: Path, seed: int = 0, ignored: tuple[str, ...] = (".lock", "train.lock")) -> None:
        self.root, self.states = root, list[State]()
        self._ignored, self._rng, self._guard = ignored, random.Random(seed), threading.RLock()
        self._uses: dict[int, int] = {}
        self._folders = set[FileId]()
        self._names = self._look()  # as the process sees them
        self._durable_names = dict(self._names)
        self._durable = {file: content for file, content in self._contents().items() if content is not None}
        self._changes: list[tuple[str, str, str, FileId | None]] = []  # of names, since they were last synced
        self._seen: set[frozenset[tuple[str, bytes | None]]] = set()

    # --- what happens ------------------------------------------------------------------------------------------------

    def before(self) -> None:
        """Record the states that are possible before the next change."""
        self._follow()
        self._keep_states()

    def renamed(self, old: str, new: str) -> None:
        file = self._names.pop(old)
        replaced, self._names[new] = self._names.get(new), file
        self._retire(replaced)
        self._changes.append(("rename", old, new, file))
        for path in [path for path in self._names if path.startswith(old + "/")]:
            self._names[new + path[len(old) :]] = self._names.pop(path)

    def removed(self, path: str) -> None:
        self._retire(self._names.pop(path, None))
        self._changes.append(("remove", path, path, None))

    def synced(self, path: str) -> None:
        """The entries of a folder, or the content of a file."""
        self._follow()
        if (self.root / path).is_dir():
            mine = [change for change in self._changes if os.path.dirname(change[2]) == path]
            self._durable_names = self._apply(self._durable_names, mine)
            self._changes = [change for change in self._changes if change not in mine]
        elif path in self._names:
            self._durable[self._names[path]] = (self.root / path).read_bytes()

    def all_synced(self) -> None:
        self._follow()
        self._durable_names, self._changes = dict(self._names), []
        self._durable.update((file, content) for file, content in self._contents().items() if content is not None)

    # --- what is left ------------------------------------------------------------------------------------------------

    @property
    def durable_state(self) -> State:
        self._follow()
        return self._state(self._durable_names, self._contents(), self._old)

    @property
    def visible_state(self) -> State:
        self._follow()
        return self._state(self._names, self._contents(), self._new)

    def _keep_states(self) -> None:
        changes, rng, contents = self._changes, self._rng, self._contents()
        after = self._apply(self._durable_names, changes)
        states = [
            self._state(self._durable_names, contents, self._old),
            self._state(self._names, contents, self._new),
            self._state(after, contents, self._old),  # names without content
            self._state(self._durable_names, contents, self._new),  # content without names
        ]
        few = len(changes) <= _MAX_WHOLE
        subsets: list[Any] = list(product((False, True), repeat=len(changes))) if few else []
        subsets += [[rng.random() < 0.5 for _ in changes] for _ in range(3)]
        for subset in subsets:
            some = list(compress(changes, subset))
            states.append(self._state(self._apply(self._durable_names, some), contents, self._torn))
        for state in states:
            if (items := frozenset(state.items())) not in self._seen:
                self._seen.add(items)
                self.states.append(state)

    def _old(self, file: FileId, content: bytes) -> bytes:
        return self._durable.get(file, b"")

    @staticmethod
    def _new(file: FileId, content: bytes) -> bytes:
        return content

    def _torn(self, file: FileId, content: bytes) -> bytes:
        durable = self._durable.get(file, b"")
        begin = _num_common(durable, content)  # what is as it was is not written again
        middle = self._rng.randint(begin, max(begin, len(content)))
        cut, zeros = content[:middle], content[:begin] + bytes(len(content) - begin)
        return self._rng.choice([durable, content, cut, zeros, cut + durable[len(cut) :]])

    def _state(
        self,
        names: Mapping[str, FileId],
        contents: Mapping[FileId, bytes | None],
        content_of: Callable[[FileId, bytes], bytes],
    ) -> State:
        found = dict[str, bytes | None]()
        for path, file in sorted(names.items()):
            folder = os.path.dirname(path)
            if folder and folder not in found:
                continue  # the folder was lost
            content = contents.get(file, self._durable.get(file, b""))
            found[path] = None if file in self._folders or content is None else content_of(file, content)
        return found

    @staticmethod
    def _apply(names: Mapping[str, FileId], changes: list[tuple[str, str, str, FileId | None]]) -> dict[str, FileId]:
        found = dict(names)
        for kind, old, new, file in changes:
            if kind == "remove":
                found.pop(old, None)
            elif kind == "rename":
                if found.get(old) == file:
                    found[new] = found.pop(old)
                    for path in [path for path in found if path.startswith(old + "/")]:
                        found[new + path[len(old) :]] = found.pop(path)
            else:
                assert file is not None
                found[new] = file
        return found

    def _follow(self) -> None:
        """Record new entries."""
        now = self._look()
        for path, file in sorted(now.items()):
            if self._names.get(path) != file:
                self._changes.append(("create", path, path, file))
        self._names = now

    def _look(self) -> dict[str, FileId]:
        found = {}
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = os.path.relpath(os.path.join(folder, name), self.root)
                if name not in self._ignored:
                    number = os.lstat(os.path.join(folder, name)).st_ino
                    found[path] = number, self._uses.get(number, 0)
                    if name in folders:
                        self._folders.add(found[path])
        return found

    def _contents(self) -> dict[FileId, bytes | None]:
        return {
            file: None if (self.root / path).is_dir() else (self.root / path).read_bytes()
            for path, file in self._names.items()
        }

    def _retire(self, file: FileId | None) -> None:
        """Expect another file with this number from now on. Earlier states still have the old content."""
        if file is not None and file not in self._names.values():
            self._uses[file[0]] = file[1] + 1


def _num_common(first: bytes, second: bytes) -> int:
    """The number of bytes that both begin with."""
    most = min(len(first), len(second))
    if first[:most] == second[:most]:
        return most
    return next(at for at in range(most) if first[at] != second[at])


def restore(state: State, folder: Path) -> Path:
    """Write a state to the disk, as a restarted machine finds it."""
    folder.mkdir(parents=True)
    for path, content in sorted(state.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
    return folder


@contextmanager
def watched(disk: Disk, has_syncfs: bool = True) -> Iterator[None]:
    """Track what the process does to the disk."""
    with pytest.MonkeyPatch.context() as patch:
        _watch(patch, disk, has_syncfs)
        yield
        with disk._guard:
            disk.before()


def _watch(patch: pytest.MonkeyPatch, disk: Disk, has_syncfs: bool) -> None:
    def inside(path: Any) -> str | None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        place = os.path.relpath(os.path.abspath(path), disk.root)
        if place.split("/")[0] == ".." or os.path.basename(place) in disk._ignored:
            return None
        return "" if place == "." else place

    def hook(name: str, after: Callable[..., None]) -> None:
        original = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            with disk._guard:
                places = [inside(one) for one in arguments[: 2 if name in ("replace", "rename", "link") else 1]]
                if places[0] is None:
                    return original(*arguments, **options)
                disk.before()
                result = original(*arguments, **options)
                after(*[place for place in places if place is not None])
                return result

        patch.setattr(os, name, call)
        if hasattr(_PATHLIB_CALLS, name):
            patch.setattr(_PATHLIB_CALLS, name, staticmethod(call))

    def nothing(*places: str) -> None:
        pass

    hook("replace", disk.renamed)
    hook("rename", disk.renamed)
    for name in ("unlink", "remove", "rmdir"):
        hook(name, disk.removed)
    for name in ("truncate", "ftruncate", "mkdir", "link"):
        hook(name, nothing)
    hook("fsync", disk.synced)

    opened = os.open

    def open_file(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        with disk._guard:
            if flags & (os.O_CREAT | os.O_TRUNC) and not isinstance(path, int) and inside(path) is not None:
                disk.before()
            return opened(path, flags, *arguments, **options)

    patch.setattr(os, "open", open_file)

    def syncfs(descriptor: int) -> int:
        with disk._guard:
            disk.before()
            disk.all_synced()
        return 0

    patch.setattr(safe_files, "_syncfs", lambda: syncfs if has_syncfs else None)


@contextmanager
def blocks_of_three() -> Iterator[None]:
    """Commit the first result of each three alone and the next two together, while the run waits, so there is no race."""
    count = 0
    add, work = Committer.add, Committer._commit
    gate = threading.Semaphore(0)

    def added(self: Committer, item: Any) -> None:
        nonlocal count
        add(self, item)
        count += 1
        with self._changed:
            assert self._changed.wait_for(lambda: self._current or self._error, _PATIENCE_S)
        if count % 3 == 0:
            self.flush()

    def commit(self: Committer, items: Any) -> OutputError | None:
        assert gate.acquire(timeout=_PATIENCE_S)
        return work(self, items)

    def flush(self: Committer) -> None:
        for _ in range(2):  # what is under way, and what waits behind it
            with self._changed:
                if not self._current or self._error:
                    break
                under_way = self._current
                gate.release()
                assert self._changed.wait_for(lambda under_way=under_way: self._current is not under_way, _PATIENCE_S)
                assert self._changed.wait_for(lambda: self._current or not self._queued or self._error, _PATIENCE_S)
        flushed(self)

    flushed = Committer.flush
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Committer, "add", added)
        patch.setattr(Committer, "_commit", commit)
        patch.setattr(Committer, "flush", flush)
        yield


def remake(folder: Path, state: State) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return restore(state, folder)
