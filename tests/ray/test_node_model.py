"""Several processes of a machine fetch and unpack a model once."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.errors import CheckpointError
from fastscribe.ray.node_model import model_on_node
from fastscribe.results.fingerprint import model_digest
from tests.conftest import MODELS
from tests.fakes.hub_stub import serve

NEMO = MODELS / "ctc" / "model.nemo"
LOAD = """
import sys
from fastscribe.ray.node_model import model_on_node
found = model_on_node(sys.argv[1], sys.argv[2], print)
print(found.digest)
"""


def load_at_once(number: int, model: str, run_id: str, **variables: str) -> list[str]:
    """Load a model in several processes at the same time; return what each prints last."""
    environment = os.environ | variables
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, model, run_id], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(number)
    ]
    return [process.communicate(timeout=120)[0].splitlines()[-1] for process in started]


def test_a_node_downloads_once(tmp_path: Path) -> None:
    with serve() as hub:
        hub.add("org/name", {"model.nemo": NEMO.read_bytes()})
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
        digests = load_at_once(4, "org/name", "first run", **variables)
        assert digests == [model_digest(NEMO)] * 4
        lookups = [request for request in hub.requests if "/api/models/" in request]
        downloads = [request for request in hub.requests if request.startswith("GET /content/")]
        assert len(lookups) == 1 and len(downloads) == 1
        load_at_once(1, "org/name", "second run", **variables)  # which asks for a newer revision
        assert len([request for request in hub.requests if "/api/models/" in request]) == 2


def test_a_compressed_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    packed = tmp_path / "model.nemo"
    packed.write_bytes(gzip.compress(NEMO.read_bytes()))
    found = model_on_node(str(packed), "run", print)
    assert found.path != packed and found.path.read_bytes() == NEMO.read_bytes()
    assert found.digest == model_digest(packed)  # the fingerprint is that of a run without Ray
    assert read_checkpoint(found.path).config == read_checkpoint(packed).config
    changed = found.path.stat().st_mtime_ns
    assert model_on_node(str(packed), "another run", print) == found
    assert found.path.stat().st_mtime_ns == changed


@pytest.mark.parametrize(
    "content", [lambda: b"\x1f\x8b broken", lambda: gzip.compress(bytes(65 << 20), 1)], ids=["broken", "bomb"]
)
def test_an_archive_that_cannot_be_unpacked(
    content: Callable[[], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "model.nemo").write_bytes(content())
    with pytest.raises(CheckpointError, match=r"model.nemo: cannot be unpacked: "):
        model_on_node(str(tmp_path / "model.nemo"), "run", print)
    assert not list(tmp_path.rglob("*.part"))


def test_a_missing_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"gone.nemo: no such file"):
        model_on_node(str(tmp_path / "gone.nemo"), "run", print)
