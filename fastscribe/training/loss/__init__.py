"""Transducer losses, RNN-T and TDT: the slow reference (definition) and fast CPU and CUDA implementations."""

from __future__ import annotations

from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.loss.joint import joint_transducer_loss
from fastscribe.training.loss.logits import transducer_loss

__all__ = ["TransducerLossConfig", "joint_transducer_loss", "transducer_loss"]
