"""Read a recording's header: rate, channels, length. No samples are decoded.

Plain WAV and FLAC files need a look at a few of their bytes (wav.py, flac.py); most corpora consist of these. Any other file is
checked by what its format needs (unusual_header.py). A file of which libraries would read a part only (truncated, or several
joined into one) is an error here as far as its structure shows it. Other damage is found when the samples are read (read.py).
"""

from __future__ import annotations

from typing import Any, BinaryIO

from fastscribe.audio.failures import defect, system_problem
from fastscribe.audio.header import HEAD_BYTES, Header
from fastscribe.audio.input_names import hint
from fastscribe.audio.media import medium_of
from fastscribe.errors import AudioError
from fastscribe.types import AudioInfo, Samples, Source

SAMPLE_RATES = range(1000, 1_000_001)  # a rate outside means a damaged header


def probe(source: Source) -> AudioInfo:
    """Open a source and read its header.

    Raises:
        AudioError: the source is no readable recording with samples in the requested part; one line.
    """
    if isinstance(samples := source.file, Samples):
        num_samples, channels = samples.samples_SC.shape
        if not num_samples:
            raise AudioError(source.path, "holds no samples")
        return _audio_info(source, Header(samples.sample_rate, channels, num_samples, samples.is_int16))
    medium = medium_of(samples)
    try:
        num_bytes = medium.num_bytes()
        if num_bytes == 0:
            raise AudioError(source.path, "is empty (0 bytes)")
        with medium.open() as file:  # detects missing permissions
            head = file.read(HEAD_BYTES)
            header = plain_header(head, file, num_bytes)
            if header is None:
                from fastscribe.audio.unusual_header import unusual_header

                header = unusual_header(source, medium, file, num_bytes, head)
    except AudioError:
        raise
    except FileNotFoundError as error:
        raise AudioError(source.path, system_problem(error) + hint(source.path)) from error
    except (OSError, UnicodeEncodeError) as error:
        raise AudioError(source.path, system_problem(error)) from error
    except ValueError as error:  # the system's for a path with a NUL
        problem = "" if "\0" in source.path else defect(error)
        raise AudioError(source.path, problem or str(error)) from error
    return _audio_info(source, header)


def plain_header(head: bytes, file: BinaryIO, num_bytes: int) -> Header | None:
    """Read a plain header of WAV or FLAC; None for all other files.

    Args:
        head: The file's first bytes.
        file: The file, open at any position.
        num_bytes: Its size.

    Raises:
        OSError: The file cannot be read.
    """
    if head.startswith(b"fLaC"):
        from fastscribe.audio import flac

        return flac.plain_header(head, file, num_bytes)
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        from fastscribe.audio import wav

        return wav.plain_header(head, file, num_bytes)
    return None


def _audio_info(source: Source, found: Header) -> AudioInfo:
    """Return the part of the recording that the source names."""
    if found.sample_rate not in SAMPLE_RATES:
        raise AudioError(source.path, f"damaged: its header gives a sample rate of {found.sample_rate} Hz")
    if found.num_tracks is None and source.track:
        raise AudioError(source.path, f"track {source.track} was asked for, but it has 1 audio track (counted from 0)")
    start, num_samples = _cut(source, found.sample_rate, found.num_samples)
    channel, missing = None, source.channel
    layout: tuple[str, ...] = ()
    if found.channels > 2 or missing is not None:
        from fastscribe.audio.channel_layout import choose

        channel, missing, layout = choose(missing, found.channels, found.layout)
    audio = AudioInfo(
        source.path,
        source.id,
        found.sample_rate,
        found.channels,
        num_samples,
        start,
        file=source.file if source.file != source.path else "",
        is_int16=found.is_int16,
        track=None if found.num_tracks is None else source.track or 0,
        num_tracks=found.num_tracks or 1,
        reading=found.reading,
        notes=found.notes,
        channel=channel,
        layout=layout,
        missing_channel=missing,
        **_told(source),
    )
    if not layout:
        return audio
    from fastscribe.audio.surround import as_heard

    return as_heard(audio, found.num_samples)


def _cut(source: Source, sample_rate: int, num_samples: int) -> tuple[int, int]:
    """The row's offset and duration as (start, num_samples), rounded down as NeMo does and clipped to the file."""
    offset = (source.offset_s or 0.0) * sample_rate
    if offset >= num_samples:
        length_s = num_samples / sample_rate
        raise AudioError(source.path, f"offset {source.offset_s} s lies beyond its end ({length_s:.2f} s)")
    start = int(offset)
    left = num_samples - start
    requested = source.duration_s * sample_rate if source.duration_s else left
    if requested < 1:
        raise AudioError(source.path, f"a duration of {source.duration_s} s holds no samples")
    return start, int(min(requested, left))


def _told(source: Source) -> dict[str, Any]:
    """Return what a recording keeps of its source."""
    return {name: getattr(source, name) for name in ("row", "index", "given_key", "listed", "boost", "language")}


def planned(source: Source, sample_rate: int) -> AudioInfo:
    """Return what the manifest promises of a row with a duration, at `sample_rate`.

    Nothing is opened: no more than this is read of a longer file, and loading finds one that is shorter or missing.
    """
    assert source.duration_s is not None
    num_samples = max(1, int(source.duration_s * sample_rate))
    return AudioInfo(
        source.path,
        source.id,
        sample_rate,
        1,
        num_samples,
        unread=source,
        **_told(source),
    )
