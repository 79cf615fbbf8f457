"""Scenes of runs by the command, into a folder and into a store: what is there after edits, and runs in any order.

The store is a real server on the loopback; one that knows no conditional writes replaces whatever is there. What a kill or a
power cut leaves is in test_power_cut.py and test_object_commits.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import soundfile

from fastscribe.results.journal import SYNCED
from tests.helpers.forked_runs import Runs
from tests.helpers.object_store import OF_CLIENTS, FaultyStore
from tests.helpers.processes import fastscribe
from tests.helpers.scenes import NO_MODEL, Scene

pytestmark = pytest.mark.linux

LETTERS = "-[a-z2-7]{6}"
_numbers = count()


@pytest.fixture(scope="module")
def runs(server: FaultyStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    opened = Runs(tmp_path_factory.mktemp("runs"), OF_CLIENTS)
    yield opened
    opened.close()


@pytest.fixture(params=["folder", "store"])
def scene(runs: Runs, server: FaultyStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    server.knows_conditions = request.param != "store without conditional writes"
    yield Scene(runs, tmp_path, tmp_path / "out" if request.param == "folder" else f"s3://bucket/{next(_numbers)}/out")
    server.knows_conditions = True


in_a_folder = pytest.mark.parametrize("scene", ["folder"], indirect=True)


def test_recordings_of_one_base_name(scene: Scene) -> None:
    """Each run's files stay, whatever the order, and a later run over all has nothing to do."""
    clips = {"week1": "one", "week2": "two", "week3": "three"}
    weeks = [scene.recording(f"{week}/a.flac", clip).parent for week, clip in clips.items()]
    for week in weeks[::-1]:
        assert scene.transcribe(week) == 0
    texts, words = scene.texts(), scene.row_texts()
    others = sorted(texts.keys() - {"a.srt"})
    assert texts["a.srt"] == words["week3/a.flac"] != ""
    assert len(others) == 2 and all(re.fullmatch(f"a{LETTERS}.srt", name) for name in others)
    assert {texts[name] for name in others} == {words["week1/a.flac"], words["week2/a.flac"]}
    files = scene.files()
    for inputs in (weeks[:1], weeks[2:], weeks, [scene.inputs]):
        assert scene.transcribe(*inputs, code=NO_MODEL) == 0
        assert scene.files() == files


def test_formats_and_layouts(scene: Scene) -> None:
    """Files of other formats are made of the rows, and those in another layout again, but for edits."""
    scene.recording("a.flac", "long"), scene.recording("b.flac", "long")
    assert scene.transcribe() == 0
    before = scene.files()
    assert scene.transcribe(formats="vtt,txt", code=NO_MODEL) == 0
    assert scene.files().keys() == {f"{name}.{format}" for name in "ab" for format in ("srt", "vtt", "txt")}
    assert scene.texts("vtt")["a.vtt"] == scene.texts("srt")["a.srt"] == scene.texts("txt")["a.txt"]
    assert {name: scene.read(name) for name in before} == before
    edited = before["a.srt"].replace(b"Rice", b"RICE")  # of the same size
    scene.write("a.srt", edited)
    narrow = ("--max-line-width", "20")
    for said, formats in ((" srt and vtt had another layout", "srt,vtt,txt"), ("there is nothing to do", "srt,vtt")):
        assert scene.transcribe(formats=formats, code=NO_MODEL, more=narrow) == 0
        assert said in scene.said
        assert scene.said.count("edited") == scene.said.count("a.srt: edited since the run: it stays") == 1
        files = scene.files()
        assert files["a.srt"] == edited and files["a.txt"] == files["b.txt"] and files["a.vtt"] == files["b.vtt"]
        assert files["b.srt"].count(b"\n") > before["b.srt"].count(b"\n")


