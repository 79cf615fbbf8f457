"""Recordings whose length a manifest states: they are opened when their samples are read."""

from __future__ import annotations

from fastscribe.types import AudioInfo, Source


def planned(source: Source, sample_rate: int) -> AudioInfo:
    """Return what the manifest promises of a row with a duration, at `sample_rate`.

    Nothing is opened: the file may be longer, shorter or missing.
    """
    assert source.duration_s is not None
    num_samples = max(1, int(source.duration_s * sample_rate))
    return AudioInfo(
        source.path,
        source.id,
        sample_rate,
        1,
        num_samples,
        row=source.row,
        index=source.index,
        unread=source,
        given_key=source.given_key,
        boost=source.boost,
        language=source.language,
    )
