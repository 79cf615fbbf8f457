"""`speakers.json`: the persons of many recordings, which people name, join and correct, and the program reads again.

Persons with a name are people's decisions: clustering again leaves their speakers alone, and only adds new ones to them.
Persons without a name are made anew each time.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastscribe._system.file_kinds import check_regular, safe_read
from fastscribe._system.safe_files import write_atomic
from fastscribe.errors import ManifestError, UsageError
from fastscribe.results.rows import ResultRow
from fastscribe.results.stored import NotAResult, stored_voices
from fastscribe.speakers.clustering import cluster
from fastscribe.types import Float32Array, Voice

THRESHOLD = 0.4  # NeMo's verify_speakers() takes voices of this cosine for one person, (0.4 + 1) / 2 = 0.7
_KEY, _VERSION = "fastscribe_speakers", 1
_MAX_BYTES = 1 << 30
_ID = re.compile(r"person ([0-9]{1,9})")
_DECIMALS = 3


class Recording(NamedTuple):
    """A recording as its row names it."""

    path: str
    offset_s: float | None = None  # of a manifest row
    track: int = 0  # of a manifest row

    @classmethod
    def of(cls, fields: Mapping[str, Any], key: str = "audio_filepath") -> Recording:
        """Return the recording of a row. Raises ValueError if there is none."""
        path, offset = fields.get(key), fields.get("offset")
        if not isinstance(path, str):
            raise ValueError(f"{key} is no text")
        track = fields.get("audio_track")
        track = track if type(track) is int else 0
        if not isinstance(offset, int | float) or isinstance(offset, bool) or offset <= 0:
            return cls(path, None, track)
        return cls(path, float(offset), track)


@dataclass(frozen=True)
class Speaker:
    """A speaker of a recording."""

    recording: Recording
    voice: Voice

    @property
    def key(self) -> tuple[Recording, str]:
        return self.recording, self.voice.speaker


@dataclass(frozen=True)
class Person:
    """Speakers who are one person.

    Attributes:
        id: "person 7".
        name: What a person has written; None: nothing yet.
        speakers: The person's.
        similarities: The cosine of each speaker's print with the mean of the others'; None: there is nothing to compare.
    """

    id: str
    name: str | None
    speakers: tuple[Speaker, ...]
    similarities: tuple[float | None, ...] = ()

    @property
    def speech_s(self) -> float:
        return sum(one.voice.speech_s for one in self.speakers)


@dataclass(frozen=True)
class Persons:
    """The content of a speakers.json. `unknown` are speakers with too little speech to tell who they are."""

    persons: tuple[Person, ...] = ()
    unknown: tuple[Speaker, ...] = ()
    threshold: float = THRESHOLD

    @cached_property
    def names(self) -> dict[tuple[Recording, str], str]:
        """What stands for the person in transcripts, by speaker."""
        return {one.key: person.name or person.id for person in self.persons for one in person.speakers}

    @property
    def num_speakers(self) -> int:
        return len(self.names) + len(self.unknown)


def speakers_of(rows: Iterable[ResultRow], most: int | None = None) -> tuple[list[Speaker], list[ManifestError]]:
    """Return the speakers of stored rows that have voices, and the rows that are damaged or come twice.

    No more rows are read once there are more than `most` speakers.
    """
    found: dict[tuple[Recording, str], Speaker] = {}
    recordings: set[Recording] = set()
    problems = []
    for row in rows:
        try:
            voices = stored_voices(row.fields)
            if not voices:
                continue
            recording = Recording.of(row.fields)
            if recording in recordings:
                raise ValueError(f"{recording.path} is in the results twice; its first row counts")
            recordings.add(recording)
            found |= {(recording, voice.speaker): Speaker(recording, voice) for voice in voices}
            if most is not None and len(found) > most:
                break
        except (NotAResult, ValueError) as error:
            problems.append(row.problem(str(error)))
    sizes = Counter(len(one.voice.embedding_E) for one in found.values() if one.voice.embedding_E is not None)
    if len(sizes) > 1:
        raise UsageError(f"the voice prints are of different models: {' and '.join(map(str, sorted(sizes)))} numbers")
    return list(found.values()), problems


def find_persons(speakers: Sequence[Speaker], earlier: Persons, threshold: float) -> Persons:
    """Cluster speakers.

    Args:
        speakers: Those of all recordings.
        earlier: What an earlier clustering has found and people have changed since.
        threshold: Least mean cosine of two groups of voices that are one person.
    """
    speakers = sorted(speakers, key=_order)  # whatever the order of the rows
    named = _joined_by_name(earlier.persons)
    known = {one.key: person for person in named for one in person.speakers}
    heard = [one for one in speakers if one.voice.embedding_E is not None]
    groups: dict[int, list[Speaker]] = {}
    if heard:
        fixed = [known[one.key].id if one.key in known else None for one in heard]
        prints_NE = _unit(np.array([one.voice.embedding_E for one in heard], np.float32))
        unheard = [(person.id, one.recording) for person in named for one in person.speakers]
        labels = cluster(prints_NE, [one.recording for one in heard], threshold, fixed, unheard)
        for label, one in zip(labels, heard, strict=True):
            groups.setdefault(label, []).append(one)
    present = {one.key: one for one in speakers}
    placed = set(known)
    persons: dict[str, list[Speaker]] = {
        person.id: [present.get(one.key, one) for one in person.speakers] for person in named
    }
    unnamed: list[list[Speaker]] = []
    for group in groups.values():
        person = next((known[one.key] for one in group if one.key in known), None)
        if person is None:
            unnamed.append(group)
        else:
            persons[person.id] += [one for one in group if one.key not in known]
        placed |= {one.key for one in group}
    names = {person.id: person.name for person in named}
    for id, group in _with_ids(unnamed, earlier.persons, set(persons)):
        persons[id] = group
    made = [_person(id, names.get(id), group) for id, group in persons.items()]
    made.sort(key=lambda person: (-round(person.speech_s, _DECIMALS), _number(person.id)))
    return Persons(tuple(made), tuple(one for one in speakers if one.key not in placed), threshold)


def _joined_by_name(persons: Sequence[Person]) -> list[Person]:
    """Return the persons with a name; those of one name are one person, with the first's id."""
    found: dict[str, Person] = {}
    for person in persons:
        if person.name is not None:
            first = found.setdefault(person.name, replace(person, speakers=()))
            found[person.name] = replace(first, speakers=(*first.speakers, *person.speakers))
    return list(found.values())