@in_a_folder
def test_a_stopped_run_leaves_an_edited_file_and_does_not_count_it(scene: Scene) -> None:
    for name in "ab":
        scene.recording(f"{name}.flac")
    assert scene.transcribe() == 0
    journal = scene.read("journal.jsonl")
    scene.write("journal.jsonl", journal.replace(SYNCED, b""))  # as of a run that was killed; a line for each commit
    scene.write("a.srt", b"edited")
    (scene.inputs / "a.flac").unlink()
    assert scene.transcribe() == 0 and "a.srt: edited since the run" in scene.said and "made files" not in scene.said


@pytest.mark.parametrize("scene", ["folder", "store", "store without conditional writes"], indirect=True)
def test_a_file_of_somebody_else_keeps_its_name(scene: Scene, server: FaultyStore) -> None:
    """The recording gets letters, and one line names the first; a name that is given stays, whatever comes later."""
    scene.recording("a.flac"), scene.recording("b.flac", "two"), scene.recording("c.flac", "three")
    theirs = {"a.srt": b"mine", "b.srt": b"mine too", "c.vtt": b"of a format that comes later"}
    for name, content in theirs.items():
        scene.write(name, content)
    assert scene.transcribe() == 0
    [line] = [line for line in scene.said.splitlines() if "no run of fastscribe wrote this file" in line]
    assert re.search(f"a.srt \\(and 1 more\\): .* files are called a{LETTERS}$", line)
    ours = [name for name in scene.files() if name not in theirs]
    expected = [f"a{LETTERS}.srt", f"b{LETTERS}.srt", "c.srt"]
    assert len(ours) == 3 and all(map(re.fullmatch, expected, ours))
    assert scene.transcribe(formats="srt,vtt", code=NO_MODEL) == 0
    assert "no run of" not in scene.said and scene.said.count("c.vtt: edited") == 1
    assert {name: scene.read(name) for name in theirs} == theirs
    assert len(scene.files()) == 3 + 3 + 2
    assert ("cannot refuse to replace" in scene.said) != server.knows_conditions


@in_a_folder
def test_another_model_or_command_needs_another_folder(scene: Scene) -> None:
    recording, manifest = scene.recording("a.flac", "long"), scene.inputs / "texts.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": str(recording), "text": "At Rice Stadium"}) + "\n")
    assert scene.transcribe(recording) == 0
    before = scene.files()
    for given, option in (
        (("transcribe", recording), "results of a run with other settings (model: was another one"),
        (("align", manifest), "results of transcribe: use another folder, or --overwrite to start over"),
    ):
        refused = fastscribe(*given, "-o", scene.place, "-f", "srt", "--dtype", "fp32", "--quiet")
        assert refused.returncode == 2, refused.stderr
        assert option in refused.stderr
    assert scene.files() == before


@in_a_folder
def test_a_file_that_cannot_be_written(scene: Scene) -> None:
    """Its row is there, and the run ends with 1 and names it; the next run makes it from the row."""
    scene.recording("sub/a.flac"), scene.recording("b.flac", "two")
    scene.write("sub", b"a file where a folder belongs")
    for code in ("", NO_MODEL):
        assert scene.transcribe(code=code) == 1
        assert len(re.findall("sub/a.srt: not written: .* the row is there", scene.said)) == 1
        assert scene.row_texts().keys() == {"b.flac", "sub/a.flac"} and "b.srt" in scene.files()
    scene.remove("sub")
    assert scene.transcribe(code=NO_MODEL) == 0
    assert scene.texts()["sub/a.srt"] == scene.row_texts()["sub/a.flac"]


