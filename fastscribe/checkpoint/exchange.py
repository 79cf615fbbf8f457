"""Export of a model to another project's format: the checks before anything is written, and what both formats share.

A writer makes its files from the ModelConfig, and the reader of that format converts them back before they are written. Where
the result differs the format cannot hold the model, so the reader alone says what a format means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastscribe.checkpoint.lazy_weights import COUNTER_SUFFIX, TensorSource, sources_of
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import ChunkedAttention, ExportFormat, ModelConfig
from fastscribe.errors import UnsupportedCheckpoint, UsageError
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.families.jasper.config import JasperConfig

if TYPE_CHECKING:
    import torch

_BATCH_NORM_SUFFIX = ".running_mean"
_OTHER_ENCODERS = {
    GraniteConfig: "Granite's encoder",
    JasperConfig: "a convolutional encoder (Jasper, QuartzNet, ContextNet, Citrinet)",
}
_OWN_FORMAT = "without --to, convert writes fastscribe's own format"


def refuse(checkpoint: Checkpoint, to: ExportFormat, problem: str) -> UsageError:
    """Return the error for a model that a format cannot hold."""
    return UsageError(f"{checkpoint.path}: --to {to}: {problem}; {_OWN_FORMAT}")


def check_family(checkpoint: Checkpoint, to: ExportFormat) -> EncoderConfig:
    """Return the encoder's config. Raises UsageError for a family that only fastscribe's own format holds."""
    config, encoder = checkpoint.config, checkpoint.config.encoder
    is_canary = config.aed is not None and config.aed.prompt != "cohere" and to == "nemo"
    if config.aed is not None and not is_canary:
        raise refuse(checkpoint, to, "a model with an attention decoder (Canary, Cohere) is not written")
    if not isinstance(encoder, EncoderConfig):
        raise refuse(
            checkpoint, to, f"a model with {_OTHER_ENCODERS[type(encoder)]} is not written, only FastConformers"
        )
    if encoder.language_prompt or encoder.causal_subsampling or isinstance(encoder.attention, ChunkedAttention):
        raise refuse(checkpoint, to, "a streaming model is not written")
    kind = {"character": "a vocabulary of letters", "aggregate": "a vocabulary joined from several languages'"}
    if checkpoint.tokenizer.kind in kind and not is_canary:
        raise refuse(checkpoint, to, f"{kind[checkpoint.tokenizer.kind]} is not written, only subwords (BPE, unigram)")
    return encoder


def check_config(checkpoint: Checkpoint, to: ExportFormat, read_back: Callable[[], ModelConfig]) -> None:
    """Raise UsageError if what the format's reader makes of the new files is an error or another model.

    `language` and `trained_utterance_s` do not change the model's output, and other formats do not have them.
    """
    try:
        found = read_back()
    except UnsupportedCheckpoint as error:
        raise refuse(checkpoint, to, f"that format has no place for this {error.key}") from error
    expected = dataclasses.replace(checkpoint.config, language=None, trained_utterance_s=None)
    for name, value in _differences(dataclasses.asdict(expected), dataclasses.asdict(found)):
        raise refuse(checkpoint, to, f"that format has no place for {name} {value!r:.60}")


def _differences(expected: Any, found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            yield from _differences(value, found.get(key), f"{name}.{key}" if name else key)
    elif expected != found:
        yield name, expected


def left_out(checkpoint: Checkpoint, to: ExportFormat) -> list[str]:
    """Return what other formats do not have, in words for the user."""
    config = checkpoint.config
    parts = {
        "the CTC head beside a transducer": config.has_ctc and config.joint is not None and to == "hf",
        "the mark of random weights": checkpoint.has_random_weights and to == "hf",
        "the language model": checkpoint.language_model is not None,
        "the timestamps aligner": checkpoint.aligner is not None,
        "the language": config.language is not None,
        "the longest utterance of the training": config.trained_utterance_s is not None,
        "the rule to keep spaces before punctuation": checkpoint.tokenizer.attached == "nowhere",
    }
    return [what for what, is_there in parts.items() if is_there]


def sources_with_counters(checkpoint: Checkpoint) -> dict[str, TensorSource]:
    """Return the weights, with a counter of 0 for each BatchNorm that has none: other readers expect all of them."""
    import torch

    found = dict(sources_of(checkpoint.weights))
    zero = TensorSource("int64", (), lambda: torch.zeros((), dtype=torch.int64))
    for name in list(found):
        if name.endswith(_BATCH_NORM_SUFFIX):
            found.setdefault(name.removesuffix(_BATCH_NORM_SUFFIX) + COUNTER_SUFFIX, zero)
    return found


def stored_dtypes(sources: Mapping[str, TensorSource], dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the dtype to store each weight in: counters stay integers."""
    import torch

    return {name: torch.int64 if source.dtype == "int64" else dtype for name, source in sources.items()}
