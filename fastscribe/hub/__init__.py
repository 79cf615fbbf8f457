"""Models on the Hugging Face hub: which files a model needs, downloading them, and the copies in the local cache.

The cache is huggingface_hub's own, in its documented layout, so other programs share the copies. HTTP settings, the token
and the environment variables (HF_ENDPOINT, HF_HOME, HF_TOKEN ..) are huggingface_hub's too. Only the transfer is not: since
version 2 that library discards a download that was interrupted, and in all versions it waits without a word.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastscribe.errors import CheckpointError, HubUnreachable, first_line
from fastscribe.hub import problems
from fastscribe.hub.cache import Cache
from fastscribe.hub.choice import choose
from fastscribe.hub.name import HubName
from fastscribe.hub.transfer import RemoteFile, Transfer, with_retries

__all__ = ["HubName", "download"]

_MAX_COMMIT = 64  # characters
Say = Callable[[str], None]
# label, bytes in all (None: unknown), bytes that an earlier download left -> a context that takes the bytes so far
Progress = Callable[[str, int | None, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class _Listing:
    commit: str
    files: dict[str, RemoteFile]


def download(
    name: HubName,
    say: Say,
    progress: Progress,
    *,
    prefer_nemo: bool = False,
    announce: bool = True,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """Return the path of a model on the hub, after downloading what the cache lacks.

    Args:
        name: the model and its revision. A full commit hash that is in the cache needs no network.
        say: takes each line that people should see.
        progress: draws the download.
        prefer_nemo: take the .nemo file where the repository holds a supported folder too.
        announce: say that the hub is asked before the first request.
        sleep: waits between attempts, in seconds.

    Returns:
        A .nemo file or a folder in the cache.

    Raises:
        CheckpointError: the hub refuses, the repository holds no supported model, or the cache cannot be written.
        HubUnreachable: the hub cannot be reached and the cache holds no copy.
    """
    library = _library(name)
    cache = Cache(Path(library.constants.HF_HUB_CACHE), name)

    def cached() -> Path | None:
        return cache.find(prefer_nemo, say)

    if name.is_commit and (path := cached()):
        return path
    if library.constants.HF_HUB_OFFLINE:
        if path := cached():
            return path
        raise problems.offline(name, cache.root)
    if announce:
        say(f"{name}: no such path here; asking the Hugging Face hub")
    try:
        return _download(library, name, cache, say, progress, prefer_nemo, sleep)
    except HubUnreachable as problem:
        path = cached()
        if path is None:
            raise
        commit = path.relative_to(cache.snapshots).parts[0]
        say(f"{name}: {problem.reason}; using the copy in the cache (commit {commit[:7]})")
        return path


def _library(name: HubName) -> Any:
    """huggingface_hub, imported when first needed. Raises CheckpointError."""
    try:
        library = importlib.import_module("huggingface_hub")
        for part in ("constants", "errors", "utils"):
            importlib.import_module(f"huggingface_hub.{part}")
    except (ImportError, ValueError) as error:  # ValueError: HF_HUB_DOWNLOAD_TIMEOUT=ten
        problem = f"huggingface_hub, which asks the Hugging Face hub, cannot be loaded: {first_line(error)}"
        raise CheckpointError(name, problem) from error
    if "HF_HUB_VERBOSITY" not in os.environ:
        library.utils.logging.set_verbosity_error()  # its warnings are pages long, and said here in a line each
    return library


def _download(
    library: Any,
    name: HubName,
    cache: Cache,
    say: Say,
    progress: Progress,
    prefer_nemo: bool,
    sleep: Callable[[float], None],
) -> Path:
    listing = with_retries(lambda: _list(library, name), name, say, sleep)
    transfer = Transfer(library, name, listing.commit, cache, say, sleep)

    def missing(files: list[str]) -> list[RemoteFile]:
        return [listing.files[file] for file in files if not cache.has(listing.commit, file)]

    def fetch_small(files: list[str]) -> Path:
        transfer.fetch(missing(files), lambda num_bytes: None)
        return cache.snapshot(listing.commit)

    choice = choose(name, listing.files.keys(), fetch_small, say, prefer_nemo)
    if files := missing(choice.files):
        left = [_bytes_left(file, cache, listing.commit) for file in files]
        total = sum(file.num_bytes or 0 for file in files)
        cache.check_space(sum(left))
        size = f"{total / 1e6:,.1f} MB, " if total else ""
        label = f"{name}: downloading {_largest(files)} ({size}commit {listing.commit[:7]})"
        with progress(label, total or None, total - sum(left)) as update:
            transfer.fetch(files, update)
    cache.remember(listing.commit)
    folder = cache.snapshot(listing.commit)
    return folder / choice.files[0] if choice.is_nemo else folder


def _bytes_left(file: RemoteFile, cache: Cache, commit: str) -> int:
    return max(0, (file.num_bytes or 0) - cache.partial_bytes(file.content(commit)))


def _largest(files: list[RemoteFile]) -> str:
    return max(files, key=lambda file: file.num_bytes or 0).path


def _list(library: Any, name: HubName) -> _Listing:
    """Ask for the commit behind the revision and its files. Raises CheckpointError, HubBusy, HubUnreachable."""
    problems.check_endpoint(name, library.constants.ENDPOINT)
    timeout_s = library.constants.HF_HUB_ETAG_TIMEOUT
    with problems.translated(library, name):
        try:
            info = library.HfApi().model_info(name.repo, revision=name.revision, files_metadata=True, timeout=timeout_s)
            commit, files = str(info.sha), [RemoteFile.of(sibling) for sibling in info.siblings or ()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # no JSON, or other JSON
            raise problems.NotAHub(name, first_line(error)) from error
    if not (commit.isascii() and commit.isalnum() and len(commit) <= _MAX_COMMIT):  # it names a folder
        raise problems.NotAHub(name, f"{commit[:80]!r} is no commit")
    return _Listing(commit, {file.path: file for file in files})