def test_a_folder_that_is_elsewhere(scene: Scene) -> None:
    """Its results are taken over, for good; without the option a line says what to do, and nothing is decoded."""
    for name in ("a.flac", "x/b.flac"):
        scene.recording(name, "two" if name == "a.flac" else "one")
    assert scene.transcribe() == 0
    files, old, new = scene.files(), scene.inputs, scene.inputs.with_name("elsewhere")
    old.rename(new)
    for path in new.rglob("*.flac"):
        os.utime(path, (1000, 1000))
    assert scene.transcribe(new, code=NO_MODEL, more=("--moved", f"{old}={new}")) == 0
    for more in ((), ("--moved", f"{old}={new}")):
        assert scene.transcribe(new, code=NO_MODEL, more=more) == 0
        assert scene.files() == files and len(scene.rows()) == 2
    new.rename(old)
    assert scene.transcribe() == 2 and f"--moved {new}={old} takes" in scene.said  # it is where its rows say
    scene.recording("a.flac", "three")  # of another size: it is another one
    assert scene.transcribe(more=("--moved", f"{new}/={old}")) == 0
    assert scene.files().keys() == files.keys() and len(scene.rows()) == 2
    assert scene.files()["a.srt"] != files["a.srt"] and scene.files()["x/b.srt"] == files["x/b.srt"]


def test_files_of_a_new_format_are_known_where_a_recording_moved(scene: Scene) -> None:
    old, new = scene.recording("a.flac").parent, scene.inputs.with_name("elsewhere")
    assert scene.transcribe() == 0
    old.rename(new)
    assert scene.transcribe(new, formats="srt,vtt", code=NO_MODEL, more=("--moved", f"{old}={new}")) == 0
    assert scene.files().keys() == {"a.srt", "a.vtt"}
    assert scene.transcribe(new, formats="srt,vtt", code=NO_MODEL, more=("--max-line-width", "9")) == 0
    assert "their srt and vtt had another layout" in scene.said and "edited" not in scene.said


def test_a_folder_that_is_elsewhere_is_not_decoded_again(scene: Scene) -> None:
    """The run stops before the model loads, until it is told what to do; also one whose command differs from the last one."""
    for name in "abcdef":
        scene.recording(f"{name}.flac")
    old, new, third = (scene.inputs.with_name(name) for name in (scene.inputs.name, "elsewhere", "third"))
    shard = ("--shard", "0/2")
    for more in ((), (*shard, "--overwrite")):
        assert scene.transcribe(more=more) == 0
        old.rename(new)
        kept = shard if more else ()
        reports = {name: scene.read(name) for name in scene.names() if name.startswith("report")}
        for wrong, said in {
            (): f"--moved {old}={new} takes the results over, --moved none decodes all again",
            ("--speakers", "channels"): f"--moved {old}={new} takes the results over",
            ("--dry-run",): f"--moved {old}={new} takes the results over, --moved none decodes all again",
            ("--moved", f"{old}x={new}"): f"--moved {old}x={new}: takes over no result in {scene.place}, so nothing is "
            f"decoded: did you mean --moved {old}={new}?",
            ("--moved", f"{old}={third}"): f"did you mean --moved {old}={new}?",
        }.items():
            assert scene.transcribe(new, code=NO_MODEL, more=(*kept, *wrong)) == 2
            assert said in scene.said
        assert reports and reports == {name: scene.read(name) for name in scene.names() if name.startswith("report")}
        new.rename(old)
    typo = ("-o", f"{scene.place}-typo", "--moved", f"{new}={old}")
    assert (
        scene.transcribe(more=typo, code=NO_MODEL) == 2 and f"takes over no result in {scene.place}-typo" in scene.said
    )
    assert scene.transcribe(more=("--overwrite",)) == 0
    old.rename(new)
    assert scene.transcribe(new, code=NO_MODEL, more=("--moved", f"{old}={new}-typo")) == 2
    assert scene.transcribe(new, code=NO_MODEL, more=("--moved", f"{old}={new}")) == 0
    new.rename(third)  # rows have the oldest path
    assert scene.transcribe(third, code=NO_MODEL) == 2
    assert f"--moved {new}={third} takes the results over" in scene.said
    assert len(scene.rows()) == 6
    assert scene.transcribe(third, more=("--moved", "none")) == 0 and len(scene.rows()) == 12


