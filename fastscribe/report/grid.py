"""Turn benchmark rows into pictures: choose what becomes a label, a line, a panel or an axis.

Keys that are the same in all rows are left out. If a key counts something in at least three steps, times and bytes are
lines over it; else they are bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastscribe.report import markup, svg
from fastscribe.report.figures import Quantity, is_number, number, quantity, words
from fastscribe.report.markup import Html

CaseRow = Mapping[str, Any]

_SELF_EXPLANATORY = (
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
_MAX_SERIES = 4  # bars per label
_MAX_LABELS = 24
_MAX_LINES = 5
_MAX_PANELS = 12
_MIN_POINTS = 2.0  # of a line, on average


class CaseTable:
    """Measured rows of a benchmark, and the keys that distinguish them."""

    def __init__(self, rows: Sequence[CaseRow], keys: Sequence[str]) -> None:
        self.rows, self.keys = rows, list(keys)

    @cached_property
    def varying(self) -> list[str]:
        """Keys that distinguish rows, without numbers that follow from the other keys."""
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

    def label(self, row: CaseRow, keys: Sequence[str]) -> str:
        """Format some of a row's keys.

        >>> CaseTable([], []).label({"dtype": "bf16", "batch_size": 8}, ["dtype", "batch_size"])
        'bf16, batch size 8'
        """
        return ", ".join(_format_key(key, row.get(key)) for key in keys if row.get(key) not in (None, ""))

    def name(self, row: CaseRow) -> str:
        """Name a row by the keys that distinguish it, or by all keys if it is the only one."""
        return self.label(row, self.varying or self.keys) or "measured"

    def with_any(self, names: Sequence[str]) -> CaseTable:
        return CaseTable([row for row in self.rows if any(is_number(row.get(name)) for name in names)], self.keys)


def _format_key(key: str, value: Any) -> str:
    if isinstance(value, str) and key in _SELF_EXPLANATORY:
        return value
    found = quantity(key)
    shown = number(value) if is_number(value) else str(value)
    return f"{found.label} {shown} {found.unit}".strip()


def bars(cases: CaseTable, title: str, note: str, names: Sequence[str], limit: str = "") -> Iterator[Html]:
    """Draw a bar for each case and measurement; if there is one measurement, cases that differ in one key share a label."""
    cases = cases.with_any(names)
    if not names or not cases.rows:
        return
    unit = _unit(cases.rows, names)
    key = _series_key(cases) if len(names) == 1 else None
    label_keys = [one for one in cases.varying if one != key]
    groups: dict[str, list[CaseRow]] = {}
    for row in cases.rows:
        groups.setdefault(cases.label(row, label_keys) if label_keys else cases.name(row), []).append(row)
    labels = list(groups)[:_MAX_LABELS]
    if key is None:
        series = [_measured_as(name) for name in names]
        drawn = [[_bar(row, name, unit.factor, limit) for row in groups[label] for name in names] for label in labels]
    else:
        values = list(dict.fromkeys(row[key] for row in cases.rows))
        series = [_format_key(key, value) for value in values]
        drawn = [
            [_bar(row, names[0], unit.factor, limit) for value in values for row in groups[label] if row[key] == value]
            for label in labels
        ]
    caption = svg.Caption(f"{title}: bars", _extremes(cases, names, unit))
    if len(groups) > len(labels):
        note = f"{note} The first {len(labels)} of {len(groups)} are drawn."
    picture = svg.bars(caption, "" if unit.unit in title else unit.unit, labels, series, drawn)
    yield markup.figure(title, note, picture, *_numbers(cases, names))


def _bar(row: CaseRow, name: str, factor: float, limit: str) -> svg.Bar:
    ceiling = _scaled(row.get(limit), factor)
    found = row.get(f"{name}_runs")
    runs = [factor * run for run in found if is_number(run)] if isinstance(found, list) else []
    lowest, highest = (min(runs), max(runs)) if len(runs) > 1 else (None, None)
    return svg.Bar(_scaled(row.get(name), factor), lowest, highest, ceiling)


def _series_key(cases: CaseTable) -> str | None:
    """The last key of few, self-explanatory values, which can be a colour instead of part of a label."""
    for key in reversed(cases.varying):
        values = {row.get(key) for row in cases.rows}
        others = [one for one in cases.varying if one != key]
        whole = all(isinstance(value, str) for value in values) and key in _SELF_EXPLANATORY
        labels = {cases.label(row, others) for row in cases.rows}
        if whole and others and len(values) <= _MAX_SERIES and len(labels) * len(values) == len(cases.rows):
            return key
    return None


def curves(
    cases: CaseTable, title: str, note: str, names: Sequence[str], called: Callable[[str], str] | None = None
) -> Iterator[Html]:
    """Draw lines over the axis, in panels if there are too many; bars without an axis.

    `called` names a measurement in the legend; None: by its quantity.
    """
    cases = cases.with_any(names)
    axis = _axis(cases)
    if axis is None:
        yield from bars(cases, title, note, names)
        return
    unit = _unit(cases.rows, names)
    panel_keys, line_keys = _split_keys(cases, [key for key in cases.varying if key != axis], len(names))
    panels: dict[str, list[CaseRow]] = {}
    for row in cases.rows:
        panels.setdefault(cases.label(row, panel_keys), []).append(row)
    alone = [heading for heading, rows in panels.items() if len({row[axis] for row in rows}) == 1]
    if len(alone) < len(panels):
        panels = {heading: rows for heading, rows in panels.items() if heading not in alone}
        note += " Cases that stand alone are in the table." if alone else ""
    drawn = [
        _panel(title, heading, CaseTable(rows, cases.keys), axis, line_keys, names, called or _measured_as, unit)
        for heading, rows in list(panels.items())[:_MAX_PANELS]
    ]
    if len(panels) > len(drawn):
        note = f"{note} The first {len(drawn)} of {len(panels)} are drawn."
    if all(panel.lines == drawn[0].lines for panel in drawn):  # a common legend is shown once
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
    cases: CaseTable,
    axis: str,
    line_keys: Sequence[str],
    names: Sequence[str],
    called: Callable[[str], str],
    unit: Quantity,
) -> _Panel:
    positions = sorted({row[axis] for row in cases.rows})
    lines: dict[str, dict[Any, float]] = {}
    for row in cases.rows:
        for name in names:
            said = ", ".join(filter(None, (called(name) if len(names) > 1 else "", cases.label(row, line_keys))))
            if is_number(row.get(name)):
                lines.setdefault(said, {})[row[axis]] = unit.factor * row[name]
    made = [svg.Curve(said, [points.get(index) for index in positions]) for said, points in lines.items()]
    caption = svg.Caption(f"{title} {heading}".strip(), _extremes(cases, names, unit))
    picture = svg.curves(caption, unit.unit, [number(index) for index in positions], quantity(axis).heading, made)
    return _Panel(heading, list(lines), picture)


def _axis(cases: CaseTable) -> str | None:
    """The key with which lines have the most points."""
    best, highest = None, _MIN_POINTS
    for key in cases.varying:
        if all(is_number(row.get(key)) for row in cases.rows):
            others = [one for one in cases.varying if one != key]
            points = len(cases.rows) / len({cases.label(row, others) for row in cases.rows})
            if points > highest or (points == highest and key == "batch_size"):
                best, highest = key, points
    return best


def _split_keys(cases: CaseTable, keys: Sequence[str], num_names: int) -> tuple[list[str], list[str]]:
    """(keys of panels, keys of lines): the fewest panels with few lines each."""
    for count in range(len(keys) + 1):
        panel_keys, line_keys = list(keys[:count]), list(keys[count:])
        lines: dict[str, set[str]] = {}
        for row in cases.rows:
            lines.setdefault(cases.label(row, panel_keys), set()).add(cases.label(row, line_keys))
        if max(len(found) for found in lines.values()) * num_names <= _MAX_LINES:
            return panel_keys, line_keys
    return list(keys), []


def stacks(cases: CaseTable, title: str, note: str, parts: Sequence[str], amounts: Sequence[Sequence[float]]) -> Html:
    """Draw `amounts` by case and part: shares of a whole, or of the largest sum if they add up to more than 1."""
    labels = [cases.name(row) for row in cases.rows]
    names = [words(part) for part in parts]
    whole = max(1.0, *(sum(row) for row in amounts))
    shares = [[amount / whole for amount in row] for row in amounts]
    highest = [max(zip(row, names, strict=True)) for row in amounts]
    described = (
        f"{label}: most in {name}, {100 * share:.0f} %" for label, (share, name) in zip(labels, highest, strict=True)
    )
    caption = svg.Caption(f"{title}: shares", "; ".join(list(described)[:_MAX_LABELS]))
    picture = svg.stacks(caption, labels[:_MAX_LABELS], names, shares[:_MAX_LABELS])
    rows = [(label, *(round(100 * amount, 2) for amount in row)) for label, row in zip(labels, amounts, strict=True)]
    return markup.figure(title, note, picture, ("case", *(f"{name}, %" for name in names)), rows)


def _numbers(cases: CaseTable, names: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows of the table under a picture: keys, measurements, and their ranges over several runs."""
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


