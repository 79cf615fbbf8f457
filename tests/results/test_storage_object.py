"""Output to an S3-compatible server: what is written in which order, and what faults and other writers do to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastscribe.results.output_run import OutputRun

from fastscribe._system import remote
from fastscribe._system.file_kinds import InTheWay
from fastscribe.config import OutputStyle, SubtitleStyle
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.merge_objects import merge_store
from fastscribe.results.output import JournaledOutput, open_journaled
from fastscribe.results.shards import Shard
from fastscribe.types import AudioInfo, Failure, Segment, Source, Transcript, Word
from tests.helpers.object_store import FaultyStore, object_store

_numbers = count()
KINDS = ("run.json", "rows", "wav.txt", "journal", "published", "transcripts", "report")


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def url(server: FaultyStore) -> str:
    return f"s3://bucket/{next(_numbers)}/out"


def opened(url: str, *formats: str, say: Callable[[str], object] = str, **options: Any) -> JournaledOutput:
    return open_journaled(url, OutputRun(OutputStyle(formats), {}, **options), say)


def spoken(id: str, text: str, index: int) -> Transcript:
    audio = AudioInfo("/in/" + id, id, sample_rate=16_000, channels=1, num_samples=16_000, index=index)
    return Transcript(audio, text, (), ())


def put(output: JournaledOutput, id: str, text: str = "hello", index: int = 0, result: Failure | None = None) -> bool:
    """Announce an input and write its result. Return False if it is done, or another shard's."""
    source = Source("/in/" + id, "/in/" + id, id, index=index)
    if not output.ledger.expect(source) or output.ledger.is_done(source):
        return False
    output.write(result or spoken(id, text, index))
    return True


def write_all(url: str, *ids: str, **options: Any) -> list[str]:
    """Run over these inputs; return those that had no result yet."""
    with opened(url, "jsonl", "txt", **options) as output:
        new = [id for index, id in enumerate(ids) if put(output, id, index=index)]
        output.flush()
        output.write_report(b"{}")
    return new


def contents(url: str, hidden: bool = False) -> dict[str, str]:
    names = [found.url.removeprefix(url + "/") for found in list(remote.list_objects(url))]
    shown = [name for name in names if hidden or not name.startswith(".fastscribe/")]
    return {name: remote.read_object(f"{url}/{name}").data.decode() for name in shown}


def rows(url: str) -> list[str]:
    return [json.loads(line)["audio_filepath"] for line in contents(url)["transcripts.jsonl"].splitlines()]


def test_every_name_keeps_its_extension(url: str) -> None:
    ids = ["a.wav", "a.mp3", "x y/ü#1%20?.flac", "a.wav"]  # the last is another file of the same id
    assert write_all(url, *ids) == ids
    expected = {"a.wav.txt", "a.mp3.txt", "x y/ü#1%20?.flac.txt", "a.wav.2.txt", "transcripts.jsonl", "report.json"}
    assert set(contents(url)) == expected
    assert rows(url) == ["/in/" + id for id in ids]


@pytest.mark.parametrize("kind", ["503", "reset", "lost"])
def test_faults_that_pass_change_nothing(server: FaultyStore, url: str, kind: str) -> None:
    """A lost answer lets the retry of a conditional write find its own object."""
    for match in KINDS:
        server.fault(kind, f"PUT&{match}")
    assert write_all(url, "a.wav", "b.wav") == ["a.wav", "b.wav"]
    assert set(contents(url)) == {"a.wav.txt", "b.wav.txt", "transcripts.jsonl", "report.json"}
    assert write_all(url, "a.wav", "b.wav") == []
    assert rows(url) == ["/in/a.wav", "/in/b.wav"]


@pytest.mark.parametrize("match", ["rows", "b.wav.txt", "journal", "transcripts", "report"])
def test_a_store_that_refuses_writes_stops_the_run(server: FaultyStore, url: str, match: str) -> None:
    write_all(url, "a.wav")
    fault = server.fault("403", f"PUT&{match}", times=100)
    with pytest.raises(OutputError, match=f"{url}/.*{match}.*access denied.*what is written is kept") as caught:
        write_all(url, "a.wav", "b.wav")
    assert "\n" not in str(caught.value)
    fault.times = 0
    assert rows(url) == (["/in/a.wav", "/in/b.wav"] if match == "report" else ["/in/a.wav"])  # old or new, never half
    assert write_all(url, "a.wav", "b.wav") == ([] if match in ("transcripts", "report") else ["b.wav"])
    assert rows(url) == ["/in/a.wav", "/in/b.wav"]
    assert contents(url)["b.wav.txt"] == "hello\n"


