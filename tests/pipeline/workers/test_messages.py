"""Recordings travel between processes, whatever holds their bytes, and nothing that the caller keeps travels with them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastscribe._system.remote import RemoteObject
from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.audio.probe import planned, probe
from fastscribe.audio.read import read
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.messages import Channel
from fastscribe.types import AudioInfo, File, Samples, Source
from tests.conftest import AUDIO

CLIP = next(AUDIO.glob("01*.flac"))
KEPT = object()  # no other process could have it


def transferred(audio: AudioInfo, sent: messages.Sent | None = None) -> AudioInfo:
    return arrived(messages.Sent().add(audio) if sent is None else sent.add(audio))[0]


def arrived(message: object) -> tuple[Any, int]:
    """Return a message as another process gets it, and its bytes."""
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(message)
    return Channel(io.BytesIO(pipe.getvalue()), io.BytesIO()).receive(), len(pipe.getvalue())


@pytest.mark.parametrize(
    "file",
    [
        str(CLIP),
        EncodedBytes(CLIP.read_bytes(), "input 0"),
        FileObject(io.BytesIO(CLIP.read_bytes()), "input 0"),
        Samples(np.arange(64, dtype=np.int16)[:, None], 16000, "input 0"),
    ],
    ids=["path", "bytes", "file-object", "samples"],
)
def test_a_recording_arrives_and_can_be_opened(file: File) -> None:
    source = Source("given.flac", file, "given", row={"text": KEPT}, index=3, given_key=KEPT)
    audio = probe(source)
    there = transferred(audio)
    assert (there.row, there.given_key, there.index) == (None, None, 3)
    again = probe(replace(source, file=there.file))
    assert (again.sample_rate, again.num_samples) == (audio.sample_rate, audio.num_samples)


def test_a_recording_that_the_process_opens_comes_back_with_what_the_caller_gave() -> None:
    source = Source(str(CLIP), str(CLIP), "clip", {"duration": 1.0, "text": KEPT}, None, 1.0, 5, given_key=KEPT)
    promised = planned(source, 16000)
    there = transferred(promised)
    assert there.unread is not None and (there.unread.row, there.unread.given_key) == (None, None)
    found = messages.returned(messages.to_return(probe(there.unread)), promised)
    assert found == probe(source) and (found.row, found.given_key) == (source.row, KEPT)
    assert found.num_samples == 16000


def test_a_recording_in_a_store_travels_by_its_url_and_its_version() -> None:
    listed = RemoteObject("s3://bucket/a.flac", 12, "etag")
    file = RemoteFile(listed.url, listed)
    there = transferred(AudioInfo("a", "a", 16000, 1, 100, file=file)).file
    assert isinstance(there, RemoteFile) and there is not file
    assert (there.identity, there.stated_bytes, there.version()) == (listed.url, 12, "12 etag")


@pytest.mark.parametrize("is_unread", [False, True], ids=["opened", "unopened"])
@pytest.mark.parametrize("kind", ["bytes", "file-object", "file"])
def test_parts_of_one_file_in_memory_travel_once(is_unread: bool, kind: str) -> None:
    data = CLIP.read_bytes()
    given = io.BytesIO(data) if kind == "file-object" else CLIP.open("rb")
    with given:
        parts = []
        for index in range(5):
            file = EncodedBytes(data, f"{index}") if kind == "bytes" else FileObject(given, f"{index}")
            source = Source("a", file, "a", offset_s=0.1 * index, duration_s=0.5, index=index)
            parts.append(planned(source, 16000) if is_unread else probe(source))
        sent = messages.Sent()
        there, sizes = zip(*(arrived(sent.add(part)) for part in parts[:3]), strict=True)
        assert sizes[0] > len(data) and sum(sizes[1:]) < 4000
        files = {part.file if part.unread is None else part.unread.file for part in there}
        assert [file.content for file in files] == [data]

        told: list[Any] = []
        sent.release(0)
        sent.release(1)
        sent.forget(told.append)
        assert told == [messages.Forget((0, 1))] and sent.lacks(parts[0]) and not sent.lacks(parts[2])
        assert arrived(sent.add(parts[3]))[1] < 2000, "the process still has the data for recording 2"
        for index in (2, 3):
            sent.release(index)
        sent.forget(told.append)
        files.clear()
        del there
        assert not messages._arrived, "the process drops what no recording needs"
        assert arrived(sent.add(parts[4]))[1] > len(data), "and gets it again if need be"
        sent.forget(told.append)
        assert len(told) == 2, "nothing new is to be forgotten"


def test_of_samples_the_part_travels() -> None:
    samples_SC = np.arange(400_000, dtype=np.int16)[:, None]
    source = Source("a", Samples(samples_SC, 8000, "a"), "a", offset_s=10.0, duration_s=1.0)
    audio = probe(source)
    there, num_bytes = arrived(messages.Sent().add(audio))
    assert num_bytes < 2 * 8000 + 2000
    for rate in (8000, 16000):
        samples = [read(one, 0, one.num_samples, sample_rate=rate) for one in (audio, there)]
        assert np.array_equal(*samples)


@pytest.mark.parametrize("is_unread", [False, True], ids=["opened", "unopened"])
def test_the_process_finds_a_relative_path_from_another_folder(
    is_unread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.flac").write_bytes(CLIP.read_bytes())
    monkeypatch.chdir(tmp_path)
    source = Source("a.flac", "a.flac", "a", duration_s=0.5)
    promised = planned(source, 16000) if is_unread else probe(source)
    there = transferred(promised)
    monkeypatch.chdir("/")
    assert there.path == "a.flac", "messages show what the user gave"
    if there.unread is not None:
        there = probe(there.unread)
        assert messages.returned(messages.to_return(there), promised).file == ""
    assert len(read(there, 0, there.num_samples, sample_rate=16000)) == 8000


def test_a_message_that_death_cut_off_is_the_end() -> None:
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(messages.Say("a" * 100))
    whole = pipe.getvalue()
    for length in (0, 1, 30, len(whole) - 1):
        assert Channel(io.BytesIO(whole[:length]), io.BytesIO()).receive() is None
    assert Channel(io.BytesIO(whole), io.BytesIO()).receive() == messages.Say("a" * 100)
