"""Results in a folder and in a store: rows, totals, names below the folder, and what --overwrite removes."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from fastscribe._system import remote
from fastscribe._system.remote.store import RemoteNotFound, RemoteUnavailable
from fastscribe._system.text_layout import clean_text
from fastscribe.audio.failures import to_failure
from fastscribe.config import OutputStyle
from fastscribe.errors import AudioError, OutputError, UsageError
from fastscribe.results.interfaces import Moved, OutputRun
from fastscribe.results.output import JournaledOutput, Totals, open_journaled, read_ledger
from fastscribe.results.paths import Paths
from fastscribe.results.shards import Shard
from fastscribe.results.storage_folder import FolderStorage
from fastscribe.results.storage_object import ObjectStorage
from fastscribe.types import AudioInfo, Failure, Samples, Source, Transcript
from tests.fakes.killed_store import killed_store

OURS = (".lock", "journal.jsonl", "transcripts.jsonl")


def spoken(id: str, text: str | None = None, index: int = 0) -> Transcript:
    audio = AudioInfo("/in/" + id, id, sample_rate=16_000, channels=1, num_samples=16_000, index=index)
    return Transcript(audio, id if text is None else text, (), ())


def failed(id: str, index: int = 0) -> Failure:
    return Failure("/in/" + id, id, "load", "AudioError", "broken", None, index)


def within_reach(path: str) -> Samples:
    """Return what stands for a recording that is always within reach."""
    return Samples(np.zeros(0, np.int16), 1, os.path.abspath(path))


def put(output: JournaledOutput, result: Transcript | Failure, **changed: Any) -> bool:
    """Announce an input, and write its result if an earlier run has not done it.

    `changed` is of its manifest row, and decides its text.
    """
    item = result if isinstance(result, Failure) else result.audio
    source = Source(
        item.path, within_reach(item.path), item.id, index=item.index, row={"boost": changed} if changed else None
    )
    ledger = output.ledger
    if not ledger.expect(source) or ledger.skip(source):
        return False
    output.write(result)
    return True


class Place:
    """An output folder, or a URL."""

    def __init__(self, where: Path | str) -> None:
        self.where = where

    def opened(self, *formats: str, say: Callable[[str], object] = str, **options: Any) -> JournaledOutput:
        return open_journaled(self.where, OutputRun(OutputStyle(formats), {}, **options), say)

    def run(self, ids: Iterable[str], *formats: str, **options: Any) -> list[str]:
        """Write a transcript for each id, with the id as its text. Return those that had no result yet."""
        with self.opened(*formats, **options) as output:
            new = [id for index, id in enumerate(ids) if put(output, spoken(id, index=index))]
            output.write_report(b'{"files": 1}')
        return new

    def contents(self) -> dict[str, str]:
        """The files that are the user's, by name."""
        if isinstance(self.where, Path):
            files = {path.relative_to(self.where).as_posix(): path for path in self.where.rglob("*") if path.is_file()}
            found = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
        else:
            names = [found.url.removeprefix(self.where + "/") for found in list(remote.list_objects(self.where))]
            found = {name: remote.read_object(f"{self.where}/{name}").data.decode() for name in names}
        own = (*OURS, "report.json")
        return {name: found[name].strip() for name in sorted(found) if name not in own and name[:5] != ".fast"}

    def write(self, name: str, content: str) -> None:
        if isinstance(self.where, Path):
            (self.where / name).parent.mkdir(parents=True, exist_ok=True)
            (self.where / name).write_text(content, encoding="utf-8")
        else:
            remote.write_object(f"{self.where}/{name}", content.encode())

    def edit(self, name: str, old: str, new: str) -> None:
        where = f"{self.where}/{name}"
        is_folder = isinstance(self.where, Path)
        content = Path(where).read_text("utf-8") if is_folder else remote.read_object(where).data.decode()
        self.write(name, content.replace(old, new))

    def remove(self, name: str) -> None:
        (self.where / name).unlink() if isinstance(self.where, Path) else remote.delete_object(f"{self.where}/{name}")

    def rows(self, field: str = "audio_filepath") -> list[Any]:
        """The paths of all rows, or another of their fields."""
        url = f"{self.where}/transcripts.jsonl"
        content = Path(url).read_bytes() if isinstance(self.where, Path) else remote.read_object(url).data
        return [json.loads(line)[field] for line in content.splitlines()]


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(tmp_path / "out")
    else:
        with killed_store():
            yield Place("memory://out")


