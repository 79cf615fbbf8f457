"""The man page, man/fastscribe.1, which the wheel installs to share/man/man1. Made from the same options as docs/options.md.

python scripts/man_page.py    writes it; do so after a change of options or of the version
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

from fastscribe.version import __version__  # noqa: E402
from scripts.command_tree import Command, commands  # noqa: E402

PAGE = ROOT / "man" / "fastscribe.1"
_EXIT_CODES = {
    "0": "Everything was done.",
    "1": "Some files failed, a benchmark could measure nothing, or doctor found a problem.",
    "2": "Wrong usage, an unusable model, or an output folder that another run holds or that has other settings.",
    "130": "Interrupted by Ctrl-C. Finished results are kept.",
    "141": "The reader of standard output was closed.",
    "143": "Terminated. Finished results are kept.",
}
_VARIABLES = {
    "FASTSCRIBE_OPTION": "Sets --option for all commands that have it: FASTSCRIBE_MODEL sets --model.",
    "HF_HOME, HF_HUB_CACHE": "Where downloaded models are.",
    "HF_HUB_OFFLINE": "1: take models from the cache without asking the hub.",
    "HF_TOKEN": "For private and gated models.",
    "NO_COLOR": "No colours.",
}


def man_page() -> str:
    """Return the page in roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (f'.TH FASTSCRIBE 1 "" "fastscribe {__version__}" "User Commands"', ".SH NAME")
    yield r"fastscribe \- turn folders of audio into text"
    yield from (".SH SYNOPSIS", ".B fastscribe", r".I COMMAND", "[OPTIONS] [ARGUMENTS]", ".SH DESCRIPTION")
    yield (
        "Transcribe audio and video with FastConformer (RNN\\-T, TDT, CTC), Canary, Citrinet, ContextNet, QuartzNet and Jasper"
        " models, on a GPU or a CPU."
    )
    yield ".SH COMMANDS"
    for command in commands():
        yield from _described(command)
    for title, entries in (("EXIT STATUS", _EXIT_CODES), ("ENVIRONMENT", _VARIABLES)):
        yield f".SH {title}"
        for name, meaning in entries.items():
            yield from (".TP", f".B {_escaped(name)}", _escaped(meaning))


def _described(command: Command) -> Iterator[str]:
    yield from (f".SS {command.name}", _paragraph(command.help))
    if command.usage:
        yield from (".PP", f".B {_escaped(command.name)}", _escaped(command.usage))
        for title, options in command.groups.items():
            if len(command.groups) > 2:
                yield from (".PP", f".I {_escaped(title)}")
            for names, meaning in options:
                yield from (".TP", f".B {_escaped(names)}", _paragraph(meaning))
    if command.example:
        yield from (".PP", _paragraph(command.example))


def _paragraph(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Return text in which roff finds no requests. A hyphen that is typed is a minus."""
    text = re.sub(r"(?<![A-Za-z])-|(?<=-)-", "\n", text.replace("\\", "\\e")).replace("\n", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(man_page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
