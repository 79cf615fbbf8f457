"""A page's HTML. Every `str` from a caller is text and is escaped here; `Html` is already escaped.

The page's Content-Security-Policy forbids every request and every script. Lengths in pictures are shares of the available
width, so that lines and letters keep their size on a phone and on a wide screen.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NewType

from fastscribe._system.text_layout import escaped
from fastscribe.report.files import GENERATOR

Html = NewType("Html", str)

_JOINERS = "\u200c\u200d"  # parts of words in several scripts; they do not reverse the text
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_WIDE, _HIGH = 1000, 160  # of a chart in its own units; it is stretched to the available width


def text(value: object) -> Html:
    """Escape text for an element or a quoted attribute; spell out invisible characters.

    >>> text('<b>"')
    '&lt;b&gt;&quot;'
    """
    return Html(html.escape(escaped(str(value), keep=_JOINERS)))


def page(title: str, facts: Iterable[str], status: str | None, sections: Iterable[Html]) -> str:
    """Return a whole document.

    Args:
        title: The heading.
        facts: Facts under it.
        status: A highlighted line; None: there is none.
        sections: The content.
    """
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    items = "".join(f"<li><bdi>{text(fact)}</bdi></li>" for fact in facts)
    badge = f'<p class="status">{text(status)}</p>' if status else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{GENERATOR}\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{text(title)}</h1>\n<ul class="facts">{items}</ul>\n{badge}</header>\n'
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *content: Html, alarm: bool = False) -> Html:
    """Return a section. One with an alarm is highlighted."""
    kind = ' class="alarm"' if alarm else ""
    return Html(f"<section{kind}>\n<h2>{text(heading)}</h2>\n{''.join(content)}\n</section>")


def paragraph(words: str) -> Html:
    return Html(f"<p>{text(words)}</p>")


def code(line: str) -> Html:
    return Html(f'<pre tabindex="0"><code>{text(line)}</code></pre>')


def folded(summary: str, content: Html) -> Html:
    return Html(f"<details>\n<summary>{text(summary)}</summary>\n{content}\n</details>")


def tiles(figures: Iterable[tuple[str, str, str]]) -> Html:
    """Highlighted figures: (label, figure, note)."""
    items = (
        f"<div><dt>{text(label)}</dt><dd><strong>{text(figure)}</strong><span>{text(note)}</span></dd></div>"
        for label, figure, note in figures
    )
    return Html(f'<dl class="tiles">{"".join(items)}</dl>')


def listed(rows: Iterable[tuple[str, str]]) -> Html:
    """A list of names and what there is to say about them, which stand below each other where the screen is narrow."""
    items = (f"<div><dt><bdi>{text(name)}</bdi></dt><dd><bdi>{text(said)}</bdi></dd></div>" for name, said in rows)
    return Html(f'<dl class="list">{"".join(items)}</dl>')


def table(label: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """A table, which scrolls by itself where the screen is too narrow for it. `label` names it for screen readers."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in headings)
    body = "\n".join("<tr>" + "".join(f"<td><bdi>{text(cell)}</bdi></td>" for cell in row) + "</tr>" for row in rows)
    return Html(
        f'<div class="scroll" role="region" aria-label="{text(label)}" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def bars(rows: Sequence[tuple[str, float, str]]) -> Html:
    """Draw a bar for each (label, length, figure), the longest as long as there is room."""
    longest = max(length for _, length, _ in rows) or 1.0
    drawn = (
        f"<div><dt>{text(label)}</dt><dd>{text(figure)}</dd>"
        f'<dd class="bar"><svg aria-hidden="true"><rect width="{100 * length / longest:.2f}%" height="100%"/></svg></dd></div>'
        for label, length, figure in rows
    )
    return Html(f'<dl class="bars">{"".join(drawn)}</dl>')


def curve(label: str, heights: Sequence[float], ends: Sequence[float], top: str, right: str) -> Html:
    """Draw steps over time from 0 to the largest height.

    Args:
        label: Says in words what is drawn.
        heights: Of the steps.
        ends: Times at which they end.
        top: The largest height as a label.
        right: The last end as a label.
    """
    highest = max(heights) or 1.0
    corners = " ".join(
        f"{_WIDE * x / ends[-1]:.1f},{_HIGH * (1 - height / highest):.1f}"
        for height, start, end in zip(heights, [0.0, *ends], ends, strict=False)
        for x in (start, end)
    )
    return Html(
        f'<div class="curve"><p>{text(top)}</p>\n<svg role="img" aria-label="{text(label)}" viewBox="0 0 {_WIDE} {_HIGH}" '
        f'preserveAspectRatio="none"><polygon points="0,{_HIGH} {corners} {_WIDE},{_HIGH}"/></svg>\n'
        f"<p><span>0</span><span>{text(right)}</span></p></div>"
    )
