"""The tables of docs/papers.md and docs/gpu.md, from stored results; `scripts/peers.py --write` puts them into the documents.

docs/papers.md: what five works claim, and what scripts/gpu_check measured of it. docs/gpu.md: the goals and the published rates
of other software, beside the newest measurement of each.

A cell is the newest measurement on a kind of card; without one it says so. Published figures are in docs/bench/gpu/papers.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.gpu import plan
from scripts.gpu.goals import GOALS, goals, rows_of, shown
from scripts.gpu.plan import card_of

Document = Mapping[str, Any]
Cells = dict[str, str]  # of a row, by the heads of their columns
NOTHING = "not measured"
Column = str | Callable[["Found"], str]  # a field with its form, as "rtfx:,.0f", or what makes the cell
Work = tuple[list[Cells], list[tuple[str, list[Cells]]]]  # its rows of the summary, and its tables with their titles
_GB = 1e9
_COST = "usd_per_1000000_audio_hours"
# Of part tenfold, from the oldest to the newest of each side (scripts/gpu/ladder.py), then the CPU's.
_RUNGS = (
    "nemo, first",
    "nemo, now",
    "greedy",
    "bf16",
    "fused",
    "label looping",
    "graph chunks",
    "graph loops",
    "batched",
    "planned",
)


@dataclass(frozen=True)
class Found:
    """A measurement: its row, the kind of card, and the commit and day."""

    row: Mapping[str, Any]
    card: str
    when: str

    def __getitem__(self, name: str) -> Any:
        return self.row.get(name)


def newest(documents: Sequence[Document], part: str, keys: Sequence[str], **wanted: Any) -> list[Found]:
    """Return the newest row for each kind of card and value of the keys.

    Args:
        documents: Results on GPUs, the newest first.
        part: Of gpu_check.
        keys: The fields that tell measurements apart.
        wanted: Values that the rows have.
    """
    found: dict[tuple[Any, ...], Found] = {}
    for document in documents:
        kind = card_of(dict(document))
        for row in (row for entry in document["results"] if entry["part"] == part for row in entry["rows"]):
            is_other = any(row.get(name) != value for name, value in wanted.items())
            if kind is None or is_other or {"error", "is_preparation"} & row.keys():
                continue
            when = f"{document['commit']}, {document['date'][:10]}"
            found.setdefault((kind, *(row.get(name) for name in keys)), Found(row, kind, when))
    return list(found.values())


def page(documents: Sequence[Document], published: Document) -> str:
    """Return the Markdown of the summary and of the tables of each work, each behind its title."""
    works = [work(documents, published) for work in WORKS]
    parts = [markdown([row for summary, _ in works for row in summary])]
    for title, rows in (table for _, tables in works for table in tables):
        parts.append(f"{title}:\n\n{markdown(rows)}" if rows else f"{title}: {NOTHING}.")
    return "\n\n".join(parts)


def markdown(rows: Sequence[Cells]) -> str:
    """Return the table of rows that have the same heads."""
    heads = tuple(rows[0])
    lines = (heads, ("---",) * len(heads), *(row.values() for row in rows))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _summary(claim: str, name: str, cells: Sequence[tuple[str, str]]) -> list[Cells]:
    """Return a row for each card, or one without a measurement."""
    return [{"work": name, "claim": claim, "here": here, "card": kind} for here, kind in cells or [(NOTHING, "-")]]


def _table(found: Sequence[Found], columns: Mapping[str, Column]) -> list[Cells]:
    """Return a row for each measurement, with its card, commit and day."""
    return [_cells(one, columns) | {"card": one.card, "commit, date": one.when} for one in found]


def _cells(one: Found, columns: Mapping[str, Column]) -> Cells:
    return {head: _cell(one, column) for head, column in columns.items()}


def _cell(one: Found, column: Column) -> str:
    if not isinstance(column, str):
        return column(one)
    name, _, form = column.partition(":")
    return "-" if one[name] is None else format(one[name], form)


def _gigabytes(name: str, form: str) -> Column:
    return lambda one: "-" if one[name] is None else format(one[name] / _GB, form)


def _peak(one: Found) -> str:
    return "does not fit" if one["fits"] is False else _cell(one, _gigabytes("peak_bytes", ".2f"))


# --- the works ------------------------------------------------------------------------------------------------------


def tenfold(documents: Sequence[Document], published: Document) -> Work:
    about = published["tenfold"]
    rungs = newest(documents, "tenfold", ("shape", "rung"), what="rung")
    rows: list[Cells] = []
    cells: list[tuple[str, str]] = []
    for kind in sorted({one.card for one in rungs}):
        for shape in dict.fromkeys(one["shape"] for one in rungs):
            of_shape = [one for one in rungs if one.card == kind and one["shape"] == shape]
            of_shape.sort(key=lambda one: _RUNGS.index(one["rung"]) if one["rung"] in _RUNGS else len(_RUNGS))
            rows += _ladder(of_shape)
            cells += [(f"{shape}: {words}", kind) for words in _gains(of_shape)]
    claim = f"up to {about['times']} times as fast; {about['cheaper_than_a_cpu']} times cheaper than a CPU"
    return (
        _summary(claim, "NeMo, tenfold", cells),
        [("NeMo's models tenfold, the ladder, each way with one change", rows), *_prices(rungs)],
    )


def _ladder(rungs: Sequence[Found]) -> list[Cells]:
    """Return the rows of a shape on a card, each with its speed over the rung before it of the same side."""
    rows, first = [], next((one for one in rungs if one["rung"] == _RUNGS[0]), None)
    for before, one in zip([None, *rungs], rungs, strict=False):
        is_step = before is not None and before["side"] == one["side"] and one["rung"] in _RUNGS
        columns: dict[str, Column] = {
            "model": "shape",
            "card": lambda one: one.card,
            "way": "rung",
            "what is new": lambda one: one["changes"] or "-",
            "RTFx": "rtfx:,.0f",
            "over the one before": _over(before if is_step else None, ".2f"),
            "over NeMo's first": _over(first, ".1f"),
            "USD for a million hours": f"{_COST}:,.0f",
            "commit, date": lambda one: one.when,
        }
        rows.append(_cells(one, columns))
    return rows


def _over(other: Found | None, form: str) -> Column:
    return lambda one: "-" if other is None else format(one["rtfx"] / other["rtfx"], form)


def _gains(rungs: Sequence[Found]) -> Iterator[str]:
    """Yield what the engine as shipped gains over NeMo's first way, and over the CPU."""
    by_name = {one["rung"]: one for one in rungs}
    first, last = by_name.get(_RUNGS[0]), by_name.get("planned")
    if last is None:
        return
    if first is not None:
        yield f"{last['rtfx'] / first['rtfx']:.1f} times NeMo's first way"
    costs = [one[_COST] for one in rungs if one["rung"].startswith("CPU") and one[_COST] is not None]
    if costs and last[_COST]:
        yield f"{min(costs) / last[_COST]:.1f} times cheaper than the CPU"


