"""Part tenfold: NVIDIA's acceleration of its transducers and CTC models, step by step, and what an hour of audio costs."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import Any

from fastscribe import Transcriber
from fastscribe._system.processors import cpu_name, usable_processors
from fastscribe.bench import synthetic
from fastscribe.bench.machine import release
from fastscribe.bench.speed import usd_per_hours
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.pipeline.prices import Price, price_of
from fastscribe.types import Batch
from scripts.gpu import ladder
from scripts.gpu.part import Part, by_command
from scripts.shapes import SHAPES

_PASSES = 2  # of a fast rung
_ENDPOINTS = (
    "https://github.com/huggingface/hf-endpoints-documentation/blob/05c783d3a783ef5d4f3a67c1c29672d0a4f61de1"
    "/docs/source/support/pricing.mdx"
)
_AWS = "https://github.com/skypilot-org/skypilot-catalog/blob/001367d22a0033fac286a8c71aeac7109e431bcb/catalogs/v7/aws/vms.csv"
# By vCPUs. The words name the one model by which these machines are known (Sapphire Rapids: 8488C at AWS, 8481C at Google; Ice
# Lake: 8375C at AWS; common knowledge, not in the texts), because another generation has another speed.
_CPU_PRICES = (
    (2, Price("Hugging Face Endpoints aws intel-spr x2", "Xeon 8488C", 0.067, _ENDPOINTS)),
    (4, Price("Hugging Face Endpoints aws intel-spr x4", "Xeon 8488C", 0.134, _ENDPOINTS)),
    (8, Price("Hugging Face Endpoints aws intel-spr x8", "Xeon 8488C", 0.268, _ENDPOINTS)),
    (16, Price("Hugging Face Endpoints aws intel-spr x16", "Xeon 8488C", 0.536, _ENDPOINTS)),
    (2, Price("Hugging Face Endpoints gcp intel-spr x2", "Xeon 8481C", 0.100, _ENDPOINTS)),
    (4, Price("Hugging Face Endpoints gcp intel-spr x4", "Xeon 8481C", 0.200, _ENDPOINTS)),
    (8, Price("Hugging Face Endpoints gcp intel-spr x8", "Xeon 8481C", 0.400, _ENDPOINTS)),
    (2, Price("AWS c6i.large", "Xeon 8375C", 0.085, _AWS)),
    (4, Price("AWS c6i.xlarge", "Xeon 8375C", 0.17, _AWS)),
)
_NEEDS_S = {"nemo": 12.0, "fastscribe": 4.0}
_NEMO_LOAD_S = 40.0
Row = dict[str, Any]
Batches = dict[tuple[str, str, int], list[Batch]]  # by side, order and number of clips


def tenfold(part: Part) -> None:
    """Measure every rung of every shape, the shapes in order of worth, and the CPU behind the first one.

    What a stored result of this code has is not prepared again: a shape takes a minute or more.
    """
    made: Batches = {}
    for shape in part.sizes.ladder:
        _climb(part, shape, made)
        if shape == part.sizes.ladder[0]:
            _on_the_cpu(part, shape)


def _climb(part: Part, shape: str, made: Batches) -> None:
    """Measure the rungs of a shape. `made` keeps the batches that do not depend on the shape."""
    rungs = ladder.rungs(SHAPES[shape])
    keys = {rung.name: {"what": "rung", "shape": shape, "rung": rung.name} for rung in rungs}
    wanted = [rung for rung in rungs if part.notes.known(keys[rung.name]) is None]
    load = partial(part.load, shape)
    shipped = part.notes.make({"what": "load", "shape": shape}, load, needs_s=10.0) if wanted else None
    if wanted and shipped is None:
        return
    nemo: ladder.Nemo | None = None
    if any(rung.side == "nemo" for rung in wanted):
        load_nemo = partial(_load_nemo, part, shape)
        nemo = part.notes.make({"what": "load", "shape": shape, "side": "nemo"}, load_nemo, needs_s=_NEMO_LOAD_S)
    for rung in rungs:
        if rung.side == "fastscribe":
            nemo = None  # its memory is for our larger batches
        if rung in wanted and rung.side == "nemo" and nemo is None:
            continue
        measure = partial(_rung, part, shape, rung, made, shipped, nemo)
        part.notes.measure(keys[rung.name], measure, needs_s=_NEEDS_S[rung.side])
    part.loaded.clear()


def _load_nemo(part: Part, shape: str) -> ladder.Nemo:
    archive = part.archive(shape)
    try:
        return ladder.Nemo(archive, SHAPES[shape], part.device)
    finally:
        archive.unlink()  # those of all shapes would fill the memory


def _rung(
    part: Part, shape: str, rung: ladder.Rung, made: Batches, shipped: Transcriber | None, nemo: ladder.Nemo | None
) -> Row:
    assert shipped is not None
    release(part.device)
    clips = part.clips("leaderboard")
    clips = clips[: part.sizes.slow_clips] if rung.is_slow else clips
    key = (rung.side, rung.order, len(clips))
    batches = made.get(key) or ladder.batches_of(shipped, clips, rung, part.sizes.ladder_batch)
    if rung.order != "planned":
        made[key] = batches
    if rung.side == "nemo":
        assert nemo is not None
        row = nemo.measure(batches, rung, _PASSES)
    else:
        built = ladder.build(shipped, read_checkpoint(part.model(shape)), rung)
        row = ladder.measure(built, batches, rung, _PASSES)
    device_name = shipped._recognizer.facts.device_name
    about = {"side": rung.side, "family": _family(shape), "clips": len(clips), "device_name": device_name}
    wall_s = row["audio_s"] / row["rtfx"]
    most_rows = max(len(batch.utterances) for batch in batches)
    usd_per_hour, price = price_of(device_name, None)
    about |= {"usd_per_hour": usd_per_hour, "price": price, "batch_size": most_rows, "wall_s": wall_s}
    return about | rung.about() | row | usd_per_hours(row["rtfx"], usd_per_hour)


def _family(shape: str) -> str:
    config = SHAPES[shape]
    return "CTC" if config.joint is None else "TDT" if config.durations else "RNN-T"


def _on_the_cpu(part: Part, shape: str) -> None:
    """Measure the command on this machine's CPU, over a few files. Its price is that of a listed machine with as many vCPUs."""
    for dtype in part.sizes.cpu_dtypes:
        key = {"what": "rung", "shape": shape, "rung": f"CPU, {dtype}"}
        part.notes.measure(key, partial(_cpu, part, shape, dtype), needs_s=15.0)


def _cpu(part: Part, shape: str, dtype: str) -> Row:
    folder, out = part.scratch / "audio" / "cpu", part.scratch / "runs" / f"cpu-{dtype}"
    if not folder.exists():
        synthetic.write_files(folder, part.clips("leaderboard")[: part.sizes.cpu_files], "flac", usable_processors())
    shutil.rmtree(out, ignore_errors=True)
    where = ["--device", "cpu", "--dtype", dtype]
    row = by_command(part.model(shape), folder, out, where, part.notes.seconds_left)
    listed = [price for vcpus, price in _CPU_PRICES if vcpus == usable_processors()]
    own = [price for price in listed if price.fits(cpu_name())]
    price = next(iter([*own, *listed]), None)
    about = {"side": "fastscribe", "family": _family(shape), "clips": part.sizes.cpu_files, "numbers": dtype}
    about |= {"device_name": cpu_name(), "cores": usable_processors(), "load_average": os.getloadavg()[0]}
    about |= {"price": None if price is None else price.cited, "price_is_of_this_cpu": bool(own)}
    usd_per_hour = None if price is None else price.usd_per_hour
    return row | about | {"usd_per_hour": usd_per_hour} | usd_per_hours(row["rtfx"], usd_per_hour)