@pytest.mark.parametrize("name", ["transcripts.jsonl", "report.json", "a.wav.txt"])
def test_an_object_that_no_run_wrote_stays(url: str, tmp_path: Path, name: str) -> None:
    remote.write_object(f"{url}/{name}", b"mine")
    (tmp_path / "a.wav").touch()
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=f"{url}/{name}: no journal says"):
            opened(url, "jsonl", "txt", overwrite=overwrite, inputs=[str(tmp_path)])
    assert contents(url, hidden=True) == {name: "mine"}


def test_overwrite_looks_for_objects_in_the_way_before_it_deletes(url: str, tmp_path: Path) -> None:
    with opened(url) as output:  # rows alone
        put(output, "a.wav")
        output.write_report(b"{}")
    remote.write_object(f"{url}/a.wav.txt", b"mine")
    (tmp_path / "a.wav").touch()
    before = contents(url, hidden=True)
    with pytest.raises(UsageError, match=f"{url}/a.wav.txt: no journal says"):
        opened(url, "txt", overwrite=True, inputs=[str(tmp_path)])
    assert contents(url, hidden=True) == before
    remote.delete_object(f"{url}/a.wav.txt")
    opened(url, "txt", overwrite=True, inputs=[str(tmp_path)]).close()
    assert contents(url) == {}


def test_an_object_in_the_way_fails_its_input_alone(url: str) -> None:
    """Of an input that was not known before, such as one of a list on stdin."""
    remote.write_object(f"{url}/a.wav.txt", b"mine")
    with opened(url, "jsonl", "txt") as output:
        with pytest.raises(InTheWay, match=f"{url}/a.wav.txt"):
            put(output, "a.wav")
        output.write(Failure("/in/a.wav", "a.wav", "write", "InTheWay", "in the way", None, 0))
        put(output, "b.wav", index=1)
    assert contents(url) == {"a.wav.txt": "mine", "b.wav.txt": "hello\n"}


def test_an_object_that_someone_writes_during_the_run_stays(url: str) -> None:
    output = opened(url, "jsonl", "txt")
    remote.write_object(f"{url}/a.wav.txt", b"mine")
    put(output, "a.wav")
    with pytest.raises(OutputError, match=f"{url}/a.wav.txt"):
        output.close()
    assert contents(url) == {"a.wav.txt": "mine"}


def test_a_store_without_conditional_writes_is_named_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = remote.write_object

    def write_anyway(url: str, data: bytes, if_version: str | None = None) -> str:
        return write(url, data)

    monkeypatch.setattr(remote, "write_object", write_anyway)
    said: list[str] = []
    write_all(url, "a.wav", say=said.append)
    assert len(said) == 1 and "cannot refuse to replace" in said[0]
    remote.write_object(f"{url}/b.wav.txt", b"mine")
    with opened(url, "jsonl", "txt") as output, pytest.raises(InTheWay):
        put(output, "b.wav")


def test_an_edited_file_stays_and_is_named(url: str) -> None:
    write_all(url, "a.wav", "b.wav")
    remote.write_object(f"{url}/a.wav.txt", b"corrected by hand")
    remote.delete_object(f"{url}/b.wav.txt")
    said: list[str] = []
    assert write_all(url, "a.wav", "b.wav", say=said.append) == []
    assert contents(url)["a.wav.txt"] == "corrected by hand" and contents(url)["b.wav.txt"].strip() == "hello"
    assert len(said) == 1 and said[0].startswith(f"{url}/a.wav.txt: edited") and "--overwrite" in said[0]
    write_all(url, overwrite=True, say=said.append)
    assert contents(url)["a.wav.previous.txt"] == "corrected by hand" and "b.wav.previous.txt" not in contents(url)
    assert len(said) == 2 and "a.wav.previous.txt" in said[1]


def test_a_changed_recording_sets_an_edited_file_aside_and_names_it(url: str) -> None:
    write_all(url, "a.wav")
    remote.write_object(f"{url}/a.wav.txt", b"by hand")
    said: list[str] = []
    with opened(url, "txt", say=said.append) as output:
        source = Source("/in/a.wav", "/in/a.wav", "a.wav", row={"changed": True})
        assert output.ledger.expect(source) and not output.ledger.is_done(source)
        output.write(spoken("a.wav", "new", 0))
    found = contents(url)
    assert (found["a.wav.txt"], found["a.wav.previous.txt"]) == ("new\n", "by hand")
    assert len(said) == 1 and "a.wav.previous.txt" in said[0]


