"""Values of options and arguments for shell completion, where typer does not know them. Each starts the program, so no torch.

A shell completes file names where nothing here fits.
"""

from __future__ import annotations

from fastscribe.checkpoint.hub_name import DEFAULT
from fastscribe.config import OUTPUT_FORMATS


def formats(incomplete: str) -> list[str]:
    """Complete the last of a list of formats."""
    before, comma, last = incomplete.rpartition(",")
    used = before.split(",")
    return [f"{before}{comma}{name}" for name in OUTPUT_FORMATS if name.startswith(last) and name not in used]


def models(incomplete: str) -> list[str]:
    """Complete what --model takes: the packaged model, and published ones by their names on the hub."""
    return [name for name in (DEFAULT, *(hub for _, hub in _published())) if name.startswith(incomplete)]


def published_models(incomplete: str) -> list[str]:
    """Complete what `models pull` takes: the names of the table, and those on the hub."""
    return [name for names in _published() for name in names if name.startswith(incomplete)]


def _published() -> list[tuple[str, str]]:
    from fastscribe.checkpoint.known_models import known_models  # here, as every command line imports this file

    return [(model.name, model.hub) for model in known_models() if model.hub]
