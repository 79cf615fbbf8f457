"""`fastscribe export` in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastscribe.cli import app


def export(
    results: Sequence[str], formats: Sequence[str], folder: Path | None = None, *, speaker_map: Path | None = None
) -> None:
    """Run the command. Raises what it raises."""
    options = ["--format", ",".join(formats)]
    options += [] if folder is None else ["--output-dir", str(folder)]
    options += [] if speaker_map is None else ["--speaker-map", str(speaker_map)]
    app(["export", *results, *options], standalone_mode=False)
