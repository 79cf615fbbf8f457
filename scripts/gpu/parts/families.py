"""Parts that measure other families: attention decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastscribe import Transcriber
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import read_checkpoint
from scripts.benchmarks import (
    agreement,
)
from scripts.gpu.part import Part, in_budget

_LOGIT_SPREAD = 3.0  # of a random attention decoder


def attention(part: Part) -> None:
    """Measure models with attention decoders and a published model's token limit, in which rows end by themselves.

    For each graph mode: RTFx and the decoder's share by budget, and the agreement with the texts made without graphs.
    """
    waves, passes = part.clips("leaderboard")[: part.sizes.attention_clips], part.sizes.passes
    for shape in part.sizes.attention:
        key = {"what": "attention", "shape": shape, "audio": "leaderboard"}
        load = lambda shape=shape: part.load(shape, folder=_roomy(part, shape), cuda_graphs="auto")  # noqa: E731
        loaded = part.notes.make(key | {"step": "load"}, load, needs_s=5.0)
        if loaded is None:
            continue
        wanted: list[Any] = []
        for mode in ("off", "auto", "chunked"):
            key = key | {"graphs": mode}
            build = partial(part.with_options, loaded, _roomy(part, shape), cuda_graphs=mode)
            transcriber = loaded if mode == "auto" else part.notes.make(key | {"step": "build"}, build, needs_s=5.0)
            if transcriber is None:
                continue
            compare = partial(_compare_modes, transcriber, waves[: part.sizes.compared // 4], wanted)
            part.notes.measure(key | {"what": "attention_first_run", "against": "off"}, compare)
            for frames in (None, 8192):
                measure = partial(in_budget, transcriber, waves, frames, passes, 1)
                part.notes.measure(key | {"budget_frames": frames or "auto"}, measure, needs_s=5.0)


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


def _compare_modes(transcriber: Transcriber, waves: Sequence[np.ndarray], wanted: list[Any]) -> dict[str, Any]:
    """Measure the agreement with the first mode, and the seconds of a first run, which captures the graphs."""
    start = perf_counter()
    found = agreement.hypotheses(transcriber, waves)
    seconds = perf_counter() - start
    wanted[:] = wanted or found
    return agreement.compare(found, wanted) | {"seconds": seconds}
