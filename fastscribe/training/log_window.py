"""Batch losses and gradient norms that one log line averages. Part of a run's state.

It counts two values instead of averaging them: "unaligned", utterances that a loss skips because they have more labels
than their frames allow, and "skipped", batches whose losses or gradients are not finite and that changed no weight.

Values stay on their device until they are read, so that no batch waits for its loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_UNALIGNED, _UNDONE = "unaligned", "undone"  # keys of a batch's losses; _UNDONE is 1 if its step changed nothing


class LogWindow:
    """An empty window, or one restored from `state`."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._losses: list[Mapping[str, torch.Tensor | float]] = list(state["losses"]) if state else []
        self._norms: list[float] = list(state["norms"]) if state else []
        self._step_start: int = state["step_start"] if state else 0

    def add_losses(self, losses: Mapping[str, torch.Tensor]) -> None:
        self._losses.append(losses)

    def add_norm(self, norm: float) -> None:
        """Add the gradient norm of the step that the batches since the last step belong to."""
        self._norms.append(norm)
        if not math.isfinite(norm):
            batches = self._losses[self._step_start :]
            self._losses[self._step_start :] = [{**losses, _UNDONE: 1.0} for losses in batches]
        self._step_start = len(self._losses)

    def state(self) -> dict[str, Any]:
        losses = [{name: float(loss) for name, loss in each.items()} for each in self._losses]
        return {"losses": losses, "norms": self._norms, "step_start": self._step_start}

    def means(self) -> dict[str, float]:
        """Return the mean of each loss over the batches whose losses are all finite; empty if there are none."""
        finite = self._finite()
        names = [name for name in (finite[0] if finite else ()) if name not in (_UNALIGNED, _UNDONE)]
        return {name: _mean([losses[name] for losses in finite]) for name in names}

    def row(self) -> dict[str, float]:
        """The means, rounded, the mean norm of finite gradients, and counts that are not 0. Never NaN."""
        means = {name: round(value, 5) for name, value in self.means().items()}
        norms = [norm for norm in self._norms if math.isfinite(norm)]
        if norms:
            means["gradient_norm"] = round(_mean(norms), 4)
        num_unaligned = int(sum(losses.get(_UNALIGNED, 0.0) for losses in self.state()["losses"]))
        num_learnt_from = sum(_UNDONE not in losses for losses in self._finite())
        counts = {_UNALIGNED: num_unaligned, "skipped": len(self._losses) - num_learnt_from}
        return means | {name: count for name, count in counts.items() if count}

    def _finite(self) -> list[dict[str, float]]:
        return [losses for losses in self.state()["losses"] if all(map(math.isfinite, losses.values()))]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
