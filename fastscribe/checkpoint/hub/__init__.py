"""Download of models from the Hugging Face hub to huggingface_hub's cache.

huggingface_hub transfers and checks the files and manages the cache. This package chooses the files, pins them to one commit,
falls back to the cache if the hub cannot be reached, and reports each problem in one line.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastscribe._system.safe_files import write_atomic
from fastscribe.checkpoint.hub import problems
from fastscribe.checkpoint.hub.choice import Choice, choose
from fastscribe.checkpoint.hub_name import HubName, is_commit
from fastscribe.errors import CheckpointError, HubUnreachable, SideModelGiven, UnsupportedCheckpoint, first_line

__all__ = ["HubName", "cached", "download"]

RETRY_DELAYS_S = (1.0, 2.0, 4.0, 8.0)
MAX_RETRY_AFTER_S = 120.0  # a longer wait is an error
_Result = TypeVar("_Result")
Log = Callable[[str], None]


def download(
    name: HubName,
    say: Log,
    *,
    show_progress: bool = True,
    side_model: bool = False,
    announce: bool = True,
) -> Path:
    """Return the path of a model on the hub, after downloading the files that are not in the cache.

    Args:
        name: the model and its revision. A full commit hash in the cache needs no network.
        say: receives each line for the user.
        show_progress: show progress if stderr is a terminal.
        side_model: as checkpoint.location.locate().
        announce: report the lookup before the first request.

    Returns:
        A .nemo file or a folder in the cache.

    Raises:
        CheckpointError: the hub refuses, the repository holds no supported model, or the cache cannot be written.
        HubUnreachable: the hub cannot be reached and the cache holds no copy.
    """
    library = _library(name)
    chosen = partial(choose, side_model=side_model)
    model = _Model(library, name, say, show_progress, chosen)
    if is_commit(name.revision) and (path := model.cached()):
        return path
    if library.constants.HF_HUB_OFFLINE:
        if path := model.cached():
            return path
        raise problems.offline(library, name)
    if announce:
        say(f"{name}: no such path here; asking the Hugging Face hub")
    log, logger = _Log(name, say), library.utils.logging.get_logger()
    handlers = logger.handlers[:]
    logger.handlers[:] = [*handlers, log] if "HF_HUB_VERBOSITY" in os.environ else [log]
    try:
        return model.download(log)
    except HubUnreachable as problem:
        if path := model.cached(problem.reason):
            return path
        raise
    finally:
        logger.handlers[:] = handlers


def cached(name: HubName) -> Path | None:
    """Return the model's complete copy in the cache, if there is one. Needs no network. Raises CheckpointError."""
    return _Model(_library(name), name, lambda line: None, False, choose).cached()


def _library(name: HubName) -> Any:
    """Import huggingface_hub on first use. Raises CheckpointError."""
    try:
        library = importlib.import_module("huggingface_hub")
        for part in ("constants", "errors", "utils"):
            importlib.import_module(f"huggingface_hub.{part}")
    except (ImportError, ValueError) as error:  # ValueError: HF_HUB_DOWNLOAD_TIMEOUT=ten
        problem = f"huggingface_hub, which asks the Hugging Face hub, cannot be loaded: {first_line(error)}"
        raise CheckpointError(name, problem) from error
    return library


class _Log(logging.Handler):
    """Reports waits of huggingface_hub and drops its other warnings, which are long and become errors anyway.

    Attributes:
        num_waits: number of waits.
    """

    def __init__(self, name: HubName, say: Log) -> None:
        super().__init__()
        self._name, self._say, self.num_waits = name, say, 0

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().splitlines()[-1]
        if line.startswith(("Retrying in", "Rate limited", "Trying to resume")):
            self.num_waits += 1
            self._say(f"{self._name}: the Hugging Face hub is busy or the connection failed: {line}")


