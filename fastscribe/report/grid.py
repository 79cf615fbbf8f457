"""From rows with keys and measurements to pictures: what becomes a label, a line, a panel or an axis.

Keys that are the same in all rows say nothing and are left out. Where a key counts something in at least three steps, times
and bytes are lines over it; else they are bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastscribe.report import markup, svg
from fastscribe.report.figures import Quantity, is_number, number, quantity, words
from fastscribe.report.markup import Html

Row = Mapping[str, Any]

_SAYS_ITSELF = (
    "dtype",
    "mode",
    "side",
    "peer",
    "library",
    "backend",
    "form",
    "model",
    "configuration",
    "price",
    "file",
)
_MAX_SERIES = 4  # bars a label
_MAX_LABELS = 24
_MAX_LINES = 5
_MAX_PANELS = 12
_MIN_POINTS = 2.0  # of a line, on average


class Cases:
    """Rows of a benchmark that were measured, and the keys that tell them apart."""

    def __init__(self, rows: Sequence[Row], keys: Sequence[str]) -> None:
        self.rows, self.keys = rows, list(keys)

    @cached_property
    def varying(self) -> list[str]:
        """Keys that tell rows apart; a number that follows from the other keys is none of them."""
        keys = [key for key in self.keys if len({str(row.get(key)) for row in self.rows}) > 1]
        for key in reversed(keys):
            others = [one for one in keys if one != key]
            apart = {tuple(str(row.get(one)) for one in others) for row in self.rows}
            if len(apart) == len(self.rows) and all(is_number(row.get(key)) for row in self.rows):
                keys = others
        return keys

    @cached_property
    def measurements(self) -> list[str]:
        """Names of numbers, in the rows' order."""
        names = dict.fromkeys(name for row in self.rows for name in row if name not in self.keys)
        return [name for name in names if any(is_number(row.get(name)) for row in self.rows)]

    def label(self, row: Row, keys: Sequence[str]) -> str:
        """Those of its keys, in words.

        >>> Cases([], []).label({"dtype": "bf16", "batch_size": 8}, ["dtype", "batch_size"])
        'bf16, batch size 8'
        """
        return ", ".join(_said(key, row.get(key)) for key in keys if row.get(key) not in (None, ""))

    def name(self, row: Row) -> str:
        """What tells it from the others; of a single one all there is."""
        return self.label(row, self.varying or self.keys) or "measured"

    def with_any(self, names: Sequence[str]) -> Cases:
        return Cases([row for row in self.rows if any(is_number(row.get(name)) for name in names)], self.keys)


def _said(key: str, value: Any) -> str:
    if isinstance(value, str) and key in _SAYS_ITSELF:
        return value
    found = quantity(key)
    shown = number(value) if is_number(value) else str(value)
    return f"{found.label} {shown} {found.unit}".strip()


def chart(cases: Cases, title: str, note: str, names: Sequence[str]) -> Iterator[Html]:
    """Lines where there is something to draw them over, else bars."""
    if _axis(cases.with_any(names)) is None:
        yield from bars(cases, title, note, names)
    else:
        yield from curves(cases, title, note, names, _measured_as)


def bars(cases: Cases, title: str, note: str, names: Sequence[str], limit: str = "") -> Iterator[Html]:
    """A bar for each case and measurement; of one measurement, neighbours that differ in a dtype or so share a label."""
    cases = cases.with_any(names)
    if not names or not cases.rows:
        return
    unit = _unit(cases.rows, names)
    key = _series_key(cases) if len(names) == 1 else None
    label_keys = [one for one in cases.varying if one != key]
    groups: dict[str, list[Row]] = {}
    for row in cases.rows:
        groups.setdefault(cases.label(row, label_keys) if label_keys else cases.name(row), []).append(row)
    labels = list(groups)[:_MAX_LABELS]
    if key is None:
        series = [_measured_as(name) for name in names]
        drawn = [[_bar(row, name, unit.factor, limit) for row in groups[label] for name in names] for label in labels]
    else:
        values = list(dict.fromkeys(row[key] for row in cases.rows))
        series = [_said(key, value) for value in values]
        drawn = [
            [_bar(row, names[0], unit.factor, limit) for value in values for row in groups[label] if row[key] == value]
            for label in labels
        ]
    about = svg.About(f"{title}: bars", _extremes(cases, names, unit))
    if len(groups) > len(labels):
        note = f"{note} The first {len(labels)} of {len(groups)} are drawn."
    picture = svg.bars(about, "" if unit.unit in title else unit.unit, labels, series, drawn)
    yield markup.figure(title, note, picture, *_numbers(cases, names))


