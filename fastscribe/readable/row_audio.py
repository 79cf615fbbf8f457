"""The recording of a stored result, opened again."""

from __future__ import annotations

import os
from dataclasses import replace

from fastscribe._system.urls import is_url
from fastscribe.audio.manifest import opened, row_source
from fastscribe.audio.probe import probe
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.errors import AudioError
from fastscribe.results.rows import ResultRow
from fastscribe.types import AudioInfo

_STDIN = "-"


def open_row(row: ResultRow) -> AudioInfo:
    """Return the recording that a result is of, or the part that its manifest row names.

    A relative path counts from the current folder, or else from the folder of the results, as in manifests.

    Args:
        row: Of a file of results.

    Raises:
        AudioError: The recording is not there, cannot be read, or the row does not tell which of its tracks it is of.
        ManifestError: The row's audio_filepath, offset, duration or audio_track is unusable.
    """
    fields = row.fields
    if "pred_text" not in fields:  # a plain file's duration is that of its own length, rounded
        fields = {name: value for name, value in fields.items() if name not in ("duration", "offset")}
    source = row_source(row.file, row.line, fields)
    if source.path == _STDIN:
        raise AudioError(source.path, "was read from stdin, and is gone")
    here = opened(source.path)
    if not is_url(source.path) and (not isinstance(here, str) or os.path.exists(here)):
        source = replace(source, file=here)
    audio = probe(source)
    if audio.num_tracks > 1 and "audio_track" not in row.fields:
        raise AudioError(
            source.path,
            f"has {audio.num_tracks} audio tracks, and the row does not say which was transcribed: add audio_track to it",
        )
    return audio


def absolute_path(audio: AudioInfo) -> str:
    """Return the absolute path or the URL of a recording from open_row()."""
    file = audio.file or audio.path
    if isinstance(file, str):
        return os.path.abspath(file)
    return file.identity if isinstance(file, RemoteFile) else audio.path
