"""The speech recognisers to compare with: their packages, the checkpoints they read and the dtypes they support."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fastscribe.errors import UsageError

_MISSING = 3
_LOOK = """
import importlib.util, sys
def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # a parent of it is not there
        return False
missing = [name for name in sys.argv[1:] if not is_there(name)]
print(*missing, sep="\\n")
raise SystemExit({code} if missing else 0)
"""
_MAX_LOOK_S = 120.0  # at what a Python has installed; importing the parents of a package may take long


PeerName = Literal["nemo", "transformers", "faster-whisper", "onnx-asr", "sherpa-onnx"]


@dataclass(frozen=True)
class Peer:
    name: PeerName
    module: str  # importable if it is installed
    install: str  # what pip is given
    packages: tuple[str, ...]  # whose versions matter
    batch_sizes: Mapping[str, tuple[int, ...]]  # tried by default, by kind of device
    dtypes: Mapping[str, str] = field(default_factory=dict)  # what stands against fastscribe's, where it lacks that
    reads: Callable[[Path], bool] | None = None  # fastscribe's checkpoints that it reads too; None: none
    kind: str = ""  # what these are, in words
    takes: str = "any"  # recordings: "any", "mono", or "wav" (mono, 16 kHz, 16 bits)
    exported: bool = False  # it reads ONNX files, which exports.py makes of a .nemo file


def is_nemo(path: Path) -> bool:
    return path.is_file()  # of the formats that fastscribe reads, the one that is a file


def _is_huggingface(path: Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "architectures" in config


_BATCHES = {"cpu": (1, 4, 8, 16), "cuda": (32, 64, 128, 256)}
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "nemo",
            "nemo.collections.asr",
            "'nemo_toolkit[asr]'",
            ("nemo_toolkit", "torch", "lhotse", "cuda-python", "numpy"),
            _BATCHES,
            {"int8": "bf16", "fp8": "bf16"},
            is_nemo,
            "a .nemo file",
            "mono",
        ),
        Peer(
            "transformers",
            "transformers",
            "transformers torch soundfile soxr",
            ("transformers", "torch", "tokenizers", "soundfile", "soxr", "numpy"),
            _BATCHES,
            {"int8": "bf16", "fp8": "bf16"},
            _is_huggingface,
            "a Hugging Face folder",
        ),
        Peer(
            "faster-whisper",
            "faster_whisper",
            "faster-whisper",
            ("faster-whisper", "ctranslate2", "av", "numpy"),
            {"cpu": (1, 8), "cuda": (1, 8, 16, 32)},
            {"fp8": "int8"},
        ),
        Peer(
            "onnx-asr",
            "onnx_asr",
            "'onnx-asr[cpu,hub]'",
            ("onnx-asr", "onnxruntime", "onnxruntime-gpu", "numpy"),
            _BATCHES,
            {"bf16": "fp32", "fp8": "int8"},
            is_nemo,
            "a .nemo file, exported to ONNX",
            takes="wav",
            exported=True,
        ),
        Peer(
            "sherpa-onnx",
            "sherpa_onnx",
            "sherpa-onnx numpy",
            ("sherpa-onnx", "sherpa-onnx-core", "numpy"),
            _BATCHES,
            {"bf16": "fp32", "fp8": "int8"},
            is_nemo,
            "a .nemo file, exported to ONNX",
            takes="wav",
            exported=True,
        ),
    )
}


def find(name: str) -> Peer:
    """Raises UsageError."""
    if name not in PEERS:
        raise UsageError(f"--against {name}: not one of {', '.join(PEERS)}")
    return PEERS[name]


def check_installed(peer: Peer, python: Path | None) -> Path:
    """The Python that has it: `python`, or by default this one. Raises UsageError that says what to install where."""
    chosen = python or Path(sys.executable)
    if missing_modules(chosen, (peer.module,)):
        other = "" if python else ", or name the Python of an environment that has it with --peer-python"
        raise UsageError(
            f"--against {peer.name}: {chosen} has no {peer.module}: {chosen} -m pip install {peer.install}{other}"
        )
    return chosen


def missing_modules(python: Path, modules: Sequence[str]) -> list[str]:
    """Those that this Python does not have. Raises UsageError if it is no Python that works."""
    look = _LOOK.replace("{code}", str(_MISSING))
    try:
        done = subprocess.run([python, "-c", look, *modules], capture_output=True, text=True, timeout=_MAX_LOOK_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--peer-python {python}: cannot be run: {error}") from error
    if done.returncode not in (0, _MISSING):
        last = (done.stderr.strip().splitlines() or ["no word"])[-1].strip()
        raise UsageError(f"--peer-python {python}: is no Python that works: exit code {done.returncode}: {last[:300]}")
    said = set(done.stdout.splitlines())
    return [name for name in modules if name in said]


def choose_model(peer: Peer, path: Path, peer_model: str | None) -> tuple[str, bool]:
    """What the peer loads, and whether that is fastscribe's own checkpoint at `path`. Raises UsageError."""
    if peer_model is not None:
        return peer_model, False
    if peer.reads is None:
        raise UsageError(
            f"--against {peer.name}: it cannot read fastscribe's checkpoints; name a model of its own with --peer-model"
        )
    if not peer.reads(path):
        raise UsageError(
            f"--against {peer.name}: it reads {peer.kind}, which {path} is not: give such a --model, or --peer-model"
        )
    return str(path), True


def strictest(some: Sequence[Peer]) -> str:
    """What recordings all of these can take."""
    return max((peer.takes for peer in some), key=("any", "mono", "wav").index)