def _prices(rungs: Sequence[Found]) -> list[tuple[str, list[Cells]]]:
    """Return the table of the prices that the ladder took; none where no price is known."""
    priced = [one for one in rungs if one["usd_per_hour"] is not None]
    found = dict.fromkeys((one["device_name"], f"{one['usd_per_hour']:g}", one["price"]) for one in priced)
    rows = [dict(zip(("device", "USD an hour", "source"), price, strict=True)) for price in found]
    return [("NeMo's models tenfold, prices", rows)] if rows else []


def fp16_loss(documents: Sequence[Document], published: Document) -> Work:
    keys = ("form", "library", "dtype", "batch_size", "num_labels", "num_tokens")
    cases = newest(documents, "loss", keys, what="loss")
    cases.sort(key=lambda one: (one.card, one["num_tokens"], one["num_labels"], one["batch_size"]))
    columns: dict[str, Column] = {
        "tokens": "num_tokens",
        "batch": "batch_size",
        "labels": "num_labels",
        "loss": lambda one: f"{one['library']}, {'sample by sample' if one['form'] == 'joint' else one['form']}",
        "dtype": "dtype",
        "peak, GB": _peak,
        "ms": "ms:,.1f",
    }
    cells = []
    for kind in sorted({one.card for one in cases}):
        largest = [one for one in cases if one.card == kind and one["num_tokens"] == 1024 and "peak_bytes" in one.row]
        size = max(((one["batch_size"], one["num_labels"]) for one in largest), default=None)
        peaks = {
            (one["form"], one["dtype"]): one["peak_bytes"]
            for one in largest
            if (one["batch_size"], one["num_labels"]) == size and one["library"] == "fastscribe"
        }
        whole, half, ours = (
            peaks.get(key) for key in (("materialised", "fp32"), ("materialised", "fp16"), ("joint", "fp16"))
        )
        if size and whole and half and ours:
            cells.append(
                (f"{whole / half:.1f} times less; ours {whole / ours:.1f} (batch {size[0]}, {size[1]} labels)", kind)
            )
    return (
        _summary("half of fp32's memory", "fp16 loss", cells),
        [("The loss in fp16, peak memory and time, forward and backward", _table(cases, columns))],
    )


