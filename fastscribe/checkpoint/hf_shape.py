"""A model in the shape that transformers' Parakeet classes have: one head, and a predictor as wide as the joint network.

Zeros widen the narrower one, and change no result. An LSTM's unit whose weights and biases are all zero keeps its cell at zero
and gives zero. A unit of the joint network adds nothing to the logits if its column of the output layer is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource, sources_of
from fastscribe.checkpoint.value import Checkpoint

if TYPE_CHECKING:
    import torch

_PREDICTOR, _JOINT, _CTC = "transducer.predictor.", "transducer.joint.", "ctc."
_NUM_GATES = 4  # of an LSTM; each has a block of rows


def for_transformers(checkpoint: Checkpoint) -> Checkpoint:
    """Return a hybrid as its transducer alone, and any transducer with one width. Values stay unread."""
    config, sources = checkpoint.config, sources_of(checkpoint.weights)
    if config.predictor is None or config.joint is None:
        return checkpoint
    width = max(config.predictor.hidden, config.joint.hidden)
    kept = {name: source for name, source in sources.items() if not name.startswith(_CTC)}
    return replace(
        checkpoint,
        config=replace(
            config,
            has_ctc=False,
            predictor=replace(config.predictor, hidden=width),
            joint=replace(config.joint, hidden=width),
        ),
        weights=LazyWeights({**kept, **dict(_widened(kept, width))}),
    )


def _widened(sources: Mapping[str, TensorSource], width: int) -> Iterator[tuple[str, TensorSource]]:
    for name, source in sources.items():
        if name.startswith(f"{_PREDICTOR}lstm."):
            yield name, _padded(source, width, width, _NUM_GATES)
        elif name.startswith(_PREDICTOR) or name == f"{_JOINT}output.weight":
            yield name, _padded(source, source.shape[0], width)
        elif name.startswith(f"{_JOINT}predictor."):
            yield name, _padded(source, width, width)
        elif name.startswith(f"{_JOINT}encoder."):
            yield name, _padded(source, width, source.shape[-1])


def _padded(source: TensorSource, num_rows: int, num_columns: int, num_blocks: int = 1) -> TensorSource:
    """Return a matrix or a bias with zeros at the end of the rows of each block, and of the columns."""
    sizes = (num_rows, num_columns)[: len(source.shape)]
    shape = (num_blocks * num_rows, *sizes[1:])

    def read() -> torch.Tensor:
        tensor = source.read()
        blocks = tensor.view(num_blocks, -1, *tensor.shape[1:])
        wider = tensor.new_zeros(num_blocks, *sizes)
        wider[tuple(map(slice, blocks.shape))] = blocks
        return wider.view(shape)

    return source if shape == source.shape else TensorSource(source.dtype, shape, read)