def _with_ids(
    groups: Sequence[list[Speaker]], earlier: Sequence[Person], taken: set[str]
) -> list[tuple[str, list[Speaker]]]:
    """Give persons without a name their earlier ids: that of the one with which they share the most speakers."""
    id_of = {one.key: person.id for person in earlier for one in person.speakers}
    shared: list[tuple[int, int, str]] = []
    for at, group in enumerate(groups):
        counts = Counter(id_of[one.key] for one in group if one.key in id_of)
        shared += [(-count, at, id) for id, count in counts.items()]
    taken, ids = set(taken), {}
    for _, at, id in sorted(shared):
        if at not in ids and id not in taken:
            ids[at] = id
            taken.add(id)
    number = max((_number(id) for id in {*taken, *(person.id for person in earlier)}), default=0)

    def order(at: int) -> tuple[float, Any]:
        return -sum(one.voice.speech_s for one in groups[at]), min(map(_order, groups[at]))

    for at in sorted((at for at in range(len(groups)) if at not in ids), key=order):
        number += 1
        ids[at] = f"person {number}"
    return [(ids[at], group) for at, group in enumerate(groups)]


def _order(speaker: Speaker) -> tuple[str, int, float, str]:
    recording = speaker.recording
    return recording.path, recording.track, recording.offset_s or 0.0, speaker.voice.speaker


def _number(id: str) -> int:
    match = _ID.fullmatch(id)
    return int(match[1]) if match else 0


def _person(id: str, name: str | None, speakers: Sequence[Speaker]) -> Person:
    ordered = sorted(speakers, key=_order)
    heard = [at for at, one in enumerate(ordered) if one.voice.embedding_E is not None]
    similarities: list[float | None] = [None] * len(ordered)
    if len(heard) > 1:
        prints_NE = _unit(np.array([ordered[at].voice.embedding_E for at in heard], np.float32))
        others_NE = _unit(prints_NE.sum(0) - prints_NE)
        for at, cosine in zip(heard, (prints_NE * others_NE).sum(1).tolist(), strict=True):
            similarities[at] = cosine
    return Person(id, name, tuple(ordered), tuple(similarities))


def _unit(vectors_NE: Float32Array) -> Float32Array:
    lengths_N1 = np.linalg.norm(vectors_NE, axis=1, keepdims=True)
    return np.asarray(vectors_NE / np.maximum(lengths_N1, 1e-12), np.float32)


def read_persons(path: Path) -> Persons:
    """Read a speakers.json.

    Raises:
        UsageError: It cannot be read, is none, or someone's change has made it wrong; the message says where.
        FileNotFoundError: There is none.
    """
    try:
        document = json.loads(safe_read(path, _MAX_BYTES))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict) or document.get(_KEY) != _VERSION:
        raise UsageError(f"{path}: is no speakers.json of fastscribe speakers; it stays as it is")
    return _parse(document, path)


def read_if_any(path: Path) -> Persons:
    """Return the persons of a speakers.json; no persons if there is none. Raises UsageError as read_persons()."""
    try:
        return read_persons(path)
    except FileNotFoundError:
        return Persons()


