"""Scenes of runs into an object store: those of a folder that make sense there, and those of its parts.

The store is a real server on the loopback; one that knows no conditional writes replaces whatever is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.helpers.forked_runs import Runs
from tests.helpers.object_store import OF_CLIENTS, FaultyStore, object_store
from tests.helpers.scenes import NO_MODEL, ONE_BY_ONE, Scene, killed
from tests.results import test_scenes as in_a_folder

pytestmark = pytest.mark.linux

OBJECTS = "fastscribe.results.objects.ObjectFolder"
PART = ".part.jsonl"
_numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def runs(server: FaultyStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    opened = Runs(tmp_path_factory.mktemp("runs"), OF_CLIENTS)
    yield opened
    opened.close()


@pytest.fixture(params=[True, False], ids=["conditional writes", "no conditional writes"])
def knows_conditions(server: FaultyStore, request: pytest.FixtureRequest) -> Iterator[bool]:
    server.knows_conditions = request.param
    yield request.param
    server.knows_conditions = True


@pytest.fixture
def scene(runs: Runs, tmp_path: Path) -> Scene:
    return Scene(runs, tmp_path, f"s3://bucket/{next(_numbers)}/out")


@pytest.mark.parametrize(
    "play",
    [
        in_a_folder.test_recordings_of_one_base_name,
        in_a_folder.test_names_that_a_file_system_may_confuse,
        in_a_folder.test_rows_of_one_recording,
        in_a_folder.test_a_recording_that_failed_is_retried,
        in_a_folder.test_formats_and_layouts,
        in_a_folder.test_a_folder_that_is_elsewhere,
        in_a_folder.test_other_settings_need_another_place,
    ],
    ids=lambda play: play.__name__,
)
def test_a_scene_of_a_folder(scene: Scene, play: Callable[[Scene], None]) -> None:
    play(scene)


@pytest.mark.parametrize(
    "play",
    [
        in_a_folder.test_a_file_of_somebody_else_keeps_its_name,
        in_a_folder.test_an_edit_stays_when_the_recording_changes,
    ],
    ids=lambda play: play.__name__,
)
def test_nothing_of_the_users_is_replaced(scene: Scene, knows_conditions: bool, play: Callable[[Scene], None]) -> None:
    play(scene)
    assert ("cannot refuse to replace" in scene.said) == (not knows_conditions)


STEPS = {
    "the lock": (f"{OBJECTS}.put", 1),
    "the settings": (f"{OBJECTS}.put", 2),
    "a part": (f"{OBJECTS}.put", 3),
    "one file": ("fastscribe.results.storage_object.ObjectStorage.write", 1),
    "three files": ("fastscribe.results.storage_object.ObjectStorage.write", 3),
    "the joined rows": (f"{OBJECTS}.upload", 1),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_after_each_step_of_a_run(scene: Scene, knows_conditions: bool, step: str) -> None:
    """What is committed is not decoded again; a file that is missing, or that a store has by half, is made again."""
    scene.recording("a.flac"), scene.recording("b.flac", "two")
    assert scene.transcribe(formats="srt,vtt", code=ONE_BY_ONE + killed(*STEPS[step])) == -9
    left = scene.names()
    is_committed = any(name.endswith(PART) for name in left)
    assert is_committed == (step not in ("the lock", "the settings"))
    if step == "three files":
        scene.write("a.srt", b"")
    assert scene.transcribe(formats="srt,vtt", code=NO_MODEL if is_committed else "") == 0
    words = scene.row_texts()
    expected = {f"{name}.srt": words[f"{name}.flac"] for name in "ab"}
    assert scene.texts() == expected and len(scene.texts("vtt")) == 2
    assert set(left) - set(scene.names()) == {name for name in left if name.endswith("alive.json")}


@pytest.mark.parametrize("formats", ["jsonl", "srt"])
def test_a_shard_that_is_retried_after_merge(scene: Scene, formats: str) -> None:
    for name, clip in (("a.flac", "one"), ("a.mp3", "two"), ("a.wav", "three")):
        scene.recording(name, clip)
    for index in (1, 0):
        assert scene.transcribe(formats=formats, more=("--shard", f"{index}/2")) == 0
    assert scene.command("merge", str(scene.place)) == 0
    words, texts = scene.row_texts(), scene.texts()
    assert not texts or (texts["a.srt"] == words["a.flac"] and sorted(texts.values()) == sorted(words.values()))
    for index in (0, 1):
        assert scene.transcribe(formats=formats, more=("--shard", f"{index}/2"), code=NO_MODEL) == 0
        assert "nothing to do" in scene.said
    assert scene.command("merge", str(scene.place)) == 0
    assert (scene.row_texts(), scene.texts()) == (words, texts)


@pytest.mark.parametrize("formats", ["jsonl", "srt"])
def test_parts_that_are_listed_late_or_torn(scene: Scene, formats: str) -> None:
    """An error names the part, and nothing is decoded twice; --overwrite begins anew."""
    first = scene.recording("a.flac")
    assert scene.transcribe(first, formats=formats) == 0
    parts = [name for name in scene.names() if name.endswith(PART)]
    scene.recording("b.flac", "two")
    assert scene.transcribe(formats=formats) == 0
    late = f"""
