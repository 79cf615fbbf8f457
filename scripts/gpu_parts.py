#!/usr/bin/env python3
"""The parts of scripts/gpu_check, which starts each as a process: `gpu_parts.py NAME SETTINGS.json`.

A part writes a row after each measurement (scripts/measurement_log.py), so a crash or a time limit costs one row.
Measurements come in order of worth; those without time left are skipped. The first part that needs a model or audio makes
it and keeps it in the scratch folder. A part loads each model once. Exceptions: agreement and encoder compare dtypes and
forms, which change the weights in place.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import NormalDist
from time import monotonic, perf_counter
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from gpu_goals import read_rows

from fastscribe import Options, Transcriber
from fastscribe.bench import ceilings, machine, synthetic, throughput_passes
from fastscribe.bench.document import describe_error
from fastscribe.bench.random_model import random_checkpoint
from fastscribe.bench.shapes import SHAPES
from fastscribe.checkpoint import native_writer
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.config import GraphMode
from fastscribe.decode.decoder import Parts
from fastscribe.decode.families import DECODERS
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.local import LocalExecutor
from fastscribe.pipeline.run_rooms import fused_model
from fastscribe.types import Frames
from scripts.benchmarks import (
    agreement,
    decoding_speed,
    encoder_speed,
    gpu_utilization,
    loss_cases,
    operation_speed,
    single_passes,
)
from scripts.measurement_log import MeasurementLog

ROOT = Path(__file__).resolve().parents[1]
TEST_DATA = ROOT / "tests" / "data"
_LOGIT_SPREAD = 3.0  # of a random attention decoder
# Test modules in the order of what they decide.
_LOW_LEVEL = (
    "families/conformer/test_triton_kernels.py",
    "families/blocks/test_dot_product_attention.py",
    "families/conformer/test_subsampling.py",
    "families/blocks/test_quantized.py",
    "cuda/test_graph_capture.py",
    "decode/test_transducer_graphs.py",
    "cuda/test_encoder_graphs.py",
    "training/loss/test_cuda_kernels.py",
    "cuda/test_device.py",
    "decode/test_aed.py",
)
_SHARES = {"end_to_end": 6, "triton_kernels": 6, "cuda_kernels": 3}  # processes for the modules that take longest
_TEST_S = 60  # a test's time limit; the first ones compile
_MAX_RUNS = 4  # of a module whose process ends early


@dataclass(frozen=True)
class Sizes:
    """Amount of work. Shapes are names of fastscribe/bench/shapes.py; `_s` is seconds."""

    tdt: str
    tdt_v2: str  # with 1,024 tokens
    rnnt: str
    ctc: str
    attention: tuple[str, ...]  # with attention decoders
    matrix: int  # side of the large product
    rows: int  # of the model's own products
    copy_bytes: int
    kernel_cases: tuple[tuple[int, int], ...]  # rows, frames
    grid_rows: tuple[int, ...]
    grid_s: tuple[float, ...]
    decoder_rows: tuple[int, ...]  # the first two in every mode
    decoder_frames: tuple[int, ...]
    clips: int
    repeats: int  # of the clips in a pass
    attention_clips: int  # once in a pass
    passes: int
    budgets: tuple[int, ...]  # frames a batch
    cold_clips: int  # before the cold pass
    compared: int  # clips for which dtypes are compared
    nemo_clips: int
    nemo_batch_sizes: tuple[int, ...]
    several_processes: str  # of --devices
    counts: tuple[int, ...]  # of files, from Enter to exit


FULL = Sizes(
    tdt="parakeet-tdt-0.6b-v3",
    tdt_v2="parakeet-tdt-0.6b",
    rnnt="parakeet-rnnt-1.1b",
    ctc="parakeet-ctc-0.6b",
    attention=("canary-1b-flash", "canary-1b"),
    matrix=8192,
    rows=32768,
    copy_bytes=4 << 30,
    kernel_cases=((256, 100), (64, 250), (64, 750)),
    grid_rows=(128, 1, 32, 8, 256),
    grid_s=(20.0, 8.0, 60.0),
    decoder_rows=(256, 1, 128, 32, 8),
    decoder_frames=(100, 250),
    clips=2048,
    repeats=3,
    attention_clips=1024,
    passes=3,
    budgets=(8_192, 12_288, 16_384, 32_768, 65_536),
    cold_clips=256,
    compared=256,
    nemo_clips=2048,
    nemo_batch_sizes=(128, 256),
    several_processes="0,0",
    counts=(10, 1000, 10_000),
)
QUICK = Sizes(
    tdt="tiny",
    tdt_v2="tiny",
    rnnt="tiny-rnnt",
    ctc="tiny-ctc",
    attention=("tiny-canary",),
    matrix=128,
    rows=256,
    copy_bytes=1 << 20,
    kernel_cases=((2, 40),),
    grid_rows=(2, 1),
    grid_s=(1.0,),
    decoder_rows=(4, 1),
    decoder_frames=(40,),
    clips=6,
    repeats=2,
    attention_clips=3,
    passes=1,
    budgets=(400,),
    cold_clips=2,
    compared=6,
    nemo_clips=6,
    nemo_batch_sizes=(3,),
    several_processes="cpu:2",
    counts=(3, 30),
)


@dataclass(frozen=True)
class Part:
    """Arguments of a part."""

    device: torch.device
    sizes: Sizes
    scratch: Path
    notes: MeasurementLog

    def model(self, shape: str) -> Path:
        """Return the folder of a random checkpoint of this shape; make it on the device if it does not exist."""
        folder = self.scratch / "models" / shape
        if not folder.exists():
            unfinished = folder.with_name(f"{shape}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            native_writer.write(self._random(shape), unfinished, torch.bfloat16)
            unfinished.rename(folder)
        return folder

    def _random(self, shape: str) -> Checkpoint:
        """Make it on the device in seconds; if the device fails, on the CPU in a minute, because most parts need a model."""
        try:
            return random_checkpoint(shape, device=str(self.device))
        except Exception as error:
            self.notes.write({"what": "random_checkpoint", "shape": shape, "error": describe_error(error)})
            return random_checkpoint(shape)

    def load(self, shape: str, dtype: str = "bf16", folder: Path | None = None, **options: Any) -> Transcriber:
        return Transcriber.load(folder or self.model(shape), str(self.device), dtype, Options(**options), self._say)

    def with_options(self, loaded: Transcriber, folder: Path, **changes: Any) -> Transcriber:
        """Return the loaded model under other options. Only the decoder is built again; "off" has no encoder graphs either."""
        checkpoint, old = read_checkpoint(folder), loaded._recognizer
        options = replace(loaded.options, beam=old.beam, **changes)
        fused = fused_model(checkpoint, old.beam)
        decoder = DECODERS[old.decoder_name].build(Parts(old.model, checkpoint, old.device, options, self._say, fused))
        encode = old.model.encoder if options.cuda_graphs == "off" else old.encoder
        return Transcriber(
            checkpoint, LocalExecutor(Engine(replace(old, decoder=decoder, encoder=encode))), options, 0.0
        )

    def _say(self, line: str) -> None:
        self.notes.write({"what": "said", "line": line})

    def clips(self, kind: str) -> list[np.ndarray]:
        """ "leaderboard": its lengths; "20 s": all of that length, with about as much audio in all."""
        return _clips(kind, self.sizes.clips)

    def files(self, kind: str) -> list[Path]:
        """Recordings of leaderboard lengths on disk, made once: "flac", "wav", "mp3_44k1" or "flac_44k1_stereo" (a quarter as
        many); "flac_600_s": as much audio in recordings of ten minutes."""
        folder = self.scratch / "audio" / kind
        if not folder.exists():
            waves = self.clips("600 s" if kind.endswith("600_s") else "leaderboard")
            extension, rate_hz, channels = kind[:4].rstrip("_"), synthetic.RATE_HZ, 1
            if "44k1" in kind:
                waves, rate_hz, channels = waves[: max(1, len(waves) // 4)], 44100, 1 + kind.endswith("stereo")
            unfinished = folder.with_name(f"{kind}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            synthetic.write_files(unfinished, waves, extension, _num_cores(), rate_hz, channels)
            unfinished.rename(folder)
        return sorted(folder.iterdir())

    def many_files(self, kind: str) -> list[Path]:
        """Return the same files under several names, for runs that are long enough and files that stay in memory."""
        folder = self.scratch / "linked" / kind
        if not folder.exists():
            throughput_passes.hard_links(self.files(kind), folder, self.sizes.repeats)
        return sorted(folder.iterdir())


@cache
def _clips(kind: str, count: int, seed: int = 3) -> list[np.ndarray]:
    if kind == "leaderboard":
        return synthetic.waves(synthetic.leaderboard_lengths_s(count, seed), seed=4)
    seconds = float(kind.removesuffix(" s"))
    return synthetic.waves([seconds] * max(1, round(count * 7.85 / seconds)), seed=5)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


# --- the parts ------------------------------------------------------------------------------------------------------


def facts(part: Part) -> None:
    part.notes.write({"what": "commit", "commit": machine.commit(ROOT)})
    part.notes.measure({"what": "machine"}, lambda: machine.facts(part.device, part.scratch))


def tests(part: Part) -> None:
    """Run the low-level tests that are marked cuda; without a GPU all are skipped."""
    _run_tests(part, [ROOT / "tests" / name for name in _LOW_LEVEL])


def end_to_end(part: Part) -> None:
    """Run the other tests that are marked cuda."""
    low_level = {ROOT / "tests" / name for name in _LOW_LEVEL}
    paths = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path not in low_level)
    _run_tests(part, [path for path in paths if "mark.cuda" in path.read_text(encoding="utf-8")])


def _run_tests(part: Part, paths: Sequence[Path]) -> None:
    """Run modules in parallel processes, in this order; then the tests that need the whole device."""
    at_once = max(2, min(12, _num_cores() - 4))
    env = os.environ | {"OMP_NUM_THREADS": str(max(1, _num_cores() // at_once))}
    env |= {"GPU_CHECK_ROWS": str(part.notes.path)}

    def run(given: Sequence[Path], marks: str, share: str) -> None:
        options = ["-m", marks, "-v", "-p", "gpu_pytest", "-p", "no:cacheprovider", "-o", f"timeout={_TEST_S}"]
        # A warning of a newer package must not fail a test, nor a missing package the other modules.
        options += ["-W", "default", "--continue-on-collection-errors"]
        for _ in range(_MAX_RUNS):
            if _pytest(part.notes, [*options, *map(str, given)], env | {"GPU_CHECK_SHARE": share}) == 0:
                break

    with ThreadPoolExecutor(at_once) as pool:
        running = []
        for path in paths:
            count = _SHARES.get(path.stem.removeprefix("test_"), 1)
            for number in range(count):
                running.append(pool.submit(run, [path], "cuda and not whole_device", f"{number}/{count}"))
    for future in running:
        future.result()
    alone = [path for path in paths if "whole_device" in path.read_text(encoding="utf-8")]
    if alone:  # without a file, pytest would run everything
        run(alone, "cuda and whole_device", "0/1")


def _pytest(notes: MeasurementLog, arguments: Sequence[str], env: dict[str, str]) -> int:
    """Run pytest, whose plugin writes the rows of the tests, and write a row for the process.

    Returns the number of tests that another run can still take: those after the one that ended the process.
    """
    files = [Path(argument).name for argument in arguments if argument.endswith(".py")]
    row: dict[str, Any] = {"what": "pytest", "files": files, "share": env["GPU_CHECK_SHARE"], "run": uuid4().hex[:12]}
    start = perf_counter()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        command = [sys.executable, "-m", "pytest", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=env | {"GPU_CHECK_RUN": row["run"]},
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=max(0.0, notes.seconds_left),
            )
            row["exit_code"] = done.returncode
        except subprocess.TimeoutExpired:
            row["error"] = "stopped: out of time"
        said.seek(0)
        text = said.read()
    print(text, flush=True)
    during, num_left = _ended_during(notes.path, row["run"])
    # Codes 0, 1 and 5: passed, failed tests, nothing to run. pytest-timeout also ends a process with 1.
    if during is not None:
        row["error"] = "; ".join([row.get("error", f"ended during {during}"), f"{num_left} tests never ran"])
        row["during"] = during
    elif row.get("exit_code", 0) not in (0, 1, 5):
        row["error"] = f"pytest ended with {row['exit_code']}: {text[-300:]}"
    notes.write(row | {"wall_s": perf_counter() - start})
    return 0 if notes.seconds_left <= 0 else num_left


def _ended_during(rows: Path, run: str) -> tuple[str | None, int]:
    """Return the test or step in which this run's process ended early, or None, and the number of tests not started."""
    own = [row for row in read_rows(rows) if row.get("run") == run]
    started = [row["test"] for row in own if row["what"] == "started"]
    collected = sum(row["tests"] for row in own if row["what"] == "collected")
    if not own or any(row["what"] == "finished" for row in own):
        return None, 0
    return (started[-1] if started else "collection"), collected - len(started)