def _bar(row: Row, name: str, factor: float, limit: str) -> svg.Bar:
    ceiling = _scaled(row.get(limit), factor)
    found = row.get(f"{name}_runs")
    runs = [factor * run for run in found if is_number(run)] if isinstance(found, list) else []
    least, most = (min(runs), max(runs)) if len(runs) > 1 else (None, None)
    return svg.Bar(_scaled(row.get(name), factor), least, most, ceiling)


def _series_key(cases: Cases) -> str | None:
    """A key of few values that is better a colour than part of a label: the last one whose values say themselves."""
    for key in reversed(cases.varying):
        values = {row.get(key) for row in cases.rows}
        others = [one for one in cases.varying if one != key]
        whole = all(isinstance(value, str) for value in values) and key in _SAYS_ITSELF
        labels = {cases.label(row, others) for row in cases.rows}
        if whole and others and len(values) <= _MAX_SERIES and len(labels) * len(values) == len(cases.rows):
            return key
    return None


def curves(cases: Cases, title: str, note: str, names: Sequence[str], called: Callable[[str], str]) -> Iterator[Html]:
    """Lines over the axis, a panel for each combination of keys that has too many; bars without an axis."""
    cases = cases.with_any(names)
    axis = _axis(cases)
    if axis is None:
        yield from bars(cases, title, note, names)
        return
    unit = _unit(cases.rows, names)
    panel_keys, line_keys = _divided(cases, [key for key in cases.varying if key != axis], len(names))
    panels: dict[str, list[Row]] = {}
    for row in cases.rows:
        panels.setdefault(cases.label(row, panel_keys), []).append(row)
    alone = [heading for heading, rows in panels.items() if len({row[axis] for row in rows}) == 1]
    if len(alone) < len(panels):
        panels = {heading: rows for heading, rows in panels.items() if heading not in alone}
        note += " Cases that stand alone are in the table." if alone else ""
    drawn = [
        _panel(title, heading, Cases(rows, cases.keys), axis, line_keys, names, called, unit)
        for heading, rows in list(panels.items())[:_MAX_PANELS]
    ]
    if len(panels) > len(drawn):
        note = f"{note} The first {len(drawn)} of {len(panels)} are drawn."
    if all(panel.lines == drawn[0].lines for panel in drawn):  # what all have is said once
        picture = markup.joined([_legend(drawn[0]), markup.panels((one.heading, one.picture) for one in drawn)])
    else:
        picture = markup.panels((one.heading, markup.joined([_legend(one), one.picture])) for one in drawn)
    yield markup.figure(title, note, picture, *_numbers(cases, names))


@dataclass(frozen=True)
class _Panel:
    heading: str
    lines: list[str]
    picture: Html


def _legend(panel: _Panel) -> Html:
    return markup.legend((colour, line) for colour, line in zip(svg.COLOURS, panel.lines, strict=False) if line)


def _panel(
    title: str,
    heading: str,
    cases: Cases,
    axis: str,
    line_keys: Sequence[str],
    names: Sequence[str],
    called: Callable[[str], str],
    unit: Quantity,
) -> _Panel:
    places = sorted({row[axis] for row in cases.rows})
    lines: dict[str, dict[Any, float]] = {}
    for row in cases.rows:
        for name in names:
            said = ", ".join(filter(None, (called(name) if len(names) > 1 else "", cases.label(row, line_keys))))
            if is_number(row.get(name)):
                lines.setdefault(said, {})[row[axis]] = unit.factor * row[name]
    made = [svg.Curve(said, [points.get(place) for place in places]) for said, points in lines.items()]
    about = svg.About(f"{title} {heading}".strip(), _extremes(cases, names, unit))
    picture = svg.curves(about, unit.unit, [number(place) for place in places], quantity(axis).heading, made)
    return _Panel(heading, list(lines), picture)


def _axis(cases: Cases) -> str | None:
    """The key that gives lines the most points."""
    best, most = None, _MIN_POINTS
    for key in cases.varying:
        if all(is_number(row.get(key)) for row in cases.rows):
            others = [one for one in cases.varying if one != key]
            points = len(cases.rows) / len({cases.label(row, others) for row in cases.rows})
            if points > most or (points == most and key == "batch_size"):
                best, most = key, points
    return best


