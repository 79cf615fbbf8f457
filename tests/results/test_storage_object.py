"""Output to an S3-compatible server: what is written in which order, and what faults and other writers do to it."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import count

import pytest

from fastscribe._system import remote
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.merge import merge_store
from fastscribe.results.shards import Shard
from fastscribe.types import Source
from tests.helpers.object_store import FaultyStore
from tests.results.test_output import Place, failed, put, spoken

_numbers = count()
KINDS = ("run.json", "part.jsonl", "a.txt", "published", "transcripts", "report")


@pytest.fixture
def place(server: FaultyStore) -> Place:
    return Place(f"s3://bucket/{next(_numbers)}/out")


def objects(place: Place) -> list[str]:
    """The names of all objects, the run's own ones too."""
    return [found.url.removeprefix(f"{place.where}/") for found in list(remote.list_objects(str(place.where)))]


def read(place: Place, name: str) -> str:
    return remote.read_object(f"{place.where}/{name}").data.decode()


def test_names_of_objects_are_those_of_a_folder(place: Place) -> None:
    ids = ["a.wav", "b.mp3", "x y/ü#1%20?.flac"]
    assert place.run(ids, "txt") == ids
    assert place.contents() == {"a.txt": "a.wav", "b.txt": "b.mp3", "x y/ü#1%20?.txt": "x y/ü#1%20?.flac"}
    assert place.rows() == ["/in/" + id for id in ids] and "report.json" in objects(place)


def test_a_part_comes_before_its_files_and_the_report_last(server: FaultyStore, place: Place) -> None:
    begin = len(server.requests)
    place.run(["a.wav"], "txt")
    written = [request for request in server.requests[begin:] if request.startswith("PUT")]
    found = [next((kind for kind in KINDS if kind in request), "lock") for request in written if "alive" not in request]
    assert list(dict.fromkeys(found)) == ["run.json", "part.jsonl", "a.txt", "published", "transcripts", "report"]


@pytest.mark.parametrize("kind", ["503", "reset", "lost"])
def test_faults_that_pass_change_nothing(server: FaultyStore, place: Place, kind: str) -> None:
    """A lost answer lets the retry of a conditional write find its own object."""
    for match in KINDS:
        server.fault(kind, f"PUT&{match}")
    assert place.run(["a.wav", "b.wav"], "txt") == ["a.wav", "b.wav"]
    assert place.contents() == {"a.txt": "a.wav", "b.txt": "b.wav"}
    assert place.run(["a.wav", "b.wav"], "txt") == []
    assert place.rows() == ["/in/a.wav", "/in/b.wav"]


@pytest.mark.parametrize("match", ["part.jsonl", "transcripts", "report"])
def test_a_store_that_refuses_writes_stops_the_run(server: FaultyStore, place: Place, match: str) -> None:
    place.run(["a.wav"], "txt")
    fault = server.fault("403", f"PUT&{match}", times=100)
    with pytest.raises(OutputError, match=f"{place.where}/.*{match}.*access denied.*what is written is kept") as caught:
        place.run(["a.wav", "b.wav"], "txt")
    assert "\n" not in str(caught.value)
    fault.times = 0
    assert place.rows() == (
        ["/in/a.wav", "/in/b.wav"] if match == "report" else ["/in/a.wav"]
    )  # old or new, never half
    assert place.run(["a.wav", "b.wav"], "txt") == (["b.wav"] if match == "part.jsonl" else [])
    assert place.rows() == ["/in/a.wav", "/in/b.wav"]
    assert place.contents()["b.txt"] == "b.wav"


def test_rows_that_are_dropped_go_although_their_run_could_not_finish(server: FaultyStore, place: Place) -> None:
    with place.opened() as output:
        for result in (spoken("a.wav"), replace(failed("b.wav", 1), stage="input")):
            put(output, result)
        output.write_report(b"{}")
    fault = server.fault("403", "PUT&transcripts", times=100)
    with pytest.raises(OutputError):  # it has no new row
        place.run(["a.wav"])
    fault.times = 0
    assert place.run(["a.wav"]) == [] and place.rows() == ["/in/a.wav"]


@pytest.mark.parametrize("name", ["transcripts.jsonl", "report.json"])
def test_an_object_with_an_own_name_is_an_error(place: Place, name: str) -> None:
    place.write(name, "mine")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=f"{place.where}/{name}: no journal says"):
            place.opened("txt", overwrite=overwrite)
    assert objects(place) == [name] and read(place, name) == "mine"


