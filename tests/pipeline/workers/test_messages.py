"""Recordings travel between processes, whatever holds their bytes, and nothing that the caller keeps travels with them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from fastscribe._system.remote import RemoteObject
from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.audio.probe import planned, probe
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.messages import Channel
from fastscribe.types import AudioInfo, File, Samples, Source
from tests.conftest import AUDIO

CLIP = next(AUDIO.glob("01*.flac"))
KEPT = object()  # no other process could have it


def transferred(audio: AudioInfo) -> AudioInfo:
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(messages.to_send(audio))
    arrived: AudioInfo = Channel(io.BytesIO(pipe.getvalue()), io.BytesIO()).receive()
    return arrived


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
    arrived = transferred(audio)
    assert (arrived.row, arrived.given_key, arrived.index) == (None, None, 3)
    again = probe(replace(source, file=arrived.file))
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
    arrived = transferred(AudioInfo("a", "a", 16000, 1, 100, file=file)).file
    assert isinstance(arrived, RemoteFile) and arrived is not file
    assert (arrived.identity, arrived.stated_bytes, arrived.version()) == (listed.url, 12, "12 etag")


def test_a_message_that_death_cut_off_is_the_end() -> None:
    pipe = io.BytesIO()
    Channel(io.BytesIO(), pipe).send(messages.Say("a" * 100))
    whole = pipe.getvalue()
    for length in (0, 1, 30, len(whole) - 1):
        assert Channel(io.BytesIO(whole[:length]), io.BytesIO()).receive() is None
    assert Channel(io.BytesIO(whole), io.BytesIO()).receive() == messages.Say("a" * 100)
