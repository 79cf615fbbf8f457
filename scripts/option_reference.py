"""Every command and option of the program as Markdown, in docs/options.md. Made from the same options as the man page.

python scripts/option_reference.py    writes it; do so after a change of options
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]

from scripts.command_tree import Command, commands  # noqa: E402

PAGE = ROOT / "docs" / "options.md"
MARK = "<!-- made by scripts/option_reference.py -->"


def option_reference() -> str:
    """Return a heading, the help, a table of arguments and options, and the example of each command."""
    return "\n".join(line for command in commands() for line in _described(command))


def _described(command: Command) -> Iterator[str]:
    yield from (f"## {command.name}", "", escaped(command.help), "")
    if command.usage:
        yield from (f"`{command.name} {command.usage}`", "", "| option | meaning |", "| --- | --- |")
        for group, options in command.groups.items():
            if len(command.groups) > 2:  # more than the arguments and one group of options
                yield f"| **{group}** | |"
            for names, meaning in options:
                name = names.replace("|", r"\|")
                yield f"| `{name}` | {escaped(meaning)} |"
        yield ""
    if command.example:
        yield from (escaped(command.example), "")


def escaped(text: str) -> str:
    """Return the text as one paragraph without markup, but with options as code, so that none breaks after its dashes."""
    plain = re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", plain)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    introduction, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(f"{introduction}{MARK}\n\n{option_reference().rstrip()}\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