def samplewise(documents: Sequence[Document], published: Document) -> Work:
    about = published["samplewise"]
    keys = ("form", "dtype", "batch_size", "num_tokens")
    cases = newest(documents, "samplewise", keys, what="samplewise")
    cases += newest(documents, "samplewise", ("num_tokens",), what="samplewise_largest")
    cases.sort(key=lambda one: (one.card, one["num_tokens"], one["form"], one["dtype"], one["batch_size"] or 0))
    columns: dict[str, Column] = {
        "tokens": "num_tokens",
        "way": _way,
        "dtype": "dtype",
        "batch": "batch_size:,",
        "peak, GB": _peak,
        "by formula, GB": _gigabytes("formula_bytes", ".2f"),
        "ms": "ms:,.0f",
    }
    cells = [
        (f"{one['peak_bytes'] / _GB:.2f} GB with {one['num_tokens']:,} tokens, {one['dtype']}", one.card)
        for one in cases
        if one["form"] == "joint" and one["batch_size"] == about["batch_size"] and one["peak_bytes"]
    ]
    claim = f"{about['bytes'] / _GB:g} GB for a batch of {about['batch_size']:,} and {about['audio_s']} s"
    return (
        _summary(claim, "sample-wise training", cells),
        [("Sample-wise training, peak memory and time, forward and backward", _table(cases, columns))],
    )


def _way(one: Found) -> str:
    if one["what"] == "samplewise_largest":
        return "all logits at once, the largest batch that fits"
    return "sample by sample" if one["form"] == "joint" else "all logits at once"


_TRAINING: dict[str, Column] = {
    "batches": "batches",
    "padding": "padding_share:.0%",
    "audio s a batch": "batch_audio_s:,.0f",
    "recordings a batch": "batch_rows:.0f",
    "ms a step": "step_ms:,.0f",
    "audio s a second": "audio_s_per_s:,.0f",
    "peak, GB": _gigabytes("peak_bytes", ".1f"),
    "model": "shape",
}
_INFERENCE: dict[str, Column] = {
    "models": lambda one: f"{one['shape']} over {one['over']}",
    "RTFx": "rtfx:,.0f",
    "RTFx of the other": "rtfx_of_other:,.0f",
    "ratio": "rtfx_ratio:.2f",
    "decoder's share of each": lambda one: f"{one['decoder_share']:.0%} / {one['decoder_share_of_other']:.0%}",
}


def encoder_decoder(documents: Sequence[Document], published: Document) -> Work:
    about = published["encoder_decoder"]
    batches = newest(documents, "training_speed", ("shape", "batches"), what="training_batches")
    cells = []
    for kind in sorted({one.card for one in batches}):
        of_card = {one["batches"]: one for one in batches if one.card == kind}
        first, best = of_card.get("random"), of_card.get("by what fits in memory")
        if first is not None and best is not None:
            sizes = best["batch_audio_s"] / first["batch_audio_s"]
            speeds = best["audio_s_per_s"] / first["audio_s_per_s"]
            cells.append((f"batches {sizes:.1f} times as large, training {speeds:.1f} times as fast", kind))
    wanted = {"what": "ratio", "graphs": "auto", "budget_frames": "auto"}
    ratios = newest(documents, "attention", ("shape", "over"), **wanted)
    speed = [(f"{one['rtfx_ratio']:.1f} times as fast", one.card) for one in ratios]
    claim = f"batches {about['batch_size_times']} times as large, {about['fewer_gpus_times']} times fewer GPUs"
    inference, models = f"{about['inference_times']} times as fast", "canary-1b-flash over canary-1b"
    return (
        [
            *_summary(claim, "encoder-decoder, training", cells),
            *_summary(inference, f"encoder-decoder, {models}", speed),
        ],
        [
            ("Encoder-decoder models, training by how batches are made", _table(batches, _TRAINING)),
            ("Encoder-decoder models, inference, full batches from memory", _table(ratios, _INFERENCE)),
        ],
    )


_LATENCY: dict[str, Column] = {
    "model": "shape",
    "batch": "batch_size",
    "seconds": "duration_s:g",
    "dtype": "dtype",
    **{f"{share} %": f"p{share}_ms:.2f" for share in (90, 95, 99)},
    "mean": "average_ms:.2f",
    "NVIDIA's mean": "theirs_ms:.2f",
    "ratio": "ratio:.1f",
}


