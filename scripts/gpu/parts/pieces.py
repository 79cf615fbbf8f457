"""Parts that measure pieces of a pass alone: ceilings, encoder, decoder, and the profile of a pass."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastscribe import Transcriber
from fastscribe.bench import roofline, throughput_passes
from fastscribe.bench.roofline import time_call
from fastscribe.bench.work import encoder_gflop_per_audio_s
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import GraphMode, ModelConfig
from fastscribe.decode.families import build_greedy
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.types import Features, Frames
from scripts.benchmarks import decoding_speed
from scripts.gpu.part import Part
from scripts.shapes import SHAPES

_TOP, _MAX_NAME = 16, 90  # kernels of a profile, and characters of their names
Encode = Callable[[Features], Frames]


def ceilings(part: Part) -> None:
    device, notes, side, rows = part.device, part.notes, part.sizes.matrix, part.sizes.rows
    products = [(side, side, side)] + [
        (rows, k, n) for k, n in ((1024, 4096), (4096, 1024), (1024, 3072), (1024, 1024))
    ]
    for m, k, n in products:
        key = {"what": "matmul", "dtype": "bf16", "m": m, "k": k, "n": n}
        notes.measure(key, partial(roofline.matmul, device, m, k, n, torch.bfloat16))
    notes.measure({"what": "copy"}, partial(roofline.copy, device, part.sizes.copy_bytes))
    if device.type != "cuda":
        return  # processors multiply fp8 not at all, or some thousand times slower than bf16
    for (m, k, n), scales in product(products, ("row", "tensor")):
        key = {"what": "matmul", "dtype": "fp8", "scales": scales, "m": m, "k": k, "n": n}
        notes.measure(key, partial(roofline.scaled_matmul, device, m, k, n, scales))
    for pinned in (True, False):
        notes.measure(
            {"what": "host_to_device", "pinned": pinned},
            partial(roofline.host_to_device, device, 1 << 29, pinned),
        )


def encoder(part: Part) -> None:
    """Measure the encoder as shipped in bf16 over the whole grid, then in fp8 at the most important sizes.

    Work is counted from the shape (fastscribe/bench/work.py), so padding and recomputation do not count as work.
    """
    grid = [(rows, seconds) for seconds in part.sizes.grid_s for rows in part.sizes.grid_rows]
    for form, dtype, shape, points in (
        ("shipped", "bf16", part.sizes.tdt, grid),
        ("shipped", "bf16", part.sizes.rnnt, grid[: 2 * len(part.sizes.grid_rows)]),
        ("shipped_fp8", "fp8", part.sizes.tdt, grid[:1] + grid[-1:]),
    ):
        key = {"what": "encoder", "shape": shape, "form": form}
        encode = part.notes.make(key | {"step": "build"}, partial(_encoder, part, shape, dtype))
        for rows, seconds in points if encode is not None else ():
            measure = partial(measure_encoder, encode, SHAPES[shape], [seconds] * rows, part.device)
            part.notes.measure(key | {"rows": rows, "seconds": seconds}, measure)


def _encoder(part: Part, shape: str, dtype: str) -> Encode:
    return Recognizer.build(read_checkpoint(part.model(shape)), str(part.device), dtype).encode


def _random_features(config: ModelConfig, lengths_s: Sequence[float], device: torch.device) -> Features:
    """Return random features, a row for each length."""
    front = config.features
    lengths = [round(length_s * front.sample_rate) // front.hop_length for length_s in lengths_s]
    mel_BMT = torch.randn(len(lengths), front.num_mels, max(lengths), device=device)
    return Features(mel_BMT, torch.tensor(lengths, device=device))


def measure_encoder(
    encode: Encode, config: ModelConfig, lengths_s: Sequence[float], device: torch.device
) -> dict[str, Any]:
    """Measure one batch of rows of these lengths, from features on."""
    features = _random_features(config, lengths_s, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    timing = time_call(lambda: encode(features), device, seconds=0.4, most=60)
    audio_s = sum(lengths_s)
    work_gflop = encoder_gflop_per_audio_s(config, lengths_s) * audio_s
    return {
        "rtfx": 1000.0 * audio_s / timing.ms,
        "tflop_per_s": work_gflop / timing.ms,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        **asdict(timing),
    }


def decoder(part: Part) -> None:
    """Measure every mode at the first two numbers of rows for both shapes; then the TDT shape at all others."""
    rows, frames = part.sizes.decoder_rows, part.sizes.decoder_frames
    tuned: dict[str, Any] = {}
    for shape in (part.sizes.tdt, part.sizes.rnnt):
        key, make = {"what": "decoder", "shape": shape, "step": "tune"}, decoding_speed.random_transducer
        transducer = tuned[shape] = part.notes.make(key, partial(make, SHAPES[shape], part.device), needs_s=10.0)
        if transducer is not None:
            _decode_all(
                part, shape, transducer, [(number, frames[0]) for number in rows[:2]], ("full", "chunked", "off")
            )
    transducer = tuned[part.sizes.tdt]
    if transducer is not None:
        others = [
            (number, length)
            for length in frames
            for number in rows
            if (number, length) not in product(rows[:2], frames[:1])
        ]
        _decode_all(part, part.sizes.tdt, transducer, others, ("full", "chunked"))


def _decode_all(
    part: Part, shape: str, transducer: Any, cases: Sequence[tuple[int, int]], modes: Sequence[GraphMode]
) -> None:
    key, width = {"what": "decoder", "shape": shape}, SHAPES[shape].encoder.d_model
    if "off" in modes:
        greedy_key = key | {"mode": "greedy", "dtype": "fp32", "rows": 1, "frames": cases[0][1]}
        part.notes.measure(greedy_key, lambda: _greedy(part, transducer, *cases[0], width))
    for mode in modes if cases else ():
        key = key | {"mode": mode}
        built = part.notes.make(key | {"step": "build"}, partial(build_greedy, transducer, part.device, mode, print))
        for rows, frames in cases if built is not None else ():
            part.notes.measure(
                key | {"rows": rows, "frames": frames}, partial(_decode, part, transducer, built, rows, frames, width)
            )
        if built is not None:
            built.close()


def _greedy(part: Part, transducer: Any, rows: int, frames: int, width: int) -> dict[str, Any]:
    """Compare in float32: in bf16 a row's products round otherwise beside other rows, and a random joint has many near ties."""
    transducer, given = copy.deepcopy(transducer).float(), _random_frames(part, rows, frames, width)
    given = Frames(given.frames_BTD.float(), given.lengths_B)
    found, row = decoding_speed.greedy_rate(transducer, given, part.device)
    plain = decoding_speed.decode(build_greedy(transducer, part.device, "off", print), given)
    return row | {"equal_to_greedy": decoding_speed.equal_share(plain[:1], [found]) == 1.0}