def test_an_edit_of_the_same_length_stays_when_the_layout_changes(url: str) -> None:
    segment = Segment("one two", 0.0, 1.0, 1.0, (Word("one", 0.0, 0.5, 1.0), Word("two", 0.5, 1.0, 1.0)))

    def go(width: int) -> list[str]:
        style, said = OutputStyle(("srt",), subtitles=SubtitleStyle(max_line_width=width)), list[str]()
        with open_journaled(url, OutputRun(style, {}), said.append) as output:
            for index, id in enumerate(("a.wav", "b.wav")):
                source = Source("/in/" + id, "/in/" + id, id, index=index)
                output.ledger.expect(source)
                if not output.ledger.is_done(source):
                    output.write(replace(spoken(id, "one two", index), segments=(segment,)))
        return said

    assert go(20) == []
    edited = contents(url)["a.wav.srt"].replace("one", "ONE")
    remote.write_object(f"{url}/a.wav.srt", edited.encode())
    assert len(said := go(5)) == 1 and "a.wav.srt: edited" in said[0]
    assert contents(url)["a.wav.srt"] == edited and "one\ntwo" in contents(url)["b.wav.srt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_edited_rows_are_kept_beside(url: str, overwrite: bool) -> None:
    write_all(url, "a.wav")
    write_all(url, "a.wav", "b.wav")
    assert "transcripts.previous.jsonl" not in contents(url)
    remote.write_object(f"{url}/transcripts.jsonl", b"edited\n")
    write_all(url, "a.wav", "b.wav", "c.wav", overwrite=overwrite)
    assert contents(url)["transcripts.previous.jsonl"] == "edited\n"
    assert len(rows(url)) == 3


def test_merged_rows_that_were_edited_are_kept_beside(url: str) -> None:
    for index in range(2):
        write_all(url, "a.wav", "b.wav", "c.wav", shard=Shard(index, 2))
    for _ in range(2):
        merge_store(url, True)
    assert "transcripts.previous.jsonl" not in contents(url)
    remote.write_object(f"{url}/transcripts.jsonl", b"edited\n")
    merge_store(url, True)
    assert contents(url)["transcripts.previous.jsonl"] == "edited\n" and len(rows(url)) == 3


def test_other_settings_need_another_folder(url: str) -> None:
    write_all(url, "a.wav")
    before = contents(url, hidden=True)
    with pytest.raises(UsageError, match=f"{url}: holds results of a run with other settings .*--beam was 1, is 4"):
        open_journaled(url, OutputRun(OutputStyle(), {"--beam": 4}), str)
    assert contents(url, hidden=True) == before


def test_two_runs_that_both_believe_to_be_alone_damage_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.results.object_lock.check_dead", lambda *given: None)
    monkeypatch.setattr("fastscribe.results.object_lock.ObjectLock.check", lambda lock: None)
    with opened(url, "jsonl", "txt") as first, opened(url, "jsonl", "txt") as second:
        for output, ids in ((first, ["a.wav", "b.wav"]), (second, ["a.wav", "c.wav"])):
            for index, id in enumerate(ids):
                put(output, id, index=index)
            output.flush()
    assert write_all(url, "a.wav", "b.wav", "c.wav") == []
    assert sorted(rows(url)) == ["/in/a.wav", "/in/b.wav", "/in/c.wav"]


def test_a_lost_rows_object_lets_its_inputs_be_done_again(url: str) -> None:
    write_all(url, "a.wav")
    write_all(url, "a.wav", "b.wav")
    lost = next(name for name in contents(url, hidden=True) if "/000002-" in name and name.endswith("rows.jsonl"))
    remote.delete_object(f"{url}/{lost}")
    assert write_all(url, "a.wav", "b.wav") == ["b.wav"]
    assert rows(url) == ["/in/a.wav", "/in/b.wav"]


def test_other_formats_are_made_of_the_rows(url: str) -> None:
    write_all(url, "a.wav")
    with opened(url, "json") as output:
        assert not put(output, "a.wav")
        assert output.ledger.num_made_again == 1
        output.flush()
        output.write_report(b"{}")
    assert json.loads(contents(url)["a.wav.json"])["text"] == "hello"
    assert rows(url) == ["/in/a.wav"] and "a.wav.txt" in contents(url)
    with opened(url, "txt", "json") as output:
        assert not put(output, "a.wav")
        assert output.ledger.num_made_again == 0


def test_commits_without_the_settings_of_their_run_do_not_count(url: str) -> None:
    """Someone deleted run.json: nothing tells whether the rows are of these settings."""
    write_all(url, "a.wav")
    for name in contents(url, hidden=True):
        if "run.json" in name or not name.startswith(".fastscribe/"):
            remote.delete_object(f"{url}/{name}")
    assert write_all(url, "a.wav") == ["a.wav"]
