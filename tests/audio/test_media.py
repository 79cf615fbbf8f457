"""A recording reads the same from every medium, and a medium's errors become one line."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.audio import sound as sounds
from fastscribe.audio.media import EncodedBytes, FileObject
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Medium, Samples, Source
from tests.helpers.containers import encode

RATE = 16_000
NAMES = ("plain.wav", "float.wav", "a.flac", "tagged.flac", "a.mp3", "a.ogg", "aac.m4a", "opus.webm", "aac.aac")


@pytest.fixture(scope="session")
def recordings(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    samples_SC = 0.1 * np.random.default_rng(0).standard_normal((2 * RATE, 2))
    for name in ("plain.wav", "a.flac", "a.mp3", "a.ogg"):
        soundfile.write(folder / name, samples_SC, RATE)
    soundfile.write(folder / "float.wav", samples_SC, RATE, subtype="FLOAT")
    (folder / "tagged.flac").write_bytes(b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + (folder / "a.flac").read_bytes())
    encode(folder / "aac.m4a", "aac", 44_100)
    encode(folder / "opus.webm", "libopus", 48_000)
    encode(folder / "aac.aac", "aac", 44_100)
    return folder


def whole(audio: AudioInfo) -> np.ndarray:
    return read(audio, 0, audio.num_samples, sample_rate=RATE)


def probed(name: str, file: str | Medium | Samples) -> AudioInfo:
    return probe(Source(name, file, name))


@pytest.mark.parametrize("name", NAMES)
def test_all_media_agree(recordings, name):
    path = recordings / name
    local = probed(name, str(path))
    expected = whole(local)
    with open(path, "rb") as file:
        file.read(7)
        for medium in (EncodedBytes(path.read_bytes(), name), FileObject(file, name)):
            audio = probed(name, medium)
            assert (audio.num_samples, audio.sample_rate, audio.channels, audio.is_int16, audio.track) == (
                (local.num_samples, local.sample_rate, local.channels, local.is_int16, local.track)
            )
            np.testing.assert_array_equal(whole(audio), expected)


class Yielding(io.BytesIO):
    """A file that lets other threads run between seek and read."""

    def read(self, size: int | None = -1) -> bytes:
        time.sleep(0)
        return super().read(size)


def test_one_file_object_given_several_times(recordings):
    path = recordings / "a.flac"
    expected = whole(probed("a", str(path)))
    file = Yielding(path.read_bytes())
    given = [probed("a", FileObject(file, "a")) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for samples in pool.map(whole, given * 3):
            np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_samples_in_memory(tmp_path, dtype):
    samples_SC = (8000 * np.random.default_rng(0).standard_normal((RATE, 2))).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", samples_SC, 8_000)
    expected = probed("a", str(tmp_path / "a.wav"))
    given = samples_SC if dtype == np.int16 else (samples_SC / np.float32(32768)).astype(dtype)
    audio = probed("a", Samples(given, 8_000, "a"))
    assert audio.is_int16 == (dtype == np.int16) and audio.num_samples == RATE
    np.testing.assert_array_equal(whole(audio), whole(expected))


class Broken(io.BytesIO):
    """A file whose reads fail after some bytes."""

    def __init__(self, content: bytes, limit: int) -> None:
        super().__init__(content)
        self.limit = limit

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= self.limit:
            raise OSError("the connection was cut")
        return super().read(size)


@pytest.mark.parametrize(
    ("name", "codec"),
    [*((name, "") for name in NAMES), ("long.webm", "libopus"), ("long.m4a", "aac"), ("long.aac", "aac")],
)
def test_errors_of_a_medium(recordings, tmp_path, name, codec, capfd):
    """Also in the middle of a container."""
    path = encode(tmp_path / name, codec, 48_000, seconds=20.0) if codec else recordings / name
    content = path.read_bytes()
    for limit in (50_000, 100_000) if codec else (0, 5000):
        with pytest.raises(AudioError) as caught:
            whole(probed(name, FileObject(Broken(content, limit), name)))
        assert str(caught.value) == f"{name}: the connection was cut"
    assert capfd.readouterr().err == ""


def test_closed_file_object_and_cut_bytes(recordings):
    file = io.BytesIO((recordings / "a.mp3").read_bytes())
    file.close()
    with pytest.raises(AudioError, match="closed file"):
        probed("a", FileObject(file, "a"))
    content = (recordings / "plain.wav").read_bytes()
    with pytest.raises(AudioError, match="truncated"):
        probed("a", EncodedBytes(content[:-40_000], "a"))


class ClosedMeanwhile(io.BytesIO):
    """A file that another thread closes once it has been asked whether it is closed."""

    @property
    def closed(self) -> bool:
        was_closed = super().closed
        self.close()
        return was_closed


def test_the_memory_of_a_file_that_is_being_closed():
    file, other = ClosedMeanwhile(b"abc"), io.BytesIO(b"abc")
    assert FileObject(other, "b").held_memory() == (id(other), 3)
    other.close()  # no view of its memory is left that would refuse this
    assert FileObject(other, "b").held_memory() == (id(other), 0)
    assert FileObject(file, "a").held_memory() in ((id(file), 3), (id(file), 0))


def test_held_data_leave_the_cache(recordings, monkeypatch):
    monkeypatch.setattr("fastscribe.audio.read.MIN_CACHED_S", 0.1)
    sounds._idle.clear()
    content = (recordings / "a.mp3").read_bytes()
    done, other = EncodedBytes(content, "a"), EncodedBytes(content, "a")
    for file in (str(recordings / "a.mp3"), done, other):
        read(probed("a", file), RATE, RATE, sample_rate=RATE)
    assert len(sounds._idle) == 3
    sounds.close_held(done)
    assert [key[0] for key, _ in sounds._idle] == [str(recordings / "a.mp3"), other]
    sounds.close_held()
    assert [key[0] for key, _ in sounds._idle] == [str(recordings / "a.mp3")]
