"""Pictures as inline SVG. Widths are shares of the available width and heights are pixels, so that lines and letters keep
their size on a phone and on a wide screen. Paths lie in an inner svg that stretches.

Each picture has a title and a description for screen readers. Colours are classes of page.css: c1 .. c8, pad.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastscribe.report.figures import column, number, ticks
from fastscribe.report.markup import Html, joined, legend, text

COLOURS = tuple(f"c{index}" for index in range(1, 9))

_HEIGHT = 200  # of a plot in pixels
_WIDE = 1000.0  # width of an inner svg in its own units
_LABEL, _GAP = 18, 8  # heights in a list of bars
_MAX_LABEL = 140  # characters; what does not fit is cut off
_MAX_TICKS = 8


@dataclass(frozen=True)
class Caption:
    """A picture's title, and a description of its content."""

    title: str
    description: str

    def svg(self, height: float, content: Html) -> Html:
        accessible = f"<title>{text(self.title)}</title><desc>{text(self.description)}</desc>"
        return Html(f'<svg role="img" width="100%" height="{height:g}">{accessible}{content}</svg>')


def stacks(caption: Caption, labels: Sequence[str], parts: Sequence[str], shares: Sequence[Sequence[float]]) -> Html:
    """Draw a row per label, filled from left to right by the parts' shares of it (0 to 1)."""
    drawn, y = [], 0.0
    for label, row in zip(labels, shares, strict=True):
        if label:
            drawn.append(_label(label, y))
            y += _LABEL
        left = 0.0
        for index, share in enumerate(row):
            colour = COLOURS[index % len(COLOURS)]
            drawn.append(
                Html(
                    f'<rect class="{colour}" x="{100 * left:.3f}%" y="{y:g}" width="{100 * share:.3f}%" height="20">'
                    f"<title>{text(parts[index])}: {100 * share:.1f} %</title></rect>"
                )
            )
            left += share
        y += 20 + _GAP
    keys = [(COLOURS[index % len(COLOURS)], part) for index, part in enumerate(parts)]
    return joined([legend(keys), _plain_plot(caption.svg(y, joined(drawn)))])