def ceilings_part(part: Part) -> None:
    device, notes, side, rows = part.device, part.notes, part.sizes.matrix, part.sizes.rows
    products = [(side, side, side)] + [
        (rows, k, n) for k, n in ((1024, 4096), (4096, 1024), (1024, 3072), (1024, 1024))
    ]
    for m, k, n in products:
        key = {"what": "matmul", "dtype": "bf16", "m": m, "k": k, "n": n}
        notes.measure(key, partial(ceilings.matmul, device, m, k, n, torch.bfloat16))
    notes.measure({"what": "copy"}, partial(ceilings.copy, device, part.sizes.copy_bytes))
    if device.type != "cuda":
        return  # processors multiply fp8 not at all, or some thousand times slower than bf16
    for (m, k, n), scales in product(products, ("row", "tensor")):
        key = {"what": "matmul", "dtype": "fp8", "scales": scales, "m": m, "k": k, "n": n}
        notes.measure(key, partial(ceilings.scaled_matmul, device, m, k, n, scales))
    for pinned in (True, False):
        notes.measure(
            {"what": "host_to_device", "pinned": pinned}, partial(ceilings.host_to_device, device, 1 << 29, pinned)
        )


def kernels_part(part: Part) -> None:
    config = SHAPES[part.sizes.tdt].encoder
    for (rows, frames), name, form in product(part.sizes.kernel_cases, operation_speed.NAMES, ("triton", "torch")):
        part.notes.measure(
            {"what": name, "form": form, "rows": rows, "frames": frames},
            partial(operation_speed.measure, form, name, rows, frames, config.d_model, config.num_heads, part.device),
        )


