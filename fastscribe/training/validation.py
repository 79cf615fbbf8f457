"""Measure the word error rate of the current weights, decoded as `fastscribe transcribe` decodes.

Shapes: B batch, S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import DecoderName, Options
from fastscribe.errors import UsageError
from fastscribe.evaluation.scores import Pair, evaluate, normalizer
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.training.dataloader import AudioDataLoader
from fastscribe.training.manifest import Example
from fastscribe.types import Batch

_MAX_S = 160.0  # audio in a batch


@dataclass(frozen=True)
class ValidationResult:
    """Error rates as fractions (they may exceed 1): `wer` by Whisper's English normaliser, `exact_wer` with case and marks."""

    wer: float
    exact_wer: float
    cer: float
    examples: tuple[tuple[str, str], ...]  # a few (reference, hypothesis) pairs

    def to_json(self) -> dict[str, Any]:
        rates = {"wer": self.wer, "exact_wer": self.exact_wer, "cer": self.cer}
        return {name: round(rate, 5) for name, rate in rates.items()}


def validate(
    checkpoint: Checkpoint,
    examples: Sequence[Example],
    loader: AudioDataLoader,
    device: str,
    dtype: str,
    decoder: DecoderName | None = None,
) -> ValidationResult:
    """Decode and score the examples.

    Raises:
        UsageError: the model does not support the decoder or the device, or no recording can be read.
    """
    options = Options(decoder=decoder)
    recognizer = Recognizer.build(checkpoint, device, dtype, options, say=lambda line: None)
    tokenizer = checkpoint.tokenizer
    order = sorted(range(len(examples)), key=lambda index: -examples[index].duration_s)
    pairs = []
    for rows in loader.batches(_batches(order, examples)):
        if not len(rows.examples):
            continue
        batch = Batch((), rows.samples_BS.numpy(), rows.lengths_B.numpy())
        for index, hypothesis in zip(rows.examples, recognizer.transcribe(batch), strict=True):
            pairs.append(
                (
                    tokenizer.remove_spaces_before_punctuation(examples[index].text),
                    tokenizer.sentence(hypothesis.token_ids),
                )
            )
    if not pairs:
        raise UsageError(f"none of the {len(examples)} recordings to validate with can be read")
    return _to_result(pairs)


def _batches(order: Sequence[int], examples: Sequence[Example]) -> list[Any]:
    import numpy as np

    batches: list[list[int]] = []
    for index in order:
        if not batches or (len(batches[-1]) + 1) * examples[batches[-1][0]].duration_s > _MAX_S:
            batches.append([])
        batches[-1].append(index)
    return [np.array(batch) for batch in batches]


def _to_result(pairs: Sequence[tuple[str, str]]) -> ValidationResult:
    spoken = _scores(pairs, normalizer("whisper-en"))
    exact = _scores(pairs, normalizer("none"))
    return ValidationResult(spoken[0], exact[0], spoken[1], tuple(sorted(pairs)[:: max(1, len(pairs) // 5)][:5]))


def _scores(pairs: Sequence[tuple[str, str]], normalize: Callable[[str], str]) -> tuple[float, float]:
    total = evaluate(Pair(normalize(reference), normalize(hypothesis)) for reference, hypothesis in pairs).total
    return total.words.rate or 0.0, total.characters.rate or 0.0


def with_weights(checkpoint: Checkpoint, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Checkpoint:
    """Return the checkpoint with these weights rounded to `dtype`, so that the validated weights are the saved ones."""
    kept = {name: tensor.cpu() for name, tensor in weights.items()}
    return replace(
        checkpoint,
        weights={name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in kept.items()},
        has_random_weights=False,
    )
