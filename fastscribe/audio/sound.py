"""Open a recording with what reads it: libsndfile, FFmpeg's libraries (containers.py), or samples in memory.

Long MP3s and containers, which are read in several parts, stay open. An MP3 has no index: to seek, the decoder walks the
headers of all frames before the position, 0.1 s for each hour of audio, and again each time the file is opened. An open file
remembers the way. Several containers are like that, and all are slow to open. A decoded float's last bit (4e-8) depends on
where the decoder was, so only reads far into a file use the cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import numpy as np
import soundfile

from fastscribe.audio.header import FROM_START, LINKS, TO_END
from fastscribe.audio.media import GuardedFile, is_held, medium_of
from fastscribe.types import File, Medium, SampleArray, Samples

if TYPE_CHECKING:
    from fastscribe.audio.containers import Track
    from fastscribe.audio.mixing import MixedSound
    from fastscribe.audio.ogg_links import LinkedSound

    OpenSound: TypeAlias = "soundfile.SoundFile | Track | LinkedSound | SampleReader | MixedSound"

MIN_CACHED_S = 600.0
_MAX_OPEN = 32  # idle files; the one idle for longest is closed first

_Key = tuple[str | Medium, int | None, str]
_idle: list[tuple[_Key, OpenSound]] = []
_lock = Lock()


class Sound(soundfile.SoundFile):  # type: ignore[misc]  # it has no types
    """A SoundFile whose reads do nothing else.

    SoundFile seeks before and after each read of a file that can seek, to where it is already. Decoders of FLAC and MP3 decode
    again for that.
    """

    def seekable(self) -> bool:
        """Return False, which SoundFile asks before these seeks. seek() works."""
        return False


class SoundObject(Sound):
    """A Sound of a file object, which it closes. Its methods raise the errors of the file object."""

    def __init__(self, file: BinaryIO) -> None:
        self._guard = GuardedFile(file)
        try:
            super().__init__(self._guard)
        except BaseException:
            file.close()
            self._guard.check()
            raise
        self._guard.check()

    def seek(self, frames: int, whence: int = os.SEEK_SET) -> int:
        try:
            return int(super().seek(frames, whence))
        finally:
            self._guard.check()

    def buffer_read_into(self, buffer: Any, dtype: str) -> int:
        try:
            return int(super().buffer_read_into(buffer, dtype))
        finally:
            self._guard.check()

    def close(self) -> None:
        super().close()
        self._guard.close()


class SampleReader:
    """Samples in memory, read through the methods of soundfile.SoundFile that read.py uses. For one thread at a time."""

    format = "samples"

    def __init__(self, samples: Samples) -> None:
        self._samples_SC = samples.samples_SC
        self.samplerate, self.channels = samples.sample_rate, samples.samples_SC.shape[1]
        self.subtype = "PCM_16" if samples.is_int16 else "FLOAT"
        self._position = 0

    def seek(self, position: int) -> None:
        self._position = position

    def buffer_read_into(self, samples_SC: SampleArray, dtype: str) -> int:
        """Fill samples [S, C] of this dtype from the front; return the number read, which is lower at the end."""
        span_SC = self._samples_SC[self._position : self._position + len(samples_SC)]
        samples_SC[: len(span_SC)] = span_SC
        if span_SC.dtype == np.int16 and dtype == "float32":
            np.multiply(samples_SC[: len(span_SC)], np.float32(1 / 32768), out=samples_SC[: len(span_SC)])
        self._position += len(span_SC)
        return len(span_SC)

    def close(self) -> None:
        pass


@contextmanager
def cached_open(file: File, use_cache: bool, track: int | None = None, reading: str = "") -> Iterator[OpenSound]:
    """Open the recording for this caller alone.

    Args:
        file: the recording.
        use_cache: True: it may be at any position; False: it is at its beginning.
        track: the audio track that FFmpeg's libraries decode; None: libsndfile reads the file.
        reading: as AudioInfo's.

    Raises:
        soundfile.SoundFileError: without a track.
        ContainerError: with a track.
        OSError: the bytes cannot be read.
    """
    if isinstance(file, Samples):
        yield SampleReader(file)
        return
    if not use_cache:
        with closing(open_sound(file, track, reading)) as sound:
            yield sound
        return
    sound, key = _acquire(file, track, reading)
    try:
        yield sound
    except BaseException:
        sound.close()
        raise
    _release(key, sound)


def close_held(wanted: File | None = None) -> None:
    """Close the idle sounds that keep a caller's data in memory: those of one recording, or all."""

    def is_wanted(key: _Key) -> bool:
        return is_held(key[0]) and (wanted is None or key[0] is wanted)

    with _lock:
        held = [sound for key, sound in _idle if is_wanted(key)]
        _idle[:] = [(key, sound) for key, sound in _idle if not is_wanted(key)]
    for sound in held:
        sound.close()


def open_with_libsndfile(medium: Medium, to_end: bool) -> soundfile.SoundFile:
    """Open a file.

    Args:
        medium: Where its bytes are.
        to_end: It holds more samples than its header gives (data_size.py).

    Raises:
        SoundFileError: libsndfile does not read it.
        OSError: The bytes cannot be read.
    """
    if to_end:
        from fastscribe.audio.data_size import RepairedFile

        return SoundObject(cast(BinaryIO, RepairedFile(medium.open())))
    if medium.local_path is not None and not medium.local_path.lower().endswith(".raw"):  # soundfile asks for its rate
        return Sound(medium.local_path)
    return SoundObject(medium.open())


def open_sound(file: str | Medium, track: int | None, reading: str) -> OpenSound:
    """Open a recording with what reads it. Arguments and errors are those of cached_open()."""
    medium = medium_of(file)
    if track is None:
        return open_with_libsndfile(medium, reading == TO_END)
    if reading.startswith(LINKS):
        from fastscribe.audio.ogg_links import LinkedSound

        return LinkedSound(medium, reading, open_sound)
    from fastscribe.audio.containers import Track

    return Track(medium, track, reading == FROM_START, reading == TO_END)


def _acquire(file: str | Medium, track: int | None, reading: str) -> tuple[OpenSound, _Key | None]:
    key = _key(file, track)
    with _lock:
        for index, (other, sound) in enumerate(_idle):
            if other == key:
                del _idle[index]
                return sound, key
    return open_sound(file, track, reading), key


def _release(key: _Key | None, sound: OpenSound) -> None:
    if key is None or (key[1] is None and sound.format != "MP3"):  # a container has a track
        sound.close()
        return
    with _lock:
        _idle.append((key, sound))
        surplus = _idle.pop(0)[1] if len(_idle) > _MAX_OPEN else None
    if surplus is not None:
        surplus.close()


def _key(file: str | Medium, track: int | None) -> _Key | None:
    """Identity of the file's content; None for a missing file, which SoundFile reports."""
    try:
        medium = medium_of(file)
        return medium if is_held(medium) else medium.identity, track, medium.version()
    except OSError:
        return None
