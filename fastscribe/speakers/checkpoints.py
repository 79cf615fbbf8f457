"""Checkpoints of models of speakers: what their readers return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe.checkpoint.lazy_weights import StoredModel
from fastscribe.speakers.config import SpeakerModelConfig, VoiceModelConfig

if TYPE_CHECKING:
    import torch

MAX_SPEAKERS = 64  # of a speaker model


@dataclass(frozen=True)
class SpeakerCheckpoint(StoredModel):
    """A speaker model on disk. Weights have the names of Sortformer's state dict, and are lazy."""

    path: Path
    source: str  # "nemo" or "huggingface"
    config: SpeakerModelConfig
    weights: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class VoiceCheckpoint(StoredModel):
    """A voice model on disk. Weights have the names of VoiceModel's state dict, and are lazy."""

    path: Path
    config: VoiceModelConfig
    weights: Mapping[str, torch.Tensor]
