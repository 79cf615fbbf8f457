"""The `model` section of a recipe: a new model, or what a run that starts from a checkpoint changes of its heads. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from fastscribe.config import FeaturesConfig, JointConfig, ModelConfig, PredictorConfig
from fastscribe.errors import UsageError
from fastscribe.families.conformer.config import SUBSAMPLING_FACTORS, ConvNorm, EncoderConfig
from fastscribe.training.bpe import VocabularyKind

TRANSDUCER_SIZES = ("predictor_hidden", "predictor_layers", "joint_hidden")
_MAX_DURATION = 1000  # frames
_DURATIONS = f"a list that ascends from 0 or more to 1 or more, {_MAX_DURATION} at most"


def check(section: object, is_right: Callable[[Any], bool], wanted: str, *names: str) -> None:
    """Raise UsageError for the first of these fields whose value fails the check; None passes."""
    for name in names:
        value = getattr(section, name)
        if value is not None and not is_right(value):
            raise UsageError(f"{name}: {value!r} is not {wanted}")


def _are_durations(durations: tuple[int, ...]) -> bool:
    """Return True if a model can have these durations: TDT's, or none for RNN-T."""
    ascend = durations == tuple(sorted(set(durations)))
    return not durations or (ascend and durations[0] >= 0 and 1 <= durations[-1] <= _MAX_DURATION)


@dataclass(frozen=True)
class ModelRecipe:
    """A new FastConformer model. A run that starts from a checkpoint takes ModelChanges instead."""

    vocab_size: int = 256  # pieces of the vocabulary that the training texts give, including <unk>; of few texts, fewer
    vocabulary: VocabularyKind = "bpe"
    tokenizer: str | None = (
        None  # a SentencePiece model, or a folder with its tokenizer.model, instead of a trained one
    )
    sample_rate: int = 16_000
    num_mels: int = 80
    num_layers: int = 16
    d_model: int = 256
    num_heads: int = 4
    ff_hidden: int | None = None  # None: four times d_model
    conv_kernel: int = 9
    conv_norm: ConvNorm = "batch_norm"
    use_bias: bool = False
    subsampling_factor: int = 8
    subsampling_channels: int = 128
    predictor_hidden: int = 320
    predictor_layers: int = 1
    joint_hidden: int = 320
    durations: tuple[int, ...] = (0, 1, 2, 3, 4)  # empty: RNN-T
    transducer: bool = True
    ctc: bool = True  # a CTC head beside the transducer

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "sample_rate", "num_mels", "num_layers", "d_model", "num_heads", "ff_hidden")
        widths = ("subsampling_channels", "predictor_hidden", "predictor_layers", "joint_hidden")
        check(self, lambda size: size >= 1, "a number from 1", *sizes, *widths)
        check(self, lambda width: width % self.num_heads == 0, f"a multiple of {self.num_heads} num_heads", "d_model")
        check(self, lambda width: width % 2 == 0, "an even number", "d_model")
        check(self, lambda kernel: kernel % 2 == 1, "an odd number", "conv_kernel")
        check(self, lambda factor: factor in SUBSAMPLING_FACTORS, f"one of {SUBSAMPLING_FACTORS}", "subsampling_factor")
        check(self, _are_durations, _DURATIONS, "durations")
        if not (self.transducer or self.ctc):
            raise UsageError("transducer, ctc: a model needs one of them")

    def config(self, num_labels: int) -> ModelConfig:
        features = FeaturesConfig(
            sample_rate=self.sample_rate,
            num_mels=self.num_mels,
            n_fft=1 << math.ceil(math.log2(0.025 * self.sample_rate)),
            win_length=round(0.025 * self.sample_rate),
            hop_length=round(0.01 * self.sample_rate),
            window="hann",
            preemphasis=0.97,
            mag_power=2.0,
            low_hz=0.0,
            high_hz=self.sample_rate / 2,
            mel_norm="slaney",
            log=True,
            log_guard="add",
            log_guard_value=2.0**-24,
            normalize="per_feature",
        )
        encoder = EncoderConfig(
            num_mels=self.num_mels,
            num_layers=self.num_layers,
            d_model=self.d_model,
            num_heads=self.num_heads,
            ff_hidden=self.ff_hidden or 4 * self.d_model,
            conv_kernel=self.conv_kernel,
            conv_norm=self.conv_norm,
            use_bias=self.use_bias,
            xscaling=False,
            subsampling="dw_striding",
            subsampling_factor=self.subsampling_factor,
            subsampling_channels=self.subsampling_channels,
        )
        predictor = PredictorConfig(self.predictor_hidden, self.predictor_layers) if self.transducer else None
        joint = new_joint(self.joint_hidden) if self.transducer else None
        durations = self.durations if self.transducer else ()
        return ModelConfig(features, encoder, predictor, joint, durations, self.ctc, num_labels)


@dataclass(frozen=True)
class ModelChanges:
    """Changes to the heads of the checkpoint that a run starts from; None keeps what it has.

    A new vocabulary has `vocab_size` pieces of the training texts, or is that of `tokenizer`.
    """

    vocab_size: int | None = None
    vocabulary: VocabularyKind | None = None  # of a vocabulary with vocab_size; None: bpe
    tokenizer: str | None = None
    transducer: bool | None = None  # True gives a CTC model a transducer with the sizes below, False removes it
    durations: tuple[int, ...] | None = None
    ctc: bool | None = None  # True adds a CTC head, False removes it
    predictor_hidden: int | None = None  # of a transducer that is added; None: as in ModelRecipe
    predictor_layers: int | None = None
    joint_hidden: int | None = None

    def __post_init__(self) -> None:
        check(self, lambda size: size >= 1, "a number from 1", "vocab_size", *TRANSDUCER_SIZES)
        check(self, _are_durations, _DURATIONS, "durations")
        if self.vocabulary is not None and self.vocab_size is None:
            raise UsageError("vocabulary: give vocab_size too, for a new vocabulary of that many pieces")

    @property
    def has_new_vocabulary(self) -> bool:
        return self.vocab_size is not None or self.tokenizer is not None

    @property
    def transducer_sizes(self) -> dict[str, int]:
        """The sizes of an added transducer that are given, by their keys."""
        return {name: getattr(self, name) for name in TRANSDUCER_SIZES if getattr(self, name) is not None}


def new_joint(hidden: int) -> JointConfig:
    """Return the config of a joint network that is trained from scratch."""
    return JointConfig(hidden, "relu", 10)


def check_keys(values: Mapping[Any, Any], is_tuning: bool) -> None:
    """Raise UsageError for keys that exclude each other, and with `is_tuning` for those that no checkpoint changes."""
    if values.get("tokenizer") is not None and (more := [key for key in ("vocab_size", "vocabulary") if key in values]):
        raise UsageError(f"model.tokenizer brings a vocabulary of its own: leave out {_listed(more)}")
    changes = [field.name for field in fields(ModelChanges)]
    fixed = [field.name for field in fields(ModelRecipe) if field.name in values and field.name not in changes]
    if is_tuning and fixed:
        can = ", ".join(name for name in changes if name not in TRANSDUCER_SIZES)
        raise UsageError(f"{_listed(fixed)}: leave out, --init decides; with --init, a recipe can change {can}")


def _listed(keys: list[str]) -> str:
    return ", ".join(f"model.{key}" for key in keys)
