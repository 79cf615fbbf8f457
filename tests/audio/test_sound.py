"""Open MP3 files: the same samples, only MP3, a limited number, never a replaced file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fastscribe.audio import sound as sounds
from fastscribe.audio.media import EncodedBytes
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.audio.sound import cached_open
from fastscribe.types import Source

RATE = 8000


@pytest.fixture(autouse=True)
def nothing_open():
    sounds._idle.clear()
    yield
    sounds._idle.clear()


def written(path: Path, seconds: float = 20.0) -> Path:
    rng = np.random.default_rng(0)
    soundfile.write(path, 0.1 * rng.standard_normal(round(seconds * RATE)), RATE, format=path.suffix[1:].upper())
    return path


def test_any_order_and_threads(tmp_path: Path, monkeypatch) -> None:
    path = str(written(tmp_path / "a.mp3"))
    audio = probe(Source(path, path, "a.mp3"))
    starts = [RATE * second for second in (15, 3, 9, 17, 6, 12, 1)]

    def stretch(start: int) -> np.ndarray:
        return read(audio, start, RATE, sample_rate=RATE)

    fresh = [stretch(start) for start in starts]
    assert sounds._idle == []
    monkeypatch.setattr("fastscribe.audio.read.MIN_CACHED_S", 2.0)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for samples, again in zip(fresh, pool.map(stretch, starts), strict=True):
                np.testing.assert_allclose(again, samples, atol=1e-7)
    assert 1 <= len(sounds._idle) <= 4


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_reads_do_not_seek(tmp_path: Path, monkeypatch, name: str, in_memory: bool) -> None:
    """SoundFile seeks before and after each read, so decoders of FLAC and MP3 decode twice. Sound does not seek."""
    path = written(tmp_path / name)
    wanted = soundfile.read(path, dtype="float32")[0]
    seeks = []
    seek = soundfile.SoundFile.seek
    monkeypatch.setattr(soundfile.SoundFile, "seek", lambda self, *given: seeks.append(given) or seek(self, *given))
    file = EncodedBytes(path.read_bytes(), name) if in_memory else str(path)
    found = np.zeros((len(wanted), 1), np.float32)
    with cached_open(file, use_cache=False) as sound:
        for begin in range(0, len(found), 30_000):
            sound.buffer_read_into(found[begin : begin + 30_000], "float32")
        assert seeks == []
        sound.seek(RATE)
        assert len(seeks) == 1
        again = np.zeros((100, 1), np.float32)
        sound.buffer_read_into(again, "float32")
    # The last bit of an MP3's samples depends on where reads begin.
    np.testing.assert_allclose(found[:, 0], wanted, rtol=0, atol=1e-7)
    np.testing.assert_allclose(again, found[RATE : RATE + 100], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
def test_other_formats_not_cached(tmp_path: Path, name: str) -> None:
    with cached_open(str(written(tmp_path / name)), use_cache=True) as sound:
        sound.seek(100)
    assert sound.closed and sounds._idle == []


def test_replaced_file_reopened(tmp_path: Path) -> None:
    path = written(tmp_path / "a.mp3", 10)
    with cached_open(str(path), use_cache=True) as sound:
        pass
    with cached_open(str(path), use_cache=True) as again:
        assert again is sound
    path.unlink()
    written(path, 5)
    with cached_open(str(path), use_cache=True) as other:
        assert other is not sound and other.frames < sound.frames


def test_cache_limit_and_failures(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sounds, "_MAX_OPEN", 2)
    opened = []
    for number in range(3):
        with cached_open(str(written(tmp_path / f"{number}.mp3", 1)), use_cache=True) as sound:
            opened.append(sound)
    assert [sound.closed for sound in opened] == [True, False, False]
    with pytest.raises(RuntimeError), cached_open(str(tmp_path / "2.mp3"), use_cache=True) as sound:
        raise RuntimeError("damaged")
    assert sound is opened[2] and sound.closed
    with pytest.raises(soundfile.SoundFileError), cached_open(str(tmp_path / "none.mp3"), use_cache=True):
        pass
