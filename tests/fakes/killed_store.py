"""A store in memory that stops for good after a number of writes, as a run does that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from fastscribe._system import remote
from fastscribe._system.remote.file_system import FileSystemStore
from fastscribe.config import OutputStyle
from fastscribe.errors import OutputError
from fastscribe.results import object_lock, storage_object
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.output import open_journaled
from fastscribe.types import Failure, Source
from tests.fakes.killed_disk import result_of

URL = "memory://out"
STYLE = OutputStyle(("jsonl", "txt", "json"))


class KilledStore:
    """Passes on what it is asked for, until the run is "killed" before its write or deletion number `num_writes`."""

    def __init__(self) -> None:
        self._store = FileSystemStore(URL)
        self._lock = threading.Lock()
        self.num_writes, self.writes = -1, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*given: Any, **options: Any) -> Any:
            with self._lock:
                is_write = name in ("write", "upload", "delete")
                if self.writes == self.num_writes and (is_write or self.num_writes == 0):
                    raise remote.RemoteError("killed")
                self.writes += is_write
            return method(*given, **options)

        return call


@contextmanager
def killed_store() -> Iterator[KilledStore]:
    """Let memory:// be such a store, empty; commit at once, and take every lock of another run for a dead one's."""
    store = KilledStore()
    store._store._fs.store.clear()
    with (
        mock.patch.object(remote, "store_for", return_value=store),
        mock.patch.object(storage_object, "MIN_PAUSE_S", 0.0),
        mock.patch.object(storage_object, "PAUSE_SHARE", 0.0),
        mock.patch.object(object_lock, "_lives_here", return_value=False),
    ):
        yield store


def contents() -> dict[str, bytes]:
    """All objects by their name."""
    found = {}
    for one in list(remote.list_objects(URL)):
        found[one.url.removeprefix(URL + "/")] = remote.read_object(one.url).data
    return found


def public(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in objects.items() if not name.startswith(".fastscribe/")}


def run(inputs: Sequence[Source | Failure], style: OutputStyle = STYLE, **options: Any) -> list[str]:
    """Announce all inputs, and finish them in order. Returns the paths finished now."""
    written = []
    with open_journaled(URL, OutputRun(style, {"model": "m"}, **{"ordered": True} | options), str) as output:
        expected = [source for source in inputs if output.ledger.expect(source)]
        for source in expected:
            if not output.ledger.skip(source):
                output.write(result_of(source))
                written.append(source.path)
        output.flush()
        output.write_report(b'{"files": 1}')
    return written


def run_killed(store: KilledStore, num_writes: int, inputs: Sequence[Source | Failure], **options: Any) -> bool:
    """Kill a run before its write number `num_writes`. Return False if it ended before."""
    store.writes, store.num_writes = 0, num_writes
    with suppress(OutputError, OSError):
        run(inputs, **options)
    was_killed = store.writes == num_writes
    store.num_writes = -1
    return was_killed


def files(folder: Path, **texts: str) -> list[Path]:
    """Write recordings whose speech is their content. Returns all of the folder, sorted."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.wav").write_text(text)
    return sorted(folder.iterdir())
