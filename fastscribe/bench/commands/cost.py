"""`fastscribe bench cost`: USD for an hour of audio from stored speeds and prices."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fastscribe.bench.commands.common import JsonFile, ReportHtml, bench, check_places, leave
from fastscribe.bench.document import not_measured
from fastscribe.cli.terminal import show
from fastscribe.pipeline.prices import MAX_USD

_HEADER = (
    "   USD/1,000 h  USD/1,000,000 h  x cheapest      RTFx    USD/h  kWh/1,000 h  "
    "device; file: configuration; price; RTFx of"
)
_PRICE_HELP = "USD per hour of the device with NAME in its name, in place of its list prices; repeat."


@bench.command(
    short_help="USD per 1,000 hours of audio, from results and list prices.",
    epilog="Example: fastscribe bench cost h200.json cpu.json --price-per-hour EPYC=0.08",
)
def cost(
    results: Annotated[list[Path], typer.Argument(help="Results with an RTFx: of bench, bench --against ...")],
    price_per_hour: Annotated[  # not from the environment: transcribe's there is a number alone
        list[str] | None, typer.Option("--price-per-hour", metavar="NAME=USD", help=_PRICE_HELP)
    ] = None,
    json_file: JsonFile = None,
    report_html: ReportHtml = None,
) -> None:
    """USD per 1,000 and 1,000,000 hours of audio: stored results by the list prices of their hardware, cheapest first."""
    from fastscribe.bench.price_comparison import CASE_KEYS, compare
    from fastscribe.bench.stored import read

    check_places(json_file, report_html, results)
    said = [_price(text) for text in price_per_hour or ()]
    rows = compare([(str(path), read(path)) for path in results], said)
    show(_HEADER)
    for row in rows:
        show(_line(row))
    if len({row["rtfx_of"] for row in rows}) > 1:
        show("their RTFx are not of the same thing: see the end of each line")
    for line in _sources(rows):
        show(line)
    leave(not_measured("cost", {"rows": rows}, CASE_KEYS, sys.argv[1:]), json_file, report_html)


def _price(text: str) -> tuple[str, float]:
    """ "H200=3.50" -> ("H200", 3.5)"""
    name, _, usd_text = text.rpartition("=")
    try:
        usd = float(usd_text)
    except ValueError:
        usd = math.nan
    if not any(c.isalnum() for c in name) or not 0 <= usd <= MAX_USD:
        raise typer.BadParameter(f"--price-per-hour {text}: not NAME=USD, as in H200=3.50")
    return name.strip(), usd


def _line(row: Mapping[str, Any]) -> str:
    figures = (
        _figure(row["usd_per_1000_audio_hours"], 14, 2),
        _figure(row["usd_per_1000000_audio_hours"], 15, 0),
        _figure(row["times_the_cheapest_ratio"], 10, 2),
        _figure(row["rtfx"], 8, 1),
        _figure(row["usd_per_hour"], 7, 3),
        _figure(row["energy_kwh_per_1000_audio_hours"], 11, 3),
    )
    note = f" ({row['note']})" if row["note"] else ""
    words = f"{row['device']}; {row['file']}: {row['configuration']}; {row['price']}{note}; {row['rtfx_of']}"
    return "  ".join((*figures, words))


def _figure(value: float | None, width: int, digits: int) -> str:
    return f"{'?':>{width}}" if value is None else f"{value:{width},.{digits}f}"


def _sources(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the prices were read, each place once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["source"]:
            dated = f" of {row['as_of']}" if row["as_of"] else ", which gives no date"
            place = f"{row['source']}{dated}, read {row['read_on']}"
            found.setdefault(place, [])
            if row["price"] not in found[place]:
                found[place].append(row["price"])
    lines = [f"{', '.join(names)}: {place}" for place, names in found.items()]
    if any(row["usd_per_hour"] is None for row in rows):
        lines.append("?: no price is known; give one with --price-per-hour NAME=USD")
    return lines
