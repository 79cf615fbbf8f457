"""Other names of speakers: those that a style has for the labels of stored rows, or those of persons. Pure.

A map is a text file with a line `LABEL<TAB>NAME` for all recordings, or `RECORDING<TAB>LABEL<TAB>NAME` for one, by its id, its
path or its path's end. A line without a tab may be `LABEL: NAME`, and the name may have colons. Lines that begin with "#", and
empty ones, say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.text_layout import first_of
from fastscribe.config import SpeakerNames
from fastscribe.errors import UsageError
from fastscribe.types import Failure, Segment, Transcript, Word

_MAX_BYTES = 1 << 26
_MAX_LISTED = 8  # names of a line


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
        fields = [field.strip() for field in (line.split("\t") if "\t" in line else line.split(":", 1))]
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
    return with_names(transcript, {label: name for _, label, name in _that_concern(transcript, names)})


def _that_concern(transcript: Transcript, names: SpeakerNames) -> Iterator[tuple[str, str, str]]:
    """Yield recording, label and name of each name for a transcript's speakers; one recording's come behind those of all."""
    labels, given = transcript.speakers, names.in_order
    if len(transcript.speaker_channels) == 1 < len(given):  # the only channel has all of them
        given = ()
    channels = transcript.speaker_channels or range(len(labels))
    yield from (("", label, given[at]) for label, at in zip(labels, channels, strict=True) if at < len(given))
    ids = (transcript.audio.id, transcript.audio.path)
    files = {"", *(id.rpartition("/")[2] for id in ids)}
    known = [one for file in files for one in names.by_file.get(file, ())]
    for recording, label, name in sorted(known, key=lambda one: len(one[0])):
        if not recording or any(id == recording or id.endswith("/" + recording) for id in ids):
            yield recording, label, name


class NamesOfNobody:
    """Finds the names for which no result has a speaker, and of no names the labels that files have.

    Args:
        names: As a command states them.
    """

    def __init__(self, names: SpeakerNames) -> None:
        self._names = names
        self._left = dict.fromkeys(names.of_labels or names.in_order)
        self._labels: dict[str, None] = {}  # those that results have
        self._num = 0

    def look_at(self, results: Iterable[Transcript | Failure]) -> None:
        """Take in results, up to the one with which all names have a speaker."""
        for result in results:
            if not self._left and self._names != SpeakerNames():
                return
            if isinstance(result, Failure):
                continue
            self._num += 1
            self._labels |= dict.fromkeys(result.speakers) if len(self._labels) < _MAX_LISTED else {}
            for recording, label, name in _that_concern(result, self._names):
                if label in result.speakers:
                    self._left.pop((recording, label, name) if self._names.of_labels else name, None)

    @property
    def lines(self) -> list[str]:
        """One line if results were looked at and a name has no speaker in any of them, or if there are no names."""
        if self._names == SpeakerNames() and self._labels:
            return [
                f"--speaker-names none: speakers are called as in the rows: {first_of(sorted(self._labels), _MAX_LISTED)}"
            ]
        if not (self._left and self._num):
            return []
        of = [one if isinstance(one, str) else ": ".join(filter(None, one[:2])) for one in self._left]
        labels = first_of(list(self._labels), _MAX_LISTED)
        there = f"the labels in the results are {labels}" if labels else "no result has speakers"
        return [f"--speaker-names: no speaker is found for {first_of(of, _MAX_LISTED)}; {there}"]


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
