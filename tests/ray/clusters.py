"""A Ray cluster on this machine, and inputs for its runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fastscribe.ray.library import connected
from tests.conftest import AUDIO, MODELS

MODEL = str(MODELS / "ctc" / "model.nemo")
STORE_BYTES = 80 << 20  # about the least that Ray takes


@contextmanager
def cluster() -> Iterator[Any]:
    """Start a node with two processors, and two GPUs by name alone, and connect."""
    pytest.importorskip("ray", reason="needs the extra ray")
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_DISABLE_MEMORY_MONITOR": "1", "RAY_memory_monitor_refresh_ms": "0"}
    given = {"num_cpus": 2, "num_gpus": 2, "include_dashboard": False, "object_store_memory": STORE_BYTES}
    nodes = Cluster(initialize_head=True, head_node_args=given)
    try:
        with connected(nodes.address):
            yield nodes
    finally:
        nodes.shutdown()


def manifest(path: Path, number: int, extra: Sequence[dict[str, Any]] = ()) -> Path:
    """Write a manifest that lists the clips again and again, each row with a `key` of its own and nested fields."""
    clips = sorted(clip for clip in AUDIO.iterdir() if clip.stat().st_size < 150_000)
    rows = [{"audio_filepath": str(clips[index % len(clips)]), "key": index} for index in range(number)]
    rows += [{"key": number + index} | row for index, row in enumerate(extra)]
    path.write_text("".join(json.dumps(row | nested(row["key"])) + "\n" for row in rows), encoding="utf-8")
    return path


def nested(key: int) -> dict[str, Any]:
    """Fields whose types differ from row to row, which no column of Arrow could hold."""
    kinds: list[Any] = [[], [1, "b", None], {"a": [{"b": 0.25}]}, "text", None]
    return {"speakers": kinds[key % len(kinds)], "tags": [{"name": "x", "parts": [[key], []]}]}
