"""Training: the transducer losses (`loss`), the data loader and the training loop.

>>> from fastscribe.training import TransducerLossConfig, transducer_loss
>>> loss = transducer_loss(logits_BTUV, labels_BU, frame_lengths_B, label_lengths_B, blank_id=256)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastscribe.training.loss import TransducerLossConfig, joint_transducer_loss, transducer_loss

__all__ = ["TransducerLossConfig", "joint_transducer_loss", "transducer_loss"]


def __getattr__(name: str) -> Any:
    """Import the losses on first use: they need torch, and planning a training run does not."""
    if name in __all__:
        from fastscribe.training import loss

        return getattr(loss, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
