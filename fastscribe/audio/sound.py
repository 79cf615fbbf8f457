"""Let libsndfile read a file by its path. guarded_file.py has what lets it read a file object."""

from __future__ import annotations

import soundfile


class Sound(soundfile.SoundFile):  # type: ignore[misc]  # it has no types
    """A SoundFile whose reads do nothing else.

    SoundFile seeks before and after each read of a file that can seek, to where it is already. Decoders of FLAC and MP3 decode
    again for that.
    """

    def seekable(self) -> bool:
        """Return False, which SoundFile asks before these seeks. seek() works."""
        return False
