"""What a transducer loss is asked for besides its tensors. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral

from fastscribe.errors import UsageError

REDUCTIONS = ("none", "sum", "mean", "mean_volume")


@dataclass(frozen=True)
class TransducerLossConfig:
    """RNN-T with `durations` empty, else TDT. The defaults leave everything else off.

    durations: whole frames a TDT arc may take, ascending, 0 included or not; the logits end in one column for each.
    sigma: TDT's logit under-normalisation, taken off every token's log-probability; 0.05 is usual.
    omega: chance that a batch is trained with the RNN-T loss over the token columns instead (no sigma, durations unused).
    fastemit: lambda of FastEmit (arXiv 2010.11148): the token gradient of every label's arc is scaled by 1 + lambda. The
        loss is reported times 1 + lambda, as warp-transducer and NeMo do; durations' gradients stay as they are.
    clamp: largest absolute gradient of an utterance's loss with respect to a logit, before the reduction; None for none.
    """

    durations: tuple[int, ...] = ()
    sigma: float = 0.0
    omega: float = 0.0
    fastemit: float = 0.0
    clamp: float | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(duration, Integral) for duration in self.durations):
            raise UsageError(f"durations must be whole numbers of frames, not {self.durations}")
        ascending = all(a < b for a, b in zip(self.durations, self.durations[1:], strict=False))
        if self.durations and (not ascending or self.durations[0] < 0 or self.durations[-1] < 1):
            raise UsageError(f"durations must ascend from 0 or more to 1 or more frames, not {self.durations}")
        if not 0 <= self.omega <= 1:
            raise UsageError(f"omega is a chance between 0 and 1, not {self.omega}")
        for name, value in (("fastemit", self.fastemit), ("sigma", self.sigma)):
            if not 0 <= value < math.inf:
                raise UsageError(f"{name} must be 0 or more, and finite; not {value}")
        if self.clamp is not None and not self.clamp > 0:
            raise UsageError(f"clamp must be above 0, or None for no clamp; not {self.clamp}")
        if not self.durations and (self.sigma or self.omega):
            raise UsageError("sigma and omega belong to TDT: give durations too, or leave them 0")

    def resolve_omega(self, omega_draw: float) -> TransducerLossConfig:
        """What this batch is trained with, `omega_draw` being drawn evenly from [0, 1): omega is 0 or 1 afterwards."""
        return self if not self.omega else replace(self, omega=1.0 if omega_draw < self.omega else 0.0)

    @property
    def as_rnnt(self) -> bool:
        """Whether the durations' columns take part no more (or never did); only for a config that has been drawn."""
        assert self.omega in (0.0, 1.0)
        return not self.durations or self.omega == 1.0


RNNT = TransducerLossConfig()
