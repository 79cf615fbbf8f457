"""The Checkpoint that every reader returns, and shared code to read JSON, tokenizers and configs of other projects."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe._system.file_kinds import safe_read
from fastscribe.checkpoint.lazy_weights import StoredModel, float_sources
from fastscribe.config import ModelConfig
from fastscribe.errors import CheckpointError, FastscribeError, UnsupportedCheckpoint
from fastscribe.text.tokenizer import Tokenizer, from_folder

if TYPE_CHECKING:
    import torch

CONFIG_NAME = "config.json"  # of folders of fastscribe and of Hugging Face
FORMAT = "fastscribe"  # `format` in the config.json of a folder of fastscribe
NEMO_CONFIG_NAME = "model_config.yaml"  # in NeMo's archives, and in an unpacked one
MAX_CONFIG_BYTES = 8 << 20  # IndicConformer's masks, listed three times, can take 5 MB
# Exceptions of zipfile, pickle and torch on damaged bytes.
DAMAGE = (RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Checkpoint(StoredModel):
    """A model on disk. Weights have fastscribe's names (model.state_dict()) and their stored dtype.

    Weights of a file are LazyWeights: weights[name] reads one tensor and caches none.
    """

    path: Path
    source: str  # "nemo", "huggingface" or "fastscribe"
    config: ModelConfig
    tokenizer: Tokenizer
    weights: Mapping[str, torch.Tensor]
    has_random_weights: bool = False  # a model for benchmarks; its text is meaningless
    language_model: Any = None  # context.language_model.LanguageModel, for beam search; None: there is none
    languages: tuple[str, ...] = ()  # tags (fastscribe/languages.py); empty: not stated, or in the vocabulary (Canary)
    aligner: Checkpoint | None = None  # CTC model that computes word times for an attention decoder (canary-1b-v2)
    # With config.language_heads: the tokenizer of each language. families/indic.py makes a model of one.
    vocabularies: Mapping[str, Tokenizer] = field(default_factory=dict)
    # By purpose (Utterance.purpose): the checkpoints of models that rooms run beside this one (rooms.py, read_models).
    others: Mapping[str, Any] = field(default_factory=dict)
    other_language_model: Any = None  # in place of `language_model`: of --lm, also context.backoff_model.BackoffModel

    @property
    def fused_model(self) -> Any:
        """The language model that beam search uses; None: there is none."""
        return self.other_language_model or self.language_model

    @property
    def has_aligner_of_a_language(self) -> bool:
        """True if the option `language` chose the aligner's head."""
        return self.aligner is not None and self.aligner.config.language is not None

    @property
    def stored_dtypes(self) -> tuple[str, ...]:
        """As `dtypes`, with those that reading changes as they are on the disk."""
        return tuple(sorted({source.stored_dtype or source.dtype for source in float_sources(self.weights)}))


def read_json(path: Path) -> Any:
    """Read a JSON file of up to MAX_CONFIG_BYTES.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be read or is not JSON.
    """
    try:
        return json.loads(safe_read(path, MAX_CONFIG_BYTES), object_pairs_hook=reject_duplicate_keys)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path, f"cannot be read: {one_line(error)}") from error


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key comes twice")
    return values


def adapt_tokenizer(tokenizer: Tokenizer, config: ModelConfig, has_aligner: bool = False) -> Tokenizer:
    """Adapt the tokenizer to the model: NeMo does not change the sentences of an attention decoder.

    With an aligner, and where the encoder's settings say so, spaces alone separate words. The model of one language writes
    that one.
    """
    tokenizer = replace(tokenizer, language=config.language) if config.language else tokenizer
    if config.encoder.separates_words:
        return replace(tokenizer, attached="nowhere")
    if config.aed is None:
        return tokenizer
    return replace(tokenizer, attached="nowhere" if has_aligner else "words")


def check_aligner(aligner: ModelConfig, config: ModelConfig, where: object) -> None:
    """Raise UnsupportedCheckpoint if the aligner does not fit the model."""
    if aligner.decoders != ("ctc",):
        raise UnsupportedCheckpoint(where, "decoders of the timestamps aligner", list(aligner.decoders), "ctc alone")
    _check_rate(aligner, config, where, "the timestamps aligner")
    if config.aed is None:
        raise UnsupportedCheckpoint(where, "timestamps aligner", "present", "Canary models")


def _check_rate(aligner: ModelConfig, config: ModelConfig, where: object, name: str) -> None:
    rate, expected = aligner.features.sample_rate, config.features.sample_rate
    if rate != expected:
        raise UnsupportedCheckpoint(where, f"sample rate of {name}", rate, f"the model's {expected}")


