"""What a room does in `fastscribe export`. A room's options make an ExportPart, and cli/export.py calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastscribe.config import OutputStyle
from fastscribe.errors import ManifestError
from fastscribe.results.rows import ResultRow
from fastscribe.types import Failure, Transcript

Stored = tuple[Transcript | Failure, ResultRow]


class ExportPart:
    """A room's part in an export. This one does nothing.

    Attributes:
        changes: The option that makes other rows; "": the rows stay.
        settings: How rows are changed, for the folder that they go to.
    """

    changes = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    def styled(self, style: OutputStyle) -> OutputStyle:
        """Return the style with what this room adds to it."""
        return style

    def changed(self, results: Iterable[Stored | ManifestError]) -> Iterable[Stored | ManifestError]:
        """Return stored results as this room changes them. Called once for each thing that is made of them."""
        return results

    @property
    def lines(self) -> Sequence[str]:
        """Lines for the user at the end."""
        return ()
