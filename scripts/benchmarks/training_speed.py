"""Whole training steps (forward, loss, backward, optimiser) over noise. Reading and augmenting audio is excluded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastscribe.config import ModelConfig
from fastscribe.training.loss.config import TransducerLossConfig
from fastscribe.training.network import Network, Targets, new_model, prepare_weights_
from fastscribe.training.recipe import OptimiserRecipe
from fastscribe.training.weights import Weights
from fastscribe.types import Features

_CTC_WEIGHT = 0.3  # of a hybrid's loss


class Trainee:
    """A new model of a shape in training: `step` is a whole step on one batch."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: str) -> None:
        with device:  # a large model is drawn on a GPU in a second
            model = new_model(config, seed=0)
        if model.aed is not None:
            prepare_weights_(model.aed)
        self.config = config
        self._weights = Weights(model, torch.bfloat16 if dtype == "bf16" else torch.float32, OptimiserRecipe())
        loss = TransducerLossConfig(config.durations)
        self.network = Network(model, loss, _CTC_WEIGHT, dropout=0.1).train()

    def step(self, features: Features, targets: Targets) -> None:
        self.network(features, targets, 1.0)["loss"].backward()
        self._weights.accumulate_gradients()
        self._weights.step(0.0)


def noise(
    config: ModelConfig, device: torch.device, durations_s: Sequence[float], num_labels: Sequence[int]
) -> tuple[Features, Targets]:
    """Return a batch of rows of these lengths, padded to the longest."""
    generator = torch.Generator(device).manual_seed(0)  # a CPU would take longer than a GPU's step
    frames = [int(length_s * config.features.sample_rate) // config.features.hop_length for length_s in durations_s]
    mel_BMT = torch.randn(len(frames), config.features.num_mels, max(frames), generator=generator, device=device)
    size = (len(frames), max(num_labels))
    labels_BU = torch.randint(config.num_labels, size, generator=generator, device=device)
    lengths_B, labels_B = torch.tensor(frames, device=device), torch.tensor(num_labels, device=device)
    return Features(mel_BMT, lengths_B), Targets(labels_BU, labels_B)
