"""The readable room's door: what the core asks it for (rooms.py). It imports nothing heavy before it is asked."""

from __future__ import annotations

from collections.abc import Sequence

from fastscribe.config import Options
from fastscribe.pipeline.interfaces import Edits


def open_edits(options: Options, known: Sequence[str], says_language: bool) -> Edits:
    """Return what changes the texts of runs with these options. As TextEdits.of_model()."""
    from fastscribe.readable.edits import TextEdits

    return TextEdits.of_model(options, known, says_language)
