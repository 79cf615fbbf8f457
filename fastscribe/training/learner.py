"""Compute the gradients of one batch: augment -> log-mel -> mask -> network -> backward.

The run's seed and the batch's index seed the generators of every batch, so a resumed run draws the same numbers.

Shapes: B batch, S samples, M mels, T mel frames, U labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastscribe.config import ModelConfig
from fastscribe.cuda.device import small_to_device
from fastscribe.errors import is_out_of_memory
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.model import Model
from fastscribe.training.augment import augment_samples, batch_generator, mask_features
from fastscribe.training.buckets import Indices
from fastscribe.training.dataloader import AudioBatch
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.network import Network, Targets, loss_of
from fastscribe.training.recipe import AugmentConfig, Recipe
from fastscribe.training.sync_norm import SyncedBatchNorm1d, recorded_statistics, synchronise_norms, uncounted
from fastscribe.training.weights import Weights
from fastscribe.types import Features


class BatchIndex(NamedTuple):
    """Position of a batch in its run."""

    epoch: int
    batch: int
    rank: int

    def omega_draw(self, seed: int) -> float:
        """Return a number from [0, 1), the same on all ranks. Below the loss's omega, the batch uses the RNN-T loss."""
        return float(np.random.default_rng([seed, self.epoch, self.batch]).random())


@dataclass(frozen=True)
class TrainBatch:
    """Audio rows with their tokens, the numbers of labels that they count as, and playback speeds.

    A row counts as its own tokens, or as those of speech of its length.
    """

    rows: AudioBatch
    tokens: Sequence[Sequence[int]]
    counts: Sequence[int]
    speeds_B: torch.Tensor

    def slice(self, which: slice) -> TrainBatch:
        return TrainBatch(self.rows.slice_rows(which), self.tokens[which], self.counts[which], self.speeds_B[which])


class BatchTooLarge(Exception):
    """These examples do not fit into memory, and the batch cannot be split."""

    def __init__(self, examples: Indices) -> None:
        super().__init__(f"no memory for {len(examples):,} examples")
        self.examples = examples


class Learner:
    """Forward and backward passes that add to the gradients of `weights`; the model is on `device`."""

    def __init__(
        self,
        model: Model,
        weights: Weights,
        recipe: Recipe,
        config: ModelConfig,
        device: torch.device,
        distributed: DistributedContext,
        num_prompt: int = 0,
    ) -> None:
        self.device = device
        self.log_mel = LogMel(config.features).to(device)
        loss, dropout = recipe.loss, recipe.optimiser.dropout
        of_decoder = (1 if loss.prompt else num_prompt, loss.label_smoothing)
        self.network = Network(model, loss_of(loss, config), loss.ctc_weight, dropout, *of_decoder)
        if recipe.batch.gradient_checkpointing:
            assert isinstance(model.encoder, Encoder)
            checkpoint_encoder(model.encoder)
        self._waits_for_ranks = distributed.world_size > 1 and synchronise_norms(model)
        self._weights = weights
        self._augment = recipe.augment
        self._seed = recipe.run.seed
        self._distributed = distributed

    def forward_backward(self, train_batch: TrainBatch, batch_index: BatchIndex) -> list[dict[str, torch.Tensor]]:
        """Add the gradient of the loss summed over the labels. If memory runs out, split the batch in two and retry.

        Returns:
            The losses of each part of the batch that was computed.

        Raises:
            BatchTooLarge: A single row does not fit, or there are several ranks, which must make the same number of passes.
        """
        generator, omega_draw = batch_generator(self._seed, *batch_index), batch_index.omega_draw(self._seed)
        if not train_batch.tokens:
            if self._waits_for_ranks:
                self._take_part(omega_draw)
            return []
        torch.manual_seed(batch_generator(self._seed + 1, *batch_index).initial_seed())
        return self._with_halving(train_batch, generator, omega_draw)

    def _with_halving(
        self, train_batch: TrainBatch, generator: torch.Generator, omega_draw: float
    ) -> list[dict[str, torch.Tensor]]:
        """Retry in halves if memory runs out: the sum of the gradients stays the same."""
        middle = len(train_batch.tokens) // 2
        try:
            losses = self._forward_backward(train_batch, generator, omega_draw)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if self._distributed.world_size > 1 or not middle:
                raise BatchTooLarge(train_batch.rows.examples) from error
        else:
            self._weights.accumulate_gradients()
            return [losses]
        self.network.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        halves = map(train_batch.slice, (slice(middle), slice(middle, None)))
        return [losses for half in halves for losses in self._with_halving(half, generator, omega_draw)]

    def _forward_backward(
        self, train_batch: TrainBatch, generator: torch.Generator, omega_draw: float
    ) -> dict[str, torch.Tensor]:
        features = augmented_features(
            train_batch.rows, train_batch.speeds_B, self.log_mel, self._augment, generator, self.device
        )
        targets = targets_of(train_batch.tokens, self.device, train_batch.counts)
        losses: dict[str, torch.Tensor] = self.network(features, targets, omega_draw)
        # The loss is a mean over labels; the gradient sums over them, so that parts of a batch add up.
        (sum(train_batch.counts) * losses["loss"]).backward()
        return {name: loss.detach() for name, loss in losses.items()}

    def _take_part(self, omega_draw: float) -> None:
        """Pass a second of silence through the network: the other ranks wait for this rank's part of their statistics."""
        num_samples = self.log_mel.config.sample_rate
        samples_BS = torch.zeros(1, num_samples, device=self.device)
        features = self.log_mel(samples_BS, torch.tensor([num_samples], device=self.device))
        features = Features(features.mel_BMT.clone(), features.lengths_B.clone())  # as in augmented_features
        with uncounted(self.network):
            tokens = (0,) * (self.network.num_given + 1)
            self.network(features, targets_of([tokens], self.device), omega_draw)["loss"].backward()
        self.network.zero_grad(set_to_none=True)


