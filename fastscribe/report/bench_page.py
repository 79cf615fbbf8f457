"""The page of one benchmark's result (bench/document.py): pictures of its rows, and the numbers under each.

The names of the measurements decide on the pictures, whatever the benchmark: speeds (rtfx, .._per_s), percentiles of latency,
costs, shares of stages, bytes and times. The table of all cases at the end has everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastscribe.report import grid, markup
from fastscribe.report.figures import UNKNOWN, is_number, number, quantity, words
from fastscribe.report.grid import CaseTable
from fastscribe.report.markup import Html

_DOCUMENT_KEYS = ("benchmark", "fastscribe", "date", "command", "device", "case_keys", "rows", "machine", "complete")
_SPEED = re.compile(r"(?!ceiling_|matrix_|one_after)(\w+_)?rtfx")
_COST = re.compile(r"usd_per_1000_audio_hours|kwh_per_1000_audio_hours|j_per_audio_hour")
_BYTES = re.compile(r"(\w+_)?bytes")
_TIME = re.compile(r"(\w+_)?(ms|us)|(ms|us)_per_\w+")
_STATISTIC = re.compile(r"(?:(?<=_)|^)(avg|average|mean|median|p\d\d(?:_\d)?)_(?=\w)|_(avg|average|mean|median|p\d\d)$")
_STAGES = ("wait_for_audio", "copy", "features", "encode", "decode", "assemble", "text", "write")
_STAGE = re.compile(rf"(\w+_)?({'|'.join(_STAGES)})_share")
_RANGE_PREFIXES = ("min_", "max_")
_MAX_TIMES = 4  # pictures
_MAX_BARS = 16  # cases with a bar each; more become lines if possible
_LONG_TABLE = 24


def render(document: Mapping[str, Any]) -> str:
    rows = [row for row in document["rows"] if "error" not in row]
    failed = [row for row in document["rows"] if "error" in row]
    cases = CaseTable(rows, document["case_keys"])
    body: list[Html] = [markup.tiles(found)] if (found := list(_best(cases))) else []
    for heading, draw in _SECTIONS:
        pictures = list(draw(cases))
        if pictures:
            body.append(markup.section(heading, *pictures))
    body.append(_all_cases(document["rows"], document["case_keys"]))
    settings = {key: value for key, value in document.items() if key not in _DOCUMENT_KEYS}
    body += _described("Settings", settings) + _described("Machine", document.get("machine") or {})
    body.append(markup.section("Command", markup.command(document.get("command", UNKNOWN))))
    status = []
    if document.get("complete") is False:
        status.append("the measurement ended before its end: this is what was measured by then")
    if failed:
        status.append(
            f"{len(failed)} of {len(document['rows'])} cases could not be measured: see the table of all cases"
        )
    return markup.page(f"fastscribe bench: {document['benchmark']}", _facts(document), "; ".join(status), body)


def _facts(document: Mapping[str, Any]) -> list[str]:
    machine = document.get("machine") or {}
    gpu = machine.get("gpu")
    device = gpu.get("torch_name") if isinstance(gpu, Mapping) else machine.get("cpu")
    facts = (document.get("date"), device or document.get("device"), document.get("model"))
    return [*(str(fact) for fact in facts if fact), f"fastscribe {document.get('fastscribe', UNKNOWN)}"]


def _best(cases: CaseTable) -> Iterator[tuple[str, str, str]]:
    """Tiles for the top of the page: the best case of each of a few measurements."""
    wanted = (
        ("rtfx", "Best RTFx", max, ""),
        ("sequences_per_s", "Most sequences a second", max, ""),
        ("usd_per_1000_audio_hours", "Lowest cost", min, " USD"),
        ("speedup_ratio", "Largest speed-up", max, " times"),
        ("equal_texts_share", "Equal texts", max, " %"),
    )
    for name, label, choose, unit in wanted:
        rows = [row for row in cases.rows if is_number(row.get(name))]
        if rows:
            row = choose(rows, key=lambda row: row[name])
            note = cases.name(row)
            value = row[name] * (100 if unit == " %" else 1)
            yield label, number(value) + unit, f"per 1,000 audio hours, {note}" if unit == " USD" else note


def _speeds(cases: CaseTable) -> Iterator[Html]:
    names = [name for name in cases.measurements if _SPEED.fullmatch(name)]
    note = "Seconds of audio transcribed a second: more is better."
    if len(cases.rows) <= _MAX_BARS:
        yield from grid.bars(cases, "RTFx", note, names, limit="ceiling_rtfx")
    elif names:
        yield from grid.curves(cases, "RTFx", note, names)
    for name in cases.measurements:
        if name.endswith("sequences_per_s"):
            yield from grid.curves(cases, "Sequences a second", "More is better.", [name])


def _latencies(cases: CaseTable) -> Iterator[Html]:
    groups: dict[str, list[str]] = {}
    for name in cases.measurements:
        if _is_percentile(name):
            groups.setdefault(_STATISTIC.sub("", name), []).append(name)
    for rest, names in groups.items():
        label = quantity(rest).label or "latency"
        yield from grid.curves(cases, label[0].upper() + label[1:], "Lower is better.", names, _statistic)


def _is_percentile(name: str) -> bool:
    return bool(_STATISTIC.search(name)) and bool(_TIME.fullmatch(_STATISTIC.sub("", name)))


def _statistic(name: str) -> str:
    found = _STATISTIC.search(name)
    assert found is not None
    statistic = found.group(1) or found.group(2)
    return (
        f"{statistic[1:].replace('_', '.')}th percentile"
        if statistic[0] == "p"
        else "average"
        if statistic == "avg"
        else statistic
    )


def _costs(cases: CaseTable) -> Iterator[Html]:
    for name in cases.measurements:
        if _COST.fullmatch(name):
            yield from grid.bars(cases, quantity(name).heading, "Shorter bars are better.", [name])


def _stages(cases: CaseTable) -> Iterator[Html]:
    """Draw a row's mapping stage_s, or its measurements <stage>_share of the wall time."""
    groups: dict[str, dict[str, str]] = {}
    for name in cases.measurements:
        match = _STAGE.fullmatch(name)
        if match:
            groups.setdefault(match[1] or "", {})[match[2]] = name
    for before, found in groups.items():
        names = {stage: found[stage] for stage in _STAGES if stage in found}
        heading = "Stages" + (f", {words(before).strip()}" if before else "")
        shares = [[max(row.get(name) or 0.0, 0.0) for name in names.values()] for row in cases.rows]
        note = "Shares of the wall time; stages that overlap add up to more than the whole."
        yield grid.stacks(cases, heading, note, list(names), shares)
    timed = [row for row in cases.rows if isinstance(row.get("stage_s"), Mapping) and sum(row["stage_s"].values()) > 0]
    if timed:
        stages = list(dict.fromkeys(stage for row in timed for stage in row["stage_s"]))
        parts = [
            [(row["stage_s"].get(stage) or 0.0) / sum(row["stage_s"].values()) for stage in stages] for row in timed
        ]
        yield grid.stacks(
            CaseTable(timed, cases.keys), "Time by stage", "Shares of the stages' own times.", stages, parts
        )