def convolutions(documents: Sequence[Document], published: Document) -> Work:
    about = published["convolutions"]
    known = {(one["shape"], one["batch_size"], one["seconds"], one["dtype"]): one for one in about["latencies"]}
    cases = newest(documents, "convolutions", ("shape", "batch_size", "duration_s"), what="latency")
    rows, cells = [], []
    for one in sorted(cases, key=lambda one: (one["shape"], one.card, one["duration_s"], one["batch_size"])):
        for ours, theirs in (("bf16", "fp16"), ("tf32", "tf32")):
            if (latency := one[ours]) is None:
                continue
            mean_ms = known.get((one["shape"], one["batch_size"], one["duration_s"], theirs), {}).get("mean_ms")
            ratio = None if mean_ms is None else mean_ms / latency["average_ms"]
            row = {"dtype": ours, "theirs_ms": mean_ms, "ratio": ratio} | dict(one.row) | latency
            rows += _table([replace(one, row=row)], _LATENCY)
            if (one["batch_size"], one["duration_s"], ours) == (16, 16.7, "bf16") and mean_ms is not None:
                cells.append((f"{one['shape']}: {latency['average_ms']:.1f} ms against {mean_ms:.1f}", one.card))
    names = {"model": "shape", "batch": "batch_size", "dtype": "dtype", "NVIDIA": "sequences_per_s:.1f"}
    trained = [Found(one, "", "") for one in about["training"]]
    training = [_cells(one, names | {"fastscribe": lambda _: NOTHING}) for one in trained]
    return (
        _summary("a batch of 16 recordings of 16.7 s in fp16", "Jasper, QuartzNet", cells),
        [
            ("Jasper and QuartzNet, latency of a batch, ms", rows),
            ("Jasper and QuartzNet, training, sequences a second on one A100", training),
        ],
    )


WORKS: tuple[Callable[[Sequence[Document], Document], Work], ...] = (
    tenfold,
    fp16_loss,
    encoder_decoder,
    convolutions,
    samplewise,
)


# --- the goals on a GPU, and the rates of other software ------------------------------------------------------------


def gpu_tables(folder: Path) -> str:
    """Return the Markdown of goals and rates from memory, from rivals.json and the results of gpu_check in `folder`."""
    rivals = json.loads((folder / "rivals.json").read_text(encoding="utf-8"))["rows"]
    measured = list(reversed(plan.stored(folder)))
    rates = [one | {"source": f"[link]({one['source']})"} for one in rivals] + _our_rates(measured)
    rates.sort(key=lambda rate: -rate["rtfx"])
    heads = {"software": "software", "model": "model", "hardware": "hardware"}
    heads |= {"RTFx": "rtfx:,.0f", "audio": "audio", "source": "source"}
    in_order = [_cells(Found(rate, "", ""), heads) for rate in rates]
    return f"{markdown(list(_goal_rows(measured)))}\n\n{markdown(in_order)}"


def _goal_rows(measured: Sequence[Document]) -> Iterator[Cells]:
    """Yield each goal with its newest measurement on each kind of card."""
    found: dict[str, dict[str, tuple[Document, Document]]] = {}
    for document in measured:
        for row in goals(dict(document)):
            if row["measured"] is not None:
                found.setdefault(row["goal"], {})[_gpu(document)] = (row, document)
    for goal in GOALS:
        about = {"goal on one GPU": goal.name, "wanted": f"{'' if goal.at_least else 'at most '}{goal.wanted:,g}"}
        if goal.name not in found:
            yield about | {"measured": NOTHING, "reached": "-", "hardware": "-", "commit, date": "-"}
        for gpu, (row, document) in sorted(found.get(goal.name, {}).items()):
            yield about | {
                "measured": f"**{shown(row['measured'])}**",
                "reached": f"{row['reached_share']:.0%}",
                "hardware": gpu,
                "commit, date": f"{document['commit']}, {document['date'][:10]}",
            }


def _our_rates(measured: Sequence[Document]) -> list[dict[str, Any]]:
    """Return the newest rate from memory of each shape and pass on each kind of card."""
    found = {}
    for document in measured:
        for row in (row for part in ("memory", "engine") for row in rows_of(dict(document), part, what="from_memory")):
            if row["audio"] == "leaderboard" and row["budget_frames"] == row["graphs"] == "auto":
                found[row["pass"], row["shape"], _gpu(document)] = {
                    "software": f"fastscribe, greedy, {row['pass']}",
                    "model": f"{row['shape']} (random weights)",
                    "hardware": _gpu(document),
                    "rtfx": row["rtfx"],
                    "audio": "synthetic, mean 7.85 s",
                    "source": f"commit {document['commit']}",
                }
    return list(found.values())


def _gpu(document: Document) -> str:
    return str(document["hardware"]["gpu"]["torch_name"])


def made_tables(root: Path) -> dict[Path, str]:
    """Return the tables of both documents."""
    folder = root / "docs" / "bench" / "gpu"
    published = json.loads((folder / "papers.json").read_text(encoding="utf-8"))
    return {
        root / "docs" / "gpu.md": gpu_tables(folder),
        root / "docs" / "papers.md": page(plan.stored(folder), published),
    }
