"""The tables of docs/papers.md and docs/gpu.md, from stored results; `scripts/peers.py --write` puts them into the documents.

docs/papers.md: what five works claim, and what scripts/gpu_check measured of it. docs/gpu.md: the goals and the published rates
of other software, beside the newest measurement of each.

A cell is the newest measurement on a kind of card; without one it says so. Published figures are in docs/bench/gpu/papers.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.gpu import plan
from scripts.gpu.goals import GOALS, goals, rows_of, shown
from scripts.gpu.plan import card_of

Document = Mapping[str, Any]
Cells = dict[str, str]  # of a row, by the heads of their columns
NOTHING = "not measured"
_GB = 1e9
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

    @property
    def origin(self) -> Cells:
        return {"card": self.card, "commit, date": self.when}


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
    """Return the Markdown of the summary and of a section for each work."""
    sections = [section(documents, published) for section in SECTIONS]
    summary = markdown([row for one in sections for row in one.summary])
    return "\n\n".join([summary, *(one.text() for one in sections)])


@dataclass(frozen=True)
class Section:
    """A work: its title, claim and conditions, rows for the summary, and tables with titles."""

    title: str
    claim: str
    differs: str
    summary: list[Cells]
    tables: list[tuple[str, list[Cells]]]

    def text(self) -> str:
        parts = [f"## {self.title}", self.claim, self.differs]
        for title, rows in self.tables:
            parts.append(f"{title}\n\n{markdown(rows)}" if rows else f"{title} {NOTHING.capitalize()}.")
        return "\n\n".join(parts)


def markdown(rows: Sequence[Cells]) -> str:
    """Return the table of rows that have the same heads."""
    heads = tuple(rows[0])
    lines = (heads, ("---",) * len(heads), *(row.values() for row in rows))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _summary(claim: str, name: str, cells: Sequence[tuple[str, str]]) -> list[Cells]:
    """Return a row for each card, or one without a measurement."""
    return [{"work": name, "claim": claim, "here": here, "card": kind} for here, kind in cells or [(NOTHING, "-")]]


def _number(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def _link(url: str) -> str:
    return f"[source]({url})"


# --- the works ------------------------------------------------------------------------------------------------------


def tenfold(documents: Sequence[Document], published: Document) -> Section:
    about = published["tenfold"]
    rungs = newest(documents, "tenfold", ("shape", "rung"), what="rung")
    rows: list[Cells] = []
    cells: list[tuple[str, str]] = []
    for kind in sorted({one.card for one in rungs}):
        for shape in dict.fromkeys(one["shape"] for one in rungs):
            of_shape = [one for one in rungs if one.card == kind and one["shape"] == shape]
            of_shape.sort(key=lambda one: _RUNGS.index(one["rung"]) if one["rung"] in _RUNGS else len(_RUNGS))
            first, before = next((one for one in of_shape if one["rung"] == _RUNGS[0]), None), None
            for one in of_shape:
                is_step = before is not None and before["side"] == one["side"] and one["rung"] in _RUNGS
                rows.append(
                    {
                        "model": shape,
                        "card": kind,
                        "way": one["rung"],
                        "what is new": one["changes"] or "-",
                        "RTFx": _number(one["rtfx"]),
                        "over the one before": f"{one['rtfx'] / before['rtfx']:.2f}" if before and is_step else "-",
                        "over NeMo's first": "-" if first is None else f"{one['rtfx'] / first['rtfx']:.1f}",
                        "USD for a million hours": _number(_per_million_hours(one.row)),
                        "commit, date": one.when,
                    }
                )
                before = one
            last = next((one for one in reversed(of_shape) if one["rung"] == "planned"), None)
            if last is not None and first is not None:
                cells.append((f"{shape}: {last['rtfx'] / first['rtfx']:.1f} times NeMo's first way", kind))
            cpu = [one for one in of_shape if one["rung"].startswith("CPU")]
            costs = [cost for cost in map(_per_million_hours, (one.row for one in cpu)) if cost is not None]
            own = None if last is None else _per_million_hours(last.row)
            if costs and own:
                cells.append((f"{shape}: {min(costs) / own:.1f} times cheaper than the CPU", kind))
    claim = f"up to {about['times']} times as fast; {about['cheaper_than_a_cpu']} times cheaper than a CPU"
    return Section(
        "Tenfold acceleration of NeMo's transducers and CTC models",
        f"The claim ({_link(about['source'])}): weights in bf16 without autocast, label looping, and CUDA graphs with loops"
        f" inside make NeMo's models up to {about['times']} times as fast, and transcribing {about['cheaper_than_a_cpu']}"
        " times cheaper than on a CPU.",
        "What differs: random weights of the published shapes and synthetic audio from memory, mean 7.85 s, on a newer card."
        " Ways that decode one row at a time run fewer recordings. Ours without any step is greedy decoding of one row at a"
        " time, of float32 weights under autocast.",
        _summary(claim, "NeMo, tenfold", cells),
        [("The ladder, each way with one change.", rows), *_prices(rungs)],
    )


def _prices(rungs: Sequence[Found]) -> list[tuple[str, list[Cells]]]:
    """Return the table of the prices that the ladder took; none where no price is known."""
    priced = [one for one in rungs if one["usd_per_hour"] is not None]
    found = dict.fromkeys((one["device_name"], f"{one['usd_per_hour']:g}", one["price"]) for one in priced)
    rows = [dict(zip(("device", "USD an hour", "source"), price, strict=True)) for price in found]
    return [("Prices.", rows)] if rows else []


def _per_million_hours(row: Mapping[str, Any]) -> float | None:
    """Return USD for a million hours of audio; None where no price is known."""
    cost = row.get("usd_per_1000000_audio_hours")
    return None if cost is None else float(cost)


def fp16_loss(documents: Sequence[Document], published: Document) -> Section:
    keys = ("form", "library", "dtype", "batch_size", "num_labels", "num_tokens")
    cases = newest(documents, "loss", keys, what="loss")
    rows, cells = [], []
    for one in sorted(cases, key=lambda one: (one.card, one["num_tokens"], one["num_labels"], one["batch_size"])):
        rows.append(
            {
                "tokens": str(one["num_tokens"]),
                "batch": str(one["batch_size"]),
                "labels": str(one["num_labels"]),
                "loss": f"{one['library']}, {'sample by sample' if one['form'] == 'joint' else one['form']}",
                "dtype": one["dtype"],
                "peak, GB": _bytes(one.row),
                "ms": _number(one["ms"], ",.1f"),
                **one.origin,
            }
        )
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
    return Section(
        "The transducer loss in fp16",
        f"The claim ({_link(published['fp16_loss']['source'])}): a loss that takes logits in fp16"
        " needs about half of the memory of fp32.",
        "What differs: 200 frames, joint width 640; `materialised` is the article's form, a joint network whose logits of the"
        " whole batch exist, and `logits` the loss alone. fastscribe's own form never has all logits. Peaks are torch's"
        " allocator's, inputs and gradients included.",
        _summary("half of fp32's memory", "fp16 loss", cells),
        [("Peak memory and time, forward and backward.", rows)],
    )


def _bytes(row: Mapping[str, Any]) -> str:
    return "does not fit" if row.get("fits") is False else _number(_in_gb(row.get("peak_bytes")), ".2f")


def _in_gb(value: float | None) -> float | None:
    return None if value is None else value / _GB


def samplewise(documents: Sequence[Document], published: Document) -> Section:
    about = published["samplewise"]
    keys = ("form", "dtype", "batch_size", "num_tokens")
    cases = newest(documents, "samplewise", keys, what="samplewise")
    cases += newest(documents, "samplewise", ("num_tokens",), what="samplewise_largest")
    rows = [
        {
            "tokens": str(one["num_tokens"]),
            "way": _way(one.row),
            "dtype": one["dtype"],
            "batch": _number(one["batch_size"]),
            "peak, GB": _bytes(one.row),
            "by formula, GB": _number(_in_gb(one["formula_bytes"]), ".2f"),
            "ms": _number(one["ms"]),
            **one.origin,
        }
        for one in sorted(
            cases, key=lambda one: (one.card, one["num_tokens"], one["form"], one["dtype"], one["batch_size"] or 0)
        )
    ]
    cells = [
        (f"{one['peak_bytes'] / _GB:.2f} GB with {one['num_tokens']:,} tokens, {one['dtype']}", one.card)
        for one in cases
        if one["form"] == "joint" and one["batch_size"] == about["batch_size"] and one["peak_bytes"]
    ]
    claim = f"{about['bytes'] / _GB:g} GB for a batch of {about['batch_size']:,} and {about['audio_s']} s"
    return Section(
        "Sample-wise transducer training",
        f"The claim ({_link(about['source'])}): loss and gradients sample by sample, {claim}.",
        "What differs: 500 frames of 80 ms and 150 labels, width 640, TDT with five durations, inputs and logits in 16 bits,"
        " weights of the joint network in float32.",
        _summary(claim, "sample-wise training", cells),
        [("Peak memory and time, forward and backward.", rows)],
    )


def _way(row: Mapping[str, Any]) -> str:
    if row["what"] == "samplewise_largest":
        return "all logits at once, the largest batch that fits"
    return "sample by sample" if row["form"] == "joint" else "all logits at once"


def encoder_decoder(documents: Sequence[Document], published: Document) -> Section:
    about = published["encoder_decoder"]
    batches = newest(documents, "training_speed", ("shape", "batches"), what="training_batches")
    rows = [
        {
            "batches": one["batches"],
            "padding": _number(one["padding_share"], ".0%"),
            "audio s a batch": _number(one["batch_audio_s"]),
            "recordings a batch": _number(one["batch_rows"], ".0f"),
            "ms a step": _number(one["step_ms"]),
            "audio s a second": _number(one["audio_s_per_s"]),
            "peak, GB": _number(_in_gb(one["peak_bytes"]), ".1f"),
            "model": one["shape"],
            **one.origin,
        }
        for one in batches
    ]
    cells = []
    for kind in sorted({one.card for one in batches}):
        of_card = {one["batches"]: one for one in batches if one.card == kind}
        first, best = of_card.get("random"), of_card.get("by what fits in memory")
        if first is not None and best is not None:
            sizes = best["batch_audio_s"] / first["batch_audio_s"]
            speeds = best["audio_s_per_s"] / first["audio_s_per_s"]
            cells.append((f"batches {sizes:.1f} times as large, training {speeds:.1f} times as fast", kind))
    ratios = newest(documents, "attention", ("shape", "over", "graphs", "budget_frames"), what="ratio")
    kept = [one for one in ratios if one["graphs"] == "auto" and one["budget_frames"] == "auto"]
    inference = [
        {
            "models": f"{one['shape']} over {one['over']}",
            "RTFx": _number(one["rtfx"]),
            "RTFx of the other": _number(one["rtfx_of_other"]),
            "ratio": _number(one["rtfx_ratio"], ".2f"),
            "decoder's share of each": " / ".join(
                _number(one[name], ".0%") for name in ("decoder_share", "decoder_share_of_other")
            ),
            **one.origin,
        }
        for one in kept
    ]
    speed = [(f"{one['rtfx_ratio']:.1f} times as fast", one.card) for one in kept]
    claim = f"batches {about['batch_size_times']} times as large, {about['fewer_gpus_times']} times fewer GPUs"
    return Section(
        "Training and inference efficiency of encoder-decoder models",
        f"The claim ({_link(about['source'])}): {claim}, by buckets of duration and of tokens whose batch sizes are searched; a"
        f" decoder of 4 layers for one of 24, with a larger encoder, is {about['inference_times']} times as fast.",
        "What differs: one GPU, random weights, noise of lengths as the Open ASR Leaderboard's, without reading; fewer buckets."
        " Random batches have as many rows as fit if all are the longest.",
        [
            *_summary(claim, "encoder-decoder, training", cells),
            *_summary(
                f"{about['inference_times']} times as fast", "encoder-decoder, canary-1b-flash over canary-1b", speed
            ),
        ],
        [("Training, by how batches are made.", rows), ("Inference, full batches from memory.", inference)],
    )


def convolutions(documents: Sequence[Document], published: Document) -> Section:
    about = published["convolutions"]
    known = {(one["shape"], one["batch_size"], one["seconds"], one["dtype"]): one for one in about["latencies"]}
    cases = newest(documents, "convolutions", ("shape", "batch_size", "duration_s"), what="latency")
    rows, cells = [], []
    for one in sorted(cases, key=lambda one: (one["shape"], one.card, one["duration_s"], one["batch_size"])):
        for ours, theirs in (("bf16", "fp16"), ("tf32", "tf32")):
            latency = one[ours]
            published_one = known.get((one["shape"], one["batch_size"], one["duration_s"], theirs))
            if latency is None:
                continue
            mean_ms = None if published_one is None else published_one["mean_ms"]
            rows.append(
                {
                    "model": one["shape"],
                    "batch": str(one["batch_size"]),
                    "seconds": f"{one['duration_s']:g}",
                    "dtype": ours,
                    **{f"{share} %": _number(latency.get(f"p{share}_ms"), ".2f") for share in (90, 95, 99)},
                    "mean": _number(latency.get("average_ms"), ".2f"),
                    "NVIDIA's mean": _number(mean_ms, ".2f"),
                    "ratio": "-" if mean_ms is None else f"{mean_ms / latency['average_ms']:.1f}",
                    **one.origin,
                }
            )
            if (one["batch_size"], one["duration_s"], ours) == (16, 16.7, "bf16") and mean_ms is not None:
                cells.append((f"{one['shape']}: {latency['average_ms']:.1f} ms against {mean_ms:.1f}", one.card))
    sources = ", ".join(f"[{shape}]({url})" for shape, url in about["source"].items())
    training = [
        {
            "model": one["shape"],
            "batch": str(one["batch_size"]),
            "dtype": one["dtype"],
            "NVIDIA": f"{one['sequences_per_s']:.1f}",
            "fastscribe": NOTHING,
        }
        for one in about["training"]
    ]
    return Section(
        "Jasper and QuartzNet",
        f"The claim ({sources}): latencies of a batch on {about['hardware']}.",
        "What differs: the card; bf16 for NVIDIA's fp16; random weights and synthetic audio; from samples on the host to texts,"
        " where NVIDIA's ends with the model. fastscribe does not train these families, so its rate of training has no cell.",
        _summary("a batch of 16 recordings of 16.7 s in fp16", "Jasper, QuartzNet", cells),
        [("Latency of a batch, ms.", rows), ("Training, sequences a second on one A100.", training)],
    )


SECTIONS: tuple[Callable[[Sequence[Document], Document], Section], ...] = (
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
    in_order = [
        {
            "software": rate["software"],
            "model": rate["model"],
            "hardware": rate["hardware"],
            "RTFx": f"{rate['rtfx']:,.0f}",
            "audio": rate["audio"],
            "source": rate["source"],
        }
        for rate in sorted(rates, key=lambda rate: -rate["rtfx"])
    ]
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
