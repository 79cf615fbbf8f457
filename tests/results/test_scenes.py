"""Scenes of runs into a folder, by the command: what is there after kills, power cuts, edits, and runs in any order.

test_scenes_in_a_store.py plays some of them in object stores.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastscribe.results.journal import Journal
from fastscribe.results.journal_ledger import JournalLedger
from fastscribe.results.names import Names
from fastscribe.results.shards import Shard
from fastscribe.types import Source
from tests.helpers.forked_runs import Runs
from tests.helpers.processes import fastscribe
from tests.helpers.scenes import NO_MODEL, Scene, killed

pytestmark = pytest.mark.linux

LETTERS = "-[a-z2-7]{6}"
FOLDER = "fastscribe.results.storage_folder"
WITHOUT_PRIVILEGES = (  # root writes into any folder
    "import ctypes; ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())"
)
MAX_2000_BYTES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    opened = Runs(tmp_path_factory.mktemp("runs"))
    yield opened
    opened.close()


@pytest.fixture
def scene(runs: Runs, tmp_path: Path) -> Scene:
    return Scene(runs, tmp_path, tmp_path / "out")


# --- names


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


def test_names_that_a_file_system_may_confuse(scene: Scene) -> None:
    """Case and Unicode's forms are ignored on every system; the run's own files are never taken, also by a later format."""
    composed = unicodedata.normalize("NFC", "é.wav")
    for name in ("A.wav", "a.wav", composed, unicodedata.normalize("NFD", composed), "Report.wav", "sub/report.wav"):
        scene.recording(name, "one" if name.startswith(("A", "R")) else "two")
    assert scene.transcribe() == 0
    expected = ["A", f"a{LETTERS}", f"Report{LETTERS}", "sub/report", ".", f".{LETTERS}"]
    names = [unicodedata.normalize("NFC", name).removesuffix(".srt") for name in scene.texts()]
    assert len(names) == 6 and all(any(re.fullmatch(one, name) for name in names) for one in expected)
    assert scene.transcribe(formats="json", code=NO_MODEL) == 0
    assert "totals" in json.loads(scene.read("report.json"))
    made = {name.removesuffix(".json") for name in scene.files() if name.endswith(".json")}
    assert made == {name.removesuffix(".srt") for name in scene.texts()}


def test_rows_of_one_recording(scene: Scene) -> None:
    """A manifest's rows have their offset in the name; equal ones are told apart by their length and number."""
    call, manifest = scene.recording("call.flac", "long"), scene.inputs / "rows.jsonl"
    stretches = [(0, 1), (1, 1), (1, 1.5), (1, 1), (2.5, 1)]
    rows = [{"audio_filepath": str(call), "offset": offset, "duration": length} for offset, length in stretches]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert scene.transcribe(manifest) == 0
    texts = {Path(name).name: text for name, text in scene.texts().items()}
    expected = ["call", "call_1000", f"call_1000{LETTERS}", "call_2500"]
    assert len(texts) == 5 and all(any(re.fullmatch(f"{one}.srt", name) for name in texts) for one in expected)
    assert sorted(texts.values()) == sorted(row["pred_text"] for row in scene.rows())
    assert scene.transcribe(manifest, code=NO_MODEL) == 0


def test_names_of_ten_thousand_rows() -> None:
    """No two are the same, in the order of the inputs and the other way round, and all shards give the same."""

    class Files:
        def __init__(self) -> None:
            self.names, self.given = Names([Journal()], ("srt",), lambda file: False), {}

    def named(shard: Shard, indices: range) -> list[str]:
        files = Files()
        ledger = JournalLedger(shard, Journal(), files=files)  # type: ignore[arg-type]
        found = []
        for index in indices:
            at_ms = index // 2
            source = Source("/in/call.wav", "/in/call.wav", f"call.wav@{at_ms}", offset_s=at_ms / 1e3, index=index)
            found.append(ledger[index].name if ledger.expect(source) else "")
        return found

    whole = named(Shard(0, 1), range(10_000))
    assert len(set(whole)) == 10_000 and whole[2] == "call_1" and re.fullmatch(f"call_1{LETTERS}", whole[3])
    parts = [named(Shard(index, 2), range(10_000)) for index in range(2)]
    assert [first or second for first, second in zip(*parts, strict=True)] == whole


