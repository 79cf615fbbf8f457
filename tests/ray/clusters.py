"""A Ray cluster of several nodes on this machine, and a worker that recordings can kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastscribe.config import Options
from fastscribe.ray.library import connected
from fastscribe.ray.pool import Size
from fastscribe.ray.run import RayTranscriber
from fastscribe.ray.worker import Worker
from fastscribe.types import Source
from tests.conftest import AUDIO, MODELS

MODEL = str(MODELS / "ctc" / "model.nemo")
STORE_BYTES = 80 << 20  # about the least that Ray takes
KILLS = "kills-its-worker"  # in the name of a recording


class KillableWorker(Worker):
    """Dies when it is given a recording with KILLS in its name, as of a crash in a library."""

    def _transcribe(self, sources: Sequence[Source]) -> Iterator[Any]:
        for group in super()._transcribe(sources):
            if any(KILLS in source.path for source in sources):
                os._exit(1)
            yield group


@contextmanager
def cluster(num_nodes: int) -> Iterator[Any]:
    """Start a head without processors and nodes with one each, and connect."""
    pytest.importorskip("ray", reason="needs the extra ray")
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_DISABLE_MEMORY_MONITOR": "1", "RAY_memory_monitor_refresh_ms": "0"}
    os.environ |= {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "1000"}
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(num_nodes):
            nodes.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        with connected(nodes.address):
            yield nodes
    finally:
        nodes.shutdown()


@contextmanager
def transcriber(workers: int | None, said: list[str], options: Options | None = None) -> Iterator[RayTranscriber]:
    """Start workers on the cluster that this process is connected to."""
    options = options or Options(threads=1)
    with RayTranscriber.start(MODEL, "cpu", "fp32", options, said.append, size=Size(workers, cpus=1)) as found:
        yield found


def manifest(path: Path, number: int, extra: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a manifest that lists the clips again and again, each row with a `key` of its own."""
    clips = sorted(clip for clip in AUDIO.iterdir() if clip.stat().st_size < 150_000)
    rows = [{"audio_filepath": str(clips[index % len(clips)]), "key": index} for index in range(number)]
    rows += [{"key": number + index} | row for index, row in enumerate(extra)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