def _memory(cases: CaseTable) -> Iterator[Html]:
    names = [name for name in cases.measurements if _BYTES.fullmatch(name)]
    if names:
        yield from grid.curves(cases, "Memory", "Lower is better.", names)


def _times(cases: CaseTable) -> Iterator[Html]:
    others = (name for name in cases.measurements if not _is_percentile(name) and not name.startswith(_RANGE_PREFIXES))
    names = [name for name in others if _TIME.fullmatch(name)]
    for name in names[:_MAX_TIMES]:
        found = quantity(name)
        label = found.label or "time" + "".join(found.unit.partition(" per ")[1:])
        yield from grid.curves(cases, label[0].upper() + label[1:], "Lower is better.", [name])


_SECTIONS: tuple[tuple[str, Callable[[CaseTable], Iterator[Html]]], ...] = (
    ("Latency", _latencies),
    ("Speed", _speeds),
    ("Cost", _costs),
    ("Where the time went", _stages),
    ("Peak memory", _memory),
    ("Times", _times),
)


def _all_cases(rows: Sequence[Mapping[str, Any]], case_keys: Sequence[str]) -> Html:
    """A table of everything in the rows except lists and mappings."""
    names = list(dict.fromkeys([*case_keys, *(name for row in rows for name in row)]))
    plain = [name for name in names if not any(isinstance(row.get(name), (list, dict)) for row in rows)]
    table = grid.table("Every case and all that was measured", rows, plain)
    if len(rows) > _LONG_TABLE:
        table = markup.folded(f"{len(rows)} cases", table)
    return markup.section("All cases", table)


def _described(heading: str, facts: Mapping[str, Any]) -> list[Html]:
    """A section of names and values; lists of rows become tables."""
    parts = [markup.facts(_flat(facts))] if any(_flat(facts)) else []
    for name, value in facts.items():
        if _is_table(value):
            keys = list(dict.fromkeys(key for row in value for key in row))
            parts.append(grid.table(words(name), value, keys))
    return [markup.section(heading, *parts)] if parts else []


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None and not _is_table(value):
            shown = number(value) if isinstance(value, float) else value
            yield before + name, ", ".join(map(str, shown)) if isinstance(shown, list) else str(shown)