def test_a_subfolder_that_was_renamed_is_named_and_decoded_again(scene: Scene) -> None:
    """A line before the model loads has the option that takes the results over. Another names the old results at the end."""
    for name in ("a.flac", "b.flac", "c.flac", "w2/d.flac"):
        scene.recording(name, "two" if name == "w2/d.flac" else "one")
    assert scene.transcribe() == 0
    old, new = scene.inputs / "w2", scene.inputs / "w3"
    scene.recording("c2.flac", "two")  # of the size of d.flac, and of another name
    assert scene.transcribe() == 0 and "--moved" not in scene.said
    old.rename(new)
    assert (
        scene.transcribe(more=("--dry-run",)) == 0
        and f"1 input without a result: --moved {old}={new} takes" in scene.said
    )
    for dry in ((), ("--dry-run",)):
        wrong = ("--moved", f"{old}x={new}", *dry)
        assert scene.transcribe(code=NO_MODEL, more=wrong) == 2 and f"did you mean --moved {old}={new}?" in scene.said
    assert scene.transcribe(code=NO_MODEL, more=("--moved", f"{old}={new}")) == 0 and len(scene.rows()) == 5
    third = new.rename(scene.inputs / "w4")
    assert scene.transcribe(more=("--dry-run",)) == 0 and f"a result: --moved {new}={third} takes" in scene.said
    third.rename(new)
    third = (new / "d.flac").rename(new / "e.flac")
    assert scene.transcribe() == 0 and f"--moved {new / 'd.flac'}={third} takes" in scene.said
    assert "1 result is of an input not given this time: w2/d.flac" in scene.said and "--retry" not in scene.said


@pytest.mark.parametrize("decoded", [False, True])
def test_a_recording_that_was_renamed_keeps_its_texts(scene: Scene, decoded: bool) -> None:
    """They get its name, edits and all, also once it was decoded anew; its row gets its path."""
    old, formats = scene.recording("a.flac", "two"), "srt,txt,md"
    scene.recording("b.flac")
    assert scene.transcribe(formats=formats) == 0
    scene.write("a.txt", b"corrected by hand\n")
    before, new = scene.files(), old.rename(old.with_name("S1.flac"))
    moved = f"--moved {old}={new}"
    assert scene.transcribe(formats=formats, more=() if decoded else ("--dry-run",)) == 0
    assert f"seems to have another name now: {moved} takes its result over" in scene.said
    assert ("a.txt: edited, and the recording is gone" in scene.said) is decoded is (len(scene.rows()) == 3)
    for number, more in (("1 result", moved.split()), ("0 results", moved.split()), ("", [])):
        assert scene.transcribe(formats=formats, more=tuple(more), code=NO_MODEL) == 0
        assert (f"--moved took over {number}, without decoding" in scene.said) is bool(more)
        assert "S1.txt: edited since the run: it stays" in scene.said and ".md" not in scene.said
        files = scene.files()
        assert files.pop("S1.md") == before["a.md"].replace(b"# a", b"# S1")
        assert files == {name.replace("a.", "S1."): one for name, one in before.items() if name != "a.md"}
        assert scene.row_texts().keys() == {"S1.flac", "b.flac"} and len(scene.rows()) == 2


@in_a_folder
@pytest.mark.parametrize("decoded", [False, True])
def test_a_recording_in_another_format_keeps_its_texts(scene: Scene, decoded: bool) -> None:
    """If it has the length that it had; the names of the files stay."""
    old, other = scene.recording("a.flac", "two"), scene.recording("b.flac", "long")
    assert scene.transcribe() == 0
    scene.write("a.srt", b"corrected\n")
    files, new = scene.files(), old.with_name("a.wav")
    soundfile.write(new, *soundfile.read(old))
    old.unlink()
    if decoded:
        assert scene.transcribe() == 0 and f"--moved {old}={new} takes its result over" in scene.said
        assert len(scene.files()) == 3
    else:
        assert scene.transcribe(more=("--moved", f"{other}={new}"), code=NO_MODEL) == 2
        assert "the first is still there" in scene.said
        gone = other.with_name("gone.flac")
        assert scene.transcribe(more=("--moved", f"{gone}={new}"), code=NO_MODEL) == 2
        assert (
            "no result of the same size or length" in scene.said and f"did you mean --moved {old}={new}?" in scene.said
        )
    assert scene.transcribe(more=("--moved", f"{old}={new}"), code=NO_MODEL) == 0
    assert scene.files() == files and scene.row_texts().keys() == {"a.wav", "b.flac"}