THE_OTHER_SHARD_TOO = """
import os, sys
other, leave = os.fork(), os._exit
def leave_together(code):
    leave(code or os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
if other:
    os._exit = leave_together
else:
    sys.argv[sys.argv.index("0/2")] = "1/2"
"""


def test_two_shards_at_once(scene: Scene) -> None:
    """The order of the inputs decides in both, also where neither knows of the other."""
    for name, clip in (("a.flac", "one"), ("a.mp3", "two"), ("a.wav", "three")):
        scene.recording(name, clip)
    assert scene.transcribe(more=("--shard", "0/2"), code=THE_OTHER_SHARD_TOO) == 0
    assert scene.command("merge", str(scene.place)) == 0
    texts, words = scene.texts(), scene.row_texts()
    assert texts["a.srt"] == words["a.flac"] and sorted(texts.values()) == sorted(words.values())
    assert len(texts) == 3 and sum(bool(re.fullmatch(f"a{LETTERS}.srt", name)) for name in texts) == 2
    for index in range(2):
        assert scene.transcribe(more=("--shard", f"{index}/2"), code=NO_MODEL) == 0
    assert scene.texts() == texts


# --- ends that are not clean


@pytest.fixture(scope="module")
def whole(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Two recordings and their results."""
    folder = tmp_path_factory.mktemp("whole")
    scene = Scene(runs, folder, folder / "out")
    scene.recording("a.flac"), scene.recording("b.flac", "two")
    assert scene.transcribe(formats="srt,vtt,json") == 0
    return scene


STEPS = {
    "locked": (f"{FOLDER}.FolderStorage.lock", 1),
    "the journal has its first line": (f"{FOLDER}.write_atomic", 1),
    "rows": (f"{FOLDER}.Appender.append", 2),
    "rows are durable": (f"{FOLDER}.Barrier.wait", 1),
    "journal lines": (f"{FOLDER}.Appender.append", 3),
    "journal lines are durable": (f"{FOLDER}.Appender.sync", 1),
    "half of a file": ("fastscribe._system.safe_files.replace", 2, True),  # the first one is the journal's
    "one file": (f"{FOLDER}.write_whole", 1),
    "two files": (f"{FOLDER}.write_whole", 2),
    "all files": (f"{FOLDER}.write_whole", 6),
    "all is synced": (f"{FOLDER}.FolderStorage._wait", 2),
    "the report": (f"{FOLDER}.write_atomic", 2),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_after_each_step_of_a_commit(whole: Scene, runs: Runs, tmp_path: Path, step: str) -> None:
    """A run that is killed, and goes on, leaves what another leaves; no model is loaded if nothing is to decode."""
    scene = Scene(runs, tmp_path, tmp_path / "out")
    scene.inputs = whole.inputs
    assert scene.transcribe(formats="srt,vtt,json", code=killed(*STEPS[step])) == -9
    journal = tmp_path / "out" / "journal.jsonl"
    is_all_decoded = journal.exists() and journal.read_text().count('"key"') == 2
    assert is_all_decoded or step not in ("two files", "all files", "all is synced", "the report")
    assert scene.transcribe(formats="srt,vtt,json", code=NO_MODEL if is_all_decoded else "") == 0
    assert scene.files() == whole.files()
    assert scene.row_texts() == whole.row_texts()


@pytest.mark.parametrize("damage", ["gone", "empty", "zeros", "half", "edited"])
def test_a_power_cut(scene: Scene, damage: str) -> None:
    """What a cut leaves of a file of the last commit is mended from the row; an edit stays."""
    recording = scene.recording("a.flac")
    assert scene.transcribe(recording, formats="srt,vtt", code=killed(f"{FOLDER}.write_whole", 2)) == -9
    files = scene.files()
    content = files["a.srt"]
    left = {"gone": b"", "empty": b"", "zeros": bytes(len(content)), "half": content[:20], "edited": b"by hand"}[damage]
    scene.write("a.srt", left)
    if damage == "gone":
        scene.remove("a.srt")
    assert scene.transcribe(recording, formats="srt,vtt", code=NO_MODEL) == 0
    assert scene.files() == ({**files, "a.srt": left} if damage == "edited" else files)
    assert ("a.srt: edited" in scene.said) == (damage == "edited")


def test_a_commit_in_time_is_looked_at_no_more(scene: Scene) -> None:
    """A run that ended has no files to mend: what is half there was cut by somebody, and stays."""
    recording = scene.recording("a.flac")
    assert scene.transcribe(recording) == 0
    scene.write("a.srt", scene.read("a.srt")[:20])
    assert scene.transcribe(recording, code=NO_MODEL) == 0
    assert len(scene.read("a.srt")) == 20 and scene.said.count("a.srt: edited") == 1


@pytest.mark.parametrize("step", ["write_atomic", "rename_into_place", "finish_compaction"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_kill_while_rows_are_sorted(scene: Scene, step: str, overwrite: bool) -> None:
    recordings = [scene.recording("1.flac"), scene.recording("2.flac", "three"), scene.recording("3.flac", "two")]
    assert scene.transcribe(*recordings[::2]) == 0
    assert scene.transcribe(more=("--ordered",), code=killed(f"fastscribe.results.compact.{step}")) == -9
    if overwrite:
        assert scene.transcribe(recordings[0], more=("--overwrite",)) == 0
        assert list(scene.row_texts()) == ["1.flac"] and list(scene.files()) == ["1.srt"]
        return
    assert scene.transcribe(more=("--ordered",), code=NO_MODEL) == 0
    assert list(scene.row_texts()) == ["1.flac", "2.flac", "3.flac"] and len(scene.files()) == 3


@pytest.mark.parametrize(
    ("number", "more"), [(1, ()), (2, ("--overwrite",)), (3, ()), (4, ("--overwrite",)), (5, ())]
)  # the removal of a.srt, b.srt, rows, report, journal
def test_overwriting_that_is_killed_goes_on(scene: Scene, number: int, more: tuple[str, ...]) -> None:
    """With the option all is removed; without it what is left is completed. An edit and a user's file stay."""
    scene.recording("a.flac")
    second = scene.recording("b.flac", "two")
    scene.write("notes.srt", b"mine")
    assert scene.transcribe(formats="srt,txt") == 0
    scene.write("b.txt", b"by hand")
    scene.remove("a.txt")
    assert scene.transcribe(second, more=("--overwrite",), code=killed(f"{FOLDER}.remove", number)) == -9
    assert scene.transcribe(second, more=more) == 0
    files, rows = scene.files(), scene.row_texts()
    assert (files.pop("notes.srt"), files.pop("b.txt")) == (b"mine", b"by hand")
    assert "b.srt" in files and files.keys() <= ({"b.srt"} if more or number > 1 else {"a.srt", "b.srt"})
    assert rows.keys() == ({"b.flac"} if more or number > 2 else {"a.flac", "b.flac"})


# --- rows


def test_rows_that_do_not_fit_the_journal(scene: Scene) -> None:
    """What can be one torn commit goes without a word; anything else is kept beside. Rows that changed are done again."""
    scene.recording("a.flac"), scene.recording("b.flac", "two")
    assert scene.transcribe() == 0
    rows, files, beside = scene.read("transcripts.jsonl"), scene.files(), "transcripts.cut-off.jsonl"
    for torn in (rows[:40], rows + rows[:40], bytes(50)):
        scene.write("transcripts.jsonl", rows + torn)
        assert scene.transcribe(code=NO_MODEL) == 0
        assert scene.read("transcripts.jsonl") == rows and beside not in scene.names()
    scene.write("transcripts.jsonl", rows + b'{"mine": 1}\n')
    assert scene.transcribe(code=NO_MODEL) == 0
    assert scene.read("transcripts.jsonl") == rows and scene.read(beside) == b'{"mine": 1}\n'
    assert scene.said.count(beside) == 1
    scene.write("transcripts.jsonl", rows.replace(b"duration", b"length", 1))
    assert scene.transcribe() == 0
    assert sorted(scene.read("transcripts.jsonl").splitlines()) == sorted(rows.splitlines())
    assert b"length" in scene.read("transcripts.cut-off.2.jsonl") and scene.files() == files


def test_a_recording_that_failed_is_retried(scene: Scene) -> None:
    """Its failure has a row and JSON; the retry's row comes behind it, and alone at the end, and its files are its own."""
    path = scene.recording("a.wav", "three")
    content, status = path.read_bytes(), path.stat()

    def put(content: bytes) -> None:  # with no trace
        path.write_bytes(content)
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))

    put(b"none" + content[4:])
    assert scene.transcribe(formats="srt,json") == 1
    assert list(scene.files()) == ["a.json"] and b'"error"' in scene.read("a.json")
    put(content)
    assert scene.transcribe(formats="srt,json", code=NO_MODEL) == 3
    retried = ("--retry-failed",)
    if isinstance(scene.place, Path):
        assert scene.transcribe(formats="srt,json", more=retried, code=killed(f"{FOLDER}.FolderStorage._wait", 2)) == -9
        assert ["error" in row for row in scene.rows()] == [True, False]
    assert scene.transcribe(formats="srt,json", more=retried) == 0
    [row] = scene.rows()
    assert "error" not in row and json.loads(scene.read("a.json"))["text"] == row["text"] == scene.texts()["a.srt"]