def _parse(document: Mapping[str, Any], path: Path) -> Persons:
    where = "at the top"
    try:
        _check_fields(document, (_KEY, "threshold", "persons", "too_little_speech"))
        where = "threshold"
        threshold = float(document["threshold"])
        if not -1 <= threshold <= 1:
            raise ValueError(f"{threshold} is not from -1 to 1")
        persons: list[Person] = []
        seen: dict[tuple[Recording, str], str] = {}  # the id of each speaker's person
        ids = set()
        for number, one in enumerate(document["persons"]):
            where = f"persons[{number}]"
            _check_fields(one, ("id", "name", "recordings", "speech", "speakers"))
            id, name = one["id"], _name(one.get("name"))
            if not isinstance(id, str) or _ID.fullmatch(id) is None or id in ids:
                raise ValueError("its id is not one of its own, such as person 7")
            ids.add(id)
            speakers = []
            for at, entry in enumerate(one["speakers"]):
                where = f"persons[{number}].speakers[{at}]"
                speaker = _speaker(entry)
                if speaker.key in seen:
                    raise ValueError(
                        f"{speaker.voice.speaker} of {speaker.recording.path} is in {seen[speaker.key]} too"
                    )
                seen[speaker.key] = id
                speakers.append(speaker)
            persons.append(Person(id, name, tuple(speakers)))
        unknown = []
        for number, entry in enumerate(document.get("too_little_speech", ())):
            where = f"too_little_speech[{number}]"
            speaker = _speaker(entry)
            if speaker.key not in seen:  # copied to a person
                unknown.append(speaker)
        return Persons(tuple(persons), tuple(unknown), threshold)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path}: {where}: {problem}") from None


def _check_fields(part: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ValueError for a field that writing the file again would lose."""
    if unknown := sorted(part.keys() - set(known)):
        raise ValueError(f"{unknown[0]!r} is no field of it; there are {', '.join(known)}")


def _name(name: object) -> str | None:
    if name is None or name == "":
        return None
    if not isinstance(name, str) or not name.strip() or name != name.strip() or not name.isprintable():
        raise ValueError("its name is no text, or has spaces around it or characters that cannot be printed")
    if _ID.fullmatch(name):
        raise ValueError(f"{name} is an id, no name")
    return name


def _speaker(entry: Mapping[str, Any]) -> Speaker:
    _check_fields(entry, ("recording", "audio_track", "offset", "speaker", "speech", "similarity", "listen"))
    recording = Recording.of(entry, "recording")
    if not isinstance(entry["speaker"], str):
        raise TypeError("its speaker is no text")
    start_s, end_s = entry.get("listen", (0.0, 0.0))
    return Speaker(recording, Voice(entry["speaker"], float(entry.get("speech", 0.0)), float(start_s), float(end_s)))


def write_persons(path: Path, persons: Persons) -> None:
    """Write a speakers.json durably; it replaces one that read_persons() can read.

    Raises:
        UsageError: Another file is in the way.
        OSError: It cannot be written.
    """
    check_regular(path)
    if path.exists():
        read_persons(path)
    write_atomic(path, to_text(persons).encode("utf-8", "backslashreplace"))


def to_text(persons: Persons) -> str:
    """Return the JSON, with a line for each speaker, so that a line can be moved."""
    blocks = [_person_text(person) for person in persons.persons]
    unknown = _lines([_entry(one) for one in persons.unknown], 4)
    head = f'"{_KEY}": {_VERSION},\n  "threshold": {json.dumps(persons.threshold)}'
    return f'{{\n  {head},\n  "persons": [{",".join(blocks)}\n  ],\n  "too_little_speech": [{unknown}]\n}}\n'


def _person_text(person: Person) -> str:
    similarities = person.similarities or (None,) * len(person.speakers)
    entries = [_entry(one, value) for one, value in zip(person.speakers, similarities, strict=True)]
    name = json.dumps(person.name, ensure_ascii=False)
    recordings = len({one.recording for one in person.speakers})
    head = f'"id": "{person.id}", "name": {name}, "recordings": {recordings}, "speech": {round(person.speech_s, _DECIMALS)}'
    return f'\n    {{{head},\n     "speakers": [{_lines(entries, 7)}]}}'


def _lines(entries: Sequence[Mapping[str, Any]], indent: int) -> str:
    texts = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    return ",".join(f"\n{' ' * indent}{text}" for text in texts) + (f"\n{' ' * (indent - 2)}" if texts else "")


def _entry(speaker: Speaker, similarity: float | None = None) -> dict[str, Any]:
    recording, voice = speaker.recording, speaker.voice
    part: dict[str, Any] = {"audio_track": recording.track} if recording.track else {}
    part |= {} if recording.offset_s is None else {"offset": recording.offset_s}
    found = {"recording": recording.path, **part, "speaker": voice.speaker, "speech": round(voice.speech_s, _DECIMALS)}
    if similarity is not None:
        found["similarity"] = round(similarity, _DECIMALS)
    return {**found, "listen": [round(voice.start_s, _DECIMALS), round(voice.end_s, _DECIMALS)]}
