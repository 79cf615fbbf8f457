"""speakers.json: what people change in it stays, and what is wrong in it is named."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastscribe.errors import UsageError
from fastscribe.results.rows import ResultRow
from fastscribe.speakers import persons
from fastscribe.speakers.command import speakers as speakers_command
from fastscribe.speakers.persons import (
    Person,
    Persons,
    Recording,
    Speaker,
    find_persons,
    read_persons,
    speakers_of,
    write_persons,
)
from fastscribe.types import Voice
from tests.conftest import refusal
from tests.helpers.exports import export

# Speakers by recording, and whose voice each is; "-" has no print.
ARCHIVE = {"a.wav": "xy", "b.wav": "xz", "c.wav": "x-", "d.wav": "yz", "e.wav": "z"}
DIRECTION = {voice: np.eye(8)[number] for number, voice in enumerate("xyz")}


def write_rows(path: Path, speakers: Iterable[Speaker]) -> None:
    path.write_text("".join(json.dumps(row(one, "hi")) + "\n" for one in speakers))


def voice(recording: str, number: int, whose: str) -> Voice:
    noise = np.random.RandomState(len(recording) + ord(recording[0]) + number).standard_normal(8) / 10
    print_E = None if whose == "-" else (DIRECTION[whose] + noise).astype(np.float32)
    return Voice(f"speaker {number}", 1.0 if whose == "-" else 10.0 + number, 0.5, 7.5, print_E)


def archive(**voices: str) -> list[Speaker]:
    found = ARCHIVE | {f"{name}.wav": text for name, text in voices.items()}
    return [
        Speaker(Recording(path), voice(path, number, whose))
        for path, text in found.items()
        for number, whose in enumerate(text, 1)
    ]


def groups(found: Persons) -> dict[str, set[str]]:
    """Return the speakers of each person, as "a1", by what stands for the person."""
    return {
        (person.name or person.id): {f"{one.recording.path[0]}{one.voice.speaker[-1]}" for one in person.speakers}
        for person in found.persons
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_persons(tmp_path / "speakers.json", find_persons(archive(), Persons(), 0.4))
    return tmp_path / "speakers.json"


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Persons:
    """Let `change` edit the file, and cluster again with a new recording of x and y."""
    edit(path, change)
    found = find_persons(archive(f="xy"), read_persons(path), 0.4)
    write_persons(path, found)
    assert groups(read_persons(path)) == groups(found)
    return found


X, Y, Z = {"a1", "b1", "c1"}, {"a2", "d1"}, {"b2", "d2", "e1"}


def test_persons_are_found_and_ids_stay(path: Path) -> None:
    found = read_persons(path)
    assert groups(found) == {"person 1": Z, "person 2": X, "person 3": Y}
    assert [one.key for one in found.unknown] == [(Recording("c.wav"), "speaker 2")]
    again = changed(path, lambda document: None)
    assert groups(again) == {"person 1": Z, "person 2": X | {"f1"}, "person 3": Y | {"f2"}}


def test_a_line_of_the_file_is_a_speaker(path: Path) -> None:
    [line] = [line.strip() for line in path.read_text().splitlines() if '"e.wav"' in line]
    entry = json.loads(line)
    assert {**entry, "similarity": 0} == {
        "recording": "e.wav",
        "speaker": "speaker 1",
        "speech": 11.0,
        "similarity": 0,
        "listen": [0.5, 7.5],
    }
    assert 0.8 < entry["similarity"] < 1


def test_names_stay_and_join(path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["persons"][0]["name"] = document["persons"][2]["name"] = "Zoë"  # Y and Z share a recording
        document["persons"][1]["name"] = "Xan"

    found = changed(path, change)  # a person of two voices is not similar to one of them
    assert groups(found) == {"Zoë": Y | Z, "Xan": X | {"f1"}, "person 4": {"f2"}}


def test_moved_speakers_of_named_persons_stay(path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        first, second, _ = document["persons"]
        first["name"] = "Zoë"
        first["speakers"].append(second["speakers"].pop(0))
        first["speakers"].append(document["too_little_speech"].pop())

    found = changed(path, change)
    assert groups(found) == {"Zoë": Z | {"a1", "c2"}, "person 2": {"b1", "c1", "f1"}, "person 3": Y | {"f2"}}
    assert not found.unknown


def test_a_moved_speaker_without_a_print_keeps_others_of_its_recording_away(path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        person = document["persons"][1]
        person["name"] = "Xan"
        [line] = [one for one in person["speakers"] if one["recording"] == "c.wav"]
        person["speakers"].remove(line)  # the other speaker of c.wav is Xan, someone has heard
        person["speakers"].append(document["too_little_speech"].pop())

    assert groups(changed(path, change))["Xan"] == {"a1", "b1", "c2"}  # c1 and f1 are more similar


def test_the_order_of_the_rows_changes_nothing(path: Path) -> None:
    earlier = read_persons(path)
    rows = archive(f="xy", g="zx")
    for threshold in (0.4, 0.9999):  # the second makes many persons of one, and one of them has its id
        assert find_persons(rows[::-1], earlier, threshold) == find_persons(rows, earlier, threshold)


def test_names_that_are_given_while_persons_are_found_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, file = tmp_path / "rows.jsonl", tmp_path / "speakers.json"
    write_rows(given, archive()[:1])
    speakers_command([str(given)], file)

    def slow(*given: Any) -> Persons:
        found = find_persons(*given)
        file.write_text(file.read_text().replace("null", '"Ann"'))  # a person saves the file
        return found

    monkeypatch.setattr(persons, "find_persons", slow)
    speakers_command([str(given)], file)
    assert groups(read_persons(file)) == {"Ann": {"a1"}}


def test_no_more_rows_are_read_than_are_clustered() -> None:
    rows = iter([ResultRow("rows", number, row(one, "hi")) for number, one in enumerate(archive()[::2])])
    found, _ = speakers_of(rows, 2)
    assert len(found) == 3
    assert len(list(rows)) == 2


def test_a_named_person_keeps_speakers_whose_rows_are_gone(path: Path) -> None:
    edit(path, lambda document: document["persons"][0].update(name="Zoë"))
    rest = [one for one in archive() if one.recording.path not in ("d.wav", "a.wav")]
    assert groups(find_persons(rest, read_persons(path), 0.4)) == {"Zoë": Z, "person 2": {"b1", "c1"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("persons"), "no persons"),
        (lambda d: d["persons"][0].update(name=" Ann"), "persons[0]: its name"),
        (lambda d: d["persons"][1].update(name="a\nb"), "persons[1]: its name"),
        (lambda d: d["persons"][1].update(name="person 9"), "persons[1]: person 9 is an id"),
        (lambda d: d["persons"][1].update(id="person 1"), "persons[1]: its id"),
        (lambda d: d["persons"][1]["speakers"].append(d["persons"][0]["speakers"][0]), "is in person 1 too"),
        (lambda d: d["persons"][0]["speakers"][1].pop("speaker"), "persons[0].speakers[1]: no speaker"),
        (lambda d: d["persons"][0]["speakers"][1].update(recording=3), "recording is no text"),
        (lambda d: d.pop("fastscribe_speakers"), "is no speakers.json"),
        (lambda d: d.update(threshold=float("nan")), "threshold: nan is not from -1 to 1"),
        (lambda d: d.update(note="mine"), "at the top: 'note' is no field"),
        (lambda d: d["persons"][1].update(note="mine"), "persons[1]: 'note' is no field"),
        (lambda d: d["persons"][1]["speakers"][0].update(note="mine"), "persons[1].speakers[0]: 'note' is no field"),
    ],
)
def test_a_wrong_change_is_named_and_nothing_is_replaced(path: Path, change: Any, message: str) -> None:
    edit(path, change)
    before = path.read_bytes()
    for call in (lambda: read_persons(path), lambda: write_persons(path, Persons())):
        with refusal(UsageError, message):
            call()
    assert path.read_bytes() == before


def test_a_file_that_is_no_json_stays(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(UsageError, match="cannot be read"):
        write_persons(path, Persons())
    assert path.read_text() == "mine"


def row(speaker: Speaker, text: str) -> dict[str, Any]:
    own = speaker.voice
    assert own.embedding_E is not None
    embedding = b64encode(own.embedding_E.astype("<f2").tobytes()).decode()
    timed = {"start": 0.0, "end": 1.0, "confidence": 1.0, "speaker": own.speaker}
    return {
        "audio_filepath": speaker.recording.path,
        "duration": 9.0,
        "text": text,
        "speakers": [own.speaker],
        "turns": [{"start": 0.0, "end": 9.0, "speaker": own.speaker}],
        "voices": [{"speaker": own.speaker, "speech": 9.0, "start": 0.0, "end": 9.0, "embedding": embedding}],
        "segments": [{"text": text, **timed}],
        "words": [{"word": text, **timed}],
        "gaps": [],
    }


def test_rows_of_other_parts_and_tracks_of_a_file_are_other_recordings(path: Path) -> None:
    fields = row(archive()[0], "hi")
    parts: list[dict[str, Any]] = [{}, {"offset": 2}, {"audio_track": 1}, {"audio_track": 1, "offset": 2}]
    rows = [ResultRow("rows", number, fields | part) for number, part in enumerate(parts, 1)]
    found, problems = speakers_of(rows)
    assert len(found) == 4 and not problems
    named = Persons(tuple(Person(f"person {at}", None, (one,)) for at, one in enumerate(found, 1)))
    write_persons(path, named)
    again = read_persons(path)
    assert [again.names[Recording.of(one.fields), "speaker 1"] for one in rows] == [one.id for one in named.persons]


def test_recordings_that_come_twice_and_other_models(path: Path) -> None:
    rows = [row(one, "hi") for one in archive() if one.voice.speaker == "speaker 1"][:3]
    numbered = [ResultRow("rows", number, fields) for number, fields in enumerate([*rows, rows[0]], 1)]
    found, [problem] = speakers_of(numbered)
    assert "line 4" in str(problem)
    assert "a.wav is in the results twice" in str(problem)
    assert len(found) == 3  # of a.wav the first row counts
    rows[2]["voices"][0]["embedding"] = rows[2]["voices"][0]["embedding"][:8]
    with pytest.raises(UsageError, match="different models: 3 and 8 numbers"):
        speakers_of(numbered)


def test_an_export_follows_who_is_who_and_channels_of_one_person_have_no_number(tmp_path: Path) -> None:
    given, out, file = tmp_path / "rows.jsonl", tmp_path / "named", tmp_path / "speakers.json"
    names = ["speaker 1", "speaker 2", "speaker 3"]
    fields = row(archive()[0], "hi") | {"speakers": names, "turns": []}
    fields |= {"speaker_channels": {name: number for number, name in enumerate(names)}}
    timed = {"start": 0.0, "end": 1.0, "confidence": 1.0}
    fields["segments"] = [{"text": "hi", "speaker": name, **timed} for name in names]
    fields["words"] = [{"word": "hi", "speaker": name, **timed} for name in names]
    given.write_text(json.dumps(fields) + "\n")
    for shown in (["A", "A", "B"], ["A", "B", "B"], ["A", "B", "C"]):
        entries = [Speaker(Recording("a.wav"), Voice(name, 9.0, 0.0, 1.0)) for name in names]
        people = [Person(f"person {number}", None, (one,)) for number, one in enumerate(entries)]
        write_persons(file, Persons(tuple(replace(one, name=name) for one, name in zip(people, shown, strict=True))))
        export([str(given)], ["jsonl"], out, speaker_map=file)
        stored = json.loads((out / "transcripts.jsonl").read_text().splitlines()[-1])
        assert [one["speaker"] for one in stored["segments"]] == shown
        assert stored.get("speaker_channels") == ({"A": 0, "B": 1, "C": 2} if "C" in shown else None)


def test_names_go_into_all_formats_and_may_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speakers = [
        one for one in archive() if one.recording.path in ("b.wav", "e.wav") and one.voice.speaker == "speaker 1"
    ]
    given, out, file = tmp_path / "rows.jsonl", tmp_path / "named", tmp_path / "speakers.json"
    write_rows(given, speakers)
    speakers_command([str(given)], file)
    assert "2 persons (0 named) of 2 speakers in 2 recordings" in capsys.readouterr().err

    def exported() -> tuple[dict[str, Any], ...]:
        export([str(given)], ["txt,rttm,jsonl"], out, speaker_map=file)
        stored = [json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]
        return tuple(sorted(stored, key=lambda one: str(one["audio_filepath"])))

    first, second = exported()
    assert (out / "b.txt").read_text() == "person 1: hi\n"
    assert "for 2 of 2 results" in capsys.readouterr().err
    document = json.loads(file.read_text())
    [person] = [one for one in document["persons"] if one["speakers"][0]["recording"] == "e.wav"]
    person["name"] = "Zoë"
    file.write_text(json.dumps(document))
    again, second = exported()
    assert "for 1 of 2 results" in capsys.readouterr().err
    assert again == first
    assert "voices" not in first | second
    names = {second["speakers"][0], second["turns"][0]["speaker"]}
    names |= {second[part][0]["speaker"] for part in ("segments", "words")}
    assert names == {"Zoë"}
    assert (out / "e.txt").read_text() == "Zoë: hi\n"
    assert " Zoë " in (out / "e.rttm").read_text()
