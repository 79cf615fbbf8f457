"""Settings of the transducer losses. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral

from fastscribe.errors import UsageError

REDUCTIONS = ("none", "sum", "mean", "mean_volume")


@dataclass(frozen=True)
class TransducerLossConfig:
    """Settings of an RNN-T loss (`durations` empty) or a TDT loss. The defaults turn every option off.

    Args:
        durations: TDT durations in frames, ascending; the last columns of the logits are their scores, one each.
        sigma: TDT's logit under-normalisation, subtracted from every token's log-probability; 0.05 is usual.
        omega: probability that a batch uses the RNN-T loss over the token columns instead, without sigma and durations.
        fastemit: lambda of FastEmit (arXiv 2010.11148). It scales the token gradient of every label's arc by 1 + lambda.
            The reported loss is scaled too, as in warp-transducer and NeMo; the gradients of durations are not.
        clamp: bound of the absolute gradient of an utterance's loss per logit, before the reduction; None: no bound.

    Raises:
        UsageError: A value is out of range, or sigma or omega is set without durations.
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
        """Return the config of one batch: omega is 1 (RNN-T) if `omega_draw`, uniform in [0, 1), is below it, else 0."""
        return self if not self.omega else replace(self, omega=1.0 if omega_draw < self.omega else 0.0)

    @property
    def as_rnnt(self) -> bool:
        """True if this batch uses the RNN-T loss. Call `resolve_omega` first."""
        assert self.omega in (0.0, 1.0)
        return not self.durations or self.omega == 1.0


RNNT = TransducerLossConfig()
