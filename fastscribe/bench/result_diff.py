"""Two documents of one benchmark, measurement by measurement: what moved, by how much, and whether that is more than noise.

Noise is the wider of the two spreads (largest less smallest, over the median) of a measurement made several times: its
`_runs`, or its `min_` and `max_`. With five runs each, one of 230 medians of the same thing moves further than that by chance,
with three one of 17 (normal noise, simulated). Where there is no spread, a share that the user sets stands for it; but what
is counted and not timed (errors, equal texts) has no noise, and a share of the time is never known to a hundredth of the
whole. Of rows that were measured over other audio, nothing is called better or worse but what is counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastscribe.bench.stored import hardware, is_number
from fastscribe.errors import UsageError

_ABOUT_THE_DOCUMENT = ("benchmark", "date", "command", "case_keys", "rows", "machine")
_OF_THE_MACHINE = "ceiling"  # measured anew each time
_HIGHER_STARTS = ("rtfx", "speedup", "equal_")
_HIGHER_ENDS = ("rtfx", "_per_s", "efficiency")
_LOWER_STARTS = ("padding", "failed", "wer", "cer", "label_difference")
_LOWER_UNITS = ("ms", "us", "s", "bytes", "usd", "j", "kwh")  # also what stands before _per_
_WORK = ("files", "audio_s")
_COUNTED_STARTS = (
    *("wer", "cer", "equal_", "failed", "left_out", "labels", "label_difference"),
    *("insertions", "deletions", "substitutions", "reference_words"),
)
_MIN_SHARE_OF_TIME = 0.01
_ROUNDING_PERCENT = 1e-4  # sums of the same numbers in another order
_AMOUNTS = ("audio_s", "sequence_s", "duration_s")  # how much was done, not how fast
_EXTREME = re.compile(r"(?<![a-z0-9])(min|max)_")  # min_ms beside ms, wall_min_s beside wall_s
_PASSING_FACTS = ("load_average", "free_gib", "temperature", "clocks.sm", "clocks.mem")


@dataclass(frozen=True)
class Change:
    """One measurement of one case in both. `verdict`: better, worse, changed (no direction is known), same, unknown."""

    case: Mapping[str, Any]
    measurement: str
    a: float | None
    b: float | None
    change_percent: float | None  # None if a value is unknown or the first is 0
    noise_percent: float
    verdict: str

    def row(self) -> dict[str, Any]:
        return {**self.case, **{name: value for name, value in vars(self).items() if name != "case"}}


@dataclass(frozen=True)
class Diff:
    """`changes` is empty if the machines differ and the user did not ask to compare different machines."""

    machine_a: str
    machine_b: str
    compared: bool
    settings: dict[str, tuple[Any, Any]]  # what differs beside the rows, by dotted name
    changes: list[Change]
    only_in_a: list[dict[str, Any]]
    only_in_b: list[dict[str, Any]]

    @property
    def same_machine(self) -> bool:
        return self.machine_a == self.machine_b

    def count(self, verdict: str) -> int:
        return sum(change.verdict == verdict for change in self.changes)


def direction(measurement: str) -> int:
    """1 where more is better, -1 where less is, 0 where that cannot be said: by the unit of its name, or its parent's."""
    return next((found for part in reversed(measurement.split(".")) if (found := _direction(part))), 0)


def _direction(name: str) -> int:
    if name.startswith(_OF_THE_MACHINE):
        return 0
    if name.startswith(_HIGHER_STARTS) or name.endswith(_HIGHER_ENDS):
        return 1
    unit, per, _ = name.partition("_per_")
    if per:
        return -1 if unit.rpartition("_")[2] in _LOWER_UNITS else 0
    if name.endswith(_AMOUNTS):
        return 0
    return -1 if name.startswith(_LOWER_STARTS) or name.rpartition("_")[2] in _LOWER_UNITS else 0


def diff(
    a: Mapping[str, Any], b: Mapping[str, Any], default_noise_percent: float = 5.0, across_machines: bool = False
) -> Diff:
    """Raises UsageError for documents of which no rows could be of the same cases."""
    machine_a, machine_b = _machine(a), _machine(b)
    for key in ("benchmark", "case_keys"):
        if a[key] != b[key]:
            raise UsageError(
                f"they cannot be compared: {key} is {_said(a[key])} in one and {_said(b[key])} in the other"
            )
    rows_a, rows_b = _by_case(a), _by_case(b)
    compared = across_machines or machine_a == machine_b
    changes = [
        change
        for case in rows_a
        if case in rows_b and compared
        for change in _changes(a["case_keys"], rows_a[case], rows_b[case], default_noise_percent)
    ]
    only_in_a, only_in_b = (
        [_case(a["case_keys"], row) for case, row in mine.items() if case not in other]
        for mine, other in ((rows_a, rows_b), (rows_b, rows_a))
    )
    settings = _settings(a, b, default_noise_percent)
    return Diff(machine_a, machine_b, compared, settings, changes, only_in_a, only_in_b)