@in_a_folder
def test_a_folder_that_is_elsewhere_gets_more_recordings(scene: Scene) -> None:
    """The same --moved goes on when it has taken over what there is."""
    scene.recording("m.flac", "two")
    assert scene.transcribe() == 0
    old, new = scene.inputs, scene.inputs.with_name("elsewhere")
    old.rename(new)
    scene.inputs, moved = new, ("--moved", f"{old}={new}")
    for number, names in enumerate(("ab", "uvwxyz"), start=1):
        for name in names:
            scene.recording(f"{name}.flac")
        assert scene.transcribe(more=moved) == 0 and len(scene.rows()) == 3**number


def test_a_folder_that_is_elsewhere_with_as_many_new_recordings(scene: Scene) -> None:
    """Nothing is decoded if most of its recordings are found again, whatever else is new; not if few are, or if they stay."""
    for name in "abc":
        scene.recording(f"s1/{name}.flac")
    assert scene.transcribe() == 0
    old, new = scene.inputs / "s1", scene.inputs.with_name("elsewhere")
    old.rename(new)
    scene.inputs = new
    for name in ("0", "d", "e"):
        scene.recording(f"{name}.flac", "two")
    for more in ((), ("--dry-run",)):
        assert scene.transcribe(code=NO_MODEL, more=more) == 2
        assert f"sizes of some of these inputs, so nothing is decoded: --moved {old}={new} takes" in scene.said
    old.mkdir()
    for name in "bc":
        shutil.copy2(new / f"{name}.flac", old)
    assert scene.transcribe(more=("--dry-run",)) == 0 and "--moved" not in scene.said
    shutil.rmtree(old)
    for name in "bc":
        scene.recording(f"{name}.flac", "three")
    assert scene.transcribe(more=("--dry-run",)) == 0 and "--moved" not in scene.said


@in_a_folder
def test_an_edited_row_does_not_tell_where_a_recording_was(scene: Scene) -> None:
    scene.recording("a.flac"), scene.recording("b.flac")
    assert scene.transcribe() == 0
    scene.write("transcripts.jsonl", scene.read("transcripts.jsonl").replace(b'": ', b'"_ ', 1))
    new = scene.inputs.rename(scene.inputs.with_name("elsewhere"))
    assert scene.transcribe(new, more=("--dry-run",)) == 0 and "--moved" not in scene.said


