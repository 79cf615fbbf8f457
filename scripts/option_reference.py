"""Every command and option of the program as Markdown, for docs/options.md.

python scripts/option_reference.py    prints it
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from scripts.command_tree import Command, commands

MARK = "<!-- options -->"


def option_reference() -> str:
    """Return a heading, the help, a table of arguments and options, and the example of each command."""
    return "\n".join(line for command in commands() for line in _described(command))


def _described(command: Command) -> Iterator[str]:
    yield from (f"## {command.name}", "", _escaped(command.help), "")
    if command.usage:
        yield from (f"`{command.name} {command.usage}`", "", "| option | meaning |", "| --- | --- |")
        for group, options in command.groups.items():
            if len(command.groups) > 2:  # more than the arguments and one group of options
                yield f"| **{group}** | |"
            for names, meaning in options:
                escaped = names.replace("|", r"\|")
                yield f"| `{escaped}` | {_escaped(meaning)} |"
        yield ""
    if command.example:
        yield from (_escaped(command.example), "")


def _escaped(text: str) -> str:
    """Return the text as one paragraph without markup, but with options as code, so that none breaks after its dashes."""
    plain = re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", plain)


if __name__ == "__main__":
    print(option_reference())