def with_aligner(checkpoint: Checkpoint, aligner: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose words are timed by another model with a CTC head.

    Raises:
        UnsupportedCheckpoint: The aligner has no CTC head, or another sample rate.
    """
    if not aligner.config.has_ctc:
        raise UnsupportedCheckpoint(aligner.path, "decoders of --align-with", list(aligner.config.decoders), "ctc")
    _check_rate(aligner.config, checkpoint.config, aligner.path, "--align-with")
    tokenizer = adapt_tokenizer(checkpoint.tokenizer, checkpoint.config, has_aligner=True)
    return replace(checkpoint, tokenizer=tokenizer, aligner=aligner)


def read_tokenizer(
    folder: Path, config: ModelConfig, read: Callable[[Path, int], Tokenizer] = from_folder
) -> Tokenizer:
    """Read a folder's tokenizer.

    Args:
        folder: the folder.
        config: config of the model.
        read: reads the tokenizer of a folder with this number of labels.

    Raises:
        CheckpointError: it is damaged or does not fit the model.
    """
    num_labels = config.num_labels
    try:
        tokenizer = read(folder, num_labels)
    except (*DAMAGE, RecursionError) as error:
        raise CheckpointError(folder, f"tokenizer cannot be read: {one_line(error)}") from error
    if len(tokenizer.pieces) != num_labels:
        raise CheckpointError(
            folder,
            f"the tokenizer has {len(tokenizer.pieces)} pieces, but the model {num_labels} labels besides the blank",
        )
    return adapt_tokenizer(tokenizer, config)


@contextmanager
def report_invalid_config(where: object) -> Iterator[None]:
    """Convert exceptions caused by unexpected types in a config to CheckpointError."""
    try:
        yield
    except FastscribeError:
        raise
    except DAMAGE as error:
        raise CheckpointError(where, f"config cannot be read: {type(error).__name__}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return an error in one line; a missing permission in the words that recordings have."""
    return "permission denied" if isinstance(error, PermissionError) else " ".join(str(error)[:300].split())


class Section:
    """A section of another project's config. Every key must be read, ignored by name, or off."""

    def __init__(self, values: Any, name: str, where: object) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(where, f"config has no section {name}" if name else "config has no sections")
        self.values = {str(key): value for key, value in values.items()}
        self.name, self.where = name, where
        self._seen: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, default: Any) -> Any:
        self._seen.add(key)
        return self.values.get(key, default)

    def part(self, key: str, *, optional: bool = False) -> Section:
        """Return the section of this key; an optional one that is absent or null is empty."""
        value = self.get(key, None)
        return Section({} if optional and value is None else value, self.path(key), self.where)

    def path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def number(self, key: str, default: float | None, *, nullable: bool = False) -> float | None:
        """Return a finite number, or None for null if `nullable`."""
        value = self.get(key, default)
        if value is None and nullable:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UnsupportedCheckpoint(self.where, self.path(key), value, "numbers" + ", null" * nullable)
        return float(value)

    def take(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return a required value of this type; a bool is not an int."""
        value = self.get(key, None)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise UnsupportedCheckpoint(self.where, self.path(key), value, wanted)
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        if default is not None and key not in self:
            self._seen.add(key)
            return default
        value = self.take(key, int)
        if value <= 0:
            raise UnsupportedCheckpoint(self.where, self.path(key), value, "positive numbers")
        return int(value)

    def whole(self, key: str, default: int | None, least: int, most: int) -> int:
        """Return an integer within limits; without a default it must be there."""
        value = self.take(key, int) if default is None or key in self else self.get(key, default) or default
        if not least <= value <= most:
            raise UnsupportedCheckpoint(self.where, self.path(key), value, f"{least} to {most}")
        return int(value)

    def between(self, key: str, default: float, least: float, most: float) -> float:
        """Return a number within limits."""
        value = self.number(key, default)
        if value is None or not least <= value <= most:
            raise UnsupportedCheckpoint(self.where, self.path(key), value, f"{least:g} to {most:g}")
        return value

    def choose(self, key: str, default: Any, supported: tuple[Any, ...]) -> Any:
        value = self.get(key, default)
        if not any(value == option and type(value) is type(option) for option in supported):
            shown = ", ".join("null" if option is None else str(option) for option in supported)
            raise UnsupportedCheckpoint(self.where, self.path(key), value, shown)
        return value

    def ignore(self, *keys: str) -> None:
        """Accept keys that do not change the result, such as those for training."""
        self._seen.update(keys)

    def finish(self) -> None:
        """Raise UnsupportedCheckpoint if an unread key is set, because it could change the result."""
        for key, value in self.values.items():
            if key not in self._seen and not key.startswith("_") and value not in (None, False):
                raise UnsupportedCheckpoint(self.where, self.path(key), value, "absent, null or false")