def encoder_part(part: Part) -> None:
    """Measure the shipped form over the whole grid, then the other forms at the most important sizes."""
    grid = [(rows, seconds) for seconds in part.sizes.grid_s for rows in part.sizes.grid_rows]
    for form, shape, points in (
        ("shipped", part.sizes.tdt, grid),
        ("shipped", part.sizes.rnnt, grid[: 2 * len(part.sizes.grid_rows)]),
        ("fused_torch", part.sizes.tdt, grid[:3]),
        ("plain", part.sizes.tdt, grid[:3]),
        ("shipped_fp8", part.sizes.tdt, grid[:1] + grid[-1:]),
        ("fused_triton", part.sizes.tdt, grid[:3]),
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


def decoder_part(part: Part) -> None:
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


def engine_part(part: Part) -> None:
    """Measure the TDT shape from batches in host memory. Cold: every batch shape is new to the process, which has run a few."""
    shape, notes = part.sizes.tdt, part.notes
    key = {"what": "from_memory", "shape": shape, "audio": "leaderboard", "budget_frames": "auto", "graphs": "auto"}
    transcriber = notes.make(key | {"what": "load"}, lambda: part.load(shape))
    chosen = transcriber and notes.make(key | {"what": "budget"}, transcriber._recognizer.choose_budget)
    if transcriber is None or chosen is None:
        return
    few = throughput_passes.batches_of(_clips("leaderboard", part.sizes.cold_clips, seed=7), transcriber, chosen)
    many = _clips("leaderboard", part.sizes.clips * part.sizes.repeats)  # all different, where others repeat theirs
    batches = throughput_passes.batches_of(many, transcriber, chosen)
    about = {"budget": chosen.frames}
    notes.measure(key | {"pass": "very first"}, lambda: single_passes.cold_pass(transcriber, few) | about)
    notes.measure(key | {"pass": "cold"}, lambda: single_passes.cold_pass(transcriber, batches, few) | about)
    notes.measure(
        key | {"pass": "warm"},
        lambda: throughput_passes.from_batches(transcriber, batches, part.sizes.passes, 1) | about,
    )
    notes.measure(key | {"what": "host_time_of_a_batch"}, lambda: single_passes.host_times(transcriber, batches[:8]))


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
    measure = partial(_in_budget, transcriber, part.clips(kind), frames, passes, part.sizes.repeats)
    part.notes.measure(key | {"pass": "warm"}, measure, needs_s=5.0)


def _in_budget(
    transcriber: Transcriber, waves: Sequence[np.ndarray], frames: int | None, passes: int, repeats: int
) -> dict[str, Any]:
    """Return batches of at most `frames` frames; None: the budget of a run."""
    budget = transcriber._recognizer.choose_budget() if frames is None else Budget(frames)
    row = single_passes.from_memory(transcriber, waves, budget, passes, repeats)
    return row | {
        "budget": budget.frames,
        "budget_bend": budget.quadratic_at_frames,
        "budget_row_frames": budget.overhead_frames_per_row,
    }


def loss(part: Part) -> None:
    """Measure memory and time of the training losses, as `python -m scripts.benchmarks.loss`, a row per case."""
    part.notes.measure({"what": "bench_loss"}, partial(_losses, part), needs_s=10.0)


def _losses(part: Part) -> dict[str, Any]:
    others, notes = loss_cases.libraries(), part.notes
    usable = [name for name, problem in others.items() if problem is None]
    if part.sizes is QUICK:
        cases, most_s = loss_cases.cases([1], ["fp32", "bf16"], usable, [100]), 1.0
    else:
        cases, most_s = loss_cases.cases([8, 32, 64], ["fp32", "bf16", "fp16"], usable), 10.0
    num_rows = 0
    for num_rows, row in enumerate(loss_cases.table(part.device, list(cases), most_s), 1):
        notes.write({"what": "loss", **row})
        if notes.seconds_left <= 0:
            return {"cases": num_rows, "error": "stopped: out of time", "other_libraries": others}
    batch_size = 1 if part.sizes is QUICK else 1024
    notes.write({"what": "loss_headline", **loss_cases.headline(part.device, "bf16", batch_size, most_s)})
    return {"cases": num_rows, "other_libraries": others}


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
                measure = partial(_in_budget, transcriber, waves, frames, passes, 1)
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


def profile(part: Part) -> None:
    """Profile kernels of whole passes, and the first stages alone. A part of its own: a profiler may end its process."""
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
            for stage in encoder_speed.STAGES:
                measure = partial(encoder_speed.measure_stage, stage, transcriber._recognizer, rows, seconds)
                notes.measure({"what": "stage", "shape": shape, "name": stage} | size, measure, needs_s=5.0)
            features = encoder_speed.random_features(SHAPES[shape], [seconds] * rows, part.device)
            encode = partial(transcriber._recognizer.encode, features)
            notes.measure(
                key | {"step": "encoder"} | size, partial(gpu_utilization.profile, encode, part.device), needs_s=5.0
            )
        for kind in kinds[1:]:
            notes.measure(key | {"audio": kind}, partial(engine, kind), needs_s=5.0)


def _profile_engine(part: Part, transcriber: Transcriber, kind: str) -> dict[str, Any]:
    return single_passes.profiled(transcriber, part.clips(kind), transcriber._recognizer.choose_budget())


def files(part: Part) -> None:
    tdt, rnnt, half = part.sizes.tdt, part.sizes.rnnt, max(1, _num_cores() // 2)
    where = ["--device", str(part.device)]
    for kind in ("flac", "wav", "mp3_44k1", "flac_44k1_stereo", "flac_600_s"):
        key = {"what": "command", "shape": tdt, "audio": kind, "where": " ".join(where), "inputs": "all"}
        part.notes.measure(key, partial(_by_command, part, tdt, kind, None, where), needs_s=15.0)
    for count in part.sizes.counts:
        key = {"what": "command", "shape": tdt, "audio": "flac", "where": " ".join(where), "inputs": count}
        part.notes.measure(key, partial(_by_command, part, tdt, "flac", count, where), needs_s=15.0)
    where = ["--devices", part.sizes.several_processes]
    key = {"what": "command", "shape": tdt, "audio": "flac", "where": " ".join(where), "inputs": "all"}
    part.notes.measure(key, partial(_by_command, part, tdt, "flac", None, where), needs_s=15.0)
    loaded = part.notes.make({"what": "load", "shape": tdt}, partial(part.load, tdt))
    _from_files(part, tdt, "flac", None, loaded)
    for threads in (half, 2):
        _from_files(part, tdt, "flac", threads, loaded)
    loaded = None
    loaded = part.notes.make({"what": "load", "shape": rnnt}, partial(part.load, rnnt), needs_s=10.0)
    _from_files(part, rnnt, "flac", None, loaded)


def _from_files(part: Part, shape: str, kind: str, threads: int | None, loaded: Transcriber | None) -> None:
    def call() -> dict[str, Any]:
        assert loaded is not None
        transcriber = part.with_options(loaded, part.model(shape), threads=threads) if threads else loaded
        out = part.scratch / "runs" / f"{shape}-{kind}-{threads}"
        shutil.rmtree(out, ignore_errors=True)
        return throughput_passes.from_files(transcriber, part.many_files(kind), out, part.sizes.passes, strict=True)

    key = {"what": "from_files", "shape": shape, "audio": kind, "threads": threads or "default"}
    if loaded is not None:
        part.notes.measure(key, call, needs_s=10.0)


def _by_command(part: Part, shape: str, kind: str, count: int | None, where: Sequence[str]) -> dict[str, Any]:
    """Run the command over some files, or over all, from Enter to exit."""
    inputs, out = part.many_files(kind)[0].parent, part.scratch / "runs" / "command"
    if count is not None:
        paths, inputs = part.files(kind), part.scratch / "linked" / f"{kind}-{count}"
        if not inputs.exists():
            throughput_passes.hard_links(paths[:count], inputs, max(1, count // len(paths)))
    shutil.rmtree(out, ignore_errors=True)
    with machine.gpu_samples(part.device) as samples:
        found = single_passes.by_command(part.model(shape), inputs, out, where, part.notes.seconds_left)
    return found | samples


def agreement_part(part: Part) -> None:
    """Compare labels in bf16 and fp8 with fp32, for the tests' small trained models and for a random one."""
    spoken = [_read(path) for path in sorted((TEST_DATA / "audio").glob("[01]*.flac"))]
    for name in ("tdt_demo", "rnnt"):
        _compare_dtypes(part, f"trained {name}", lambda name=name: TEST_DATA / "models" / name / "model.nemo", spoken)
    clips = part.clips("leaderboard")[: part.sizes.compared]
    _compare_dtypes(part, f"random {part.sizes.tdt}", lambda: part.model(part.sizes.tdt), clips)


def _compare_dtypes(part: Part, name: str, model: Callable[[], Path], waves: Sequence[np.ndarray]) -> None:
    exact: list[tuple[Any, list[str]]] = []

    def call(dtype: str) -> dict[str, Any]:
        transcriber = Transcriber.load(model(), str(part.device), dtype)
        found = agreement.hypotheses(transcriber, waves)
        texts = [transcriber._tokenizer.sentence(hypothesis.token_ids) for hypothesis in found]
        exact.append((found, texts))
        wanted, wanted_texts = exact[0]
        same = sum(a == b for a, b in zip(texts, wanted_texts, strict=True)) / len(texts)
        return agreement.compare(found, wanted) | {"equal_texts_share": same}

    for dtype in ("fp32", "bf16", "fp8"):
        key = {"what": "agreement", "model": name, "dtype": dtype, "against": "fp32"}
        if part.notes.measure(key, partial(call, dtype)) is None and dtype == "fp32":
            return


def _read(path: Path) -> np.ndarray:
    import soundfile

    return soundfile.read(path, dtype="int16")[0]


def nemo(part: Part) -> None:
    """Measure fastscribe and NeMo in alternation, over the same files with the same weights."""
    import gpu_turns

    paths = part.files("flac")[: part.sizes.nemo_clips]
    gpu_turns.take_turns(part.notes, part.model(part.sizes.tdt), paths, str(part.device), part.sizes.nemo_batch_sizes)


def sanitizer(part: Part) -> None:
    """Run compute-sanitizer over the command with a small trained model, for invalid accesses and uninitialised reads."""
    model, audio = TEST_DATA / "models" / "tdt_demo" / "model.nemo", sorted((TEST_DATA / "audio").glob("0[1-4]*.flac"))
    command = [sys.executable, "-m", "fastscribe", "transcribe", *map(str, audio), "-m", str(model), "-f", "txt"]
    for tool, graphs in product(("memcheck", "initcheck"), ("full", "off")):
        run = [*command, "--device", str(part.device), "--cuda-graphs", graphs]
        key = {"what": "sanitizer", "tool": tool, "graphs": graphs}
        part.notes.measure(key, partial(_sanitize, tool, run, graphs, part.notes), needs_s=15.0)


def _sanitize(tool: str, command: Sequence[str], graphs: str, notes: MeasurementLog) -> dict[str, Any]:
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # torch's allocator hands out parts of larger blocks, between which no tool can see; a capture cannot do without it.
    env = os.environ | ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if graphs == "off" else {})
    done = subprocess.run(
        [program, "--tool", tool, "--print-limit", "5", "--error-exitcode", "9", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=env,
        timeout=notes.seconds_left,
    )
    print(done.stdout[-4000:], done.stderr[-2000:], flush=True)
    summary = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line]
    return {"exit_code": done.returncode, "summary": summary[-1].strip("= ") if summary else None}


PARTS: dict[str, Callable[[Part], None]] = {
    "facts": facts,
    "tests": tests,
    "decoder": decoder_part,
    "engine": engine_part,
    "profile": profile,
    "ceilings": ceilings_part,
    "memory": memory,
    "encoder": encoder_part,
    "files": files,
    "agreement": agreement_part,
    "end_to_end": end_to_end,
    "nemo": nemo,
    "attention": attention,
    "loss": loss,
    "kernels": kernels_part,
    "sanitizer": sanitizer,
}


def main() -> None:
    name, settings = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    notes = MeasurementLog(Path(settings["rows"]), settings["end"] - monotonic())
    sizes = QUICK if settings["quick"] else FULL
    PARTS[name](Part(torch.device(settings["device"]), sizes, Path(settings["scratch"]), notes))


if __name__ == "__main__":
    main()
