"""How long a call takes on a device: warmed up, repeated, the device's own clock on a GPU, medians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds; `first_ms` is the first call's, with what is compiled, planned or captured then."""

    median_ms: float
    min_ms: float
    max_ms: float
    first_ms: float
    runs: int

    def row(self) -> dict[str, float]:
        return {
            "ms": self.median_ms,
            "min_ms": self.min_ms,
            "max_ms": self.max_ms,
            "first_ms": self.first_ms,
            "runs": self.runs,
        }


def time_call(
    call: Callable[[], object], device: torch.device, seconds: float = 0.3, least: int = 3, most: int = 100
) -> Timing:
    """`call` repeated for about `seconds`, after three that do not count."""
    first_ms = wall_ms(call, device)
    wall_ms(call, device)
    runs = max(least, min(most, int(1000 * seconds / max(1e-3, wall_ms(call, device)))))
    times = _events_ms(call, runs) if device.type == "cuda" else [wall_ms(call, device) for _ in range(runs)]
    return Timing(median(times), min(times), max(times), first_ms, runs)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wall_ms(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds from an idle device until it is idle again."""
    synchronize(device)
    start = perf_counter()
    call()
    synchronize(device)
    return 1000 * (perf_counter() - start)


def _events_ms(call: Callable[[], object], runs: int) -> list[float]:
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    for start, end in marks:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]
