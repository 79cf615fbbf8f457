"""plain_header() agrees with libsndfile or returns None."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from fastscribe.audio.header import HEAD_BYTES, Header
from fastscribe.audio.probe import plain_header, probe
from tests.audio.test_probe import held, patched, source

RATE = 16_000


def write(path: Path, num_samples: int, rate: int = RATE, channels: int = 1, **options) -> Path:
    soundfile.write(path, np.zeros((num_samples, channels)), rate, **options)
    return path


def header(path: Path) -> Header | None:
    with open(path, "rb", buffering=0) as file:
        return plain_header(file.read(HEAD_BYTES), file, path.stat().st_size)


def by_libsndfile(path: Path) -> Header:
    with soundfile.SoundFile(path) as sound:
        return Header(sound.samplerate, sound.channels, sound.frames, sound.subtype == "PCM_16")


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 192_000])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("num_samples", [1, 16_001])
@pytest.mark.parametrize("kind", ["wav", "flac", "24.flac"])
def test_plain_files_match_libsndfile(tmp_path, kind, rate, channels, num_samples):
    subtype = "PCM_24" if kind == "24.flac" else "PCM_16"
    path = write(tmp_path / f"a.{kind}", num_samples, rate, channels, subtype=subtype)
    assert header(path) == by_libsndfile(path) == Header(rate, channels, num_samples, kind != "24.flac")
    audio = probe(source(path))
    assert Header(audio.sample_rate, audio.channels, audio.num_samples, audio.is_int16) == header(path)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.wav", {"subtype": "PCM_24"}),
        ("a.wav", {"subtype": "FLOAT"}),
        ("a.wav", {"subtype": "ULAW"}),
        ("a.wav", {"format": "RF64"}),
        ("a.wav", {"format": "WAVEX"}),
        ("a.wav", {"endian": "BIG"}),
        ("a.flac", {"subtype": "PCM_S8"}),
        ("a.mp3", {}),
        ("a.ogg", {}),
        ("a.aiff", {}),
    ],
)
def test_other_files_left_to_libsndfile(tmp_path, name, options):
    path = write(tmp_path / name, 1000, **options)
    assert header(path) is None
    assert probe(source(path)).is_int16 == by_libsndfile(path).is_int16


def test_chunks_before_samples(tmp_path):
    path = write(tmp_path / "a.wav", 1000)
    plain = path.read_bytes()
    for size in (3, 1000, HEAD_BYTES):
        chunk = b"LIST" + struct.pack("<I", size) + bytes(size + size % 2)
        held(path, plain[:12] + chunk + plain[12:])
        assert header(path) == (by_libsndfile(path) if size < HEAD_BYTES else None)
        assert probe(source(path)).num_samples == 1000


def test_chunks_after_samples(tmp_path):
    path = write(tmp_path / "a.wav", 1000)
    plain = path.read_bytes()
    for size in (4, 9000):
        path.write_bytes(plain + b"LIST" + struct.pack("<I", size) + b"INFO" + bytes(size - 4))
        assert header(path) == by_libsndfile(path) == Header(RATE, 1, 1000, True)
    path.write_bytes(plain + bytes([200]) * 9000)
    assert header(path) is None


def test_contradictory_wav(tmp_path):
    frames_of_4_bytes = struct.pack("<IH", 4 * RATE, 4)  # of one channel with 16 bits
    assert header(patched(write(tmp_path / "a.wav", 1000), (28, frames_of_4_bytes))) is None


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(["wav", "flac"]))
def test_damaged_header_never_wrong(tmp_path_factory, data, kind):
    """With any byte changed, libsndfile agrees, decides, or cannot open the file at all."""
    path = write(tmp_path_factory.getbasetemp() / f"damaged.{kind}", 1000, channels=2)
    at, byte = data.draw(st.integers(0, 43)), data.draw(st.integers(0, 255))
    found = header(patched(path, (at, bytes([byte]))))
    if found is not None:
        with contextlib.suppress(soundfile.SoundFileError):
            assert found == by_libsndfile(path)