# --- formats, edits, files of somebody else's


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


def test_an_edit_stays_when_the_recording_changes(scene: Scene) -> None:
    """Files that are ours become the new row's, or go if it has none."""
    path = scene.recording("a.flac", "one")
    assert scene.transcribe(formats="srt,vtt,txt") == 0
    scene.write("a.srt", b"by hand")
    scene.recording("a.flac", "long")
    assert scene.transcribe(formats="srt,vtt") == 0
    assert scene.said.count("a.srt: edited since the run: it stays") == 1
    [text] = scene.row_texts().values()
    assert len(text) > 20 and scene.texts("vtt") == {"a.vtt": text}
    assert scene.files().keys() == {"a.srt", "a.vtt"} and scene.read("a.srt") == b"by hand"
    path.write_bytes(b"no recording")
    assert scene.transcribe(formats="srt,vtt") == 1
    assert scene.files() == {"a.srt": b"by hand"}
    scene.remove("a.srt")
    scene.recording("a.flac", "one")
    assert scene.transcribe() == 0
    assert scene.texts() == {"a.srt": scene.rows()[0]["text"]}


def test_a_file_of_somebody_else_keeps_its_name(scene: Scene) -> None:
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


def test_other_settings_need_another_place(scene: Scene) -> None:
    scene.recording("a.flac")
    assert scene.transcribe() == 0
    before = {name: scene.read(name) for name in scene.names() if "lock" not in name}
    for more, option in (
        (("--tokens",), "--tokens was false"),
        (("--max-utterance-s", "4"), "--max-utterance-s was 40.0"),
    ):
        assert scene.transcribe(more=more) == 2
        assert "results of a run with other settings" in scene.said and option in scene.said
    assert {name: scene.read(name) for name in scene.names() if "lock" not in name} == before


