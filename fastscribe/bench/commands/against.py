"""`fastscribe bench --against PEER`: the option sits in throughput.py; this is what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe.bench.commands.common import numbers, result
from fastscribe.cli.app import find_model
from fastscribe.cli.terminal import show, show_table
from fastscribe.errors import UsageError

if TYPE_CHECKING:
    from fastscribe.bench.peer_comparison.compare import Opponent
    from fastscribe.bench.peer_comparison.peers import Peer

PEER_PYTHON_HELP = "Python of the environment that has the peers. Default: the one that runs this."
PEER_MODEL_HELP = (
    "The peer's own model, if it is not --model. faster-whisper needs one; onnx-asr and sherpa-onnx take a folder with ONNX "
    "files, or a .nemo file as --model, which is exported first."
)
PEER_BATCH_SIZES_HELP = "Batch sizes of the peers, separated by commas; the best counts. Default: several, by device."
_MIN_RUNS = 3


def run(
    against: Sequence[str],
    inputs: Sequence[str],
    model: str | None,
    device: str,
    dtypes: Sequence[str],
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
    from fastscribe.pipeline.model_building import choose_device

    chosen = [peers.find(name) for name in dict.fromkeys(against)]
    names = ", ".join(peer.name for peer in chosen)
    if not inputs:
        raise UsageError(f"--against {names} needs recordings: fastscribe bench --against .. recordings/ --model ..")
    if runs < _MIN_RUNS:
        raise UsageError(f"--passes {runs}: to compare, at least {_MIN_RUNS}")
    if peer_model is not None and len(chosen) > 1:
        raise UsageError(f"--peer-model {peer_model}: with one --against, not with {names}")
    pythons = [peers.check_installed(peer, peer_python) for peer in chosen]
    path = find_model(model, prefer_nemo=any(peer.reads is peers.is_nemo for peer in chosen))
    at = choose_device(device)
    sizes = numbers(peer_batch_sizes, "--peer-batch-sizes") if peer_batch_sizes else None
    try:
        opponents = [_opponent(peer, path, peer_model, pythons[0]) for peer in chosen]
        name = model_name(model, path)
        comparison = Comparison(opponents, pythons[0], inputs, path, name, str(at), dtypes, sizes, runs)
        with result("against", at, turns.CASE_KEYS, json_file, report_html) as found:
            compare(comparison, found, show)
            show_table(_table(found["rows"]))
            show_table(_sides_table(found["sides"]))
            for line in turns.about(found):
                show(line)
    except SideFailed as error:
        show_table(error.messages)
        raise


def _opponent(peer: Peer, path: Path, peer_model: str | None, python: Path) -> Opponent:
    from fastscribe.bench.peer_comparison import exports, peers
    from fastscribe.bench.peer_comparison.compare import Opponent

    its_model, same = peers.choose_model(peer, path, peer_model)
    if not same:
        show(f"{peer.name} loads {its_model}, not fastscribe's checkpoint: speed and texts are of different models")
    name = its_model
    if same and peer.exported:
        its_model = str(exports.exported(peer, path, python, show))
        name = f"{path.name}, exported to ONNX"
    return Opponent(peer, its_model, same, name)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    from fastscribe.bench.peer_comparison.turns import label

    lines = [f"{'':32}{'RTFx':>10}{'median s':>10}{'min':>9}{'max':>9}{'CPU s':>9}"]
    for row in rows:
        start = f"{label(row['side'], row['dtype'], row['batch_size']):32}"
        if "error" in row:
            lines.append(f"{start}  {row['error']}")
            continue
        spread = f"{row['wall_s']:10.2f}{row['wall_min_s']:9.2f}{row['wall_max_s']:9.2f}{row['cpu_s']:9.2f}"
        lines.append(f"{start}{row['rtfx']:10.1f}{spread}")
    return "\n".join(lines)


def _sides_table(sides: Sequence[Mapping[str, Any]]) -> str:
    from fastscribe.bench.peer_comparison.turns import label

    lines = [f"{'':32}{'load s':>10}{'CPU s':>10}{'10 s alone':>12}{'CPU s':>9}"]
    for row in sides:
        start = f"{label(row['side'], row['dtype'], None):32}{row['load_s']:10.2f}{row['load_cpu_s']:10.2f}"
        error = row.get("latency_error")
        lines.append(start + (f"  {error}" if error else f"{row['latency_s']:12.3f}{row['latency_cpu_s']:9.3f}"))
    return "\n".join(lines)
