"""What a line of the log is the mean of: losses of batches, gradient norms of steps. Part of a run's state.

Values stay on their device until they are asked for, so that no batch waits for its loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch


class LogWindow:
    """Empty, or as `state` had it."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._losses: list[Mapping[str, torch.Tensor | float]] = list(state["losses"]) if state else []
        self._norms: list[float] = list(state["norms"]) if state else []

    def add_losses(self, losses: Mapping[str, torch.Tensor]) -> None:
        self._losses.append(losses)

    def add_norm(self, norm: float) -> None:
        self._norms.append(norm)

    def state(self) -> dict[str, Any]:
        losses = [{name: float(loss) for name, loss in each.items()} for each in self._losses]
        return {"losses": losses, "norms": self._norms}

    def means(self) -> dict[str, float]:
        """By the losses' names, over batches whose losses are all finite; empty where there are none."""
        finite = self._finite()
        return {name: _mean([losses[name] for losses in finite]) for name in (finite[0] if finite else ())}

    def row(self) -> dict[str, float]:
        """The means, rounded, the mean norm of finite gradients, and how many batches were skipped. Never NaN."""
        means = {name: round(value, 5) for name, value in self.means().items()}
        norms = [norm for norm in self._norms if math.isfinite(norm)]
        if norms:
            means["gradient_norm"] = round(_mean(norms), 4)
        num_skipped = len(self._losses) - len(self._finite())
        return {**means, "skipped": num_skipped} if num_skipped else means

    def _finite(self) -> list[dict[str, float]]:
        return [losses for losses in self.state()["losses"] if all(map(math.isfinite, losses.values()))]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
