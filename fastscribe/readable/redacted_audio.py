"""Copies of recordings with silence where words were redacted.

A copy has the channels and the rate of the recording: FLAC with 16 bits of a 16-bit recording, else with 24; WAV with more
than 8 channels, which FLAC has not. Of a manifest row with an offset it is the part that the row names.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from fastscribe._system.file_kinds import InTheWay, status_of
from fastscribe.audio.read import channel_blocks
from fastscribe.errors import AudioError, OutputError
from fastscribe.types import AnyArray, AudioInfo, BoolArray, Float32Array, Redaction

MARGIN_S = 0.2  # silenced before and after the words, because their times are those of the model's frames
_BLOCK_SAMPLES = 1 << 20
_MAX_FLAC_CHANNELS, _MAX_FLAC_RATE = 8, 655_350


def copy_path(folder: Path, audio: AudioInfo) -> Path:
    """Return the path of a recording's copy: its id below the folder, with the copy's extension added."""
    is_flac = audio.channels <= _MAX_FLAC_CHANNELS and audio.sample_rate <= _MAX_FLAC_RATE
    return folder / f"{audio.id}.{'flac' if is_flac else 'wav'}"


def write_copy(path: Path, audio: AudioInfo, spans: Sequence[Redaction]) -> None:
    """Write a copy of a recording in which some words are silence. A copy that is not complete is removed.

    Args:
        path: From copy_path(). Nothing may be there.
        audio: The recording or a part of it.
        spans: Times of the words, from the part's begin.

    Raises:
        AudioError: The recording cannot be read.
        OutputError: There is a file of that name, or the copy cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        if status_of(path) is not None:
            raise InTheWay(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(part, path.suffix[1:].upper(), audio, spans)
        os.replace(part, path)
    except (OSError, soundfile.SoundFileError) as error:
        part.unlink(missing_ok=True)
        raise OutputError(str(path), _os_error(error)) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write(path: Path, format: str, audio: AudioInfo, spans: Sequence[Redaction]) -> None:
    subtype = "PCM_16" if audio.is_int16 else "PCM_24"
    silenced = [silenced_samples(one, audio) for one in spans]
    with soundfile.SoundFile(path, "w", audio.sample_rate, audio.channels, subtype, format=format) as copy:
        at = 0
        for block_SC in channel_blocks(audio, _BLOCK_SAMPLES):
            block_SC[_mask(silenced, at, len(block_SC))] = 0
            copy.write(_integers(block_SC, audio.is_int16))
            at += len(block_SC)


def _integers(block_SC: Float32Array, is_int16: bool) -> AnyArray:
    """Return samples as libsndfile stores them without a change: it would scale floats by one less than it reads them by."""
    largest = 1 << (15 if is_int16 else 23)
    whole_SC = np.clip(np.rint(block_SC * np.float64(largest)), -largest, largest - 1)
    stored_SC: AnyArray = whole_SC.astype(np.int16) if is_int16 else whole_SC.astype(np.int32) << 8
    return stored_SC


def silenced_samples(span: Redaction, audio: AudioInfo) -> tuple[int, int]:
    """Return the first sample to silence, and the one after the last. Times that are not finite silence all."""
    if not (math.isfinite(span.start_s) and math.isfinite(span.end_s)):
        return 0, audio.num_samples
    begin, end = (span.start_s - MARGIN_S) * audio.sample_rate, (span.end_s + MARGIN_S) * audio.sample_rate
    return max(0, math.floor(begin)), max(0, min(audio.num_samples, math.ceil(end)))


def _mask(silenced: Sequence[tuple[int, int]], at: int, length: int) -> BoolArray:
    mask = np.zeros(length, bool)
    for begin, end in silenced:
        mask[max(0, begin - at) : max(0, end - at)] = True
    return mask


def _os_error(error: OSError | soundfile.SoundFileError) -> OSError:
    return error if isinstance(error, OSError) else OSError(getattr(error, "error_string", str(error)))


def problem_of(spans: Sequence[Redaction] | None, path: str) -> AudioError | None:
    """Return why a result has no copy: it lists nothing that was redacted, so that the copy would hold all."""
    if spans is not None:
        return None
    return AudioError(
        path, "its row has no `redacted`: make it with --redact, from a model that gives the times of words"
    )