def test_another_model_or_command_needs_another_folder(scene: Scene) -> None:
    recording, manifest = scene.recording("a.flac", "long"), scene.inputs / "texts.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": str(recording), "text": "At Rice Stadium"}) + "\n")
    assert scene.transcribe(recording) == 0
    before = scene.files()
    for given, option in (("transcribe", recording), "model was"), (("align", manifest), "--align was not there"):
        refused = fastscribe(*given, "-o", scene.place, "-f", "srt", "--dtype", "fp32", "--quiet")
        assert refused.returncode == 2 and "results of a run with other settings" in refused.stderr, refused.stderr
        assert option in refused.stderr
    assert scene.files() == before


# --- files that cannot be written


@pytest.mark.parametrize("obstacle", ["a folder that refuses", "a file instead of a folder"])
def test_a_file_that_cannot_be_written(scene: Scene, obstacle: str) -> None:
    """Its row is there, and the run ends with 1 and names it; the next run makes it from the row."""
    scene.recording("sub/a.flac"), scene.recording("b.flac", "two")
    folder = tmp = scene.inputs.parent / "out" / "sub"
    if obstacle == "a folder that refuses":
        folder.mkdir(parents=True)
        folder.chmod(0o555)
    else:
        scene.write("sub", b"mine")
    for code in ("", NO_MODEL):
        assert scene.transcribe(code=WITHOUT_PRIVILEGES + code) == 1
        assert len(re.findall("sub/a.srt: not written: .* the row is there", scene.said)) == 1
        assert scene.row_texts().keys() == {"b.flac", "sub/a.flac"} and "b.srt" in scene.files()
    tmp.chmod(0o755) if folder.is_dir() else scene.remove("sub")
    assert scene.transcribe(code=WITHOUT_PRIVILEGES + NO_MODEL) == 0
    assert scene.texts()["sub/a.srt"] == scene.row_texts()["sub/a.flac"]


