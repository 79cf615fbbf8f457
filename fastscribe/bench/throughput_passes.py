"""RTFx (seconds of audio transcribed per second) from memory and from files, and the time of each stage.

From memory: batches of int16 audio lie in (pinned) host memory, and texts with word times come out; reading and writing are
left out. From files: paths in, JSONL on disk out, as the command line does. Both with the model loaded, after a warm-up
that does not count.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastscribe.audio.inputs import expand
from fastscribe.bench.machine import gpu_samples
from fastscribe.config import OutputStyle
from fastscribe.cuda.device import host_array
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.interfaces import IDLE
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.windows import duration_s
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.output import open_journaled
from fastscribe.text.transcript import assemble
from fastscribe.transcriber import Transcriber, run_stats
from fastscribe.types import AudioInfo, Batch, Failure, Hypothesis, Int16Array, Source, Utterance

_ENCODER_STAGES = ("features", "encode")


def batches_of(waves: Sequence[Int16Array], transcriber: Transcriber, budget: Budget) -> list[Batch]:
    """int16 waves at the model's rate, planned as a run plans them, in memory that a GPU can read."""
    rate, device = transcriber._config.features.sample_rate, transcriber._recognizer.device
    named = [Utterance(AudioInfo(f"{i}", f"{i}", rate, 1, len(wave)), 0, len(wave)) for i, wave in enumerate(waves)]
    by_id = {utterance.audio.id: wave for utterance, wave in zip(named, waves, strict=True)}

    def num_frames(utterance: Utterance) -> int:
        return transcriber._config.num_frames(utterance.duration_s)

    batches = []
    for plan in batching.plan(named, num_frames, budget):
        lengths_B = np.array([utterance.num_samples for utterance in plan], dtype=np.int64)
        samples_BS = host_array((len(plan), int(lengths_B.max())), np.dtype(np.int16), device)
        samples_BS[:] = 0
        for row, utterance in zip(samples_BS, plan, strict=True):
            row[: utterance.num_samples] = by_id[utterance.audio.id]
        batches.append(Batch(plan, samples_BS, lengths_B))
    return batches


def stream(transcriber: Transcriber, batches: Iterable[Batch]) -> dict[str, Any]:
    """One pass: seconds of wall and by stage, audio and labels. Raises the first error of a batch."""
    engine = transcriber._engine
    engine.stopwatch = stopwatch = Stopwatch()
    audio_s, labels = 0.0, 0
    start = perf_counter()
    for batch, outcome in engine.stream(batches):
        if isinstance(outcome, Exception):
            raise outcome
        with stopwatch.time("assemble"):
            hypotheses = list(outcome)  # once: columns make a row each time it is read
            make_texts(transcriber, batch, hypotheses)
        audio_s += sum(utterance.duration_s for utterance in batch.utterances)
        labels += sum(len(hypothesis.token_ids) for hypothesis in hypotheses)
    return {"wall_s": perf_counter() - start, "audio_s": audio_s, "labels": labels, "stage_s": dict(stopwatch.seconds)}


def make_texts(transcriber: Transcriber, batch: Batch, hypotheses: Sequence[Hypothesis]) -> None:
    facts = transcriber._recognizer.facts
    frame_s, no_time = facts.token_frame_s, facts.zero_duration_punctuation
    for utterance, hypothesis in zip(batch.utterances, hypotheses, strict=True):
        assemble(utterance.audio, [(utterance, hypothesis)], transcriber._model.tokenizer, frame_s, no_time)


def from_batches(transcriber: Transcriber, batches: list[Batch], passes: int, repeats: int) -> dict[str, Any]:
    """The median of `passes` after a warm-up, each over the batches `repeats` times."""
    device = transcriber._recognizer.device
    stream(transcriber, batches)
    with gpu_samples(device) as samples:
        found = [stream(transcriber, batches * repeats) for _ in range(passes)]
    counts = {"batches": len(batches) * repeats, "peak_bytes": transcriber._recognizer.peak_bytes()}
    return summary(found) | samples | padding(batches) | counts


def read_batches(transcriber: Transcriber, inputs: Sequence[Any]) -> tuple[list[Batch], list[Failure]]:
    """What inputs hold, read, cut and planned as a run does it, and what failed."""
    with closing(transcriber._new_run()) as run:
        windows = run.windows(inputs, None)
        prepared = [item for window in windows if window is not IDLE for item in window]
        failures = [item for item in prepared if isinstance(item, Failure)]
        utterances = [utterance for item in prepared if not isinstance(item, Failure) for utterance in item]
        batches = []
        for loaded in transcriber._engine.load(run.plan(utterances)):
            batch, settled = (None, ()) if loaded is IDLE else loaded
            failures += [result for _, result in settled if isinstance(result, Failure)]
            batches += [] if batch is None else [batch]
    return batches, failures