def _divided(cases: Cases, keys: Sequence[str], num_names: int) -> tuple[list[str], list[str]]:
    """(keys that make a panel, keys that make a line): as few panels as leave few lines in each."""
    for count in range(len(keys) + 1):
        panel_keys, line_keys = list(keys[:count]), list(keys[count:])
        lines: dict[str, set[str]] = {}
        for row in cases.rows:
            lines.setdefault(cases.label(row, panel_keys), set()).add(cases.label(row, line_keys))
        if max(len(found) for found in lines.values()) * num_names <= _MAX_LINES:
            return panel_keys, line_keys
    return list(keys), []


def stacks(cases: Cases, title: str, note: str, parts: Sequence[str], amounts: Sequence[Sequence[float]]) -> Html:
    """`amounts` by case and part: shares of a whole, or, where they add up to more than 1, of the largest sum."""
    labels = [cases.name(row) for row in cases.rows]
    names = [words(part) for part in parts]
    whole = max(1.0, *(sum(row) for row in amounts))
    shares = [[amount / whole for amount in row] for row in amounts]
    most = [max(zip(row, names, strict=True)) for row in amounts]
    described = (
        f"{label}: most in {name}, {100 * share:.0f} %" for label, (share, name) in zip(labels, most, strict=True)
    )
    about = svg.About(f"{title}: shares", "; ".join(list(described)[:_MAX_LABELS]))
    picture = svg.stacks(about, labels[:_MAX_LABELS], names, shares[:_MAX_LABELS])
    rows = [(label, *(round(100 * amount, 2) for amount in row)) for label, row in zip(labels, amounts, strict=True)]
    return markup.figure(title, note, picture, ("case", *(f"{name}, %" for name in names)), rows)


def _numbers(cases: Cases, names: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows of the table under a picture: keys, measurements, and what they ranged over in several runs."""
    keys = cases.varying or cases.keys
    units = [quantity(name, _values(cases.rows, [name])) for name in names]
    ranged = [name for name in names if any(isinstance(row.get(f"{name}_runs"), list) for row in cases.rows)]
    headings = [quantity(key).heading for key in keys] + [unit.heading for unit in units]
    headings += [f"{_measured_as(name)}, runs" for name in ranged]
    rows = []
    for row in cases.rows:
        measured = [_scaled(row.get(name), unit.factor) for name, unit in zip(names, units, strict=True)]
        spreads = [
            _spread(row.get(f"{name}_runs"), quantity(name, _values(cases.rows, [name])).factor) for name in ranged
        ]
        rows.append([*(row.get(key) for key in keys), *measured, *spreads])
    return headings, rows


def _scaled(value: Any, factor: float) -> float | int | None:
    return (value if factor == 1 else factor * value) if is_number(value) else None


def _spread(runs: Any, factor: float) -> str:
    found = [factor * run for run in runs if is_number(run)] if isinstance(runs, list) else []
    return f"{number(min(found))} to {number(max(found))} ({len(found)})" if found else ""


def table(caption: str, rows: Sequence[Row], names: Sequence[str]) -> Html:
    """Everything under these names; numbers in the units of their names."""
    units = [quantity(name, _values(rows, [name])) for name in names]
    cells = [
        [
            _scaled(row.get(name), unit.factor) if is_number(row.get(name)) else row.get(name)
            for name, unit in zip(names, units, strict=True)
        ]
        for row in rows
    ]
    return markup.table(caption, [unit.heading for unit in units], cells)


def _unit(rows: Sequence[Row], names: Sequence[str]) -> Quantity:
    """Of several measurements in one picture: by the largest of all."""
    return quantity(names[0], _values(rows, names))


def _values(rows: Sequence[Row], names: Sequence[str]) -> list[Any]:
    return [row.get(name) for row in rows for name in names]


def _measured_as(name: str) -> str:
    found = quantity(name)
    return found.label or found.unit


def _extremes(cases: Cases, names: Sequence[str], unit: Quantity) -> str:
    """What there is to see, in words."""
    found = [(unit.factor * row[name], name, row) for row in cases.rows for name in names if is_number(row.get(name))]
    (low, _, first), (high, name, last) = min(found, key=lambda one: one[0]), max(found, key=lambda one: one[0])
    lowest, highest = cases.label(first, cases.varying), cases.label(last, cases.varying)
    if low == high:
        return f"{_measured_as(name)}: {number(high)} {unit.unit}".strip()
    return f"From {number(low)} {unit.unit}{_in_brackets(lowest)} to {number(high)} {unit.unit}{_in_brackets(highest)}."


def _in_brackets(label: str) -> str:
    return f" ({label})" if label else ""
