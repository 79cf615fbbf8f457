"""The audio formats that are read here."""

from __future__ import annotations

import struct

from fastscribe.doctor.check import Check
from fastscribe.doctor.packages import install_command

_CODECS = ("aac", "alac", "amrnb", "flac", "mp3", "opus", "vorbis", "wmav2")  # what phones, meetings and videos hold


def libsndfile() -> Check:
    """libsndfile, through soundfile."""
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the library below it
        fix = install_command("--force-reinstall", "soundfile")
        return Check("audio files", "problem", f"soundfile cannot be imported ({error})", fix)
    from fastscribe.audio.formats import FORMATS

    version, readable = soundfile.__libsndfile_version__, sorted(FORMATS & soundfile.available_formats().keys())
    facts = {"libsndfile": version, "formats": readable}
    lacking = sorted(FORMATS - set(readable))
    if lacking:
        finding = f"libsndfile {version} does not read {', '.join(lacking)}"
        return Check("audio files", "missing", finding, install_command("--upgrade", "soundfile"), facts)
    return Check("audio files", "ok", f"libsndfile {version}: {', '.join(readable)}", facts=facts)


def containers() -> Check:
    """FFmpeg's libraries, through PyAV."""
    try:
        import av
    except (ImportError, OSError) as error:
        finding = f"PyAV cannot be imported ({error}): no m4a, mp4, webm .."
        return Check("video and m4a", "problem", finding, install_command("--force-reinstall", "av"))
    from fastscribe.audio.containers import demuxers, track_header
    from fastscribe.audio.media import EncodedBytes

    track_header(EncodedBytes(_smallest_caf(), "doctor"), 0)  # a PyAV of another interface fails here
    readable, lacking = demuxers(), [codec for codec in _CODECS if codec not in av.codecs_available]
    version = ".".join(map(str, av.library_versions["libavformat"]))
    facts = {"pyav": av.__version__, "libavformat": version, "demuxers": readable, "codecs_lacking": lacking}
    without = f", without {', '.join(lacking)}" if lacking else ""
    finding = f"PyAV {av.__version__}: {len(readable)} kinds of container{without}"
    return Check("video and m4a", "missing" if lacking else "ok", finding, facts=facts)


def _smallest_caf() -> bytes:
    """Return a recording of 100 samples of silence that FFmpeg reads without any codec."""
    kind = struct.pack(">d4sIIIII", 8000.0, b"lpcm", 0, 2, 1, 1, 16)
    head = b"caff" + struct.pack(">HH", 1, 0) + b"desc" + struct.pack(">Q", len(kind)) + kind
    return head + b"data" + struct.pack(">QI", 4 + 200, 0) + bytes(200)
