"""Runs over a few made-up recordings that are stopped at every change on the disk, and repeated until they are done.

Nothing is decoded. power_cut.py lists the states that a kill or a power cut leaves; the same command then goes on from each.
The folder must then equal that of an undisturbed run, somebody else's files among them, and no finished row is made twice.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe.config import OutputStyle, SubtitleStyle
from fastscribe.errors import OutputError
from fastscribe.results.journal import read_entries
from tests.fakes.killed_disk import run, sources, state_of
from tests.helpers.power_cut import Disk, State, commits_wait, remake, watched

FORMATS = ("jsonl", "srt", "vtt", "json")
ERRORS = (errno.ENOSPC, errno.EACCES, errno.ENAMETOOLONG, errno.EIO, errno.EROFS)
USERS: State = {
    "b.srt": b"somebody's own subtitles",  # a recording's name
    ".a.srt.part": b"a download",
    "c.vtt": None,
    "c.vtt/x": b"x",
    "notes.txt": b"",
}
_NAMES = ("1/a.wav", "1/b.wav", "2/a.wav", "1/c.wav", "1/gone.wav", "1/d.wav")


class Scene(NamedTuple):
    """A command that is stopped.

    Attributes:
        start: What it finds.
        go: Runs the command in a folder; returns the recordings that it would have decoded.
        again: Runs the command that goes on.
        folder: Where it is stopped.
        ordered: Rows are in the order of the inputs.
        retries: Failures of the command are tried again.
    """

    start: State
    go: Callable[..., list[str]]
    again: Callable[..., list[str]]
    folder: Path
    ordered: bool
    retries: bool

    def wanted(self) -> dict[str, Any]:
        """Return what an undisturbed run leaves."""
        remake(self.folder, self.start)
        self.go(self.folder)
        return state_of(self.folder, self.ordered)


def scenes(root: Path) -> dict[str, Callable[[], Scene]]:
    """Return what makes each scene below a folder. One at a time can be there."""
    recordings, folder = root / "in", root / "out"

    def command(
        formats: Sequence[str] = FORMATS, is_highlighted: bool = False, **options: Any
    ) -> Callable[..., list[str]]:
        style = OutputStyle(tuple(formats), subtitles=SubtitleStyle(highlight_words=is_highlighted))

        def go(place: Path, **more: Any) -> list[str]:
            inputs = sources(*(recordings / name for name in _NAMES))
            return run(place, inputs, random.Random(3), style=style, **options, **more)

        return go

    def begin(formats: Sequence[str] = ()) -> None:
        _put(recordings, {"1/a": "one", "1/b": "two", "2/a": "three", "1/c": "bad", "1/d": "four"})
        (recordings / "1/gone.wav").unlink(missing_ok=True)
        remake(folder, USERS)
        if formats:
            command(formats)(folder)

    def scene(**options: Any) -> Scene:
        go, again = command(**options), command(**{name: one for name, one in options.items() if name != "overwrite"})
        return Scene(_contents(folder), go, again, folder, options.get("ordered", False), "retry_failed" in options)

    def first(**options: Any) -> Scene:
        begin()
        return scene(**options)

    def changed(**options: Any) -> Scene:
        begin(FORMATS)
        (folder / "a.srt").write_text("one, or two")  # edited
        _put(recordings, {"1/a": "a new one", "2/a": "seven", "1/c": "whole", "1/gone": "found", "1/d": "bad"})
        return scene(retry_failed=True, **options)

    def other_formats() -> Scene:
        begin(("jsonl", "srt", "vtt"))
        (folder / "a.srt").write_text("one, or two")
        return scene(formats=("vtt", "json", "txt"), is_highlighted=True)

    def files_are_lost() -> Scene:
        begin(FORMATS)
        for name in ("a.srt", "d.json", "d.vtt", "gone.json"):
            (folder / name).unlink()
        return scene()

    def overwritten() -> Scene:
        begin(FORMATS)
        return scene(overwrite=True)

    def corrected_list() -> Scene:
        begin(FORMATS)
        _put(recordings, {"1/gone": "found"})
        return scene()

    def deleted_row() -> Scene:
        begin(FORMATS)
        rows = folder / "transcripts.jsonl"
        rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[1:]))
        _put(recordings, {"1/gone": "found"})
        return scene()

    return {
        "first": first,
        "ordered": lambda: first(ordered=True),
        "changed": changed,
        "changed, ordered": lambda: changed(ordered=True),
        "other formats": other_formats,
        "lost files": files_are_lost,
        "overwritten": overwritten,
        "corrected list": corrected_list,
        "deleted row": deleted_row,
    }


def _put(recordings: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = recordings / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1000, 1000))


def _contents(folder: Path) -> State:
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}


class Tried(NamedTuple):
    """What was tried: states from which a command went on, and what was wrong then."""

    states: int = 0
    problems: tuple[str, ...] = ()

    def plus(self, other: Tried) -> Tried:
        return Tried(self.states + other.states, self.problems + other.problems)


def stop_everywhere(scene: Scene, most: int) -> Tried:
    """Kill a command, or cut the power, at each of its changes, on a system with syncfs and on one without.

    Go on once from each visible state, and from `most` others of each system.
    """
    wanted, states, problems = scene.wanted(), list[State](), tuple[str, ...]()
    for has_syncfs in (True, False):
        disk = Disk(remake(scene.folder, scene.start))
        with commits_wait(), watched(disk, has_syncfs):
            scene.go(scene.folder)
        if disk.durable_state != disk.visible_state:
            problems += (f"a run that has ended has something left to lose, syncfs {has_syncfs}",)
        kills = set(map(id, disk.kills))
        states += disk.kills + _some([state for state in disk.states if id(state) not in kills], most)
    once = {frozenset(state.items()): state for state in states}
    return _go_on(scene, wanted, list(once.values())).plus(Tried(0, problems))


def stop_twice(scene: Scene, has_syncfs: bool, first_kills: int, most: int) -> Tried:
    """Kill a command, and cut the power while it is repeated: what the first one wrote may not be on the disk yet."""
    wanted, tried = scene.wanted(), Tried()
    calls = _count_calls(scene)
    for number in range(1, calls, max(1, calls // first_kills)):
        disk = Disk(remake(scene.folder, scene.start))
        with commits_wait(), watched(disk, has_syncfs):
            disk.is_recording = False
            _go_with_faults(scene, disk, range(number, 1 << 30), errno.EIO)
            disk.is_recording, disk.fault = True, lambda place: None
            scene.again(scene.folder)
        tried = tried.plus(_go_on(scene, wanted, _some(disk.states, most)))
    return tried


def fail_everywhere(scene: Scene, most: int) -> Tried:
    """Let each call of a run fail, alone or with all later ones; then the same command completes the folder."""
    wanted, tried = scene.wanted(), Tried()
    calls = _count_calls(scene)
    faults = [(range(at, at + num), error) for at, num, error in product(range(calls), (1, 3, 1 << 30), ERRORS)]
    for numbers, error in _some(faults, most):
        disk = Disk(remake(scene.folder, scene.start))
        disk.is_recording = False
        with commits_wait(), watched(disk):
            said = _go_with_faults(scene, disk, numbers, error)
        state = _contents(scene.folder)
        if not said and state_of(scene.folder, scene.ordered) != wanted:
            tried = tried.plus(Tried(0, (f"{errno.errorcode[error]} at call {numbers.start}: the run says nothing",)))
        tried = tried.plus(_go_on(scene, wanted, [state]))
    return tried


def _go_with_faults(scene: Scene, disk: Disk, numbers: range, error: int) -> bool:
    """Run a command some of whose calls fail. Return True if it says so."""
    left = iter(range(1 << 30))

    def fault(place: str) -> None:
        if next(left) in numbers:
            raise OSError(error, os.strerror(error), str(disk.root / place))

    disk.fault = fault
    not_made: list[OSError] = []
    try:
        scene.go(scene.folder, not_made=not_made)
    except (OSError, OutputError):
        return True
    return bool(not_made)


def _count_calls(scene: Scene) -> int:
    count = 0

    def fault(place: str) -> None:
        nonlocal count
        count += 1

    disk = Disk(remake(scene.folder, scene.start))
    disk.fault, disk.is_recording = fault, False
    with commits_wait(), watched(disk):
        scene.go(scene.folder)
    return count


def _some(found: Sequence[Any], most: int) -> list[Any]:
    return random.Random(1).sample(found, min(most, len(found)))


def _go_on(scene: Scene, wanted: dict[str, Any], states: Sequence[State]) -> Tried:
    problems = []
    for number, state in enumerate(states):
        remake(scene.folder, state)
        try:
            most = len(wanted["rows"]) - _num_finished(scene.folder, wanted, not scene.retries)
            num_decoded = len(scene.again(scene.folder))
            if num_decoded > most:
                problems.append(f"state {number}: {num_decoded} decoded where {most} were left: {_shown(state)}")
            found = state_of(scene.folder, scene.ordered)
            if found != wanted:
                problems.append(f"state {number}: {_difference(found, wanted)} after {_shown(state)}")
        except Exception as error:
            problems.append(f"state {number}: {type(error).__name__}: {error}: {_shown(state)}")
    return Tried(len(states), tuple(problems))


def _num_finished(folder: Path, wanted: dict[str, Any], with_failures: bool) -> int:
    """Return how many rows of the wanted ones the journal has."""
    journal, rows = folder / "journal.jsonl", folder / "transcripts.jsonl"
    if not journal.exists() or not rows.exists():
        return 0
    content, finished = rows.read_bytes(), set(wanted["rows"])
    last = {entry.key: entry for entry in read_entries(journal) if with_failures or not entry.failed}
    return sum((content[entry.begin : entry.end], key) in finished for key, entry in last.items())


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    files = {name for name in found["files"] | wanted["files"] if found["files"].get(name) != wanted["files"].get(name)}
    return f"{sorted(files)} differ" if files else "rows or journal differ"


def _shown(state: State) -> str:
    return str({name: content and content[:60] for name, content in state.items()})
