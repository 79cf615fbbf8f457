"""Parts that measure from files to results: the command, and fastscribe beside NeMo in turns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastscribe.bench import machine, throughput_passes
from scripts.gpu.part import Part, by_command


def files(part: Part) -> None:
    """Measure the command from Enter to exit, by one process and by several."""
    tdt = part.sizes.tdt
    part.notes.make({"what": "model", "shape": tdt}, partial(part.model, tdt))
    one, several = ["--device", str(part.device)], ["--devices", part.sizes.several_processes]
    for kind, where in (
        ("flac", one),
        ("flac", several),
        ("wav", one),
        ("mp3_44k1", one),
        ("flac_600_s", one),
        ("flac_44k1_stereo", one),
    ):
        _command(part, kind, where)
    for count in part.sizes.counts:
        _command(part, "flac", one, count)


def _command(part: Part, kind: str, where: Sequence[str], count: int | None = None) -> None:
    tdt = part.sizes.tdt
    if part.notes.make({"what": "audio", "audio": kind}, partial(part.many_files, kind), needs_s=15.0) is not None:
        key = {"what": "command", "shape": tdt, "audio": kind, "where": " ".join(where), "inputs": count or "all"}
        part.notes.measure(key, partial(_by_command, part, tdt, kind, count, where), needs_s=15.0)


def _by_command(part: Part, shape: str, kind: str, count: int | None, where: Sequence[str]) -> dict[str, Any]:
    """Run the command over some files, or over all, from Enter to exit."""
    inputs, out = part.many_files(kind)[0].parent, part.scratch / "runs" / "command"
    if count is not None:
        paths, inputs = part.files(kind), part.scratch / "linked" / f"{kind}-{count}"
        if not inputs.exists():
            links = throughput_passes.hard_links(paths[:count], inputs, -(-count // len(paths)))
            for link in links[count:]:
                link.unlink()
    shutil.rmtree(out, ignore_errors=True)
    with machine.gpu_samples(part.device) as samples:
        found = by_command(part.model(shape), inputs, out, where, part.notes.seconds_left)
    return found | samples


def nemo(part: Part) -> None:
    """Measure fastscribe and NeMo in alternation, over the same short files with the same weights."""
    _in_turns(part, "flac", part.sizes.nemo_batch_sizes)


def nemo_long(part: Part) -> None:
    """Measure the same over recordings of ten minutes."""
    _in_turns(part, "flac_600_s", part.sizes.nemo_long_batch_sizes)


def _in_turns(part: Part, kind: str, batch_sizes: Sequence[int]) -> None:
    from scripts.gpu import turns

    model = part.notes.make({"what": "model", "shape": part.sizes.tdt}, partial(part.model, part.sizes.tdt))
    archive = part.notes.make({"what": "archive", "shape": part.sizes.tdt}, partial(part.archive, part.sizes.tdt))
    paths = part.notes.make({"what": "audio", "audio": kind}, partial(part.files, kind))
    if model is not None and archive is not None and paths is not None:
        turns.take_turns(part.notes, model, archive, paths[: part.sizes.nemo_clips], str(part.device), batch_sizes)
