"""The recordings both sides are given: whole files, longest first, each of a kind that the peer can take.

If a peer cannot read a recording (several channels, or a format other than plain WAV), both sides read the same copy:
mono, 16 kHz, 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from fastscribe.audio.inputs import expand
from fastscribe.audio.media import local_path
from fastscribe.audio.probe import probe
from fastscribe.audio.read import read
from fastscribe.errors import UsageError
from fastscribe.types import AudioInfo, Failure, SampleArray, Source

_RATE_HZ = 16_000


@dataclass(frozen=True)
class Recording:
    path: str  # what both sides open
    duration_s: float
    is_copy: bool


def gather(inputs: Sequence[str], takes: str, scratch: Path) -> list[Recording]:
    """Longest first; copies go to `scratch`. Raises UsageError or AudioError for what both could not transcribe."""
    found = []
    for number, source in enumerate(expand(inputs)):
        if isinstance(source, Failure):
            raise UsageError(f"{source.path}: {source.message}")
        if source.row is not None:
            raise UsageError(f"{source.path}: a manifest's row; to compare, give recordings or folders of them")
        audio = probe(source)
        is_copy = not _is_taken(source, audio, takes)
        path = _copied(audio, scratch / f"{number:06d}.wav") if is_copy else Path(local_path(source)).resolve()
        found.append(Recording(str(path), audio.duration_s, is_copy))
    if not found:
        raise UsageError("--against needs recordings to compare on: give files or folders")
    return sorted(found, key=lambda recording: -recording.duration_s)


def write_lone(recordings: Sequence[Recording], duration_s: float, path: Path) -> str:
    """Write a recording of this length for latency: these joined, longest first, and repeated if they are too short."""
    wanted = round(duration_s * _RATE_HZ)
    parts: list[SampleArray] = []
    while sum(map(len, parts)) < wanted:
        one = recordings[len(parts) % len(recordings)].path
        audio = probe(Source(one, one, ""))
        parts.append(_samples(audio))
    soundfile.write(path, np.concatenate(parts)[:wanted], _RATE_HZ, subtype="PCM_16")
    return str(path)


def _is_taken(source: Source, audio: AudioInfo, takes: str) -> bool:
    if not isinstance(source.file, str):
        return False
    if takes == "any":
        return True
    if takes == "mono":
        return audio.channels == 1
    return audio.channels == 1 and audio.sample_rate == _RATE_HZ and _is_plain_wav(source.file)


def _is_plain_wav(path: str) -> bool:
    info = soundfile.info(path)
    return (info.format, info.subtype) == ("WAV", "PCM_16")


def _copied(audio: AudioInfo, path: Path) -> Path:
    soundfile.write(path, _samples(audio), _RATE_HZ, subtype="PCM_16")
    return path


def _samples(audio: AudioInfo) -> SampleArray:
    samples_S = read(audio, 0, audio.num_samples, sample_rate=_RATE_HZ)
    if samples_S.dtype != np.int16:
        samples_S = np.clip(np.rint(samples_S * 32768.0), -32768, 32767).astype(np.int16)
    return samples_S
