"""Put the names of persons into transcripts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastscribe.errors import ManifestError
from fastscribe.results.formats.speaker_names import with_names
from fastscribe.results.rows import ResultRow
from fastscribe.speakers.persons import Persons, Recording
from fastscribe.types import Failure, Transcript

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
