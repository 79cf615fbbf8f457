"""What transcription costs: stored speeds beside the prices of machines that they were measured on.

A configuration is a row with an RTFx over many recordings in a benchmark's document, and says what that RTFx is of; it meets
every list price of its own hardware (pipeline/prices.py), GPUs beside CPUs, as in NVIDIA's comparison of a million hours. A
machine with several GPUs is taken to keep all of them as busy as the one measured. Where no price is known the cost is
None.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastscribe.bench.stored import Hardware, hardware, is_number
from fastscribe.errors import UsageError
from fastscribe.pipeline.prices import PRICES, READ_ON, Price, price_of, words
from fastscribe.pipeline.stats import usd_per_audio_hours

__all__ = ["compare", "offers", "price_of", "usd_per_hours"]

CASE_KEYS = ("file", "configuration", "price")
_KWH = "energy_kwh_per_1000_audio_hours"
_NOT_LISTED = {"source": None, "as_of": None, "read_on": None, "offered_device": None, "note": None}
RTFX_OF = {  # by benchmark; the RTFx of one batch at a time, as `bench latency` has it, is not what a run costs
    "throughput": "paths to JSONL on disk, model loaded",
    "against": "paths to texts, model loaded",
    "leaderboard": "paths to texts, model loaded and warm, one dataset",
}


def usd_per_hours(rtfx: float, usd_per_hour: float | None) -> dict[str, float | None]:
    """USD per 1,000 and per 1,000,000 hours of audio; None where the price is not known."""
    return {
        "usd_per_1000_audio_hours": usd_per_audio_hours(rtfx, usd_per_hour, 1e3),
        "usd_per_1000000_audio_hours": usd_per_audio_hours(rtfx, usd_per_hour, 1e6),
    }


def compare(
    documents: Sequence[tuple[str, Mapping[str, Any]]], said: Sequence[tuple[str, float]]
) -> list[dict[str, Any]]:
    """A row a configuration and price, the cheapest first, unknown costs last.

    `documents`: by file name. `said`: the user's own prices, (words of a device's name, USD an hour), which take the place
    of the listed ones for that device. Raises UsageError for a document without such speeds and for a price that fits none.
    """
    places = [_hardware(name, document) for name, document in documents]
    for name, _ in said:
        if not any(words(name) <= words(place.device) for place in places):
            known = ", ".join(sorted({place.device for place in places}))
            raise UsageError(f"--price-per-hour {name}: nothing was measured on that; there is {known}")
    rows = [
        row
        for (name, document), place in zip(documents, places, strict=True)
        for row in _rows(name, document, place, said)
    ]
    known_usd = [row["usd_per_1000_audio_hours"] for row in rows if row["usd_per_1000_audio_hours"] is not None]
    for row in rows:
        cost = row["usd_per_1000_audio_hours"]
        row["times_the_cheapest_ratio"] = cost / min(known_usd) if cost is not None and min(known_usd) > 0 else None
    return sorted(rows, key=lambda row: (row["usd_per_1000_audio_hours"] is None, row["usd_per_1000_audio_hours"] or 0))


def _hardware(name: str, document: Mapping[str, Any]) -> Hardware:
    if document["benchmark"] not in RTFX_OF:
        raise UsageError(
            f"{name}: a result of {document['benchmark']!r}: only {', '.join(RTFX_OF)} tell what hours cost"
        )
    if not any(_has_speed(row) for row in document["rows"]):
        raise UsageError(f"{name}: no row of it has an RTFx")
    place = hardware(document)
    if place is None:
        raise UsageError(f"{name}: does not say what it was measured on")
    return place


def _has_speed(row: Mapping[str, Any]) -> bool:
    return is_number(row.get("rtfx")) and row["rtfx"] > 0


def _rows(
    name: str, document: Mapping[str, Any], place: Hardware, said: Sequence[tuple[str, float]]
) -> Iterator[dict[str, Any]]:
    for row in filter(_has_speed, document["rows"]):
        for offer in offers(place, said):
            yield {
                "file": name,
                "configuration": configuration(document, row),
                **offer,
                "device": place.label,
                "date": document.get("date"),
                "rtfx": row["rtfx"],
                "rtfx_of": RTFX_OF[document["benchmark"]],
                **usd_per_hours(row["rtfx"], offer["usd_per_hour"]),
                _KWH: row.get(_KWH) if is_number(row.get(_KWH)) else None,
            }


def configuration(document: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What was run, in words: "parakeet-tdt-0.6b, dtype bf16, batch_frames 20000"."""
    keys = [key for key in ("model", "dtype") if key not in document["case_keys"] and document.get(key) is not None]
    cases = [key for key in document["case_keys"] if row[key] is not None]
    found = {key: document[key] for key in keys} | {key: row[key] for key in cases}
    return ", ".join(str(value) if key == "model" else f"{key} {value}" for key, value in found.items())


def offers(place: Hardware, said: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    """Prices of an hour of this hardware by provider; one unknown price if no provider is listed."""
    own = [(name, usd) for name, usd in said if words(name) <= words(place.device)]
    if own:
        return [_offer(f"--price-per-hour {name}", usd, 1) for name, usd in own]
    found = [price for price in PRICES if price.fits(place.device, place.num_vcpus)]
    return [_listed(price) for price in found] or [_offer("unknown", None, None)]


def _listed(price: Price) -> dict[str, Any]:
    num_gpus = max(price.num_gpus, 1)
    note = f"1 of its {num_gpus} GPUs" if num_gpus > 1 else None if price.num_gpus else f"taken to be {price.device}"
    listed = {"source": price.source, "as_of": price.as_of, "read_on": READ_ON, "offered_device": price.device}
    listed["note"] = note
    return _offer(price.offer, price.usd_per_hour / num_gpus, price.num_gpus) | listed


def _offer(name: str, usd_per_hour: float | None, num_gpus: int | None) -> dict[str, Any]:
    """`usd_per_hour` is for one GPU of the `num_gpus` in the machine."""
    return {"price": name, "usd_per_hour": usd_per_hour, "gpus_of_machine": num_gpus, **_NOT_LISTED}
