"""One model in huggingface_hub's cache, in the layout that library documents:

    HF_HUB_CACHE/models--ORGANISATION--NAME/
        blobs/CHECKSUM              a file's content
        snapshots/COMMIT/PATH       a link to it, or the file itself where links cannot be had
        refs/BRANCH                 the commit that the branch had when it was last downloaded

Every part of a path that comes from the hub is checked before it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.hub import problems
from fastscribe.hub.choice import choose
from fastscribe.hub.name import HubName

_CHECKSUM = re.compile(r"[\w-]{1,128}", re.ASCII)


class Cache:
    def __init__(self, root: Path, name: HubName) -> None:
        self.root, self._name = root, name
        folder = root / f"models--{name.repo.replace('/', '--')}"
        self.snapshots, self._blobs, self._refs = folder / "snapshots", folder / "blobs", folder / "refs"

    def find(self, prefer_nemo: bool, say: Callable[[str], None]) -> Path | None:
        """The copy of the revision, if all of it is there. Raises UnsupportedCheckpoint."""
        commit = self._commit()
        folder = None if commit is None else self.snapshot(commit)
        if folder is None or not folder.is_dir():
            return None
        files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        try:
            choice = choose(self._name, files, lambda _: folder, say, prefer_nemo)
        except UnsupportedCheckpoint:
            raise
        except CheckpointError:  # a part of the model, or other files of the repository
            return None
        return folder / choice.files[0] if choice.is_nemo else folder

    def _commit(self) -> str | None:
        if self._name.is_commit:
            return self._name.revision
        try:
            commit = (self._refs / self._name.revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
        return commit if _CHECKSUM.fullmatch(commit) else None

    def remember(self, commit: str) -> None:
        """Note the commit of the branch, once all of it is here."""
        if self._name.revision != commit:
            with self.writing():
                _replace(self._refs / self._name.revision, lambda path: path.write_text(commit, encoding="ascii"))

    def snapshot(self, commit: str) -> Path:
        return self.snapshots / commit

    def has(self, commit: str, file: str) -> bool:
        return self._pointer(commit, file).is_file()

    def _pointer(self, commit: str, file: str) -> Path:
        """Raises CheckpointError for a name that leaves the folder."""
        parts = file.split("/")
        if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
            raise CheckpointError(self._name, f"refused: {file[:80]!r} is no name of a file in a repository")
        return self.snapshot(commit).joinpath(*parts)

    def partial(self, content: str) -> Path:
        """Where an unfinished download lies: `content` tells what it is of."""
        key = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        return self._blobs / f"{key[:40]}.fastscribe.incomplete"

    def partial_bytes(self, content: str) -> int:
        try:
            return self.partial(content).stat().st_size
        except OSError:
            return 0

    def blob(self, checksum: str) -> Path | None:
        """Where a content lies; None for a checksum that is no name of a file."""
        return self._blobs / checksum if _CHECKSUM.fullmatch(checksum) else None

    def link(self, commit: str, file: str, blob: Path) -> None:
        pointer = self._pointer(commit, file)
        try:
            _replace(pointer, lambda path: path.symlink_to(os.path.relpath(blob, pointer.parent)))
        except OSError:  # a file system without links
            _replace(pointer, lambda path: os.replace(blob, path))

    def check_space(self, num_bytes: int) -> None:
        """Raises CheckpointError where the disk has no room for a download."""
        with self.writing():
            self._blobs.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._blobs).free
        if num_bytes > free:
            raise problems.no_space(self._name, self.root, num_bytes, free)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turns the disk's errors into a CheckpointError that names the cache."""
        try:
            yield
        except OSError as error:
            raise problems.cannot_write(self._name, self.root, error) from error


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{uuid.uuid4().hex}.fastscribe.part")
    try:
        write(fresh)
        os.replace(fresh, path)
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