from fastscribe._system import remote
listed = remote.list_objects
remote.list_objects = lambda url: (one for one in listed(url) if not one.url.endswith({parts[0]!r}))
"""
    assert scene.transcribe(formats=formats, code=late + NO_MODEL) == 2
    assert f"{parts[0]}: is missing" in scene.said
    content = scene.read(parts[0])
    scene.write(parts[0], content[: len(content) // 2])
    if len(parts) > 1:  # the last part of a run is what a kill may leave
        assert scene.transcribe(formats=formats, code=NO_MODEL) == 2
        assert f"{parts[0]}: was changed" in scene.said
    else:
        assert scene.transcribe(first, formats=formats) == 0 and scene.row_texts().keys() == {"a.flac", "b.flac"}
    scene.remove(parts[0])
    assert scene.transcribe(formats=formats, more=("--overwrite",)) == 0
    assert scene.row_texts().keys() == {"a.flac", "b.flac"} and not set(parts) & set(scene.names())


@pytest.mark.parametrize("number", [1, 3, 6, 8])
def test_overwriting_that_is_killed_goes_on(scene: Scene, number: int) -> None:
    """Also if parts of the journal are gone. An edit and a user's object stay."""
    scene.recording("a.flac"), scene.recording("b.flac", "two")
    scene.write("notes.srt", b"mine")
    assert scene.transcribe() == 0
    scene.write("a.srt", b"by hand")
    killing = ONE_BY_ONE + killed("fastscribe._system.remote.delete_object", number)
    assert scene.transcribe(more=("--overwrite",), code=killing) == -9
    assert scene.transcribe(more=("--overwrite",)) == 0
    files, words = scene.texts(), scene.row_texts()
    assert (files.pop("notes.srt"), files.pop("a.srt")) == ("mine", "by hand")
    assert sorted(files.values()) == sorted(words.values()) and "b.srt" in files and len(files) == 2


def test_an_object_of_somebody_else_during_the_run(scene: Scene) -> None:
    """A store with conditional writes refuses to replace it; the row stays, and the run ends with 1."""
    scene.recording("a.flac")
    theirs = f"""
from fastscribe._system import remote
from fastscribe.results.storage_object import ObjectStorage
commit = ObjectStorage.commit
def committed(self, items):
    remote.write_object({scene.place + "/a.srt"!r}, b"mine")
    return commit(self, items)
ObjectStorage.commit = committed
"""
    assert scene.transcribe(code=theirs) == 1
    assert "a.srt: not written: no run of fastscribe wrote this file" in scene.said
    assert scene.files() == {"a.srt": b"mine"} and len(scene.rows()) == 1
    scene.remove("a.srt")
    assert scene.transcribe(code=NO_MODEL) == 0
    assert scene.texts() == {"a.srt": scene.rows()[0]["text"]}
