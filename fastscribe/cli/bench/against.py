"""`fastscribe bench --against PEER`: the option sits in throughput.py; this is what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastscribe.cli.app import find_model
from fastscribe.cli.bench.common import numbers, result
from fastscribe.cli.terminal import show, show_table
from fastscribe.errors import UsageError

PEER_PYTHON_HELP = "Python of the environment that has the peer. Default: the one that runs this."
PEER_MODEL_HELP = "The peer's own model, if it is not --model. faster-whisper and onnx-asr need one."
PEER_BATCH_SIZES_HELP = "Batch sizes of the peer, separated by commas; the best counts. Default: several, by device."
_MIN_RUNS = 5


def run(
    peer: str,
    inputs: Sequence[str],
    model: str | None,
    device: str,
    dtype: str | None,
    peer_python: Path | None,
    runs: int,
    json_file: Path | None,
    report_html: Path | None,
    peer_model: str | None = None,
    peer_batch_sizes: str | None = None,
) -> None:
    """Raises UsageError for what cannot be compared, SideFailed, after showing what the side said, where one gives up."""
    from fastscribe.bench.model_name import model_name
    from fastscribe.bench.peer_comparison import peers, turns
    from fastscribe.bench.peer_comparison.compare import Comparison, compare
    from fastscribe.bench.peer_comparison.process import SideFailed
    from fastscribe.pipeline.recognizer import choose_device

    other = peers.find(peer)
    if not inputs:
        raise UsageError(f"--against {peer} needs recordings: fastscribe bench --against {peer} recordings/ --model ..")
    if runs < _MIN_RUNS:
        raise UsageError(f"--passes {runs}: to compare, at least {_MIN_RUNS}")
    python = peers.check_installed(other, peer_python)
    path = find_model(model, prefer_nemo=other.name == "nemo")
    its_model, same = peers.choose_model(other, path, peer_model)
    at = choose_device(device)
    sizes = numbers(peer_batch_sizes, "--peer-batch-sizes") if peer_batch_sizes else other.batch_sizes[at.type]
    if not same:
        show(f"{peer} loads {its_model}, not fastscribe's checkpoint: speed and texts are of different models")
    try:
        name = model_name(model, path)
        comparison = Comparison(
            other, python, inputs, path, name, its_model, same, str(at), dtype or "auto", sizes, runs
        )
        with result("against", at, turns.CASE_KEYS, json_file, report_html) as found:
            compare(comparison, found, show)
            show_table(_table(found["rows"]))
            for line in turns.about(found, peer):
                show(line)
    except SideFailed as error:
        show_table(error.messages)
        raise


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    from fastscribe.bench.peer_comparison.turns import label

    lines = [f"{'':28}{'dtype':>10}{'RTFx':>10}{'median s':>10}{'min':>9}{'max':>9}{'CPU s':>9}"]
    for row in rows:
        start = f"{label(row['side'], row['batch_size']):28}{row['dtype']:>10}"
        if "error" in row:
            lines.append(f"{start}  {row['error']}")
            continue
        spread = f"{row['wall_s']:10.2f}{row['wall_min_s']:9.2f}{row['wall_max_s']:9.2f}{row['cpu_s']:9.2f}"
        lines.append(f"{start}{row['rtfx']:10.1f}{spread}")
    return "\n".join(lines)
