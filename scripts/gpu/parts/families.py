"""Parts that measure other families: attention decoders, and models of convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastscribe import Transcriber
from fastscribe.bench import batch_latency
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.pipeline.local import LocalExecutor
from scripts.benchmarks import agreement
from scripts.gpu.part import Part, in_budget

_LOGIT_SPREAD = 3.0  # of a random attention decoder


def attention(part: Part) -> None:
    """Measure models with attention decoders and a published model's token limit, in which rows end by themselves.

    For each graph mode: RTFx and the decoder's share by budget, and the agreement with the texts made without graphs.
    """
    waves, passes = part.clips("leaderboard")[: part.sizes.attention_clips], part.sizes.passes
    measured: dict[tuple[str, int | str, str], dict[str, Any]] = {}  # by graphs, budget, shape
    for shape in part.sizes.attention:
        key = {"what": "attention", "shape": shape, "audio": "leaderboard"}
        load = lambda shape=shape: part.load(shape, folder=_roomy(part, shape), cuda_graphs="auto")  # noqa: E731
        loaded = part.notes.make(key | {"step": "load"}, load, needs_s=5.0)
        if loaded is None:
            continue
        wanted: list[Any] = []
        plain: Transcriber | None = None
        for mode in ("off", "auto", "chunked"):
            key = key | {"graphs": mode}
            build = partial(part.with_options, loaded, _roomy(part, shape), cuda_graphs=mode)
            transcriber = loaded if mode == "auto" else part.notes.make(key | {"step": "build"}, build, needs_s=5.0)
            if transcriber is None:
                continue
            plain = transcriber if mode == "off" else plain
            compare = partial(_compare_modes, transcriber, plain, waves[: part.sizes.compared // 4], wanted)
            part.notes.measure(key | {"what": "attention_first_run", "against": "off"}, compare)
            for frames in (None, 8192):
                measure = partial(in_budget, transcriber, waves, frames, passes, 1)
                row = part.notes.measure(key | {"budget_frames": frames or "auto"}, measure, needs_s=5.0)
                if row is not None:
                    measured[mode, frames or "auto", shape] = row
    _compare_shapes(part, measured)


def _compare_shapes(part: Part, measured: Mapping[tuple[str, int | str, str], dict[str, Any]]) -> None:
    """Write how many times as fast the first shape is as each other one, with the decoders' shares of the device's time."""
    for (mode, frames, shape), row in measured.items():
        first = measured.get((mode, frames, part.sizes.attention[0]))
        if first is None or first is row:
            continue
        shares = {"decoder_share": _decoder_share(first), "decoder_share_of_other": _decoder_share(row)}
        ratio = {"rtfx_ratio": first["rtfx"] / row["rtfx"], "rtfx": first["rtfx"], "rtfx_of_other": row["rtfx"]}
        key = {"what": "ratio", "shape": part.sizes.attention[0], "over": shape, "audio": "leaderboard"}
        part.notes.write(key | {"graphs": mode, "budget_frames": frames} | ratio | shares)


def _decoder_share(row: Mapping[str, Any]) -> float:
    stage_s = row["stage_s"]
    return float(stage_s["decode"] / sum(stage_s[stage] for stage in ("features", "encode", "decode")))


def _roomy(part: Part, shape: str) -> Path:
    """Return a random model whose rows end by themselves, every 40 tokens on average.

    The usual random model stops at a limit near the length of speech. This one has a limit of a token per frame plus 50.
    """
    folder = part.scratch / "models" / f"{shape}-roomy"
    if not folder.exists():
        made = read_checkpoint(part.model(shape))
        aed = made.config.aed
        assert aed is not None
        weight, bias = (made.weights[f"aed.head.{name}"].clone() for name in ("weight", "bias"))
        end_id = made.tokenizer.pieces.index("<|endoftext|>")
        weight[end_id] = 0.0
        bias[end_id] = _LOGIT_SPREAD * NormalDist().inv_cdf((1 / 40) ** (1 / made.config.num_labels))
        config = replace(made.config, aed=replace(aed, tokens_per_frame=1.0, max_extra_tokens=50))
        weights = {**made.weights, "aed.head.weight": weight, "aed.head.bias": bias}
        native_writer.write(replace(made, config=config, weights=weights), folder, torch.bfloat16)
    return folder


def _compare_modes(
    transcriber: Transcriber, plain: Transcriber | None, waves: Sequence[np.ndarray], wanted: list[Any]
) -> dict[str, Any]:
    """Measure the agreement with `plain`, which has no graphs, and the seconds of a first run, which captures the graphs.

    `wanted` keeps what `plain` finds; it finds nothing by itself if its row is stored.
    """
    start = perf_counter()
    found = agreement.hypotheses(transcriber, waves)
    seconds = perf_counter() - start
    if not wanted:
        wanted[:] = found if plain in (None, transcriber) else agreement.hypotheses(plain, waves)
    return agreement.compare(found, wanted) | {"seconds": seconds}


def convolutions(part: Part) -> None:
    """Measure the latency of one batch of convolutional models, as NVIDIA's tables of Jasper and QuartzNet have it.

    A case has both dtypes in turns: bf16 beside float32 weights whose products may be TF32, as in those tables.
    """
    sizes, notes = part.sizes, part.notes
    effort = batch_latency.Effort(sizes.latency_iterations, sizes.latency_most_s)
    for shape in sizes.convolutional:
        cases = [
            {"what": "latency", "shape": shape, "batch_size": rows, "duration_s": duration_s}
            for duration_s, rows in product(sizes.latency_s, sizes.latency_rows)
        ]
        if all(notes.known(case) for case in cases):
            continue
        both = notes.make({"what": "load", "shape": shape}, partial(_with_tf32, part, shape), needs_s=5.0)
        for case in cases if both is not None else ():
            notes.measure(case, partial(_latency, both, case, effort), needs_s=3.0)


def _with_tf32(part: Part, shape: str) -> list[Transcriber]:
    """Return the model in float32, on a GPU with TF32 allowed, and in bf16."""
    exact, rounded = (part.load(shape, dtype) for dtype in ("fp32", "bf16"))
    if part.device.type == "cpu":
        return [exact, rounded]
    # A recognizer forbids TF32 for fp32 alone.
    recognizer = replace(exact._recognizer, dtype="tf32")
    allowed = Transcriber(read_checkpoint(part.model(shape)), LocalExecutor(recognizer), exact.options, 0.0)
    return [allowed, rounded]


def _latency(both: Sequence[Transcriber], case: dict[str, Any], effort: batch_latency.Effort) -> dict[str, Any]:
    """Return a row of each dtype, and how much faster the second is."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        [found] = batch_latency.rows(case["shape"], both, [case["duration_s"]], [case["batch_size"]], effort)
    finally:
        matmul.fp32_precision = before
    if errors := [row["error"] for row in found if "error" in row]:
        raise RuntimeError("; ".join(errors))
    kept = [{name: value for name, value in row.items() if name not in case and "_runs" not in name} for row in found]
    return {row["dtype"]: row for row in kept} | {"speedup_ratio": found[1]["speedup_ratio"]}
