"""A page's HTML around the pictures. Every `str` from a caller is text and is escaped here; `Html` is already escaped.

The page's Content-Security-Policy forbids every request and every script.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NewType

from fastscribe._system.text_layout import escaped
from fastscribe.report.figures import column, number
from fastscribe.report.files import GENERATOR

Html = NewType("Html", str)

_JOINERS = "\u200c\u200d"  # parts of words in several scripts; they do not reverse the text
_LONG_CELL = 16  # characters
_LONG_TABLE = 12  # rows; longer ones are folded
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def text(value: object) -> Html:
    """Escape text for an element or a quoted attribute; spell out invisible characters.

    >>> text('<b>"')
    '&lt;b&gt;&quot;'
    """
    return Html(html.escape(escaped(str(value), keep=_JOINERS)))


def joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def name_of(heading: str) -> str:
    """Make an id for a heading's section or picture."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or "part"


def page(title: str, about: Sequence[str], status: str | None, body: Iterable[Html]) -> str:
    """Return a whole document.

    Args:
        title: The heading.
        about: Facts under it.
        status: A highlighted line about problems.
        body: The content.
    """
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    facts = joined(Html(f"<li>{text(fact)}</li>") for fact in about if fact)
    badge = Html(f'<p class="status">{text(status)}</p>') if status else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{GENERATOR}\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<header>\n<h1>{text(title)}</h1>\n<ul class="facts">{facts}</ul>\n{badge}</header>\n'
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *content: Html) -> Html:
    name = name_of(heading)
    return Html(
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{text(heading)}</h2>\n{joined(content)}\n</section>'
    )


def panels(parts: Iterable[tuple[str, Html]]) -> Html:
    """Put pictures beside each other, each under its heading, if there is room."""
    drawn = (f"<div>{f'<h4>{text(heading)}</h4>' if heading else ''}{picture}</div>" for heading, picture in parts)
    return Html(f'<div class="panels">{"".join(drawn)}</div>')


def paragraph(words: str) -> Html:
    return Html(f"<p>{text(words)}</p>")


def tiles(figures: Iterable[tuple[str, str, str]]) -> Html:
    """Highlighted figures: (label, figure, note)."""
    items = (
        f"<div><dt>{text(label)}</dt><dd><strong>{text(figure)}</strong>{_small(note)}</dd></div>"
        for label, figure, note in figures
    )
    return Html(f'<dl class="tiles">{"".join(items)}</dl>')


def _small(note: str) -> str:
    return f"<span>{text(note)}</span>" if note else ""


def facts(rows: Iterable[tuple[str, str]]) -> Html:
    """A list of names and values."""
    items = (f"<div><dt><bdi>{text(name)}</bdi></dt><dd><bdi>{text(value)}</bdi></dd></div>" for name, value in rows)
    return Html(f'<dl class="list">{"".join(items)}</dl>')


def command(line: str) -> Html:
    return Html(f'<pre tabindex="0"><code>{text(line)}</code></pre>')


def figure(caption: str, note: str, picture: Html, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    """A picture with its numbers under it, folded if there are many."""
    words = Html(f"<p>{text(note)}</p>") if note else ""
    numbers = table(f"{caption}: the numbers", headings, rows)
    if len(rows) > _LONG_TABLE:
        numbers = folded(f"The numbers ({len(rows)} rows)", numbers)
    return Html(f"<figure>\n<figcaption><h3>{text(caption)}</h3>{words}</figcaption>\n{picture}\n{numbers}\n</figure>")


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Html:
    """A table; columns of numbers are right-aligned, others left-aligned, and None is shown as unknown."""
    numeric = [all(_is_figure(row[place]) for row in rows) for place in range(len(headings))]
    columns = [
        column([row[place] for row in rows]) if is_numeric else [_cell(row[place]) for row in rows]
        for place, is_numeric in enumerate(numeric)
    ]
    kinds = [
        ' class="n"' if is_numeric else ' class="long"' if max(map(len, cells), default=0) > _LONG_CELL else ""
        for is_numeric, cells in zip(numeric, columns, strict=True)
    ]
    head = "".join(f'<th scope="col"{kind}>{text(name)}</th>' for name, kind in zip(headings, kinds, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}><bdi>{text(cell)}</bdi></td>" for cell, kind in zip(cells, kinds, strict=True))
        + "</tr>"
        for cells in zip(*columns, strict=True)
    )
    return Html(
        f'<div class="scroll" role="region" aria-label="{text(caption)}" tabindex="0"><table>\n'
        f"<caption>{text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _cell(value: Any) -> str:
    return number(value) if _is_figure(value) else str(value)


def _is_figure(value: Any) -> bool:
    """True for a number or an unknown one."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def folded(summary: str, content: Html) -> Html:
    return Html(f"<details>\n<summary>{text(summary)}</summary>\n{content}\n</details>")


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """A legend of (colour class, meaning); empty without entries."""
    items = (f'<li><span class="key {text(kind)}"></span>{text(label)}</li>' for kind, label in entries)
    listed = "".join(items)
    return Html(f'<ul class="legend">{listed}</ul>' if listed else "")
