"""Made-up results in the form that `fastscribe bench` stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

AMD = {"cpu": "AMD EPYC", "cpu_cores": 2, "memory_gib": 23.5, "gpu": None, "load_average_1min": 0.3}
SAPPHIRE_RAPIDS = AMD | {"cpu": "Intel(R) Xeon(R) Platinum 8488C"}  # with 2 vCPUs, as a cloud rents it
H200 = {"cpu": "Intel(R) Xeon(R)", "cpu_cores": 16, "memory_gib": 128.0, "gpu": {"torch_name": "NVIDIA H200"}}

_SHARES = {"encode_share": 0.6, "decode_share": 0.3}


def document(
    rows: Sequence[Mapping[str, Any]] = (),
    machine: Mapping[str, Any] | None = AMD,
    benchmark: str = "throughput",
    case_keys: Sequence[str] = ("model", "dtype", "batch_frames"),
    **settings: Any,
) -> dict[str, Any]:
    device = "cuda:0" if machine and machine["gpu"] else "cpu"
    about = {"fastscribe": "0.1.0", "date": "2026-11-21", "command": "fastscribe bench", "device": device}
    keys, found = list(case_keys), [dict(row) for row in rows]
    return {"benchmark": benchmark, **about, "case_keys": keys, **settings, "rows": found, "machine": machine}


def speed(rtfx: float = 100.0, **more: Any) -> dict[str, Any]:
    """A row of `bench throughput`."""
    case = {"model": "tiny", "dtype": "bf16", "batch_frames": "auto", "budget_frames": 900}
    return {**case, "rtfx": rtfx, "memory_rtfx": 2 * rtfx, "files": 8, "audio_s": 60.0, **_SHARES, **more}


def stored(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
