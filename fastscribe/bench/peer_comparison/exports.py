"""ONNX files that onnx-asr and sherpa-onnx need, made of a .nemo file once and kept in the user's cache folder.

exporter.py makes them, under the peer's Python. A folder's name ends in a digest of what decides its content: the
checkpoint's path, size and time of change, the exporter itself, and the weights' kind in int8.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastscribe._system.processors import has_native_int8, usable_processors
from fastscribe._system.user_cache import cache_folder
from fastscribe.bench.model_name import model_name
from fastscribe.bench.peer_comparison.peers import Peer, missing_modules
from fastscribe.bench.peer_comparison.process import Worker
from fastscribe.errors import UsageError

_EXPORTER = Path(__file__).with_name("exporter.py")
_DIGITS = 12  # of the digest
_MODULES = {"nemo.collections.asr": "'nemo_toolkit[asr]'", "onnx": "onnx", "onnxruntime": "onnxruntime"}


def exported(peer: Peer, model: Path, python: Path, say: Callable[[str], None]) -> Path:
    """Return the folder with the peer's files of this .nemo file; make them if they are not there.

    Raises:
        UsageError: The peer's Python lacks what the export needs, or the folder cannot be written.
        SideFailed: The export failed.
    """
    folder = cache_folder() / "peer-exports" / f"{peer.name}-{model_name(None, model)}-{_digest(model)}"
    if (folder / "config.json").is_file():
        say(f"{peer.name}: the export of {model.name} is kept in {folder}")
        return folder
    _check_modules(peer, model, python)
    say(f"{peer.name}: exporting {model} to ONNX in fp32 and int8, once; of 0.6B this takes minutes (kept: {folder})")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    except OSError as error:
        raise _cannot_keep(peer, folder.parent, error) from error
    try:
        settings: dict[str, Any] = {
            "side": f"{peer.name} export",
            "peer": peer.name,
            "model": str(model),
            "folder": str(unfinished),
        }
        settings |= {"threads": usable_processors(), "int8_weights": _int8_weights()}
        Worker(python, settings, _EXPORTER).stop()
        unfinished.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another process was faster
            raise _cannot_keep(peer, folder.parent, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _check_modules(peer: Peer, model: Path, python: Path) -> None:
    missing = missing_modules(python, tuple(_MODULES))
    if missing:
        install = " ".join(_MODULES[name] for name in missing)
        raise UsageError(
            f"--against {peer.name}: to export {model}, {python} needs {', '.join(missing)}: {python} -m pip install "
            f"{install}; or name an exported folder with --peer-model"
        )


def _digest(model: Path) -> str:
    facts = os.stat(model)
    stated = f"{model.resolve()}\n{facts.st_size}\n{facts.st_mtime_ns}\n{_int8_weights()}\n"
    recipe = stated.encode() + _EXPORTER.read_bytes()
    return hashlib.sha256(recipe).hexdigest()[:_DIGITS]


def _int8_weights() -> str:
    """Return which int8 weights onnxruntime multiplies fastest here without error.

    With VNNI or AMX signed ones are more than twice as fast. Without, their sums are cut off at 16 bits, and a model writes
    other texts: 25,600 characters for 1,000 (docs/log.md, 2026-11-26).
    """
    return "signed" if has_native_int8() else "unsigned"


def _cannot_keep(peer: Peer, folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--against {peer.name}: {folder} cannot be written: {error.strerror or error}; XDG_CACHE_HOME names another place"
    )