def test_files_mirror_the_folders_and_failures_have_json_alone(place: Place) -> None:
    with place.opened("txt", "json", "srt") as output:
        for number, result in enumerate((spoken("a.wav"), failed("b.wav", 1), spoken("x/y/c.d.flac", index=2))):
            put(output, result)
            output.flush()
            assert len([name for name in place.contents() if name.endswith(".json")]) == number + 1
    files = place.contents()
    assert set(files) == {f"{name}.{format}" for name in ("a", "x/y/c.d") for format in ("txt", "json", "srt")} | {
        "b.json"
    }
    assert files["x/y/c.d.txt"] == "x/y/c.d.flac" and json.loads(files["b.json"])["error"]["stage"] == "load"
    assert place.rows() == ["/in/a.wav", "/in/b.wav", "/in/x/y/c.d.flac"]


def test_a_place_that_stands_still_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit waits until the line is there, as a disk of a network that is gone would."""
    said, is_said, commit = list[str](), Event(), FolderStorage.commit
    monkeypatch.setattr("fastscribe.results.output._SLOW_S", 0.01)
    monkeypatch.setattr(FolderStorage, "commit", lambda *given: is_said.wait(60) and commit(*given))
    with Place(tmp_path / "out").opened("jsonl", say=lambda line: (said.append(line), is_said.set())) as output:
        put(output, spoken("a.wav"))
    assert len(said) == 1 and said[0].startswith(f"{tmp_path / 'out'}: still writing results; Ctrl-C")
    assert Place(tmp_path / "out").rows() == ["/in/a.wav"]


def test_other_settings_need_another_place(place: Place) -> None:
    place.run(["a.wav"], "txt")
    with pytest.raises(UsageError, match=r"holds results of a run with other settings .*--beam was 1, is 4"):
        open_journaled(place.where, OutputRun(OutputStyle(), {"--beam": 4}), str)
    with pytest.raises(UsageError, match="holds results of a run without shards, of a run divided otherwise than 0/2"):
        place.opened("txt", shard=Shard(0, 2))
    assert place.run(["a.wav"], "txt") == [] and place.rows() == ["/in/a.wav"]


def test_overwrite_removes_what_runs_wrote_alone(place: Place) -> None:
    place.run(["x/a.wav", "b.wav", "c.wav", "c.mp3"], "txt", "json")
    place.write("x/mine.txt", "mine")
    place.write("b.txt", "by hand")
    said: list[str] = []
    with place.opened("srt", overwrite=True, say=said.append):
        assert place.contents() == {"x/mine.txt": "mine", "b.txt": "by hand"}
    assert said == [f"{place.where}/b.txt: edited since the run: not removed"]
    assert place.run(["b.wav"], "txt") == ["b.wav"]
    assert len(place.contents()) == 3 and place.contents()["b.txt"] == "by hand"


def test_overwrite_removes_runs_that_were_divided_otherwise(place: Place) -> None:
    ids = [f"{number}.wav" for number in range(6)]
    for index in range(3):
        place.run(ids, "txt", shard=Shard(index, 3))
    assert len(place.contents()) >= 6
    place.run(ids[:1], "txt", overwrite=True)
    assert {name for name in place.contents() if name.endswith(".txt")} == {"0.txt"}
    assert place.rows() == ["/in/0.wav"]


def test_overwrite_without_inputs_removes_nothing(place: Place, tmp_path: Path) -> None:
    place.run(["a.wav"], "txt")
    with pytest.raises(UsageError, match="no input is there, so --overwrite removes nothing"):
        place.opened("txt", overwrite=True, inputs=[str(tmp_path / "mistyped")])
    assert place.contents() == {"a.txt": "a.wav"} and place.rows() == ["/in/a.wav"]


@pytest.mark.parametrize("finished", [True, False])
def test_an_unfinished_run_forgets_and_sorts_nothing(tmp_path: Path, finished: bool) -> None:
    """Inputs that it has not listed yet are no inputs that are gone."""
    place = Place(tmp_path)
    bad = Failure("/in/list.jsonl:1", "list.jsonl:1", "input", "ManifestError", "no path", None, 0)
    for result in (bad, spoken("b.wav", index=2), spoken("a.wav", index=1)):
        with suppress(KeyboardInterrupt), place.opened("json", ordered=True) as output:
            put(output, result)
            output.flush()
            if not finished:
                raise KeyboardInterrupt
    unsorted = ["/in/list.jsonl:1", "/in/b.wav", "/in/a.wav"]
    assert place.rows() == (["/in/a.wav", "/in/b.wav"] if finished else unsorted)
    assert len(place.contents()) == (2 if finished else 3)


def test_files_of_what_was_no_recording_go_after_a_kill_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Failure("/in/list.jsonl:1", "list.jsonl:1", "input", "ManifestError", "no path", None, 0)
    with place.opened("json") as output:
        put(output, bad)
    with monkeypatch.context() as patch:
        patch.setattr("fastscribe.results.committer.Committer._place", stopped)
        with pytest.raises(OutputError):
            place.run([], "json")
    assert len(place.contents()) == 1
    place.run([], "json")
    assert place.contents() == {} and place.rows() == []


def test_a_file_that_cannot_be_removed_is_removed_by_the_next_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Failure("/in/list.jsonl:1", "list.jsonl:1", "input", "ManifestError", "no path", None, 0)
    with place.opened("json") as output:
        put(output, bad)
        put(output, spoken("a.wav", index=1))

    def refuse(storage: Any, names: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), names[0])

    kind = FolderStorage if isinstance(place.where, Path) else ObjectStorage
    with monkeypatch.context() as patch:
        patch.setattr(kind, "remove", refuse)
        with place.opened("json", ordered=True) as output:
            assert not put(output, spoken("a.wav"))
        assert len(output.not_made) == 1 and len(place.contents()) == 2
    place.run(["a.wav"], "json")
    assert list(place.contents()) == ["a.json"]


def stopped(*arguments: object) -> None:
    raise OSError(None, "stopped")


def test_totals_are_of_all_runs(place: Place) -> None:
    with place.opened() as output:
        for result in (spoken("a.wav"), failed("b.wav", 1), spoken("c.wav", index=2)):
            put(output, result)
    with place.opened(retry_failed=True) as output:
        assert put(output, spoken("b.wav")) and not put(output, spoken("a.wav", index=1))
        assert output.totals() == Totals(files=3, failed=0, audio_s=3.0, not_given=1)


def test_lengths_add_up_to_one_sum_in_each_run(place: Place) -> None:
    """Each counts as its row has it: 0.4 ms more in each of 50 would be 0.02 s."""
    results = [spoken(f"{number}.wav", index=number) for number in range(50)]
    results = [replace(one, audio=replace(one.audio, num_samples=16_006)) for one in results]
    with place.opened() as output:
        for result in results:
            put(output, result)
        first = output.totals()
    with place.opened() as output:
        assert not any(put(output, result) for result in results)
        assert round(first.audio_s, 3) == round(output.totals().audio_s, 3) == 50.0


def test_a_failure_that_was_not_given_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, here = (Failure(str(tmp_path / name), name, "load", "E", "broken") for name in ("gone.wav", "here.wav"))
    (tmp_path / here.id).touch()
    run = OutputRun(OutputStyle(), {}, retry_failed=True)
    with open_journaled(tmp_path / "out", run) as output:
        for index, failure in enumerate((gone, here)):
            failure = replace(failure, index=index)
            assert output.ledger.expect(failure) and not output.ledger.skip(failure)
            output.write(failure)
    looked: list[str] = []
    exists = os.path.lexists

    def look(path: str) -> bool:
        looked.append(path)
        return exists(path)

    monkeypatch.setattr(os.path, "lexists", look)
    with open_journaled(tmp_path / "out", run) as output:
        looked.clear()
        assert "1 result is of an input not given this time: here.wav; it failed" in output.not_given_line()
        assert output.totals().not_given == 1
    assert looked == [gone.path, here.path]


def test_a_store_out_of_reach_is_tried_again_by_the_next_run(place: Place) -> None:
    for kind, may_pass in ((RemoteUnavailable, True), (RemoteNotFound, False), (OSError, False)):
        (error := AudioError("b.wav", "not read")).__cause__ = kind("no answer")
        assert to_failure(Source("b.wav", "b.wav", "b.wav"), "load", error).may_pass is may_pass
    out_of_reach = replace(failed("b.wav", 1), may_pass=True)
    for _ in range(2):  # also if it is so again
        with place.opened() as output:
            assert put(output, out_of_reach)
    assert place.run(["a.wav", "b.wav"]) == ["a.wav", "b.wav"]
    assert place.run(["a.wav", "b.wav"]) == []


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_result_goes_with_the_row_that_someone_deleted(tmp_path: Path, gone: int) -> None:
    """Its input need not be given, and the file stays."""
    place, ids = Place(tmp_path), ["a.wav", "b.wav", "c.wav"]
    place.run(ids, "txt")
    lines = (tmp_path / "transcripts.jsonl").read_text().splitlines(keepends=True)
    place.write("transcripts.jsonl", "".join(lines[:gone] + lines[gone + 1 :]))
    left = ids[:gone] + ids[gone + 1 :]
    for _ in range(2):
        with place.opened("txt") as output:
            assert not any(put(output, spoken(id, index=index)) for index, id in enumerate(left))
            assert output.not_given_line() == "" and output.totals() == (2, 0, 2.0, 0)
        assert place.rows() == [f"/in/{id}" for id in left]
    assert sorted(place.contents()) == ["a.txt", "b.txt", "c.txt"]


def test_a_ledger_is_read_without_a_change(place: Place, tmp_path: Path) -> None:
    place.run(["a.wav"], "txt")
    before = place.contents()
    with read_ledger(place.where, OutputRun(OutputStyle(("srt",)), {})) as ledger:
        source = Source("/in/a.wav", "/in/a.wav", "a.wav")
        assert ledger.expect(source) and ledger.is_done(source)
    (here := tmp_path / "a.wav").touch()
    with read_ledger(place.where, OutputRun(OutputStyle(), {}, moved=Moved("/in", str(tmp_path)))) as ledger:
        source = Source(str(here), str(here), "a.wav")
        assert ledger.expect(source) and not ledger.is_done(source)  # its earlier size is not known
    assert place.contents() == before
    other = read_ledger(place.where, OutputRun(OutputStyle(), {"--beam": 4}))
    with pytest.raises(UsageError, match="other settings"), other:
        pass


def test_a_shard_is_the_same_whatever_names_it(place: Place) -> None:
    id = next(f"{number}.wav" for number in range(9) if Shard(0, 2).holds(f"{number}.wav"))
    for source, is_new in (("SLURM_ARRAY_TASK_ID", True), ("SLURM_ARRAY_TASK_ID", False), ("--shard", False)):
        with place.opened("txt", shard=Shard(0, 2, source)) as output:
            assert put(output, spoken(id)) is is_new


def test_a_question_makes_no_file(place: Place) -> None:
    """The step after it does, and counts the input."""
    place.run(["a.wav"])
    with place.opened("txt") as output:
        ledger, source = output.ledger, Source("/in/a.wav", "/in/a.wav", "a.wav")
        assert ledger.expect(source) and ledger.is_done(source) and ledger.is_done(source)
        output.flush()
        assert output.files.num_made_again == 0 and ledger.num_done == 0
        assert ledger.settle(source)
        assert output.files.num_made_again == 1 and ledger.num_done == 1 and output.totals().not_given == 0


def _report_at(place: Place) -> bytes | None:
    found = FolderStorage(place.where) if isinstance(place.where, Path) else ObjectStorage(place.where)
    content = found.read("report.json") if found.size("report.json") is not None else None
    found.close(None)
    return content


def _report(**fields: object) -> bytes:
    return (json.dumps({"files": 1, "totals": {"files": 1, "failed": 0}, **fields}, indent=2) + "\n").encode()


def test_no_report_is_there_while_a_run_is_under_way(place: Place) -> None:
    """A run that is killed before its first new result must not look complete; one that does nothing keeps the report."""
    with place.opened("txt") as output:
        put(output, spoken("a.wav"))
        output.write_report(_report(inputs=1))
    for report in (_report(files=0, inputs=2), _report(files=0)):  # runs in Ray have no number of inputs
        with place.opened("txt") as output:
            assert _report_at(place) is None
            assert not put(output, spoken("a.wav"))
            output.write_report(report)
        assert _report_at(place) == _report(inputs=2)
    with suppress(KeyboardInterrupt), place.opened("txt"):
        raise KeyboardInterrupt
    assert _report_at(place) is None


@pytest.mark.parametrize("num_failed", [0, 1])
def test_a_report_is_put_back_if_it_counts_what_is_here(place: Place, num_failed: int) -> None:
    report = _report(totals={"files": 1, "failed": num_failed})
    with place.opened("txt") as output:
        put(output, spoken("a.wav"))
        output.write_report(report)
    output = place.opened("txt")
    output.put_report_back()
    output.close(finished=False)
    assert _report_at(place) == (None if num_failed else report)


@pytest.mark.parametrize("edited", [b"", b"x"])
def test_a_report_goes_with_a_row(tmp_path: Path, edited: bytes) -> None:
    place = Place(tmp_path)
    with place.opened("txt") as output:
        for index, id in enumerate(("a.wav", "b.wav")):
            put(output, spoken(id, index=index))
        output.write_report(b'{"files": 1}')
    rows = tmp_path / "transcripts.jsonl"
    _, second = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(edited and edited + b"\n" + second)
    place.opened("txt").close(finished=False)
    assert not (tmp_path / "report.json").exists()


def test_a_report_goes_before_a_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place := Place(tmp_path)).run(["a.wav"])
    monkeypatch.setattr("fastscribe.results.storage_folder.realign", stopped)
    with pytest.raises(OSError, match="stopped"):
        place.opened()
    assert not (tmp_path / "report.json").exists()


def test_an_open_output_goes_on_with_a_new_ledger(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(["a.wav", "b.wav"], "txt")
    with place.opened("txt") as output:
        assert not put(output, spoken("a.wav"))
        with pytest.raises(UsageError, match="other settings"):
            output.go_on(OutputRun(OutputStyle(("txt",)), {"--beam": 4}), print)
        output.go_on(OutputRun(OutputStyle(("txt", "srt")), {}), print)
        assert [put(output, spoken(id, index=index)) for index, id in enumerate(("b.wav", "c.wav"))] == [False, True]
        assert output.totals() == Totals(files=3, audio_s=3.0, not_given=1)
    assert set(place.contents()) == {"a.txt", "b.txt", "b.srt", "c.txt", "c.srt"}


def test_equal_names_that_earlier_results_get_while_a_run_begins_stay_apart(place: Place) -> None:
    """The first ledger names and makes a file that no list of files knows yet; a second one gives the same name."""
    ids = ["a/talk.wav", "a/talk.mp3"]
    place.run([ids[0]], "jsonl")
    with place.opened("txt", say=(said := list[str]()).append) as output:
        assert not put(output, spoken(ids[0]))
        output.go_on(OutputRun(OutputStyle(("txt",)), {}), said.append)
        assert [put(output, spoken(id, index=index)) for index, id in enumerate(ids)] == [False, True]
        output.flush()
        assert output.not_made == []
    assert sorted(place.contents().values()) == ids[::-1] and said == []


# --- the run's own names


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["transcripts.jsonl", "journal.jsonl", "report.json", ".swap", ".lock"])
@pytest.mark.parametrize("mine", ["mine\n", '{"my": "own report"}'])
def test_a_users_file_with_an_own_name_is_an_error(tmp_path: Path, mine: str, name: str, overwrite: bool) -> None:
    (tmp_path / name).write_text(mine)
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / name))):
        Place(tmp_path).opened("jsonl", "txt", overwrite=overwrite)
    assert set(tmp_path.iterdir()) <= {tmp_path / name, tmp_path / ".lock"}
    assert (tmp_path / name).read_text() == mine
    if name not in (".lock", ".swap"):
        with pytest.raises(UsageError, match=re.escape(f"{tmp_path / name}: no journal says")):
            Paths(tmp_path, "").check_new(overwrite)
    Paths(tmp_path, Shard(0, 2).suffix).check_new(False)


@pytest.mark.posix
@pytest.mark.parametrize("name", ["transcripts.jsonl", "journal.jsonl", "report.json", ".swap", ".lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "folder"])
def test_only_regular_files_are_written(tmp_path: Path, name: str, kind: str) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    out.mkdir()
    path = out / name
    if "link" in kind:
        path.symlink_to(target)
        if kind == "link":
            target.write_text("")
    else:
        os.mkfifo(path) if kind == "fifo" else path.mkdir()
    before = os.lstat(path)
    with pytest.raises(UsageError, match=re.escape(str(path))):
        Place(out).opened("jsonl", "txt")
    assert os.lstat(path) == before
    assert kind != "link" or target.read_text() == ""
    assert kind == "link" or not target.exists()


def test_empty_rows_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "transcripts.jsonl").touch()
    Place(tmp_path).run(["a.wav"], "jsonl")
    assert Place(tmp_path).rows() == ["/in/a.wav"]


@pytest.mark.parametrize(
    "id", ["../../etc/a.wav", "/etc/a.wav", "..", "", "a\0b.wav", "x" * 5000, "d/" * 3000 + "a.wav"]
)
def test_hostile_ids_are_written_below_the_folder(tmp_path: Path, id: str) -> None:
    Place(tmp_path / "out").run([id], "txt")
    assert list(Place(tmp_path / "out").contents().values()) == [clean_text(id)]
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_that_cannot_be_searched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of what it holds, neither while names are given nor later."""
    lstat = os.lstat

    def refuse(path: Any) -> os.stat_result:
        if f"{os.sep}x{os.sep}" in os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return lstat(path)

    monkeypatch.setattr(os, "lstat", refuse)
    place = Place(tmp_path)
    for _ in range(2):
        with place.opened("txt") as output:
            put(output, spoken("x/a.wav"))
        assert [error.filename for error in output.not_made] == [str(tmp_path / "x" / "a.txt")]
        assert all(error.__traceback__ is None for error in output.not_made)
    assert place.rows() == ["/in/x/a.wav"]


def test_an_error_while_files_are_recovered_gives_the_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastscribe.results.result_files.ResultFiles.recover", stopped)
    with pytest.raises(OSError, match="stopped"):
        Place(tmp_path).opened("txt")
    monkeypatch.undo()
    assert Place(tmp_path).run(["a.wav"], "txt") == ["a.wav"]
