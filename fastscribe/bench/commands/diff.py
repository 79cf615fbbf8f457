"""`fastscribe bench diff`: two stored results of one benchmark side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe.bench.commands.common import JsonFile, ReportHtml, bench, check_places, leave
from fastscribe.bench.document import not_measured
from fastscribe.cli.app import option
from fastscribe.cli.terminal import show
from fastscribe.errors import UsageError

if TYPE_CHECKING:
    from fastscribe.bench.result_diff import Change, Diff

_MAX_SETTINGS = 20
_FLAGGED = ("worse", "better", "changed")


@bench.command(
    short_help="Compare two results of a benchmark, in percent.",
    epilog="Example: fastscribe bench diff before.json after.json --fail-on-worse",
)
def diff(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="The result to compare with.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The result that is called better or worse.")],
    noise: Annotated[
        float, option("--noise", min=0, help="Change in percent that counts as noise for a single measurement.")
    ] = 5.0,
    across_machines: Annotated[
        bool, option("--across-machines", help="Compare although the two were measured on different machines.")
    ] = False,
    fail_on_worse: Annotated[
        bool, option("--fail-on-worse", help="Exit code 1 where something is worse, or not there any more.")
    ] = False,
    json_file: JsonFile = None,
    report_html: ReportHtml = None,
) -> None:
    """Compare two results of a benchmark: changes in percent, better or worse, beyond the noise of the runs."""
    from fastscribe.bench.result_diff import diff as compare
    from fastscribe.bench.stored import read

    check_places(json_file, report_html, [a, b])
    documents = {"a": read(a), "b": read(b)}
    try:
        found = compare(documents["a"], documents["b"], noise, across_machines)
    except UsageError as error:
        raise UsageError(f"{a}, {b}: {error}") from error
    for line in _lines(found, str(a), str(b)):
        show(line)
    sides = {
        side: {"file": str(path), **{key: documents[side].get(key) for key in ("date", "fastscribe", "command")}}
        for side, path in (("a", a), ("b", b))
    }
    keys = [*documents["a"]["case_keys"], "measurement"]
    leave(
        not_measured("diff", _results(found, documents["a"], sides, noise), keys, sys.argv[1:]), json_file, report_html
    )
    if fail_on_worse:
        _judge(found)


def _judge(found: Diff) -> None:
    """Ends with exit code 1 where B is worse or lacks something; raises UsageError where nothing can be said."""
    if not found.compared:
        raise UsageError("--fail-on-worse: not compared, because of different machines (--across-machines)")
    if not found.changes:
        raise UsageError("--fail-on-worse: not compared, because no case was measured in both")
    if found.count("worse") or found.only_in_a:
        raise typer.Exit(1)


def _results(found: Diff, document: Mapping[str, Any], sides: Mapping[str, Any], noise: float) -> dict[str, Any]:
    return {
        "of": document["benchmark"],
        "a": {**sides["a"], "machine": found.machine_a},
        "b": {**sides["b"], "machine": found.machine_b},
        "same_machine": found.same_machine,
        "compared": found.compared,
        "default_noise_percent": noise,
        "differing_settings": {name: {"a": a, "b": b} for name, (a, b) in found.settings.items()},
        "better": found.count("better"),
        "worse": found.count("worse"),
        "only_in_a": found.only_in_a,
        "only_in_b": found.only_in_b,
        "rows": [change.row() for change in found.changes],
    }


def _lines(found: Diff, a: str, b: str) -> Iterator[str]:
    yield f"A: {a} on {found.machine_a}"
    yield f"B: {b} on {found.machine_b}"
    if not found.same_machine:
        yield "DIFFERENT MACHINES" + ("" if found.compared else ": nothing is compared (--across-machines does it)")
    for name, (before, after) in list(found.settings.items())[:_MAX_SETTINGS]:
        yield f"DIFFERS: {name}: {_short(before)} | {_short(after)}"
    if len(found.settings) > _MAX_SETTINGS:
        yield f"DIFFERS: {len(found.settings) - _MAX_SETTINGS} more, in the JSON"
    for name, only in (("A", found.only_in_a), ("B", found.only_in_b)):
        yield from (f"ONLY IN {name}: {_case(case)}" for case in only)
    if found.compared:
        yield from _table(found)


def _table(found: Diff) -> Iterator[str]:
    flagged = [change for verdict in _FLAGGED for change in found.changes if change.verdict == verdict]
    heads = ("A", "B") if found.same_machine else (f"A: {found.machine_a}", f"B: {found.machine_b}")
    widths = [max(12, len(head)) for head in heads]
    if flagged:
        yield f"{heads[0]:>{widths[0]}}  {heads[1]:>{widths[1]}}   change %  noise %  verdict  measurement; case"
    for change in flagged:
        yield _line(change, widths)
    unknown = found.count("unknown")
    more = f", {unknown} known in one of them only" if unknown else ""
    yield (
        f"{found.count('better')} better, {found.count('worse')} worse, {found.count('changed')} changed, "
        f"{found.count('same')} within the noise{more}"
    )


def _line(change: Change, widths: list[int]) -> str:
    a, b = (f"{_number(value):>{width}}" for value, width in zip((change.a, change.b), widths, strict=True))
    percent = f"{'?':>9}" if change.change_percent is None else f"{change.change_percent:+9.1f}"
    end = f"{change.verdict:7}  {change.measurement}; {_case(change.case)}"
    return f"{a}  {b}  {percent}  {change.noise_percent:7.1f}  {end}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _case(case: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in case.items())


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