def spread_over(inputs: Sequence[Any], count: int) -> list[Source | Failure]:
    """Return `count` recordings that are spread over those of the inputs, or all if there are no more."""
    num_all = sum(1 for _ in _expanded(inputs))
    return [found for number, found in enumerate(_expanded(inputs)) if number * count % num_all < count]


def _expanded(inputs: Sequence[Any]) -> Iterator[Source | Failure]:
    for given in inputs:
        yield from expand([given]) if isinstance(given, str) else [given]


def with_audio(transcriber: Transcriber, inputs: Sequence[Any], count: int, audio_s: float) -> int:
    """Return the number of recordings that together hold about `audio_s`, by the lengths of `count` of them."""
    looked_at: Sequence[Any] = spread_over(inputs, count)
    with closing(transcriber._new_run()) as run:
        windows = run.windows(looked_at, None)
        found_s = sum(duration_s(item) for window in windows if window is not IDLE for item in window)
    return math.ceil(audio_s * len(looked_at) / found_s) if found_s else count


def padding(batches: Sequence[Batch]) -> dict[str, Any]:
    padded = sum(batch.samples_BS.size for batch in batches)
    return {
        "padding_share": 1.0 - sum(int(batch.lengths_B.sum()) for batch in batches) / padded,
        "rows_of_largest_batch": max(len(batch.utterances) for batch in batches),
    }


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of several passes: the one of median time, with every time, and the shares of its stages."""
    walls = [one["wall_s"] for one in found]
    middle = min(found, key=lambda one: abs(one["wall_s"] - median(walls)))
    wall_s, stage_s = middle["wall_s"], middle["stage_s"]
    encoder_s = sum(stage_s.get(stage, 0.0) for stage in _ENCODER_STAGES)
    return {
        "rtfx": middle["audio_s"] / median(walls),
        "audio_s": middle["audio_s"],
        "walls_s": walls,
        "middle_wall_s": wall_s,  # of the pass whose stages these are
        "labels_per_audio_s": middle["labels"] / middle["audio_s"] if "labels" in middle else None,
        "stage_s": stage_s,
        "encoder_share_of_wall": encoder_s / wall_s,
        "outside_encoder_share_of_wall": 1.0 - encoder_s / wall_s,  # what decoding, copies and text add to the wall
    }


def from_files(
    transcriber: Transcriber,
    inputs: Sequence[Any],
    out: Path,
    passes: int,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """The median of `passes` over anything that can be transcribed, after one that does not count and leaves the files' pages
    warm.

    What fails is counted and costs its time. `device` is the transcriber's, if that has processes. `load_s`, `first_batch_s`
    and `total_s` are those of loading and of the first run, which nothing has warmed.
    """
    warm_up = _to_jsonl(transcriber, inputs, out / "warm_up")
    device = transcriber._recognizer.device if device is None else device
    with gpu_samples(device) as samples:
        found = [_to_jsonl(transcriber, inputs, out / f"pass{i}") for i in range(passes)]
    start = {"load_s": warm_up["load_s"]}
    start |= {key: warm_up["load_s"] + (warm_up[key] or 0.0) for key in ("first_batch_s", "total_s")}
    last = {key: found[-1][key] for key in ("files", "failed", "padding_share", "peak_bytes")}
    return summary(found) | samples | start | last


def _to_jsonl(transcriber: Transcriber, inputs: Sequence[Any], folder: Path) -> dict[str, Any]:
    start = transcriber.started_at = perf_counter()
    with open_journaled(folder, OutputRun(OutputStyle(), {}, overwrite=True)) as output:
        for result in transcriber.results(inputs, style=OutputStyle(), ledger=output.ledger):
            with transcriber.progress.stopwatch.time("write"):
                output.write(result)
    return run_stats(transcriber, perf_counter() - start, None).to_json()


def hard_links(paths: Sequence[Path], folder: Path, copies: int) -> list[Path]:
    """`copies` names for each file in `folder`, so that a run is long enough and its files stay in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for copy in range(copies):
        for path in paths:
            target = folder / f"{copy:03d}_{path.name}"
            os.link(path, target)
            found.append(target)
    return found
