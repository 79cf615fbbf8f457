"""The folder from which the relative paths of a list count."""

from __future__ import annotations

import os
from contextlib import suppress

from fastscribe._system import remote
from fastscribe._system.urls import is_url, join_url
from fastscribe.audio.archives import part_at
from fastscribe.errors import FastscribeError

_MAX_LOOKS = 100  # at rows, for one whose recording is there


class ListFolder:
    """The list's own folder, or `clips` in it, as in Common Voice, or else the current one.

    The first row whose recording is there decides for all. Until then it is the list's own.

    Args:
        path: The list's path or URL.
        has_clips: Look in `clips` too.
    """

    def __init__(self, path: str, has_clips: bool = False) -> None:
        self._list, self._looks = path, 0
        own = "" if is_url(path) else os.path.dirname(path)
        self._folders = list(
            dict.fromkeys([own, *([os.path.join(own, "clips")] if has_clips else []), *self._current()])
        )
        self._decided = len(self._folders) == 1

    def _current(self) -> list[str]:
        return [] if is_url(self._list) else [""]

    def file_of(self, path: str) -> str:
        """Return the path or URL that a row's path means."""
        if not self._decided and not is_url(path) and not os.path.isabs(path):
            self._decide(path)
        return self._joined(self._folders[0], path)

    def is_there(self, path: str) -> bool:
        """Return True if a row's path is a file's, in any of the folders."""
        return any(_exists(self._joined(folder, path)) for folder in self._folders)

    def _decide(self, path: str) -> None:
        found = next((folder for folder in self._folders if _exists(self._joined(folder, path))), None)
        self._looks += 1
        if found is not None:
            self._folders = [found]
        self._decided = found is not None or self._looks >= _MAX_LOOKS

    def _joined(self, folder: str, path: str) -> str:
        if is_url(path) or os.path.isabs(path):
            return path
        return join_url(self._list, os.path.join(folder, path)) if is_url(self._list) else os.path.join(folder, path)


def _exists(path: str) -> bool:
    if is_url(path):
        with suppress(OSError, FastscribeError):
            remote.stat_object(path)
            return True
        return False
    with suppress(ValueError):  # a null character in it
        return os.path.exists(path) or (".tar/" in path and part_at(path) is not None)
    return False