def _machine(document: Mapping[str, Any]) -> str:
    place = hardware(document)
    if place is None:
        raise UsageError(f"a result of {document['benchmark']!r} that does not say what it was measured on")
    return place.machine


def _said(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _case(keys: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in keys}


def _by_case(document: Mapping[str, Any]) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Rows by what tells them apart; of two alike the second is the second in the other document too."""
    found: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for row in document["rows"]:
        case = tuple(_plain(row[key]) for key in document["case_keys"])
        repeat = 0
        while (*case, str(repeat)) in found:
            repeat += 1
        case = (*case, str(repeat))
        found[case] = row
    return found


def _plain(value: Any) -> str:
    """2 and 2.0 are the same case."""
    return repr(float(value)) if is_number(value) else repr(value)


def _changes(
    keys: Sequence[str], a: Mapping[str, Any], b: Mapping[str, Any], default_noise_percent: float
) -> Iterator[Change]:
    case = _case(keys, a)
    if ("error" in a) != ("error" in b):
        yield Change(case, "error", None, None, None, 0.0, "worse" if "error" in b else "better")
    same_work = all(_alike(a.get(name), b.get(name), _ROUNDING_PERCENT) for name in _WORK)
    flat_a, flat_b = ({name: value for name, value in _leaves(row) if name not in keys} for row in (a, b))
    for name in dict.fromkeys((*flat_a, *flat_b)):
        before, after = flat_a.get(name), flat_b.get(name)
        if (is_number(before) or is_number(after)) and not _is_spread(name, flat_a | flat_b):
            spreads = [_spread_percent(name, flat) for flat in (flat_a, flat_b)]
            usual = _ROUNDING_PERCENT if _is_counted(name) else default_noise_percent
            noise = max((one for one in spreads if one is not None), default=usual)
            if before and _is_share_of_time(name):
                noise = max(noise, 100.0 * _MIN_SHARE_OF_TIME / abs(before))
            yield _change(case, name, before, after, noise, same_work)


def _is_counted(name: str) -> bool:
    return name in _WORK or name.startswith(_COUNTED_STARTS)


def _is_share_of_time(name: str) -> bool:
    return name.endswith("_share") and not name.startswith("padding") and not _is_counted(name)


def _change(
    case: Mapping[str, Any], name: str, before: Any, after: Any, noise_percent: float, same_work: bool
) -> Change:
    if not is_number(before) or not is_number(after):
        known_a, known_b = (value if is_number(value) else None for value in (before, after))
        return Change(case, name, known_a, known_b, None, noise_percent, "unknown")
    percent = 100.0 * (after - before) / abs(before) if before else (0.0 if after == before else None)
    sign = (after > before) - (after < before)
    verdict = "same"
    if percent is None or abs(percent) > noise_percent:
        judged = same_work or _is_counted(name)
        verdict = {1: "better", -1: "worse", 0: "changed"}[sign * direction(name) * judged]
    return Change(case, name, before, after, percent, noise_percent, verdict)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names: {"stage_s": {"encode": 1.0}} has stage_s.encode, whose unit is its parent's."""
    for key, value in values.items():
        if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            value = {str(index): one for index, one in enumerate(value)}
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_spread(name: str, flat: Mapping[str, Any]) -> bool:
    """Whether it only says how far another measurement varied: the smallest or the largest of its runs."""
    base = _EXTREME.sub("", name)
    return base != name and base in flat


def _spread_percent(name: str, flat: Mapping[str, Any]) -> float | None:
    """Largest less smallest over the median that the row has, in percent; None where it was measured once."""
    runs, middle = flat.get(f"{name}_runs"), flat.get(name)
    if not isinstance(runs, list):
        runs = [value for other, value in flat.items() if other != name and _EXTREME.sub("", other) == name]
    if len(runs) < 2 or not all(is_number(value) for value in runs) or not is_number(middle) or not middle:
        return None
    spread: float = 100.0 * (max(runs) - min(runs)) / abs(middle)
    return spread


def _settings(a: Mapping[str, Any], b: Mapping[str, Any], default_noise_percent: float) -> dict[str, tuple[Any, Any]]:
    """What differs beside the rows; measured numbers only where they differ by more than noise."""
    flat = [dict(_leaves({**_without_rows(document), "machine": _lasting(document)})) for document in (a, b)]
    names = dict.fromkeys((*flat[0], *flat[1]))
    pairs = {name: (flat[0].get(name), flat[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if not _alike(*pair, default_noise_percent)}


def _without_rows(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in _ABOUT_THE_DOCUMENT}


def _lasting(document: Mapping[str, Any]) -> dict[str, Any]:
    """The machine without what is another value every time one looks."""
    leaves = _leaves(document["machine"])
    return {name: value for name, value in leaves if not any(passing in name for passing in _PASSING_FACTS)}


def _alike(a: Any, b: Any, noise_percent: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=noise_percent / 100.0)
    return bool(a == b)
