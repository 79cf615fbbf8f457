"""Load a model in one of several processes of a machine, so that the machine fetches and unpacks it once.

The first process of a run on a machine holds a file lock while it finds the model (and downloads it from the hub), takes the
digest of its content and unpacks a compressed .nemo file. It writes down what it found; the others wait for the lock and read
that. Weights are read in place, so that all processes share the system's page cache: the disk is read once. Each process
still has its own weights in its GPU's memory, or in its own memory on a CPU.
"""

from __future__ import annotations

import getpass
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from fastscribe import rooms
from fastscribe.checkpoint.location import locate
from fastscribe.config import Options
from fastscribe.errors import CheckpointError
from fastscribe.results.fingerprint import model_digest

_GZIP = b"\x1f\x8b"
_MAX_UNPACKED_RATIO = 20  # as when a compressed archive is read in memory; weights hardly compress


@dataclass(frozen=True)
class NodeModel:
    """A model on this machine's disk.

    Attributes:
        path: What to load.
        digest: Of the content of the original, as in the journal's fingerprint.
    """

    path: Path
    digest: str


def model_on_node(model: str, run_id: str, say: Callable[[str], None], *, side_model: bool = False) -> NodeModel:
    """Find a model, once a machine and run.

    Args:
        model: A path, "default" or a name on the Hugging Face hub.
        run_id: Names the run; another run looks at the hub again.
        say: Receives the lines about a download.
        side_model: It is a model that a room runs beside the run's own.

    Raises:
        CheckpointError: There is no such model, or its download failed.
        OSError: It cannot be read.
    """
    folder, model = _folder(), on_all_nodes(model)
    name = hashlib.blake2b(f"{run_id}\0{model}".encode(), digest_size=12).hexdigest()
    record = folder / f"{name}.json"
    with FileLock(folder / f"{name}.lock"):
        if record.exists():
            found = json.loads(record.read_text(encoding="utf-8"))
            return NodeModel(Path(found["path"]), found["digest"])
        path = locate(model, say, show_progress=False, side_model=side_model)
        if not path.exists():
            raise CheckpointError(path, "no such file or folder on this node; a path must be the same on all nodes")
        digest = model_digest(path)
        path = _unpacked(path, folder / digest.removeprefix("sha256:"))
        fresh = record.with_suffix(".part")
        fresh.write_text(json.dumps({"path": str(path), "digest": digest}), encoding="utf-8")
        os.replace(fresh, record)
        return NodeModel(path, digest)


def options_on_node(options: Options, run_id: str, say: Callable[[str], None]) -> tuple[Options, dict[str, str]]:
    """Find the models that options name, each as model_on_node() does.

    Args:
        options: Of a run.
        run_id: Names the run.
        say: Receives the lines about a download.

    Returns:
        The options with this machine's paths, and the digest of each model by the option's name.

    Raises:
        CheckpointError: There is no such model, or its download failed.
        OSError: It cannot be read.
    """
    digests: dict[str, str] = {}
    for name, model in rooms.paths_in(options, "model", "side model").items():
        found = model_on_node(model, run_id, say, side_model=rooms.PATHS[name] == "side model")
        path: dict[str, Any] = {name: str(found.path)}
        options, digests[name] = replace(options, **path), found.digest
    return options, digests


def on_all_nodes(path: str) -> str:
    """Return the absolute path of a file or folder; a name that is none here as it is, because each node looks it up."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _folder() -> Path:
    """Return this user's folder for what the processes of this machine share."""
    folder = Path(tempfile.gettempdir()) / f"fastscribe-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix" and folder.stat().st_uid != os.getuid():
        raise CheckpointError(folder, "belongs to another user: set TMPDIR to a folder of your own")
    return folder


def _unpacked(path: Path, folder: Path) -> Path:
    """Return a plain copy of a compressed .nemo file; any other model as it is."""
    if not path.is_file():
        return path
    with path.open("rb") as file:
        if file.read(2) != _GZIP:
            return path
    folder.mkdir(mode=0o700, exist_ok=True)
    plain = folder / path.name
    if plain.exists():
        return plain
    limit = max(64 << 20, _MAX_UNPACKED_RATIO * path.stat().st_size)
    fresh = plain.with_suffix(".part")
    try:
        with gzip.open(path) as packed, fresh.open("wb") as unpacked:
            _copy(packed, unpacked, limit)
        os.replace(fresh, plain)
    except (OSError, EOFError) as error:
        fresh.unlink(missing_ok=True)
        raise CheckpointError(path, f"cannot be unpacked: {error}") from error
    return plain


def _copy(packed: gzip.GzipFile, unpacked: IO[bytes], limit: int) -> None:
    """Copy a stream. Raises OSError if it holds more bytes than the limit."""
    left = limit
    while block := packed.read(1 << 20):
        left -= len(block)
        if left < 0:
            raise OSError(f"it unpacks to more than {_MAX_UNPACKED_RATIO} times its size")
        unpacked.write(block)
