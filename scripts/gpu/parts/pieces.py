"""Parts that measure pieces of a pass alone: ceilings, kernels, encoder, decoder, and the profile of a pass."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from fastscribe import Transcriber
from fastscribe.bench import roofline
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import GraphMode
from fastscribe.types import Frames
from scripts.benchmarks import (
    decoding_speed,
    encoder_speed,
    gpu_utilization,
    operation_speed,
    single_passes,
)
from scripts.gpu.part import Part
from scripts.shapes import SHAPES


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


def kernels(part: Part) -> None:
    config = SHAPES[part.sizes.tdt].encoder
    for (rows, frames), name, form in product(part.sizes.kernel_cases, operation_speed.NAMES, ("triton", "torch")):
        part.notes.measure(
            {"what": name, "form": form, "rows": rows, "frames": frames},
            partial(operation_speed.measure, form, name, rows, frames, config.d_model, config.num_heads, part.device),
        )


def encoder(part: Part) -> None:
    """Measure the encoder in bf16 over the whole grid, then in fp8 at the most important sizes."""
    grid = [(rows, seconds) for seconds in part.sizes.grid_s for rows in part.sizes.grid_rows]
    for form, shape, points in (
        ("shipped", part.sizes.tdt, grid),
        ("shipped", part.sizes.rnnt, grid[: 2 * len(part.sizes.grid_rows)]),
        ("shipped_fp8", part.sizes.tdt, grid[:1] + grid[-1:]),
    ):
        _encode_all(part, form, shape, points)


def _encode_all(part: Part, form: str, shape: str, points: Iterable[tuple[int, float]]) -> None:
    key = {"what": "encoder", "shape": shape, "form": form}
    config = SHAPES[shape]
    encode = part.notes.make(
        key | {"step": "build"}, lambda: encoder_speed.build(form, read_checkpoint(part.model(shape)), part.device)
    )
    for rows, seconds in points if encode is not None else ():
        part.notes.measure(
            key | {"rows": rows, "seconds": seconds},
            partial(encoder_speed.measure, encode, config, [seconds] * rows, part.device),
        )


def decoder(part: Part) -> None:
    """Measure every mode at the first two numbers of rows for both shapes; then the TDT shape at all others."""
    rows, frames = part.sizes.decoder_rows, part.sizes.decoder_frames
    tuned = {shape: _tuned(part, shape) for shape in (part.sizes.tdt, part.sizes.rnnt)}
    for shape, transducer in tuned.items():
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


def _tuned(part: Part, shape: str) -> Any:
    key = {"what": "decoder", "shape": shape, "step": "tune"}
    return part.notes.make(key, partial(decoding_speed.random_transducer, SHAPES[shape], part.device), needs_s=10.0)


def _decode_all(
    part: Part, shape: str, transducer: Any, cases: Sequence[tuple[int, int]], modes: Sequence[GraphMode]
) -> None:
    key, width = {"what": "decoder", "shape": shape}, SHAPES[shape].encoder.d_model
    if "off" in modes:
        greedy_key = key | {"mode": "greedy", "dtype": "fp32", "rows": 1, "frames": cases[0][1]}
        part.notes.measure(greedy_key, lambda: _greedy(part, transducer, *cases[0], width))
    for mode in modes if cases else ():
        key = key | {"mode": mode}
        built = part.notes.make(key | {"step": "build"}, partial(decoding_speed.build, transducer, part.device, mode))
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
    plain = decoding_speed.decode(decoding_speed.build(transducer, part.device, "off"), given)
    return row | {"equal_to_greedy": decoding_speed.equal_share(plain[:1], [found]) == 1.0}


def _random_frames(part: Part, rows: int, frames: int, width: int) -> Frames:
    """Return random rows with between nine tenths of these frames and all of them."""
    lengths = np.linspace(frames, max(1, frames * 9 // 10), rows).astype(int).tolist()
    return decoding_speed.random_frames(lengths, width, part.device, seed=2)


def _decode(part: Part, transducer: Any, built: Any, rows: int, frames: int, width: int) -> dict[str, Any]:
    given = _random_frames(part, rows, frames, width)
    row = decoding_speed.measure(built, given, part.device)
    turns = decoding_speed.num_turns(transducer, given)
    plain = decoding_speed.decode(decoding_speed.build(transducer, part.device, "off"), given)
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
            features = encoder_speed.random_features(SHAPES[shape], [seconds] * rows, part.device)
            encode = partial(transcriber._recognizer.encode, features)
            notes.measure(
                key | {"step": "encoder"} | size, partial(gpu_utilization.profile, encode, part.device), needs_s=5.0
            )
        for kind in kinds[1:]:
            notes.measure(key | {"audio": kind}, partial(engine, kind), needs_s=5.0)


def _profile_engine(part: Part, transcriber: Transcriber, kind: str) -> dict[str, Any]:
    return single_passes.profiled(transcriber, part.clips(kind), transcriber._recognizer.choose_budget())
