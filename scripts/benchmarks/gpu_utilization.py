"""Share of the wall time in which a GPU works, and its kernels, from torch's profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch

_TOP = 16
_MAX_NAME = 90


def profile(call: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Run `call` once under the profiler, which slows the host a little. Return nothing on a CPU."""
    if device.type != "cuda":
        return {}
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=activities) as profiler:
        start = perf_counter()
        call()
        torch.cuda.synchronize(device)
        wall_s = perf_counter() - start
    return summary(_on_the_device(profiler), wall_s)


def _on_the_device(profiler: Any) -> list[tuple[str, float, float]]:
    """Return (name, begin, end) in microseconds of kernels and copies."""
    found = []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:  # type: ignore[attr-defined]  # not in its __all__
            found.append((str(event.name), float(event.time_range.start), float(event.time_range.end)))
    return found


def summary(spans: Iterable[tuple[str, float, float]], wall_s: float) -> dict[str, Any]:
    spans = list(spans)
    total_us: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for name, begin, end in spans:
        total_us[name] += end - begin
        count[name] += 1
    top = sorted(total_us, key=lambda name: -total_us[name])[:_TOP]
    busy_us = covered((begin, end) for _, begin, end in spans)
    inside_us = max((end for *_, end in spans), default=0.0) - min((begin for _, begin, _ in spans), default=0.0)
    return {
        "profiled_wall_ms": 1000 * wall_s,
        "busy_ms": busy_us / 1000,
        "busy_share_of_wall": busy_us / 1e6 / wall_s if wall_s > 0 else 0.0,
        "busy_share_first_to_last": busy_us / inside_us if inside_us > 0 else 0.0,
        "kernels": sum(count.values()),
        "top_kernels": [{"name": name[:_MAX_NAME], "count": count[name], "ms": total_us[name] / 1000} for name in top],
    }


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