def table(caption: str, rows: Sequence[CaseRow], names: Sequence[str]) -> Html:
    """A table of these fields, each in the unit of its name."""
    units = [quantity(name, _values(rows, [name])) for name in names]
    cells = [
        [
            _scaled(row.get(name), unit.factor) if is_number(row.get(name)) else row.get(name)
            for name, unit in zip(names, units, strict=True)
        ]
        for row in rows
    ]
    return markup.table(caption, [unit.heading for unit in units], cells)


def _unit(rows: Sequence[CaseRow], names: Sequence[str]) -> Quantity:
    """The common unit of several measurements, by the largest of all."""
    return quantity(names[0], _values(rows, names))


def _values(rows: Sequence[CaseRow], names: Sequence[str]) -> list[Any]:
    return [row.get(name) for row in rows for name in names]


def _measured_as(name: str) -> str:
    found = quantity(name)
    return found.label or found.unit


def _extremes(cases: CaseTable, names: Sequence[str], unit: Quantity) -> str:
    """A description of the picture: its smallest and largest values."""
    found = [(unit.factor * row[name], name, row) for row in cases.rows for name in names if is_number(row.get(name))]
    (low, _, first), (high, name, last) = min(found, key=lambda one: one[0]), max(found, key=lambda one: one[0])
    lowest, highest = cases.label(first, cases.varying), cases.label(last, cases.varying)
    if low == high:
        return f"{_measured_as(name)}: {number(high)} {unit.unit}".strip()
    return f"From {number(low)} {unit.unit}{_in_brackets(lowest)} to {number(high)} {unit.unit}{_in_brackets(highest)}."


def _in_brackets(label: str) -> str:
    return f" ({label})" if label else ""
