"""Lines about recordings that are not read as a user may expect: their tracks and channels."""

from __future__ import annotations

from collections.abc import Iterator

from fastscribe.audio.surround import SURROUND
from fastscribe.config import CHANNELS, Options
from fastscribe.rooms import WORDS
from fastscribe.types import AudioInfo


def recording_lines(audio: AudioInfo, options: Options) -> Iterator[tuple[str, str]]:
    """Yield what a run says once of its recordings, each as (kind, line)."""
    if audio.num_tracks > 1 and options.track is None:
        tracks = f"{audio.path} has {audio.num_tracks} audio tracks"
        yield "tracks", f"{tracks}: the first is transcribed, --track 1 takes the second, and so on"
    if audio.missing_channel is not None:
        has = f"{audio.path} has no channel {audio.missing_channel}"
        yield "channel", f"{has}: all that it has are mixed; rows of such recordings have a field missing_channel"
    if audio.opposite_phase:
        cancel = f"channels of {audio.path} cancel each other"
        yield "phase", f"{cancel}, so one is taken there; rows of such recordings have a field opposite_phase"
    for note in audio.notes:
        if note.startswith(SURROUND):
            each = [f"--{name} {word} transcribes each channel" for name, word in WORDS.items() if word == CHANNELS]
            others = ", ".join([*each, "--channel N one"])
            yield "surround", f"{audio.path}: {note}; {others}; rows of such recordings have audio_notes"
