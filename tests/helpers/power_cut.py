"""List the states of a disk that a kill or a power cut can leave, at every change that a program makes below a folder.

The model promises no more than POSIX. Synced data are there. Of the rest, each change of a name and each file's content is
there, or not, or the content is torn: truncated, or zeros. A rename is atomic. Content is what the real files hold at the
moment; patched functions of `os` track changes of names.
"""

from __future__ import annotations

import math
import os
import pathlib
import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress, product
from pathlib import Path
from typing import Any

import pytest

from fastscribe._system import safe_files
from fastscribe.results.storage import Pace
from fastscribe.results.storage_folder import FolderStorage

FileId = tuple[int, int]  # inode, and how often it has been used before
State = Mapping[str, bytes | None]  # by path below the folder; None for folders
_FOR_EVER_S = 3600.0
# On Python 3.10 a Path calls functions that pathlib took from os when it was imported.
_PATHLIB_CALLS = getattr(pathlib, "_NormalAccessor", None)
_MAX_WHOLE = 6  # changes of names of which every subset is tried
_NUM_SUBSETS = 10  # of more changes
_MAX_STATES = 1_000  # at one moment, until some are chosen by chance
_NUM_STATES = 300  # which are so many


class Disk:
    """Tracks changes below `root`, and records each state that they could leave once, and the visible ones in `kills`."""

    def __init__(self, root: Path, seed: int = 0, ignored: tuple[str, ...] = (".lock", "train.lock")) -> None:
        self.root, self.states, self.kills = root, list[State](), list[State]()
        self._ignored, self._rng, self._guard = ignored, random.Random(seed), threading.RLock()
        self._uses: dict[int, int] = {}
        self._names = dict[str, FileId]()  # as the process sees them
        self._contents = dict[FileId, bytes | None]()  # None: a folder
        self._durable = dict[FileId, bytes | None]()
        self._changes: list[tuple[str, str, str, FileId | None]] = []  # of names, since they were last synced
        self._follow()
        self.all_synced()
        self._seen: set[frozenset[tuple[str, bytes | None]]] = set()
        self.is_recording = True
        self.fault: Callable[[str], None] = lambda place: None  # called with the path of each change; may raise

    # --- what happens ------------------------------------------------------------------------------------------------

    def before(self) -> None:
        """Record the states that are possible before the next change."""
        self._follow()
        if self.is_recording:
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
            file = self._names[path]
            self._durable[file] = self._contents[file]

    def all_synced(self) -> None:
        self._follow()
        self._durable_names, self._durable, self._changes = dict(self._names), dict(self._contents), []

    # --- what is left ------------------------------------------------------------------------------------------------

    @property
    def durable_state(self) -> State:
        self._follow()
        return self._state(self._durable_names, self._durable)

    @property
    def visible_state(self) -> State:
        self._follow()
        return self._state(self._names, self._contents)

    def _keep_states(self) -> None:
        visible = self._state(self._names, self._contents)
        if self._keep(visible):
            self.kills.append(visible)
        possible = self._possible_names()
        for names in possible:
            choices = {file: self._possible_contents(path, file) for path, file in names.items()}
            if math.prod(map(len, choices.values())) * len(possible) <= _MAX_STATES:
                chosen: Iterable[Sequence[bytes | None]] = product(*choices.values())
            else:
                number = _NUM_STATES // len(possible) + 1
                chosen = [[self._rng.choice(some) for some in choices.values()] for _ in range(number)]
            for contents in chosen:
                self._keep(self._state(names, dict(zip(choices, contents, strict=True))))

    def _keep(self, state: State) -> bool:
        """Record a state. Return False if it is known."""
        is_new = (items := frozenset(state.items())) not in self._seen
        if is_new:
            self._seen.add(items)
            self.states.append(state)
        return is_new

    def _possible_names(self) -> list[dict[str, FileId]]:
        """Return the names after each subset of the changes that are not synced; of many changes, after some subsets."""
        changes = self._changes
        if len(changes) <= _MAX_WHOLE:
            subsets: Iterable[Sequence[bool]] = product((False, True), repeat=len(changes))
        else:
            subsets = [[is_there] * len(changes) for is_there in (False, True)]
            subsets += [[self._rng.random() < 0.5 for _ in changes] for _ in range(_NUM_SUBSETS)]
        found = [self._apply(self._durable_names, list(compress(changes, subset))) for subset in subsets]
        return list({frozenset(names.items()): names for names in found}.values())

    def _possible_contents(self, path: str, file: FileId) -> list[bytes | None]:
        """Return what a file may have: as it was synced, as it is, cut, zeros, or some of these."""
        content = self._contents[file]
        durable = self._durable.get(file, b"")
        if content is None or durable is None or content == durable:
            return [content]
        if path.endswith(".part"):  # nobody reads it before it is synced
            return [durable, content]
        begin = _num_common(durable, content)  # what is as it was is not written again
        middle = (begin + len(content)) // 2
        start, half, zeros = content[:begin], content[:middle], bytes(len(content) - middle)
        found = [durable, content, half, start + bytes(len(content) - begin), half + zeros]
        if begin:  # the second block of what was appended, without the first
            found.append(start + bytes(middle - begin) + content[middle:])
        return list(dict.fromkeys(found))

    @staticmethod
    def _state(names: Mapping[str, FileId], contents: Mapping[FileId, bytes | None]) -> State:
        found = dict[str, bytes | None]()
        for path, file in sorted(names.items()):
            folder = os.path.dirname(path)
            if not folder or folder in found:  # else the folder was lost
                found[path] = contents.get(file, b"")
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
        """Look at the folder: record new entries, and what files have now."""
        now = dict[str, FileId]()
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = os.path.relpath(os.path.join(folder, name), self.root)
                if name not in self._ignored:
                    number = os.lstat(os.path.join(folder, name)).st_ino
                    now[path] = file = number, self._uses.get(number, 0)
                    self._contents[file] = None if name in folders else (self.root / path).read_bytes()
                    if name in folders:
                        self._durable[file] = None
        for path, file in sorted(now.items()):
            if self._names.get(path) != file:
                self._changes.append(("create", path, path, file))
        self._names = now

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
                disk.fault(places[0])
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
            if flags & (os.O_CREAT | os.O_TRUNC) and (place := inside(path)) is not None:
                disk.before()
                disk.fault(place)
            return opened(path, flags, *arguments, **options)

    patch.setattr(os, "open", open_file)

    def syncfs(descriptor: int) -> int:
        with disk._guard:
            disk.before()
            disk.all_synced()
        return 0

    patch.setattr(safe_files, "_syncfs", lambda: syncfs if has_syncfs else None)


@contextmanager
def commits_wait() -> Iterator[None]:
    """Let a commit take all that was queued until a flush, so that a run always makes the same commits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderStorage, "pace", Pace(2048, 2048, 1 << 26, _FOR_EVER_S, _FOR_EVER_S))
        yield


def remake(folder: Path, state: State) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return restore(state, folder)