def area(
    caption: Caption, unit: str, values: Sequence[float], ends: Sequence[float], ends_unit: str, average: float
) -> Html:
    """Draw steps, the first from 0 and each up to its value in `ends`, and a line at their average."""
    marks = ticks(max(*values, average), 4)
    top = marks[-1]
    corners = [
        (_WIDE * x / ends[-1], _HEIGHT * (1 - value / top))
        for value, start, end in zip(values, [0.0, *ends], ends, strict=False)
        for x in (start, end)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    average_y = _HEIGHT * (1 - average / top)
    content = [
        _stretched(f'<polygon class="area" points="0,{_HEIGHT} {line} {_WIDE:g},{_HEIGHT}"/>'),
        _stretched(f'<polyline class="curve c1" points="{line}"/>'),
        Html(f'<line class="average" x1="0" x2="100%" y1="{average_y:.1f}" y2="{average_y:.1f}"/>'),
        _x_labels(
            [(100 * mark / ends[-1], label) for mark, label in _labelled(ticks(ends[-1])) if mark <= ends[-1] * 1.0001]
        ),
    ]
    keys = [("c1", "at the time"), ("line", f"average, {number(round(average, 1))}")]
    return joined([legend(keys), _plot(caption, unit, ends_unit, marks, content)])


def columns(caption: Caption, unit: str, values: Sequence[float], edges: Sequence[float], edges_unit: str) -> Html:
    """Draw a histogram: values between neighbours of `edges`."""
    marks = ticks(max(values), 4)
    step = 100 / len(values)
    content = [
        Html(
            f'<rect class="c1" x="{index * step + 0.08 * step:.3f}%" y="{_HEIGHT * (1 - value / marks[-1]):.1f}" '
            f'width="{0.84 * step:.3f}%" height="{_HEIGHT * value / marks[-1]:.1f}"><title>{number(low)} to {number(high)}: '
            f"{number(round(value, 2))} {text(unit)}</title></rect>"
        )
        for index, (value, low, high) in enumerate(zip(values, edges, edges[1:], strict=False))
    ]
    shown = range(0, len(edges), max(1, len(edges) // 5))
    labels = column([edges[index] for index in shown])
    content.append(_x_labels([(index * step, label) for index, label in zip(shown, labels, strict=True)]))
    return _plot(caption, unit, edges_unit, marks, content)


@dataclass(frozen=True)
class Block:
    """A batch: its width, and its rows' lengths from the longest to the shortest, a sample of them if there are many."""

    label: str
    width: float
    lengths: Sequence[float]


def padding_map(caption: Caption, unit: str, below: str, blocks: Sequence[Block]) -> Html:
    """Draw batches side by side, each as high as its longest row, with padding in another colour."""
    marks = ticks(max(block.lengths[0] for block in blocks))
    total, top = sum(block.width for block in blocks), marks[-1]
    real, padded, seams, labels = [], [], [], []
    left = 0.0
    for block in blocks:
        width = _WIDE * block.width / total
        longest = _HEIGHT * block.lengths[0] / top
        padded.append(f"M{left:.2f} {_HEIGHT}v{-longest:.2f}h{width:.2f}v{longest:.2f}z")
        real.append(_staircase(left, width, [_HEIGHT * length / top for length in block.lengths]))
        seams.append(f"M{left:.2f} {_HEIGHT}V0")
        labels.append(((left + width / 2) / 10, block.label))
        left += width
    content = [
        _stretched(f'<path class="pad" d="{"".join(padded)}"/>'),
        _stretched(f'<path class="c1" d="{"".join(real)}"/>'),
        _stretched(f'<path class="seam" d="{"".join(seams[1:])}"/>') if len(seams) > 1 else Html(""),
        _x_labels(_spaced(labels, 12.0)),
    ]
    keys = [("c1", "audio"), ("pad", "padding")]
    return joined([legend(keys), _plot(caption, unit, below, marks, content)])


def _staircase(left: float, width: float, heights: Sequence[float]) -> str:
    step = width / len(heights)
    corners = [f"V{_HEIGHT - height:.2f}h{step:.3f}" for height in heights]
    return f"M{left:.2f} {_HEIGHT}{''.join(corners)}V{_HEIGHT}z"


def _spaced(labels: Sequence[tuple[float, str]], distance: float) -> list[tuple[float, str]]:
    """Keep the labels that are at least `distance`, in percent, from the one before."""
    kept: list[tuple[float, str]] = []
    for x, label in labels:
        if not kept or x - kept[-1][0] >= distance:
            kept.append((x, label))
    return kept


def _plot(caption: Caption, unit: str, below: str, marks: Sequence[float], content: Sequence[Html]) -> Html:
    """Draw `content` over a grid, with the axis at the left and the unit above it."""
    lines = []
    for mark, label in _labelled(marks):
        y = _HEIGHT * (1 - mark / marks[-1])
        kind = "axis" if mark == 0 else "grid"
        lines.append(f'<line class="{kind}" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="tick" x="-8" y="{y:.1f}" dy="0.35em" text-anchor="end">{label}</text>')
    lines.append(f'<text class="tick" x="50%" y="{_HEIGHT + 36}" text-anchor="middle">{text(below)}</text>')
    drawn = caption.svg(_HEIGHT, joined([Html("".join(lines[:-1])), *content, Html(lines[-1])]))
    return joined([_unit(unit), Html(f'<div class="plot">{drawn}</div>')])


def _unit(unit: str) -> Html:
    return Html(f'<p class="unit">{text(unit)}</p>' if unit else "")


def _labelled(marks: Sequence[float]) -> list[tuple[float, str]]:
    return list(zip(marks, column(marks), strict=True))


def _stretched(shape: str) -> Html:
    box = f'viewBox="0 0 {_WIDE:g} {_HEIGHT}" preserveAspectRatio="none"'
    return Html(f'<svg x="0" y="0" width="100%" height="{_HEIGHT}" {box} aria-hidden="true">{shape}</svg>')


def _x_labels(labels: Sequence[tuple[float, str]]) -> Html:
    return joined(
        Html(f'<text class="tick" x="{x:.2f}%" y="{_HEIGHT + 18}" text-anchor="middle">{text(label)}</text>')
        for x, label in labels
    )


def _plain_plot(drawn: Html) -> Html:
    return Html(f'<div class="plot bare">{drawn}</div>')


def _label(label: str, y: float) -> Html:
    """A label over a bar, in an svg of its own whose edge truncates it."""
    shown = label if len(label) <= _MAX_LABEL else label[: _MAX_LABEL - 1] + "…"
    window = f'<svg class="window" x="0" y="{y:g}" width="100%" height="{_LABEL}">'
    return Html(f'{window}<text x="0" y="13">{text(shown)}</text></svg>')
