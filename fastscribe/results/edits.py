"""Files of results that someone edited after their run, and what became of each."""

from __future__ import annotations

from collections.abc import Iterator


class Edits:
    """A run notes edited files here, each once, and prints them at its end. Threads may add to it."""

    def __init__(self) -> None:
        self.kept: dict[str, None] = {}  # files that stay as they are
        self.set_aside: dict[str, str] = {}  # new names of files that the run had to replace or remove

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind; it names the first file and counts the others."""
        if self.kept:
            is_one = len(self.kept) == 1
            stays, them = ("it stays as it is", "it") if is_one else ("they stay as they are", "them")
            yield (
                f"{_first(self.kept)}: edited since the run: {stays}; for the machine's text, delete {them} and repeat the "
                "command, or transcribe with --overwrite"
            )
        if self.set_aside:
            yield f"{_first(self.set_aside)}: edited since the run: kept as {next(iter(self.set_aside.values()))}"


def _first(names: dict[str, None] | dict[str, str]) -> str:
    others = len(names) - 1
    return f"{next(iter(names))} (and {others} more)" if others else next(iter(names))
