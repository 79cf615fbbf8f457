"""Put the names of persons into transcripts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fastscribe.errors import ManifestError
from fastscribe.results.rows import ResultRow
from fastscribe.speakers.persons import Persons, Recording
from fastscribe.types import Failure, Segment, Transcript, Word

Stored = tuple[Transcript | Failure, ResultRow]


class Renaming:
    """Names of persons for the speakers of stored results.

    Args:
        persons: Who they are.

    Attributes:
        num_without: Results with speakers none of whom is among the persons.
    """

    def __init__(self, persons: Persons) -> None:
        self._names: dict[Recording, dict[str, str]] = {}
        for (recording, speaker), name in persons.names.items():
            self._names.setdefault(recording, {})[speaker] = name
        self.num_without = 0

    def renamed(self, results: Iterable[Stored | ManifestError]) -> Iterator[Stored | ManifestError]:
        """Yield results of results.export.stored_results() with other names of their speakers, which their rows have too."""
        for stored in results:
            if isinstance(stored, ManifestError):
                yield stored
                continue
            result, row = stored
            if isinstance(result, Failure) or not result.speakers:
                yield stored
                continue
            names = self._names.get(Recording.of(row.fields), {})
            self.num_without += not names
            changed = with_names(result, names)
            # The rows decide whether an earlier export is still right, so they have the name of each speaker.
            new_names = [names.get(one, one) for one in result.speakers]
            yield changed, row._replace(fields={**row.fields, "speakers": new_names})


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
