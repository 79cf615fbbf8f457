#!/usr/bin/env python3
"""What scripts/gpu_check measures, a part a process: `gpu_parts.py NAME SETTINGS.json`, started by it and by nobody else.

A part writes a row for each measurement as soon as it is made (fastscribe/bench/notebook.py), so that what stops a part
costs one row. Measurements come in order of worth, and those for which no time is left are skipped. Models and audio are
made by the first part that wants them and kept in the scratch folder for the others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fastscribe import Options, Transcriber
from fastscribe.batching import Budget
from fastscribe.bench import (
    agreement,
    busy,
    ceilings,
    decoder,
    encoder,
    kernels,
    machine,
    synthetic,
    throughput,
)
from fastscribe.bench.notebook import Notebook, describe
from fastscribe.bench.random_model import random_checkpoint
from fastscribe.bench.shapes import SHAPES
from fastscribe.checkpoint import Checkpoint, native, read_checkpoint
from fastscribe.types import Frames

ROOT = Path(__file__).resolve().parents[1]
TEST_DATA = ROOT / "tests" / "data"
_LOGIT_SPREAD = 3.0  # of a random attention decoder
_FEW_FAILURES = 40  # of the tests, in the document


@dataclass(frozen=True)
class Sizes:
    """How much a check does. Shapes are names of fastscribe/bench/shapes.py, lengths are seconds."""

    tdt: str
    rnnt: str
    large_vocabulary: str
    attention: tuple[str, ...]  # with attention decoders
    matrix: int  # side of the large product
    rows: int  # of the model's own products
    copy_bytes: int
    kernel_cases: tuple[tuple[int, int], ...]  # rows, frames
    grid_rows: tuple[int, ...]
    grid_s: tuple[float, ...]
    decoder_rows: tuple[int, ...]
    decoder_frames: tuple[int, ...]
    clips: int
    repeats: int  # of the clips in a pass
    attention_clips: int  # once in a pass
    passes: int
    budgets: tuple[int, ...]  # frames
    compared: int  # clips for which dtypes are compared
    nemo_clips: int
    nemo_batch_sizes: tuple[int, ...]


FULL = Sizes(
    tdt="parakeet-tdt-0.6b",
    rnnt="parakeet-rnnt-1.1b",
    large_vocabulary="parakeet-tdt-0.6b-v3",
    attention=("canary-1b-flash", "canary-1b"),
    matrix=8192,
    rows=32768,
    copy_bytes=4 << 30,
    kernel_cases=((256, 100), (64, 250), (64, 750)),
    grid_rows=(128, 1, 32, 8, 256),
    grid_s=(20.0, 8.0, 60.0),
    decoder_rows=(256, 128, 32, 8, 1),
    decoder_frames=(100, 250),
    clips=2048,
    repeats=3,
    attention_clips=1024,
    passes=3,
    budgets=(16_384, 32_768, 65_536, 131_072),
    compared=256,
    nemo_clips=2048,
    nemo_batch_sizes=(128, 256),
)
QUICK = Sizes(
    tdt="tiny",
    rnnt="tiny-rnnt",
    large_vocabulary="tiny",
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
    compared=6,
    nemo_clips=6,
    nemo_batch_sizes=(3,),
)


@dataclass(frozen=True)
class Part:
    """What a part is given."""

    device: torch.device
    sizes: Sizes
    scratch: Path
    notes: Notebook

    def model(self, shape: str) -> Path:
        """A folder with a random checkpoint of this shape, made on the device where it is not there yet."""
        folder = self.scratch / "models" / shape
        if not folder.exists():
            unfinished = folder.with_name(f"{shape}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            native.write(self._random(shape), unfinished, torch.bfloat16)
            unfinished.rename(folder)
        return folder

    def _random(self, shape: str) -> Checkpoint:
        """On the device in seconds; on the CPU, in a minute, where the device fails, since much depends on a model."""
        try:
            return random_checkpoint(shape, device=str(self.device))
        except Exception as error:
            self.notes.write({"what": "random_checkpoint", "shape": shape, "error": describe(error)})
            return random_checkpoint(shape)

    def load(self, shape: str, dtype: str = "bf16", folder: Path | None = None, **options: Any) -> Transcriber:
        say = lambda line: self.notes.write({"what": "said", "shape": shape, "line": line})  # noqa: E731
        return Transcriber.load(folder or self.model(shape), str(self.device), dtype, Options(**options), say)

    def clips(self, kind: str) -> list[np.ndarray]:
        """ "leaderboard": its lengths; "20 s": all of that length, with about as much audio in all."""
        return _clips(kind, self.sizes.clips)

    def files(self, kind: str) -> list[Path]:
        """Recordings of leaderboard lengths on disk, made once: "flac", "wav", or "flac_44k1_stereo" (a quarter as many)."""
        folder = self.scratch / "audio" / kind
        if not folder.exists():
            waves = self.clips("leaderboard")
            extension, rate_hz, channels = kind[:4].rstrip("_"), synthetic.RATE_HZ, 1
            if kind.endswith("stereo"):
                waves, rate_hz, channels = waves[: max(1, len(waves) // 4)], 44100, 2
            unfinished = folder.with_name(f"{kind}.part")
            shutil.rmtree(unfinished, ignore_errors=True)
            synthetic.write_files(unfinished, waves, extension, _num_cores(), rate_hz, channels)
            unfinished.rename(folder)
        return sorted(folder.iterdir())

    def many_files(self, kind: str) -> list[Path]:
        """The same under several names each, for runs that are long enough and files that stay in memory."""
        folder = self.scratch / "linked" / kind
        if not folder.exists():
            throughput.hard_links(self.files(kind), folder, self.sizes.repeats)
        return sorted(folder.iterdir())


@cache
def _clips(kind: str, count: int) -> list[np.ndarray]:
    if kind == "leaderboard":
        return synthetic.waves(synthetic.leaderboard_lengths_s(count, seed=3), seed=4)
    seconds = float(kind.removesuffix(" s"))
    return synthetic.waves([seconds] * max(1, round(count * 7.85 / seconds)), seed=5)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


# --- the parts ------------------------------------------------------------------------------------------------------


def facts(part: Part) -> None:
    part.notes.write({"what": "commit", "commit": machine.commit(ROOT)})
    part.notes.measure({"what": "machine"}, lambda: machine.facts(part.device, part.scratch))


def tests(part: Part) -> None:
    """The tests that are marked cuda; without a GPU they are all skipped."""
    files = [path for path in sorted((ROOT / "tests").glob("test_*.py")) if "cuda" in path.read_text(encoding="utf-8")]
    report = part.scratch / "tests.xml"
    # A warning of a package that is newer here must not fail a test, nor a test module that wants a missing one all others.
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-W", "default", "--continue-on-collection-errors"]
    command += ["-v", "-p", "no:cacheprovider", "--durations=5", f"--junitxml={report}", *map(str, files)]
    part.notes.measure({"what": "pytest"}, lambda: _pytest(command, part.notes.seconds_left) | _counts(report))
    if report.exists():
        for row in list(_failures(report))[:_FEW_FAILURES]:
            part.notes.write({"what": "failure", **row})


def _pytest(command: Sequence[str], seconds: float) -> dict[str, Any]:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode(errors="replace")
        print(said, flush=True)
        raise TimeoutError(f"stopped after {seconds:.0f} s; its last words: {said[-300:]}") from error
    print(done.stdout, done.stderr, flush=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return {"exit_code": done.returncode, "closing_line": lines[-1] if lines else ""}


def _counts(report: Path) -> dict[str, int]:
    """Of all test modules: tests that ran, failed, or were skipped."""
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(report).iter("testsuite"):
        for key in totals:
            totals[key] += int(suite.get(key, "0"))
    return totals


def _failures(report: Path) -> Iterable[dict[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                name = f"{case.get('classname')}::{case.get('name')}"
                yield {"test": name, "message": (found.get("message") or "")[:400], "end": (found.text or "")[-700:]}


def ceilings_part(part: Part) -> None:
    device, notes, side, rows = part.device, part.notes, part.sizes.matrix, part.sizes.rows
    products = [(side, side, side)] + [
        (rows, k, n) for k, n in ((1024, 4096), (4096, 1024), (1024, 3072), (1024, 1024))
    ]
    for m, k, n in products:
        key = {"what": "matmul", "dtype": "bf16", "m": m, "k": k, "n": n}
        notes.measure(key, partial(ceilings.matmul, device, m, k, n, torch.bfloat16))
    notes.measure({"what": "copy"}, partial(ceilings.copy, device, part.sizes.copy_bytes))
    for (m, k, n), scales in product(products, ("row", "tensor")):
        key = {"what": "matmul", "dtype": "fp8", "scales": scales, "m": m, "k": k, "n": n}
        notes.measure(key, partial(ceilings.scaled_matmul, device, m, k, n, scales))
    for pinned in (True, False) if device.type == "cuda" else ():
        notes.measure(
            {"what": "host_to_device", "pinned": pinned}, partial(ceilings.host_to_device, device, 1 << 29, pinned)
        )


def kernels_part(part: Part) -> None:
    config = SHAPES[part.sizes.tdt].encoder
    for (rows, frames), name, form in product(part.sizes.kernel_cases, kernels.NAMES, ("triton", "torch")):
        part.notes.measure(
            {"what": name, "form": form, "rows": rows, "frames": frames},
            partial(kernels.measure, form, name, rows, frames, config.d_model, config.num_heads, part.device),
        )


def encoder_part(part: Part) -> None:
    """What is shipped over the whole grid, then the other forms where they matter most."""
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
        key | {"step": "build"}, lambda: encoder.build(form, read_checkpoint(part.model(shape)), part.device)
    )
    for rows, seconds in points if encode is not None else ():
        part.notes.measure(
            key | {"rows": rows, "seconds": seconds},
            partial(encoder.measure, encode, config, [seconds] * rows, part.device),
        )


def decoder_part(part: Part) -> None:
    sizes = part.sizes
    for shape in dict.fromkeys((sizes.tdt, sizes.rnnt, sizes.large_vocabulary)):
        key = {"what": "decoder", "shape": shape}
        transducer = part.notes.make(
            key | {"step": "tune"}, partial(decoder.random_transducer, SHAPES[shape], part.device), needs_s=10.0
        )
        if transducer is not None:
            _decode_all(part, key, transducer, SHAPES[shape].encoder.d_model)


def _decode_all(part: Part, key: dict[str, Any], transducer: Any, width: int) -> None:
    cases = [(rows, frames) for frames in part.sizes.decoder_frames for rows in part.sizes.decoder_rows]
    part.notes.measure(
        key | {"mode": "greedy", "rows": 1, "frames": cases[0][1]}, lambda: _greedy(part, transducer, *cases[0], width)
    )
    for mode, some in (("full", cases), ("chunked", cases), ("off", cases[:2])):
        key = key | {"mode": mode}
        built = part.notes.make(key | {"step": "build"}, partial(decoder.build, transducer, part.device, mode))
        for rows, frames in some if built is not None else ():
            part.notes.measure(
                key | {"rows": rows, "frames": frames}, partial(_decode, part, transducer, built, rows, frames, width)
            )
        if built is not None:
            built.close()


def _greedy(part: Part, transducer: Any, rows: int, frames: int, width: int) -> dict[str, Any]:
    given = _made_up(part, rows, frames, width)
    found, row = decoder.greedy_rate(transducer, given, part.device)
    plain = decoder.decode(decoder.build(transducer, part.device, "off"), given)
    return row | {"equal_to_greedy": decoder.equal_share(plain[:1], [found]) == 1.0}


def _made_up(part: Part, rows: int, frames: int, width: int) -> Frames:
    """Rows of nine tenths to all of so many frames."""
    lengths = np.linspace(frames, max(1, frames * 9 // 10), rows).astype(int).tolist()
    return decoder.random_frames(lengths, width, part.device, seed=2)


def _decode(part: Part, transducer: Any, built: Any, rows: int, frames: int, width: int) -> dict[str, Any]:
    given = _made_up(part, rows, frames, width)
    row = decoder.measure(built, given, part.device)
    turns = decoder.num_turns(transducer, given)
    plain = decoder.decode(decoder.build(transducer, part.device, "off"), given)
    share = decoder.equal_share(decoder.decode(built, given), plain)
    return row | {"turns": turns, "us_per_turn": 1000.0 * row["ms"] / turns, "equal_to_off_share": share}


def loss(part: Part) -> None:
    """`fastscribe bench loss`, a row for each of its rows."""
    stored = part.scratch / "loss.json"
    command = [sys.executable, "-m", "fastscribe", "bench", "loss", "--device", str(part.device), "--json", str(stored)]
    command += ["--quick", "--dtype", "fp32", "--dtype", "bf16"] if part.sizes is QUICK else []
    part.notes.measure({"what": "bench_loss"}, lambda: _bench_loss(command, part.notes.seconds_left))
    if stored.exists():
        document = json.loads(stored.read_text(encoding="utf-8"))
        for row in (*document["rows"], document["headline"]):
            part.notes.write({"what": "loss" if "form" in row else "loss_headline", **row})


def _bench_loss(command: Sequence[str], seconds: float) -> dict[str, Any]:
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=seconds
    )
    print(done.stderr, flush=True)
    return {"exit_code": done.returncode} | ({"error": done.stderr.strip()[-300:]} if done.returncode else {})


def memory(part: Part) -> None:
    tdt, rnnt = part.sizes.tdt, part.sizes.rnnt
    loaded = {
        shape: part.notes.make({"what": "load", "shape": shape}, partial(part.load, shape)) for shape in (tdt, rnnt)
    }
    for shape, kind in ((tdt, "leaderboard"), (rnnt, "leaderboard"), (tdt, "20 s"), (tdt, "60 s")):
        _from_memory(part, shape, kind, loaded[shape])
    for frames in part.sizes.budgets:
        _from_memory(part, tdt, "leaderboard", loaded[tdt], frames)
    for kind in ("20 s", "60 s"):
        _from_memory(part, rnnt, kind, loaded[rnnt])
    for mode in ("chunked", "off"):
        key = {"what": "load", "shape": tdt, "graphs": mode}
        other = part.notes.make(key, partial(part.load, tdt, cuda_graphs=mode), needs_s=5.0)
        _from_memory(part, tdt, "leaderboard", other, graphs=mode)


def _from_memory(
    part: Part, shape: str, kind: str, transcriber: Transcriber | None, frames: int | None = None, graphs: str = "auto"
) -> None:
    key = {"what": "from_memory", "shape": shape, "audio": kind, "budget_frames": frames or "auto", "graphs": graphs}
    if transcriber is None:
        return

    measure = partial(_in_budget, transcriber, part.clips(kind), frames, part.sizes.passes, part.sizes.repeats)
    part.notes.measure(key, measure, needs_s=5.0)


def _in_budget(
    transcriber: Transcriber, waves: Sequence[np.ndarray], frames: int | None, passes: int, repeats: int
) -> dict[str, Any]:
    """In batches of so many frames, or, None, as many as are chosen."""
    budget = transcriber.recognizer.choose_budget() if frames is None else Budget(frames)
    row = throughput.from_memory(transcriber, waves, budget, passes, repeats)
    return row | {"budget": budget.frames, "budget_bend": budget.bend, "budget_row_frames": budget.row_frames}


def attention(part: Part) -> None:
    """Models with attention decoders, with a published model's room for tokens and rows that end by themselves: RTFx and the
    decoder's share in each graph mode, by budget, and how far the texts are those without graphs."""
    waves, passes = part.clips("leaderboard")[: part.sizes.attention_clips], part.sizes.passes
    for shape in part.sizes.attention:
        wanted: list[Any] = []
        for mode in ("off", "auto", "chunked"):
            key = {"what": "attention", "shape": shape, "audio": "leaderboard", "graphs": mode}
            load = partial(_load_roomy, part, shape, mode)
            transcriber = part.notes.make(key | {"step": "load"}, load, needs_s=5.0)
            if transcriber is None:
                continue
            compare = partial(_compare_modes, transcriber, waves[: part.sizes.compared // 4], wanted)
            part.notes.measure(key | {"what": "attention_first_run", "against": "off"}, compare)
            for frames in (None, 8192):
                measure = partial(_in_budget, transcriber, waves, frames, passes, 1)
                part.notes.measure(key | {"budget_frames": frames or "auto"}, measure, needs_s=5.0)


def _load_roomy(part: Part, shape: str, mode: str) -> Transcriber:
    return part.load(shape, folder=_roomy(part, shape), cuda_graphs=mode)


def _roomy(part: Part, shape: str) -> Path:
    """Random models stop at a limit near what people say; this one has a token a frame and 50, and ends where no other
    token is likely, as happens every 40 tokens."""
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
        native.write(replace(made, config=config, weights=weights), folder, torch.bfloat16)
    return folder


def _compare_modes(transcriber: Transcriber, waves: Sequence[np.ndarray], wanted: list[Any]) -> dict[str, Any]:
    """And how long it takes when nothing has been captured yet."""
    start = perf_counter()
    found = agreement.hypotheses(transcriber, waves)
    seconds = perf_counter() - start
    wanted[:] = wanted or found
    return agreement.compare(found, wanted) | {"seconds": seconds}


def profile(part: Part) -> None:
    """Apart from the rest, because a profiler may take its process down."""
    tdt, rnnt = part.sizes.tdt, part.sizes.rnnt
    for shape, kind in ((tdt, "leaderboard"), (rnnt, "leaderboard"), (tdt, "60 s")):
        key = {"what": "profile", "shape": shape, "audio": kind}
        part.notes.measure(key, partial(_profile_engine, part, shape, kind), needs_s=5.0)
    rows, seconds = part.sizes.grid_rows[0], part.sizes.grid_s[0]
    key = {"what": "profile", "step": "encoder", "shape": tdt, "rows": rows, "seconds": seconds}
    part.notes.measure(key, partial(_profile_encoder, part, tdt, rows, seconds), needs_s=5.0)


def _profile_engine(part: Part, shape: str, kind: str) -> dict[str, Any]:
    transcriber = part.load(shape)
    return throughput.profiled(transcriber, part.clips(kind), transcriber.recognizer.choose_budget())


def _profile_encoder(part: Part, shape: str, rows: int, seconds: float) -> dict[str, Any]:
    encode = encoder.build("shipped", read_checkpoint(part.model(shape)), part.device)
    features = encoder.random_features(SHAPES[shape], [seconds] * rows, part.device)
    for _ in range(3):
        encode(features)
    return busy.profile(lambda: encode(features), part.device)


def files(part: Part) -> None:
    tdt, rnnt = part.sizes.tdt, part.sizes.rnnt
    half = max(1, _num_cores() // 2)
    _from_files(part, tdt, "flac", None)
    part.notes.measure({"what": "command", "shape": tdt, "audio": "flac"}, lambda: _by_command(part, tdt), needs_s=15.0)
    for shape, kind, threads in (
        (tdt, "flac_44k1_stereo", None),
        (rnnt, "flac", None),
        (tdt, "wav", None),
        (tdt, "flac", half),
        (tdt, "flac", 2),
    ):
        _from_files(part, shape, kind, threads)


def _from_files(part: Part, shape: str, kind: str, threads: int | None) -> None:
    def call() -> dict[str, Any]:
        transcriber = part.load(shape) if threads is None else part.load(shape, threads=threads)
        out = part.scratch / "runs" / f"{shape}-{kind}-{threads}"
        shutil.rmtree(out, ignore_errors=True)
        return throughput.from_files(transcriber, part.many_files(kind), out, part.sizes.passes, strict=True)

    key = {"what": "from_files", "shape": shape, "audio": kind, "threads": threads or "default"}
    part.notes.measure(key, call, needs_s=10.0)


def _by_command(part: Part, shape: str) -> dict[str, Any]:
    inputs, out = part.many_files("flac")[0].parent, part.scratch / "runs" / "command"
    shutil.rmtree(out, ignore_errors=True)
    return throughput.by_command(part.model(shape), inputs, out, str(part.device), part.notes.seconds_left)


def agreement_part(part: Part) -> None:
    """Labels in each dtype against fp32, for the small trained models among the tests' data and for a random one."""
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
        texts = [transcriber.tokenizer.sentence(hypothesis.token_ids) for hypothesis in found]
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
    """fastscribe, NeMo and transformers over the same files with the same weights, in turns."""
    import gpu_turns

    paths = part.files("flac")[: part.sizes.nemo_clips]
    gpu_turns.take_turns(part.notes, part.model(part.sizes.tdt), paths, str(part.device), part.sizes.nemo_batch_sizes)


def sanitizer(part: Part) -> None:
    """compute-sanitizer over the command on a small trained model: invalid accesses, and reads of what nobody wrote."""
    model, audio = TEST_DATA / "models" / "tdt_demo" / "model.nemo", sorted((TEST_DATA / "audio").glob("0[1-4]*.flac"))
    command = [sys.executable, "-m", "fastscribe", "transcribe", *map(str, audio), "-m", str(model), "-f", "txt"]
    for tool, graphs in product(("memcheck", "initcheck"), ("full", "off")):
        run = [*command, "--device", str(part.device), "--cuda-graphs", graphs]
        key = {"what": "sanitizer", "tool": tool, "graphs": graphs}
        part.notes.measure(key, partial(_sanitize, tool, run, graphs, part.notes), needs_s=15.0)


def _sanitize(tool: str, command: Sequence[str], graphs: str, notes: Notebook) -> dict[str, Any]:
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
    "ceilings": ceilings_part,
    "kernels": kernels_part,
    "encoder": encoder_part,
    "decoder": decoder_part,
    "loss": loss,
    "memory": memory,
    "attention": attention,
    "files": files,
    "agreement": agreement_part,
    "nemo": nemo,
    "profile": profile,
    "sanitizer": sanitizer,
}


def main() -> None:
    name, settings = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    notes = Notebook(Path(settings["rows"]), settings["seconds"])
    sizes = QUICK if settings["quick"] else FULL
    PARTS[name](Part(torch.device(settings["device"]), sizes, Path(settings["scratch"]), notes))


if __name__ == "__main__":
    main()
