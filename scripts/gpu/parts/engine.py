"""Parts that measure whole passes from batches in memory: engine, memory, and the agreement of dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from fastscribe import Transcriber
from fastscribe.bench import throughput_passes
from fastscribe.types import Batch
from scripts.benchmarks import agreement
from scripts.gpu.part import TEST_DATA, Part, in_budget


def engine(part: Part) -> None:
    """Measure the TDT shape from batches in host memory. Cold: every batch shape is new to the process, which has run a few."""
    shape, notes = part.sizes.tdt, part.notes
    key = {"what": "from_memory", "shape": shape, "audio": "leaderboard", "budget_frames": "auto", "graphs": "auto"}
    transcriber = notes.make(key | {"what": "load"}, lambda: part.load(shape))
    chosen = transcriber and notes.make(key | {"what": "budget"}, transcriber._recognizer.choose_budget)
    if transcriber is None or chosen is None:
        return
    few = throughput_passes.batches_of(part.clips("leaderboard", part.sizes.cold_clips, seed=7), transcriber, chosen)
    many = part.clips("leaderboard", part.sizes.clips * part.sizes.repeats)  # all different, where others repeat theirs
    batches = throughput_passes.batches_of(many, transcriber, chosen)
    about = {"budget": chosen.frames}
    notes.measure(key | {"pass": "very first"}, lambda: _cold_pass(transcriber, few) | about)
    notes.measure(key | {"pass": "cold"}, lambda: _cold_pass(transcriber, batches, few) | about)
    notes.measure(
        key | {"pass": "warm"},
        lambda: throughput_passes.from_batches(transcriber, batches, part.sizes.passes, 1) | about,
    )


def _cold_pass(transcriber: Transcriber, batches: Sequence[Batch], before: Sequence[Batch] = ()) -> dict[str, Any]:
    """Measure the first pass over these batches. `before`: the batches that this process has run so far."""
    seen = {batch.samples_BS.shape for batch in before}
    new = sum(batch.samples_BS.shape not in seen for batch in batches)
    counts = {"batches": len(batches), "new_shapes_share": new / len(batches)}
    return (
        throughput_passes.summary([throughput_passes.stream(transcriber, batches)])
        | throughput_passes.padding(batches)
        | counts
    )


def memory(part: Part) -> None:
    """Measure warm passes by shape, length, batch budget and graph mode. The TDT shape's own budget is in part engine."""
    sizes = part.sizes
    loaded: dict[str, Transcriber | None] = {}
    for shape in dict.fromkeys((sizes.tdt, sizes.ctc, sizes.rnnt, sizes.tdt_v2)):
        loaded[shape] = part.notes.make({"what": "load", "shape": shape}, partial(part.load, shape), needs_s=5.0)
        if shape != sizes.tdt:
            _from_memory(part, shape, "leaderboard", loaded[shape])
    for frames in sizes.budgets:
        _from_memory(part, sizes.tdt, "leaderboard", loaded[sizes.tdt], frames)
    for kind in ("20 s", "60 s"):
        _from_memory(part, sizes.tdt, kind, loaded[sizes.tdt])
    for frames in sizes.budgets:
        _from_memory(part, sizes.rnnt, "leaderboard", loaded[sizes.rnnt], frames)
    for mode in ("chunked", "off") if loaded[sizes.tdt] else ():
        build = partial(part.with_options, loaded[sizes.tdt], part.model(sizes.tdt), cuda_graphs=mode)
        other = part.notes.make({"what": "build", "shape": sizes.tdt, "graphs": mode}, build, needs_s=5.0)
        _from_memory(part, sizes.tdt, "leaderboard", other, graphs=mode)


def _from_memory(
    part: Part, shape: str, kind: str, transcriber: Transcriber | None, frames: int | None = None, graphs: str = "auto"
) -> None:
    key = {"what": "from_memory", "shape": shape, "audio": kind, "budget_frames": frames or "auto", "graphs": graphs}
    if transcriber is None:
        return

    passes = part.sizes.passes if frames is None else min(2, part.sizes.passes)
    measure = partial(in_budget, transcriber, part.clips(kind), frames, passes, part.sizes.repeats)
    part.notes.measure(key | {"pass": "warm"}, measure, needs_s=5.0)


def dtypes(part: Part) -> None:
    """Compare labels in bf16 and fp8 with fp32, for the tests' small trained models and for a random one."""
    spoken = [soundfile.read(path, dtype="int16")[0] for path in sorted((TEST_DATA / "audio").glob("[01]*.flac"))]
    for name in ("tdt_demo", "rnnt"):
        _compare_dtypes(part, f"trained {name}", lambda name=name: TEST_DATA / "models" / name / "model.nemo", spoken)
    clips = part.clips("leaderboard")[: part.sizes.compared]
    _compare_dtypes(part, f"random {part.sizes.tdt}", lambda: part.model(part.sizes.tdt), clips)


def _compare_dtypes(part: Part, name: str, model: Callable[[], Path], waves: Sequence[np.ndarray]) -> None:
    exact: list[tuple[Any, list[str]]] = []

    def call(dtype: str) -> dict[str, Any]:
        transcriber = Transcriber.load(model(), str(part.device), dtype, say=part._say)
        found = agreement.hypotheses(transcriber, waves)
        texts = [transcriber._model.tokenizer.sentence(hypothesis.token_ids) for hypothesis in found]
        exact.append((found, texts))
        wanted, wanted_texts = exact[0]
        same = sum(a == b for a, b in zip(texts, wanted_texts, strict=True)) / len(texts)
        return agreement.compare(found, wanted) | {"equal_texts_share": same}

    for dtype in ("fp32", "bf16", "fp8"):
        key = {"what": "agreement", "model": name, "dtype": dtype, "against": "fp32"}
        if part.notes.measure(key, partial(call, dtype)) is None and dtype == "fp32":
            return