def test_an_object_that_someone_writes_during_the_run_stays(place: Place) -> None:
    """The names were looked at before. The row is there, and the command says which file is not."""
    with place.opened("txt") as output:
        assert output.ledger.expect(Source("/in/a.wav", "/in/a.wav", "a.wav"))
        place.write("a.txt", "mine")
        output.write(spoken("a.wav"))
        output.flush()
        assert [error.filename for error in output.not_made] == [f"{place.where}/a.txt"]
    assert place.contents() == {"a.txt": "mine"} and place.rows() == ["/in/a.wav"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_edited_rows_are_kept_beside(place: Place, overwrite: bool) -> None:
    place.run(["a.wav"], "txt")
    place.run(["a.wav", "b.wav"], "txt")
    assert "transcripts.previous.jsonl" not in objects(place)
    place.write("transcripts.jsonl", "edited\n")
    place.run(["a.wav", "b.wav", "c.wav"], "txt", overwrite=overwrite)
    assert read(place, "transcripts.previous.jsonl") == "edited\n" and len(place.rows()) == 3


def test_merged_rows_that_were_edited_are_kept_beside(place: Place) -> None:
    ids = ["a.wav", "b.wav", "c.wav"]
    for index in range(2):
        place.run(ids, "txt", shard=Shard(index, 2))
    for _ in range(2):
        merge_store(str(place.where), True)
    assert place.rows() == ["/in/" + id for id in ids]
    assert "transcripts.previous.jsonl" not in objects(place)
    place.write("transcripts.jsonl", "edited\n")
    merge_store(str(place.where), True)
    assert read(place, "transcripts.previous.jsonl") == "edited\n" and len(place.rows()) == 3
    assert place.run(ids, "txt", shard=Shard(0, 2)) == []  # the parts are the journal, and stay


def test_merge_replaces_nobodys_rows(place: Place) -> None:
    place.run(["a.wav"], "txt", shard=Shard(0, 2))
    place.write("transcripts.jsonl", "mine\n")
    with pytest.raises(UsageError, match=f"{place.where}/transcripts.jsonl: no journal says"):
        merge_store(str(place.where), False)
    assert read(place, "transcripts.jsonl") == "mine\n"


def test_two_runs_that_both_believe_to_be_alone_damage_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastscribe.results.object_lock.check_dead", lambda *given: None)
    monkeypatch.setattr("fastscribe.results.object_lock.ObjectLock.check", lambda lock: None)
    with place.opened("txt") as first, place.opened("txt") as second:
        for output, ids in ((first, ["a.wav", "b.wav"]), (second, ["a.wav", "c.wav"])):
            for index, id in enumerate(ids):
                put(output, spoken(id, index=index))
            output.flush()
    assert place.run(["a.wav", "b.wav", "c.wav"], "txt") == []
    assert sorted(place.rows()) == ["/in/a.wav", "/in/b.wav", "/in/c.wav"]
    assert set(place.contents().values()) == {"a.wav", "b.wav", "c.wav"}


def test_parts_without_the_settings_of_their_run_do_not_count(place: Place) -> None:
    """Someone deleted run.json: nothing tells whether the rows are of these settings."""
    place.run(["a.wav"], "txt")
    for name in objects(place):
        if "run.json" in name or not name.startswith(".fastscribe/"):
            place.remove(name)
    assert place.run(["a.wav"], "txt") == ["a.wav"]


def test_many_removals_at_once_do_not_wait_for_themselves(place: Place) -> None:
    """Recordings that have changed and failed now have no text: their files go, more at once than there are requests."""
    ids = [f"{number}.wav" for number in range(40)]
    place.run(ids, "txt")
    with place.opened("txt") as output:
        for index, id in enumerate(ids):
            put(output, failed(id, index), changed=True)
    assert place.contents() == {} and len(place.rows()) == 40


def test_a_listing_without_a_run_whose_parts_it_has_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run(["a.wav"], "txt")
    listed = remote.list_objects
    monkeypatch.setattr(
        remote, "list_objects", lambda url: (one for one in listed(url) if not one.url.endswith("run.json"))
    )
    with pytest.raises(UsageError, match=r"run\.json: is missing, and what was done is in it"):
        place.run(["a.wav"], "txt")


def test_an_object_that_appears_during_the_run_stays_without_conditions_too(
    server: FaultyStore, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "knows_conditions", False)
    with place.opened("txt") as output:
        assert put(output, spoken("a.wav"))
        remote.write_object(f"{place.where}/a.txt", b"mine")
    assert read(place, "a.txt") == "mine" and [error.errno for error in output.not_made] == [errno.EEXIST]