def test_a_full_disk_ends_the_run(scene: Scene) -> None:
    """Whole rows stay, and the next run does the rest; a file that does not fit is made from its row."""
    scene.recording("a.flac"), scene.recording("b.flac", "long")
    more = ("--tokens",)
    assert scene.transcribe(formats="jsonl", more=more, code=MAX_2000_BYTES) == 1
    assert "transcripts.jsonl: its result cannot be written: File too large; the run stops" in scene.said
    assert scene.read("transcripts.jsonl").count(b"\n") < 2 and not scene.files()
    full = """
import errno, os
from fastscribe.results import storage_folder
inner = storage_folder.write_whole
def write_whole(path, content, replaces):
    if os.path.basename(path) == "b.srt":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    inner(path, content, replaces)
storage_folder.write_whole = write_whole
"""
    assert scene.transcribe(more=more, code=full) == 1
    assert "b.srt: its result cannot be written: No space left on device; the run stops" in scene.said
    assert scene.row_texts().keys() == {"a.flac", "b.flac"} and "b.srt" not in scene.files()
    assert scene.transcribe(more=more, code=NO_MODEL) == 0
    assert set(scene.texts().values()) == set(scene.row_texts().values())


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
    scene.recording("a.flac", "three")  # of another size: it is another one
    assert scene.transcribe(more=("--moved", f"{new}/={old}")) == 0
    assert scene.files().keys() == files.keys() and len(scene.rows()) == 2
    assert scene.files()["a.srt"] != files["a.srt"] and scene.files()["x/b.srt"] == files["x/b.srt"]


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
        new.rename(old)
    assert scene.transcribe(more=("--overwrite",)) == 0
    old.rename(new)
    assert scene.transcribe(new, code=NO_MODEL, more=("--moved", f"{old}={new}")) == 0
    new.rename(third)  # rows have the oldest path, of which the journal knows nothing any more
    assert scene.transcribe(third, code=NO_MODEL) == 2
    assert f"--moved OLD={third} (with the folder in which they were as OLD) takes the results over" in scene.said
    assert len(scene.rows()) == 6
    assert scene.transcribe(third, more=("--moved", "none")) == 0 and len(scene.rows()) == 12


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