@in_a_folder
def test_a_list_with_new_fields_does_not_hide_that_its_folder_is_elsewhere(scene: Scene) -> None:
    """Equal sizes show nothing, so the times of change do."""

    def write(folder: Path, **fields: object) -> Path:
        rows = ({"audio_filepath": f"{name}.flac", **fields} for name in "ab")
        (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder / "list.jsonl"

    for name in "ab":
        scene.recording(f"{name}.flac")
    assert scene.transcribe(write(scene.inputs)) == 0
    new = scene.inputs.rename(scene.inputs.with_name("elsewhere"))
    for fields in ({}, {"speaker": "ann"}):
        assert scene.transcribe(write(new, **fields), code=NO_MODEL) == 2
        assert "nothing is decoded: --moved" in scene.said


@in_a_folder
@pytest.mark.parametrize(("clips", "code"), [(("one", "one"), 0), (("one", "two"), 2)])
def test_recordings_of_a_fixed_length_are_decoded_each_night(scene: Scene, clips: tuple[str, str], code: int) -> None:
    """Equal sizes do not show that they are those of the night before, which are gone; a line says so."""
    for day in ("monday", "tuesday"):
        shutil.rmtree(scene.inputs, ignore_errors=True)
        scene.inputs = scene.inputs.with_name(day)
        for number, clip in enumerate(clips):
            scene.recording(f"camera{number}.flac", clip)
        for more in (("--dry-run",), ()):
            assert scene.transcribe(more=more) == (0 if day == "monday" else code)
            is_said = "these are decoded as others: if they are the same, --moved " in scene.said
            assert is_said == (day == "tuesday" and code == 0)
    assert len(scene.rows()) == (4 if code == 0 else 2)


@in_a_folder
def test_a_copy_of_a_folder_is_decoded(scene: Scene) -> None:
    """Recordings that are still there have not moved; few others beside known ones have not either."""
    scene.recording("a.flac")
    assert scene.transcribe() == 0
    copy = scene.inputs.with_name("copy")
    shutil.copytree(scene.inputs, copy)
    assert scene.transcribe(copy) == 0 and len(scene.rows()) == 2
    shutil.copytree(copy, scene.inputs / "copy")
    shutil.rmtree(copy)
    assert scene.transcribe(more=("--moved", f"{copy}={scene.inputs}")) == 0 and len(scene.rows()) == 3


@in_a_folder
def test_a_list_that_is_elsewhere(scene: Scene) -> None:
    """Its rows have paths that count from it, which do not tell where it was."""
    scene.recording("a.flac", "two")
    rows, old, new = "manifest.jsonl", scene.inputs, scene.inputs.with_name("elsewhere")
    (old / rows).write_text(json.dumps({"audio_filepath": "a.flac"}) + "\n", encoding="utf-8")
    assert scene.transcribe(old / rows) == 0
    old.rename(new)
    for more in ((), ("--moved", f"/nowhere={new}")):
        assert scene.transcribe(new / rows, code=NO_MODEL, more=more) == 2
        assert f"--moved OLD={new} (with the folder in which they were as OLD)" in scene.said
    assert scene.transcribe(new / rows, code=NO_MODEL, more=("--moved", f"{old}={new}")) == 0


@in_a_folder
@pytest.mark.parametrize("before", ["list", "text", "folder"])
@pytest.mark.parametrize("after", ["list", "text"])
def test_a_list_of_absolute_paths_of_recordings_that_are_elsewhere(scene: Scene, before: str, after: str) -> None:
    """How the inputs were given before and now does not matter: their ids differ, their names do not."""
    old, new = scene.inputs, scene.inputs.with_name("elsewhere")
    for name, clip in {"a.flac": "one", "b.flac": "two", "x/a.flac": "one"}.items():
        scene.recording(name, clip)

    def given(kind: str, folder: Path) -> Path:
        paths = sorted(map(str, folder.rglob("*.flac")))
        if kind == "list":
            (listed := folder.parent / "list.jsonl").write_text(
                "".join(json.dumps({"audio_filepath": path}) + "\n" for path in paths), encoding="utf-8"
            )
        elif kind == "text":
            (listed := folder.parent / "list.txt").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
        return folder if kind == "folder" else listed

    assert scene.transcribe(given(before, old)) == 0
    old.rename(new)
    for more in ((), ("--dry-run",)):
        assert scene.transcribe(given(after, new), code=NO_MODEL, more=more) == 2
        assert f"--moved {old}={new} takes the results over" in scene.said
    assert scene.transcribe(given(after, new), code=NO_MODEL, more=("--moved", f"{old}={new}")) == 0
    assert len(scene.rows()) == 3


@in_a_folder
def test_a_row_that_someone_edited_is_done_again(scene: Scene) -> None:
    for name in "abcdef":
        scene.recording(f"{name}.flac", "long")
    assert scene.transcribe() == 0
    first, second, *others = scene.read("transcripts.jsonl").splitlines(keepends=True)
    scene.write("transcripts.jsonl", b"".join([first, second.replace(b'"text": "', b'"text": "Well, ', 1), *others]))
    for more in (("--dry-run",), ()):
        assert scene.transcribe(more=more) == 0
        assert (" 1 to do" if more else "1 file: ") in scene.said
    assert len(scene.row_texts()) == 6
