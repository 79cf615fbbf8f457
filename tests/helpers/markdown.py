"""Code blocks, links and headings of the project's Markdown documents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

RUN = "<!-- run -->"
_FENCE = re.compile(r"^(`{3,})(\S*)[^\n]*\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """The README, CONTRIBUTING and the pages of the site; not docs/log.md, which is history."""
    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "log.md"]
    return [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *pages]


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    path: Path
    line: int
    language: str
    text: str
    is_run: bool  # RUN stands on the line before it

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command of a console block with the lines of output that the block shows for it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                assert found, f"{self.name}: output before any command"
                found[-1][1].append(line)
        return found


def blocks(path: Path, language: str | None = None) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        is_run = before.rstrip("\n").endswith(RUN)
        found.append(Block(path, before.count("\n") + 1, match[2], match[3], is_run))
    return [block for block in found if language in (None, block.language)]


def prose(path: Path) -> str:
    """The document without its code blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> list[str]:
    """Targets of links and pictures inside the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(path: Path) -> set[str]:
    """The anchor of each heading, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
