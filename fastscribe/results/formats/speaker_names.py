"""Other names of speakers: those that a style has for the labels of stored rows, or those of persons. Pure.

A map is a text file with a line `LABEL<TAB>NAME` for all recordings, or `RECORDING<TAB>LABEL<TAB>NAME` for one, by its id, its
path or its path's end. Lines that begin with "#", and empty ones, say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fastscribe._system.safe_open import safe_read
from fastscribe.config import SpeakerNames
from fastscribe.errors import UsageError
from fastscribe.types import Segment, Transcript, Word

_MAX_BYTES = 1 << 26


def read_speaker_map(path: Path) -> SpeakerNames:
    """Return the names in a map. Raises UsageError with the line that is none; OSError."""
    try:
        lines = safe_read(path, _MAX_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is no UTF-8 text of lines LABEL<TAB>NAME") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) not in (2, 3) or not all(fields):
            raise UsageError(
                f"{path}: line {number}: not LABEL<TAB>NAME or RECORDING<TAB>LABEL<TAB>NAME: {line[:60]!r}"
            )
        *recording, label, name = fields
        found.append(("".join(recording), label, name))
    if not found:
        raise UsageError(f"{path}: names nobody: a line is LABEL<TAB>NAME or RECORDING<TAB>LABEL<TAB>NAME")
    return SpeakerNames(of_labels=tuple(found))


def with_speaker_names(transcript: Transcript, names: SpeakerNames) -> Transcript:
    """Return a transcript with the names that a style has for its speakers."""
    labels, given = transcript.speakers, names.in_order
    if len(transcript.speaker_channels) == 1 < len(given):  # the only channel has all of them
        given = ()
    channels = transcript.speaker_channels or range(len(labels))
    found = {label: given[at] for label, at in zip(labels, channels, strict=True) if at < len(given)}
    ids = (transcript.audio.id, transcript.audio.path)
    files = {"", *(id.rpartition("/")[2] for id in ids)}
    known = [one for file in files for one in names.by_file.get(file, ())]
    for recording, label, name in sorted(known, key=lambda one: len(one[0])):  # one recording's go before all's
        if not recording or any(id == recording or id.endswith("/" + recording) for id in ids):
            found[label] = name
    return with_names(transcript, found)


def with_names(transcript: Transcript, names: Mapping[str, str]) -> Transcript:
    """Return a transcript with other names of its speakers; those without one stay.

    Without `speaker_channels` if one name is that of several speakers, who have a channel each.
    """

    def name(speaker: str | None) -> str | None:
        return None if speaker is None else names.get(speaker, speaker)

    def word(one: Word) -> Word:
        return replace(one, speaker=name(one.speaker))

    def segment(one: Segment) -> Segment:
        return replace(one, speaker=name(one.speaker), words=tuple(map(word, one.words)))

    speakers = tuple(dict.fromkeys(names.get(one, one) for one in transcript.speakers))
    return replace(
        transcript,
        segments=tuple(map(segment, transcript.segments)),
        tokens=tuple(one._replace(speaker=name(one.speaker)) for one in transcript.tokens),
        gaps=tuple(one._replace(speaker=name(one.speaker)) for one in transcript.gaps),
        nbest=tuple(
            replace(one, speaker=name(one.speaker), words=tuple(map(word, one.words))) for one in transcript.nbest
        ),
        speakers=speakers,
        speaker_channels=transcript.speaker_channels if len(speakers) == len(transcript.speakers) else (),
        turns=tuple(one._replace(speaker=names.get(one.speaker, one.speaker)) for one in transcript.turns),
        voices=tuple(replace(one, speaker=names.get(one.speaker, one.speaker)) for one in transcript.voices),
        removed_words=tuple(map(word, transcript.removed_words)),
    )