class _Model:
    def __init__(
        self, library: Any, name: HubName, say: Log, show_progress: bool, choose: Callable[..., Choice]
    ) -> None:
        self._library, self._name, self._say, self._choose = library, name, say, choose
        self._draw = show_progress and sys.stderr is not None and sys.stderr.isatty()

    def cached(self, reason: str = "") -> Path | None:
        """Return the cached copy of the revision if it is complete, and report `reason`.

        Raises UnsupportedCheckpoint and SideModelGiven.
        """
        name, find = self._name, self._library.snapshot_download
        try:  # no patterns: `choose` selects the files
            folder = Path(find(name.repo, revision=name.revision, local_files_only=True, allow_patterns=[]))
        except self._library.errors.LocalEntryNotFoundError:
            return None
        files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        try:
            choice = self._choose(name, files, lambda _: folder, self._say)
        except (UnsupportedCheckpoint, SideModelGiven):
            raise
        except CheckpointError:  # the copy is incomplete
            return None
        if reason:
            self._say(f"{name}: {reason}; using the copy in the cache (commit {folder.name[:7]})")
        return choice.path(folder)

    def download(self, log: _Log) -> Path:
        commit, sizes = self._with_retries(self._list, log)

        def fetch(files: list[str], draw: bool = False) -> Path:
            for file in files:
                path = self._with_retries(partial(self._fetch, commit, file, draw), log)
            return path.parents[file.count("/")]

        choice = self._choose(self._name, sizes, fetch, self._say)
        cached = self._library.try_to_load_from_cache
        if missing := [file for file in choice.files if not cached(self._name.repo, file, revision=commit)]:
            largest, total = max(missing, key=lambda file: sizes[file]), sum(sizes[file] for file in missing)
            size = f"{total / 1e6:,.1f} MB, " if total else ""
            self._say(f"{self._name}: downloading {largest} ({size}commit {commit[:7]})")
        folder = fetch(choice.files, self._draw)
        if self._name.revision != commit:
            with suppress(OSError):  # read-only cache
                ref = folder.parent.parent / "refs" / self._name.revision
                ref.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(ref, commit.encode())
        return choice.path(folder)

    def _list(self) -> tuple[str, dict[str, int]]:
        """Return the commit of the revision, and its files' sizes in bytes, 0 if unknown."""
        library, name = self._library, self._name
        timeout_s = library.constants.HF_HUB_ETAG_TIMEOUT
        with problems.translate_errors(library, name):
            info = library.HfApi().model_info(name.repo, revision=name.revision, files_metadata=True, timeout=timeout_s)
            commit, sizes = info.sha, {file.rfilename: file.size or 0 for file in info.siblings or ()}
            if not is_commit(commit):
                raise ValueError(f"{commit[:80]!r} is no commit")
        for file in sizes:
            if "\\" in file or {"", ".", ".."} & set(file.split("/")):
                raise CheckpointError(name, f"refused: {file[:80]!r} is no name of a file in a repository")
        return commit, sizes

    def _fetch(self, commit: str, file: str, draw: bool) -> Path:
        with problems.translate_errors(self._library, self._name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "Not enough free disk space")
            bar = _bar_class(self._library, file, draw)
            return Path(self._library.hf_hub_download(self._name.repo, file, revision=commit, tqdm_class=bar))

    def _with_retries(self, action: Callable[[], _Result], log: _Log) -> _Result:
        """Retry `action` with exponential backoff while the hub answers 429 or 5xx.

        huggingface_hub retries some requests itself, up to 5 times. These are not retried here.
        """
        for delay_s in RETRY_DELAYS_S:
            num_waits = log.num_waits
            try:
                return action()
            except problems.HubBusy as busy:
                wait_s = delay_s if busy.retry_after_s is None else busy.retry_after_s
                if log.num_waits > num_waits or wait_s > MAX_RETRY_AFTER_S:
                    raise
                self._say(f"{self._name}: {busy.reason}; trying again in {wait_s:.0f} s")
                time.sleep(wait_s)
        return action()


def _bar_class(library: Any, label: str, draw: bool) -> type:
    """Make the progress bar class of one file."""

    class Bar(library.utils.tqdm):  # type: ignore[misc]  # a base class that is known at run time only
        def __init__(self, *args: Any, **settings: Any) -> None:
            settings |= {"desc": label, "position": None} | ({} if draw else {"disable": True})
            super().__init__(*args, **settings)

        def update_transfer(self, num_bytes: float) -> None:
            """Ignore network bytes. Without this method huggingface_hub draws a second bar."""

        def set_transfer_postfix_str(self, *_: Any, **__: Any) -> None:
            """Ignore the rate."""

    return Bar