def augmented_features(
    rows: AudioBatch,
    speeds_B: torch.Tensor,
    log_mel: LogMel,
    config: AugmentConfig,
    generator: torch.Generator,
    device: torch.device,
) -> Features:
    samples_BS = rows.samples_BS.to(device, non_blocking=True)
    samples_BS, lengths_B = augment_samples(
        samples_BS, rows.lengths_B, config, generator, speeds_B, rows.noise_BS, rows.rooms_BL
    )
    features = log_mel(samples_BS, small_to_device(lengths_B, device))
    # As features.lengths_B, but on the host, where the masks are drawn.
    frame_lengths_B = lengths_B // log_mel.config.hop_length
    is_normalised = log_mel.config.normalize != "none"
    mel_BMT = mask_features(features.mel_BMT, frame_lengths_B, config, generator, is_normalised)
    # LogMel runs in inference mode; autograd cannot save its tensors, but it can save copies.
    return Features(mel_BMT, features.lengths_B.clone())


def targets_of(tokens: Sequence[Sequence[int]], device: torch.device, counts: Sequence[int] | None = None) -> Targets:
    """Pad the tokens to one column at least. `counts` are those of Targets; None: the rows' own."""
    lengths = [len(row) for row in tokens]
    labels_BU = torch.zeros(len(tokens), max(1, *lengths), dtype=torch.long)
    for row_U, row in zip(labels_BU, tokens, strict=True):
        row_U[: len(row)] = torch.tensor(row)
    counts_B = torch.tensor(lengths if counts is None else counts)
    return Targets(labels_BU.to(device), torch.tensor(lengths).to(device), counts_B.to(device))


def checkpoint_encoder(encoder: Encoder) -> None:
    """Let the backward pass repeat each layer of the encoder, in place. Weights and their names stay.

    Gradient checkpointing (Chen et al. 2016): the encoder keeps its layers' inputs alone. A step learns the same: dropout draws
    the same numbers again, and BatchNorm takes and tracks its statistics in the first pass alone. So no rank waits for another
    in a repetition. The subsampling is repeated too: its first feature maps are larger than what several layers keep.
    """
    for part in (encoder.subsampling, *encoder.layers.children()):
        norms = [module for module in part.modules() if isinstance(module, nn.BatchNorm1d)]
        part.forward = partial(checkpoint, part.forward, use_reentrant=False, context_fn=partial(_contexts, norms))


def _contexts(norms: Sequence[nn.BatchNorm1d]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a part's first pass and of its repetition."""
    record = recorded_statistics([norm for norm in norms if isinstance(norm, SyncedBatchNorm1d)])
    return record(), _repetition(norms, record)


@contextmanager
def _repetition(norms: Sequence[nn.BatchNorm1d], record: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let the norms track their batch's statistics in copies that are dropped.

    Without buffers, BatchNorm would keep fewer tensors for its backward pass than in the first pass, which torch refuses.
    """
    tracked = [dict(norm.named_buffers()) for norm in norms]
    for norm, buffers in zip(norms, tracked, strict=True):
        for name, buffer in buffers.items():
            setattr(norm, name, buffer.clone())
    try:
        with record():
            yield
    finally:
        for norm, buffers in zip(norms, tracked, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
