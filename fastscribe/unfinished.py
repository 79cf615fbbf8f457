"""What a file or folder is called until it is whole: a hidden name that says whose it is. `talk.txt.part` may be somebody's
own, which a browser is still downloading, and would be lost."""

from __future__ import annotations

from pathlib import Path


def part_of(path: Path) -> Path:
    """The same name in every run, so that what a killed one left is found again; beside `path`, to be renamed to it."""
    return path.with_name(f".{path.name}.fastscribe.part")
