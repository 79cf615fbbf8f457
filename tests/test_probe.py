"""What a header says, and one clear line for whatever is not a readable recording."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.audio import probe as probe_module
from fastscribe.audio.probe import probe, probe_all
from fastscribe.audio.source import Source
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Failure

RATE = 16_000


def write(path: Path, num_samples: int = RATE, rate: int = RATE, channels: int = 1, **options) -> Path:
    noise = np.random.default_rng(0).normal(0, 0.1, (num_samples, channels)).astype(np.float32)
    soundfile.write(path, noise, rate, **options)
    return path


def source(path: Path, **cut) -> Source:
    return Source(str(path), str(path), path.name, **cut)


def problem(path: Path, **cut) -> str:
    with pytest.raises(AudioError) as caught:
        probe(source(path, **cut))
    assert str(caught.value) == f"{path}: {caught.value.problem}"
    assert "\n" not in str(caught.value)
    return caught.value.problem


@pytest.mark.parametrize("extension", ["wav", "flac", "mp3", "ogg", "aiff", "w64", "caf", "au"])
@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (44_100, 2)])
def test_headers(tmp_path, extension, rate, channels):
    path = write(tmp_path / f"a.{extension}", 12_345, rate, channels)
    assert probe(source(path)) == AudioInfo(str(path), path.name, rate, channels, 12_345)


@pytest.mark.skipif("OPUS" not in soundfile.available_subtypes("OGG"), reason="libsndfile without opus")
def test_opus(tmp_path):
    path = write(tmp_path / "a.opus", 24_000, 48_000, format="OGG", subtype="OPUS")
    assert probe(source(path)).duration_s == 0.5


def test_the_name_does_not_decide(tmp_path):
    path = write(tmp_path / "a.flac").rename(tmp_path / "a.m4a")
    assert probe(source(path)).num_samples == RATE


def test_a_manifest_row_is_reported_as_given_and_opened_where_it_is(tmp_path):
    path, row = write(tmp_path / "a.wav"), {"audio_filepath": "a.wav"}
    audio = probe(Source("a.wav", str(path), "a.wav", row))
    assert (audio.path, audio.file, audio.row) == ("a.wav", str(path), row)


@pytest.mark.parametrize(
    ("offset_s", "duration_s", "start", "num_samples"),
    [
        (None, None, 0, RATE),
        (0.0, 5.0, 0, RATE),
        (0.25, None, 4_000, 12_000),
        (0.25, 0.25, 4_000, 4_000),
        (0.25, 1e300, 4_000, 12_000),
        (0.99999, None, 15_999, 1),
        (0.100099, 0.100099, 1_601, 1_601),
    ],
)
def test_cuts(tmp_path, offset_s, duration_s, start, num_samples):
    audio = probe(source(write(tmp_path / "a.wav"), offset_s=offset_s, duration_s=duration_s))
    assert (audio.start, audio.num_samples) == (start, num_samples)


@pytest.mark.parametrize("offset_s", [1.0, 7.5, 1e308])
def test_an_offset_beyond_the_end(tmp_path, offset_s):
    assert f"offset {offset_s} s lies beyond its end (1.00 s)" in problem(write(tmp_path / "a.wav"), offset_s=offset_s)


def test_a_duration_of_less_than_a_sample(tmp_path):
    assert "holds no samples" in problem(write(tmp_path / "a.wav"), duration_s=1e-6)


def test_missing(tmp_path):
    assert problem(tmp_path / "gone.wav") == "no such file or folder"


def test_a_name_that_no_file_can_have():
    with pytest.raises(AudioError, match="null byte"):
        probe(Source("a\0b", "a\0b", "a"))


def test_a_folder(tmp_path):
    assert problem(tmp_path) == "is a folder, not a file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    assert problem(tmp_path / "pipe.wav") == "is not a regular file"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(tmp_path):
    path = write(tmp_path / "a.wav")
    path.chmod(0)
    assert problem(path) == "permission denied"


def test_permission_denied_by_the_system(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(probe_module, "wav_lengths_s", refuse)
    assert problem(write(tmp_path / "a.wav")) == "permission denied"


def test_empty(tmp_path):
    (tmp_path / "a.wav").touch()
    assert problem(tmp_path / "a.wav") == "is empty (0 bytes)"


@pytest.mark.parametrize("content", [b"R", b"RIFF", b"hello world\n" * 100, b"RIFF\0\0\0\0WAVEfmt ", b"\0" * 5000])
@pytest.mark.parametrize("extension", ["wav", "mp3"])
def test_not_audio(tmp_path, content, extension):
    path = tmp_path / f"a.{extension}"
    path.write_bytes(content)
    assert "not audio" in problem(path) or "cannot be opened" in problem(path)


@pytest.mark.parametrize("extension", ["m4a", "MP4", "webm", "aac", "mkv", "mov"])
def test_containers(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    path.write_bytes(b"\0\0\0\x20ftypM4A " + b"x" * 100)
    assert problem(path) == f"{extension.lower()} is not read: convert it to wav or flac first, e.g. with ffmpeg"


def test_raw(tmp_path):
    (tmp_path / "a.raw").write_bytes(b"x" * 100)
    assert "without a header" in problem(tmp_path / "a.raw")


def test_no_samples(tmp_path):
    assert problem(write(tmp_path / "a.wav", 0)) == "holds no samples"


@pytest.mark.parametrize(
    "options", [{}, {"format": "RF64"}, {"endian": "BIG"}, {"subtype": "FLOAT"}, {"subtype": "IMA_ADPCM"}]
)
def test_truncated_wav(tmp_path, options):
    path = write(tmp_path / "a.wav", 2 * RATE, **options)
    assert probe(source(path)).duration_s == pytest.approx(2, abs=0.05)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert problem(path).startswith("truncated: header promises 2.0")
    assert ", file holds 1.0" in problem(path) or ", file holds 0.9" in problem(path)


def with_data_size(path: Path, size: int) -> Path:
    content = bytearray(path.read_bytes())
    where = content.index(b"data") + 4
    content[where : where + 4] = struct.pack("<I", size)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFF000, 0x7FFFFFFF, 2 * RATE + 44])
def test_a_wav_whose_writer_did_not_know_its_size(tmp_path, size):
    assert probe(source(with_data_size(write(tmp_path / "a.wav"), size))).num_samples == RATE


def test_a_wav_that_was_never_finished(tmp_path):
    assert problem(with_data_size(write(tmp_path / "a.wav"), 0)) == "holds no samples"


def test_a_flac_without_its_length(tmp_path):
    path = write(tmp_path / "a.flac")
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0  # the 36 bits for the number of samples
    content[22:26] = bytes(4)
    path.write_bytes(content)
    assert "leaves its length out" in problem(path)


def test_probe_all_keeps_the_order_and_goes_on(tmp_path):
    names = [f"{number}.wav" for number in range(100)]
    for name in names:
        if int(name[:-4]) % 7:
            write(tmp_path / name, 100)
    passed = Failure("given", "given", "input", "AudioError", "was bad before")
    found = list(probe_all([*(source(tmp_path / name) for name in names), passed], threads=3))
    assert [item.id for item in found] == [*names, "given"]
    assert {item.id for item in found if isinstance(item, Failure)} == {*names[::7], "given"}
    assert (found[0].stage, found[0].error_type, found[0].message) == ("probe", "AudioError", "no such file or folder")


def test_probe_all_looks_ahead_so_far_only(tmp_path):
    taken = []

    def sources():
        for number in range(10_000):
            taken.append(number)
            yield source(tmp_path / "gone.wav")

    stream = probe_all(sources(), threads=2)
    for _ in range(5):
        next(stream)
    assert len(taken) <= 5 + 2 * probe_module.AHEAD_PER_THREAD
    stream.close()


def test_probe_all_of_nothing():
    assert list(probe_all([], threads=2)) == []


def test_an_unexpected_error_is_that_files_alone(tmp_path, monkeypatch):
    def broken(source):
        raise RuntimeError("two\nlines") if source.id == "a" else AudioError(source.path, "bad")

    monkeypatch.setattr(probe_module, "probe", broken)
    a, b = probe_all([Source("a", "a", "a", {"x": 1}), Source("b", "b", "b")], threads=1)
    assert a == Failure("a", "a", "probe", "RuntimeError", "two lines", {"x": 1})
    assert b == Failure("b", "b", "probe", "AudioError", "bad")


def test_closing_early_leaves_no_thread_working(tmp_path):
    stream = probe_all((source(tmp_path / "gone") for _ in range(1000)), threads=2)
    next(stream)
    stream.close()
    for thread in threading.enumerate():
        if thread.name.startswith("probe"):
            thread.join(5)
            assert not thread.is_alive()
