"""A run of the writing code alone, with made-up transcripts, that can be killed at any of its calls to the file system.

At the fatal call the folder is copied as it is (a call that writes may have done half of its work) and `Killed` is raised;
whatever handlers do then happens to the folder that nobody looks at again, as if the process were no more.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fastscribe.audio.source import Source
from fastscribe.config import OutputStyle
from fastscribe.output.folder import FolderOutput
from fastscribe.resume.entries import Paths, read_entries
from fastscribe.resume.shards import WHOLE, Shard
from fastscribe.types import AudioInfo, Failure, Transcript

STYLE = OutputStyle(("jsonl", "txt", "json"))


class Killed(BaseException):
    pass


@dataclass
class Disk:
    """Counts calls, and ends the run at number `fatal`, halfway through if `is_halving`."""

    folder: Path
    copy: Path
    fatal: int = 0
    is_halving: bool = False
    calls: int = 0

    def step(self, half: Callable[[], object] = lambda: None) -> None:
        self.calls += 1
        if self.calls == self.fatal:
            if self.is_halving:
                half()
            shutil.copytree(self.folder, self.copy)
            raise Killed


def watch(patch: pytest.MonkeyPatch, disk: Disk) -> None:
    """Puts `disk` before all calls by which output.py and journal.py change files."""
    opened = Path.open

    class Appended(io.FileIO):
        def write(self, content: Any) -> int:
            disk.step(lambda: io.FileIO.write(self, content[: len(content) // 2]))
            return super().write(content[: max(1, 2 * len(content) // 3)])  # which the system is free to do

        def truncate(self, size: int | None = None) -> int:
            disk.step()
            return super().truncate(size)

    def open_path(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode == "r" or mode == "rb":
            return opened(path, mode, *args, **options)
        disk.step()
        return Appended(path, "a") if options.get("buffering") == 0 else opened(path, mode, *args, **options)

    def write_bytes(path: Path, content: bytes) -> None:
        with io.FileIO(path, "w") as file:
            disk.step(lambda: io.FileIO.write(file, content[: len(content) // 2]))
            file.write(content)

    def fsync(descriptor: int) -> None:
        def lose_half() -> None:  # what was in the program's buffers is not in the file yet
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".part"):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)

        disk.step(lose_half)

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            disk.step()
            return function(*args, **options)

        return call

    patch.setattr(Path, "open", open_path)
    patch.setattr(Path, "write_bytes", write_bytes)
    patch.setattr(os, "fsync", fsync)
    for owner, name in ((os, "replace"), (os, "truncate"), (Path, "unlink"), (Path, "touch"), (Path, "rename")):
        patch.setattr(owner, name, before(getattr(owner, name)))


def sources(*paths: Path) -> list[Source | Failure]:
    """Their ids are their names, so files of other folders may have the same. One that is not there is a Failure."""
    found: list[Source | Failure] = []
    for index, path in enumerate(paths):
        if path.exists():
            found.append(Source(str(path), str(path), path.name, index=index))
        else:
            found.append(Failure(str(path), path.name, "input", "AudioError", "no such file", None, index))
    return found


def result_of(source: Source | Failure) -> Transcript | Failure:
    """What the file holds is its text; `bad` cannot be transcribed."""
    if isinstance(source, Failure):
        return source
    text = Path(source.file).read_text()
    if text == "bad":
        return Failure(source.path, source.id, "load", "AudioError", "broken", None, source.index)
    audio = AudioInfo(source.path, source.id, 16_000, 1, 16_000 * len(text), index=source.index)
    return Transcript(audio, text, (), ())


def run(
    folder: Path, inputs: Sequence[Source | Failure], order: random.Random, *, shard: Shard = WHOLE, **options: Any
) -> list[str]:
    """Inputs are announced in order, looked up and finished at random. Returns the paths of those that were done now."""
    written = []
    with FolderOutput(folder, STYLE, {"model": "m"}, shard, **options) as output:
        new, expected, found = list(inputs), [], []
        while new or expected or found:
            stage = order.choice([stage for stage in (new, expected, found) if stage])
            source = stage.pop(0 if stage is new else order.randrange(len(stage)))
            if stage is new:
                if output.expect(source):
                    expected.append(source)
            elif stage is expected:
                if not output.is_done(source):
                    found.append(source)
            else:
                output.write(result_of(source))
                written.append(source.path)
    return written


def state_of(folder: Path, ordered: bool, suffix: str = "") -> dict[str, Any]:
    """All that must not depend on kills. Checks the journal on the way."""
    paths = Paths(folder, suffix)
    rows = paths.rows.read_bytes()
    entries = [entry for entry, _ in read_entries(paths.journal)]
    assert len(paths.journal.read_bytes().splitlines()) == 1 + len(entries)
    assert [0, *(entry.end for entry in entries)] == [*(entry.begin for entry in entries), len(rows)]  # no gap, no rest
    assert len({entry.key for entry in entries}) == len(entries)
    listed = [(rows[entry.begin : entry.end], entry.failed, entry.key, entry.order) for entry in entries]
    assert all(("error" in json.loads(row)) == failed for row, failed, *_ in listed)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in (paths.rows.name, paths.journal.name, paths.lock.name):
        del files[name]
    order = [(row, key) for row, _, key, _ in listed]
    return {"files": files, "rows": order if ordered else sorted(order)}


def run_until_done(
    patch: pytest.MonkeyPatch, folder: Path, kills: Sequence[tuple[int, bool]], go: Callable[[Path], object]
) -> tuple[Path, int]:
    """`go` with a kill at each of those calls, and once more without. Returns the folder in the end, and the calls made."""
    for number, (fatal, is_halving) in enumerate(kills):
        disk = Disk(folder, folder.with_name(f"{folder.name}-{number}"), fatal, is_halving)
        with patch.context() as context:
            watch(context, disk)
            try:
                go(folder)
            except Killed:
                folder = disk.copy
    disk = Disk(folder, folder)
    with patch.context() as context:
        watch(context, disk)
        go(folder)
    return folder, disk.calls


def renumbered(inputs: Sequence[Source | Failure]) -> list[Source | Failure]:
    return [replace(source, index=index) for index, source in enumerate(inputs)]