def _random_frames(part: Part, rows: int, frames: int, width: int) -> Frames:
    """Return random rows with between nine tenths of these frames and all of them."""
    lengths = np.linspace(frames, max(1, frames * 9 // 10), rows).astype(int).tolist()
    return decoding_speed.random_frames(lengths, width, part.device, seed=2)


def _decode(part: Part, transducer: Any, built: Any, rows: int, frames: int, width: int) -> dict[str, Any]:
    given = _random_frames(part, rows, frames, width)
    row = decoding_speed.measure(built, given, part.device)
    turns = decoding_speed.num_turns(transducer, given)
    plain = decoding_speed.decode(build_greedy(transducer, part.device, "off", print), given)
    share = decoding_speed.equal_share(decoding_speed.decode(built, given), plain)
    return row | {"turns": turns, "us_per_turn": 1000.0 * row["ms"] / turns, "equal_to_off_share": share}


def profile(part: Part) -> None:
    """Profile kernels of whole passes and of the encoder. A part of its own: a profiler may end its process."""
    sizes, notes = part.sizes, part.notes
    # CUPTI reports only the first turn of a graph that loops by itself, so the decoder replays chunks here.
    graphs: GraphMode = "chunked" if part.device.type == "cuda" else "auto"
    for shape, kinds in ((sizes.tdt, ("leaderboard", "60 s")), (sizes.rnnt, ("leaderboard",))):
        key: dict[str, Any] = {"what": "profile", "shape": shape, "graphs": graphs}
        transcriber = notes.make(key | {"step": "load"}, partial(part.load, shape, cuda_graphs=graphs), needs_s=5.0)
        if transcriber is None:
            continue
        engine = partial(_profile_engine, part, transcriber)
        notes.measure(key | {"audio": kinds[0]}, partial(engine, kinds[0]), needs_s=5.0)
        if shape == sizes.tdt:
            rows, seconds = sizes.grid_rows[0], sizes.grid_s[0]
            size = {"rows": rows, "seconds": seconds}
            features = _random_features(SHAPES[shape], [seconds] * rows, part.device)
            encode = partial(transcriber._recognizer.encode, features)
            notes.measure(key | {"step": "encoder"} | size, partial(profiled, encode, part.device), needs_s=5.0)
        for kind in kinds[1:]:
            notes.measure(key | {"audio": kind}, partial(engine, kind), needs_s=5.0)


def _profile_engine(part: Part, transcriber: Transcriber, kind: str) -> dict[str, Any]:
    """Run one pass under the profiler after one without: the GPU's busy share, and its kernels."""
    budget = transcriber._recognizer.choose_budget()
    batches = throughput_passes.batches_of(part.clips(kind), transcriber, budget)
    run = partial(throughput_passes.stream, transcriber, batches)
    return {"unprofiled_wall_ms": 1000 * run()["wall_s"], **profiled(run, part.device)}


def profiled(call: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Run `call` once under the profiler, which slows the host a little. Return nothing on a CPU."""
    if device.type != "cuda":
        return {}
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=activities) as profiler:
        start = perf_counter()
        call()
        torch.cuda.synchronize(device)
        wall_s = perf_counter() - start
    return summary(_on_the_device(profiler), wall_s)


def _on_the_device(profiler: Any) -> list[tuple[str, float, float]]:
    """Return (name, begin, end) in microseconds of kernels and copies."""
    found = []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:  # type: ignore[attr-defined]  # not in its __all__
            found.append((str(event.name), float(event.time_range.start), float(event.time_range.end)))
    return found


def summary(spans: Iterable[tuple[str, float, float]], wall_s: float) -> dict[str, Any]:
    spans = list(spans)
    total_us: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for name, begin, end in spans:
        total_us[name] += end - begin
        count[name] += 1
    top = sorted(total_us, key=lambda name: -total_us[name])[:_TOP]
    busy_us = covered((begin, end) for _, begin, end in spans)
    inside_us = max((end for *_, end in spans), default=0.0) - min((begin for _, begin, _ in spans), default=0.0)
    return {
        "profiled_wall_ms": 1000 * wall_s,
        "busy_ms": busy_us / 1000,
        "busy_share_of_wall": busy_us / 1e6 / wall_s if wall_s > 0 else 0.0,
        "busy_share_first_to_last": busy_us / inside_us if inside_us > 0 else 0.0,
        "kernels": sum(count.values()),
        "top_kernels": [{"name": name[:_MAX_NAME], "count": count[name], "ms": total_us[name] / 1000} for name in top],
    }


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
