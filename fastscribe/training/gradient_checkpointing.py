"""Gradient checkpointing (Chen et al. 2016): the encoder keeps its layers' inputs, and the backward pass repeats each layer.

A step learns the same: dropout draws the same numbers again, and BatchNorm takes and tracks its statistics in the first pass
alone. So no rank waits for another in a repetition. The subsampling is repeated too: its first feature maps are larger than
what several layers keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from fastscribe.families.conformer.encoder import Encoder
from fastscribe.training.sync_norm import SyncedBatchNorm1d, recorded_statistics


def checkpoint_encoder(encoder: Encoder) -> None:
    """Let the backward pass repeat each layer of the encoder, in place. Weights and their names stay."""
    for part in (encoder.subsampling, *encoder.layers.children()):
        norms = [module for module in part.modules() if isinstance(module, nn.BatchNorm1d)]
        part.forward = partial(_forward, part.forward, norms)


def _forward(forward: Callable[..., Any], norms: Sequence[nn.BatchNorm1d], *inputs: Any) -> Any:
    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=partial(_contexts, norms))


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
