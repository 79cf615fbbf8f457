"""Long MP3 files kept open between the stretches that are read of them.

An MP3 has no index: to go to a place, the decoder walks through the headers of all frames before it, 0.1 s for each hour of
audio, and does so anew each time the file is opened. One that stays open remembers the way. Of what it decodes the last bit
of a float (4e-8 of full scale) depends on where it was before, so only reads far into a file are served in this way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import soundfile

MIN_CACHED_S = 600.0
_MAX_OPEN = 32  # files that nobody reads at the moment; those that were put aside first are closed first

_Key = tuple[str, int, int, int]
_idle: list[tuple[_Key, soundfile.SoundFile]] = []
_lock = Lock()


@contextmanager
def cached_open(path: str, use_cache: bool) -> Iterator[soundfile.SoundFile]:
    """The file, for this caller alone; anywhere in it where `use_cache`, else at its beginning. Raises what SoundFile does."""
    if not use_cache:
        with soundfile.SoundFile(path) as sound:
            yield sound
        return
    sound, key = _acquire(path)
    try:
        yield sound
    except BaseException:
        sound.close()
        raise
    _release(key, sound)


def _acquire(path: str) -> tuple[soundfile.SoundFile, _Key | None]:
    key = _key(path)
    with _lock:
        for index, (other, sound) in enumerate(_idle):
            if other == key:
                del _idle[index]
                return sound, key
    return soundfile.SoundFile(path), key


def _release(key: _Key | None, sound: soundfile.SoundFile) -> None:
    if key is None or sound.format != "MP3":
        sound.close()
        return
    with _lock:
        _idle.append((key, sound))
        surplus = _idle.pop(0)[1] if len(_idle) > _MAX_OPEN else None
    if surplus is not None:
        surplus.close()


def _key(path: str) -> _Key | None:
    """None for a file that is not there, which SoundFile then says. One that was replaced or changed is another."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_ino, status.st_mtime_ns, status.st_size
