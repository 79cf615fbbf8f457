"""The settings of a training run: a YAML file with a section for each dataclass below. Every key has a default here.

    data: {train: [train.jsonl], validation_share: 0.02}
    model: {d_model: 192, num_layers: 8, vocab_size: 256}
    run: {epochs: 60}

Paths are relative to the file that names them. An unknown key is an error that suggests the nearest name, and so is a
value out of range. No torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from fastscribe._system.file_kinds import safe_read
from fastscribe._system.text_layout import count_of
from fastscribe.config import FloatDtypeName, ModelConfig
from fastscribe.errors import UsageError
from fastscribe.evaluation.scores import NormalizerName
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.training.corpus import ManifestPart
from fastscribe.training.manifest import ExampleLimits
from fastscribe.training.model_recipe import ModelChanges, ModelRecipe
from fastscribe.training.model_recipe import check as _check
from fastscribe.training.model_recipe import check_keys as check_model_keys
from fastscribe.training.scoring import Metric

_DB = (-100.0, 100.0)
# Outside of these, float32 samples overflow or vanish.
_BOUNDS = {"noise_db": _DB, "noise_slope": (-4.0, 4.0), "gain_db": _DB}
RECORDED_SHARE = 0.5  # of the rows with noise get a recorded one, if the recipe has a manifest of them
PERCENT = 100  # speeds are whole hundredths, so that resampling's ratios are small


@dataclass(frozen=True)
class AugmentConfig:
    """Ranges are (min, max), uniform between; a chance is per row. Raises UsageError."""

    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    reverb_chance: float = 0.2  # of a room of room_manifest
    room_manifest: str | None = None  # of impulse responses; null: no row is in a room
    noise_chance: float = 0.4
    noise_manifest: str | None = (
        None  # of noise without speech: for half of the rows with noise; null: all of it is made
    )
    noise_db: tuple[float, float] = (5.0, 30.0)  # speech to noise
    noise_slope: tuple[float, float] = (0.0, 2.0)  # power falls as 1 / frequency ** slope: 0 white, 1 pink, 2 brown
    gain_db: tuple[float, float] = (-15.0, 6.0)
    freq_masks: int = 2
    freq_mask_share: float = 27 / 80  # of the mel bands, at most
    time_masks: int = 10
    time_mask_share: float = 0.05  # of the row's frames, at most

    def __post_init__(self) -> None:
        for speed in self.speeds:
            if not (0.5 <= speed <= 2 and math.isclose(speed * PERCENT, round(speed * PERCENT))):
                raise UsageError(f"speeds {self.speeds!r}: not whole hundredths from 0.5 to 2")
        for name in ("reverb_chance", "noise_chance", "freq_mask_share", "time_mask_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} {getattr(self, name)!r}: not a number from 0 to 1")
        for name, (lowest, highest) in _BOUNDS.items():
            low, high = getattr(self, name)
            if not lowest <= low <= high <= highest:
                wanted = f"not (least, most) from {lowest:g} to {highest:g}"
                raise UsageError(f"{name} {(low, high)!r}: {'the least comes first' if low > high else wanted}")
        for manifest, chance in (("noise_manifest", "noise_chance"), ("room_manifest", "reverb_chance")):
            if getattr(self, manifest) is not None and not getattr(self, chance):
                raise UsageError(f"{manifest}: {chance} is 0, so it would not be used")
        if not self.speeds:
            raise UsageError("speeds: none is given")
        if min(self.freq_masks, self.time_masks) < 0:
            raise UsageError("freq_masks, time_masks: not numbers from 0")


_MAX_BYTES = 1 << 20
_OTHER_NAMES = {"lr": "learning_rate", "min_lr": "min_learning_rate", "batch_size": "seconds", "max_epochs": "epochs"}
_LENGTHS = ("epochs", "max_steps")
_TUNING: dict[str, dict[str, Any]] = {  # other defaults for a run that starts from a checkpoint
    "optimiser": {"learning_rate": 1e-4, "warmup_steps": 200},
    "run": {"epochs": 20},
}


class _Loader(yaml.SafeLoader):
    """Parse numbers as in YAML 1.2 (PyYAML reads 1e-4 as text), and refuse a key that occurs twice."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Check the keys before `<<` is resolved, which may repeat keys."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if isinstance(key, yaml.ScalarNode) and name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} comes twice", key.start_mark)
            seen.add(name)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class DataRecipe:
    train: tuple[ManifestPart, ...]
    validation: tuple[ManifestPart, ...] = ()
    validation_share: float = (
        0.02  # of the training sentences, if `validation` is empty; a tenth of small sets, up to ten
    )
    language: str | None = None  # of the texts; None: that of --init if it knows one only, else by the texts' script
    normalizer: NormalizerName | Literal["auto"] = "auto"  # of validation; auto: whisper-en for English, else unicode
    metric: Metric | Literal["auto"] = "auto"  # decides which model is best; auto: cer for languages without spaces
    min_duration_s: float = 0.3
    max_duration_s: float = 30.0
    max_tokens_per_s: float = 25.0
    cache_gb: float = 4.0  # decoded recordings that each process (one a GPU) caches in memory
    threads: int = 4  # threads that decode

    def __post_init__(self) -> None:
        if not self.train:
            raise UsageError("train: give the manifests to train on")
        _check(self, lambda share: 0 < share < 1, "a number between 0 and 1", "validation_share")
        _check(self, lambda gb: gb >= 0, "a number from 0", "cache_gb")
        _check(self, lambda threads: threads >= 1, "a number from 1", "threads")
        assert self.limits  # ExampleLimits checks its own values

    @property
    def limits(self) -> ExampleLimits:
        return ExampleLimits(
            self.min_duration_s, self.max_duration_s, max_tokens=None, max_tokens_per_s=self.max_tokens_per_s
        )


@dataclass(frozen=True)
class BatchRecipe:
    """A batch holds rows of similar duration and number of tokens."""

    seconds: float | Literal["auto"] = "auto"  # of audio with padding; auto: as much as the device's memory holds
    buckets: int = 16  # by duration; fewer if these could not fill their batches
    token_buckets: int = 2  # in each duration bucket
    accumulate: int = 1  # batches per optimiser step; all their labels weigh the same
    gradient_checkpointing: bool = False  # compute the encoder's activations twice instead of keeping them

    def __post_init__(self) -> None:
        _check(self, lambda seconds: seconds == "auto" or seconds > 0, "'auto' or a number above 0", "seconds")
        _check(self, lambda count: count >= 1, "a number from 1", "buckets", "token_buckets", "accumulate")


@dataclass(frozen=True)
class LossRecipe:
    ctc_weight: float = 0.3  # share of a hybrid's loss; the transducer has the rest
    sigma: float = 0.02  # TDT: logit under-normalisation
    omega: float = 0.1  # TDT: chance that a batch is trained with the RNN-T loss
    fastemit: float = 0.0
    clamp: float | None = None
    label_smoothing: float = 0.0  # attention decoder: share of each token's probability that all others have together
    prompt: bool = False  # attention decoder: learn the prompt's tokens too, as NeMo does by default

    def __post_init__(self) -> None:
        _check(self, lambda share: 0 <= share <= 1, "a number from 0 to 1", "ctc_weight", "omega")
        _check(self, lambda value: value >= 0, "a number from 0", "fastemit", "sigma")
        _check(self, lambda value: value > 0, "a number above 0", "clamp")
        _check(self, lambda share: 0 <= share < 1, "a number from 0 to below 1", "label_smoothing")


Part = Literal["encoder", "predictor", "joint", "ctc", "decoder"]
LoraTarget = Literal[
    "linear_q", "linear_k", "linear_v", "linear_out", "linear_pos", "linear1", "linear2", "pointwise1", "pointwise2"
]
TrackerName = Literal["tensorboard", "wandb"]


@dataclass(frozen=True)
class PartRates:
    """The learning rate of each part of a model, as a multiple of the run's."""

    encoder: float = 1.0  # with its subsampling
    predictor: float = 1.0
    joint: float = 1.0
    ctc: float = 1.0
    decoder: float = 1.0  # an attention decoder, with its embeddings and output layer

    def __post_init__(self) -> None:
        wanted = "a number above 0; optimiser.freeze keeps a part as it is"
        _check(self, lambda value: value > 0, wanted, "encoder", "predictor", "joint", "ctc", "decoder")


@dataclass(frozen=True)
class LoraRecipe:
    """Adapters that learn in place of the encoder's own weights (Hu et al. 2021)."""

    rank: int = 16
    alpha: float = 32.0  # the adapters' outputs are multiplied by alpha / rank
    dropout: float = 0.0  # of the adapters' inputs
    target_modules: tuple[LoraTarget, ...] = (
        "linear_q",
        "linear_k",
        "linear_v",
        "linear_out",  # attention
        "linear1",
        "linear2",  # feed-forward
    )

    def __post_init__(self) -> None:
        _check(self, lambda rank: rank >= 1, "a number from 1", "rank")
        _check(self, lambda alpha: alpha > 0, "a number above 0", "alpha")
        _check(self, lambda share: 0 <= share < 1, "a number from 0 to below 1", "dropout")
        _check(self, bool, "a list of at least one layer's name", "target_modules")


@dataclass(frozen=True)
class OptimiserRecipe:
    """AdamW (Loshchilov and Hutter 2019); a linear warm-up, then a cosine to `min_learning_rate` at the last step."""

    learning_rate: float = 1e-3
    min_learning_rate: float = 1e-5
    warmup_steps: int = 1000  # at most a tenth of the run's steps
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 1e-2
    clip_norm: float | None = 1.0
    ema: float = 0.999  # decay a step of the averaged weights that are validated and saved; 0: no average
    dropout: float = 0.1
    freeze: tuple[Part | Literal["batch_norm"], ...] = ()  # stay as they are; batch_norm: its statistics and weights
    part_rates: PartRates = PartRates()
    lora: LoraRecipe | None = None  # {}: adapters of these defaults in place of the encoder's own weights

    def __post_init__(self) -> None:
        _check(self, lambda value: value > 0, "a number above 0", "learning_rate", "clip_norm")
        _check(self, lambda value: value >= 0, "a number from 0", "min_learning_rate", "weight_decay", "warmup_steps")
        _check(self, lambda value: 0 <= value < 1, "a number from 0 to below 1", "ema", "dropout")
        _check(self, lambda betas: all(0 <= beta < 1 for beta in betas), "two numbers from 0 to below 1", "betas")
        if self.lora is not None and "encoder" in self.freeze:
            raise UsageError(
                "freeze: lora freezes the encoder's own weights, and its adapters learn: leave out encoder"
            )


@dataclass(frozen=True)
class RunRecipe:
    epochs: int = 100  # 0: show the plan, and train nothing
    max_steps: int | None = None  # optimiser steps that the run has, instead of epochs
    patience: int | None = None  # validations in a row without a better one that end the run; None: none do
    seed: int = 0
    validate_epochs: int = 1  # epochs between validations
    keep_start: bool = True  # best stays the model of --init until a validation is better by two standard errors
    kept_dtype: FloatDtypeName = "fp32"  # of the models that are written
    save_minutes: float = 10.0  # minutes between saved states, from which a killed run resumes
    log_to: tuple[TrackerName, ...] = ()  # besides the log: tensorboard, wandb, if they are installed

    def __post_init__(self) -> None:
        _check(self, lambda count: count >= 1, "a number from 1", "validate_epochs", "max_steps", "patience")
        _check(self, lambda value: value >= 0, "a number from 0", "epochs", "seed", "save_minutes")

    @property
    def length(self) -> str:
        """How long a run is, in words."""
        return count_of(self.epochs, "epoch") if self.max_steps is None else count_of(self.max_steps, "step")


@dataclass(frozen=True)
class Recipe:
    data: DataRecipe
    model: ModelRecipe | ModelChanges = field(default_factory=ModelRecipe)  # ModelChanges: with --init
    batch: BatchRecipe = BatchRecipe()
    loss: LossRecipe = LossRecipe()
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optimiser: OptimiserRecipe = OptimiserRecipe()
    run: RunRecipe = RunRecipe()


def check_used(recipe: Recipe, config: ModelConfig, where: object) -> None:
    """Raise UsageError for settings of other models. Values that are the default, or have no effect, may stand.

    Args:
        config: of the model that trains.
        where: the recipe's name in the message.
    """
    assert isinstance(config.encoder, EncoderConfig)
    has_transducer, has_decoder, has_ctc = config.joint is not None, config.aed is not None, config.has_ctc
    losses: dict[str, tuple[bool, object]] = {  # whether the model uses it, and the value that has no effect
        "ctc_weight": (has_transducer and has_ctc, float(has_ctc)),
        "sigma": (bool(config.durations), 0.0),
        "omega": (bool(config.durations), 0.0),
        "fastemit": (has_transducer, 0.0),
        "clamp": (has_transducer, None),
        "label_smoothing": (has_decoder, 0.0),
        "prompt": (has_decoder, False),
    }
    parts = {"predictor": has_transducer, "joint": has_transducer, "ctc": has_ctc, "decoder": has_decoder}
    missing = [part for part, is_there in parts.items() if not is_there]
    missing += ["batch_norm"] if config.encoder.conv_norm != "batch_norm" else []
    unused = [
        f"loss.{name}"
        for name, (is_used, nothing) in losses.items()
        if not is_used and getattr(recipe.loss, name) not in (getattr(LossRecipe, name), nothing)
    ]
    unused += [f"optimiser.part_rates.{part}" for part in missing if getattr(recipe.optimiser.part_rates, part, 1) != 1]
    unused += [f"optimiser.freeze: {part}" for part in missing if part in recipe.optimiser.freeze]
    if unused:
        raise UsageError(f"{where}: {', '.join(unused)}: this model ({config.family}) has no use for that; leave out")


def read_recipe(path: Path, is_tuning: bool = False) -> Recipe:
    """Read a recipe file. Raises UsageError that names the file and the key. See parse_recipe."""
    try:
        values = yaml.load(safe_read(path, _MAX_BYTES), _Loader)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{path}: is binary data or not UTF-8, not a recipe") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f": line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        cure = (
            "" if isinstance(error, yaml.constructor.ConstructorError) else "; check brackets, colons and indentation"
        )
        raise UsageError(f"{path}{at}: not YAML: {error.problem or error.context}{cure}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: too large
        raise UsageError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    return parse_recipe(values, path, is_tuning)


def default_recipe(manifest: Path, is_tuning: bool) -> Recipe:
    """Return the recipe for a manifest or a folder without a recipe file."""
    return parse_recipe({"data": {"train": str(manifest)}}, Path("recipe of defaults"), is_tuning)


def parse_recipe(values: Any, path: Path, is_tuning: bool = False) -> Recipe:
    """Check the values of a recipe.

    Args:
        values: the parsed YAML.
        path: the file that the values come from; paths in it are relative to its folder.
        is_tuning: True if the run starts from a checkpoint, which has other defaults and fixes most of the model.

    Raises:
        UsageError: a key or a value is wrong; it names the file and the key.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{path}: not a mapping of sections such as data, model and run")
    if "trainer" in values or "exp_manager" in values:
        raise UsageError(f"{path}: a NeMo config, not a recipe: docs/switching.md has the recipe's names of its keys")
    _check_keys(Recipe, values, str(path), "")  # before the data are missed, whose section may be misspelt
    values = dict(values)
    values["data"] = _data(values.get("data"), path)
    if isinstance(augment := values.get("augment"), Mapping):
        manifests = {
            key: augment[key] for key in ("noise_manifest", "room_manifest") if isinstance(augment.get(key), str)
        }
        values["augment"] = {**augment, **{key: str(path.parent / given) for key, given in manifests.items()}}
    if isinstance(run := values.get("run"), Mapping) and all(run.get(key) is not None for key in _LENGTHS):
        raise UsageError(f"{path}: run.epochs, run.max_steps: give one of them, which is the length of the run")
    for section, defaults in _TUNING.items() if is_tuning else ():
        given = values.get(section)
        if given is None or isinstance(given, Mapping):
            values[section] = {**defaults, **(given or {})}
    model = _model(values.pop("model", None), path, is_tuning)
    recipe = _parse_section(Recipe, {**values, "model": model}, str(path), "")
    assert isinstance(recipe, Recipe)
    return recipe


def _model(values: Any, path: Path, is_tuning: bool) -> ModelRecipe | ModelChanges:
    """Parse the section, whose keys depend on whether the run starts from a checkpoint."""
    if isinstance(values, Mapping):
        try:
            check_model_keys(values, is_tuning)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        if isinstance(values.get("tokenizer"), str):
            values = {**values, "tokenizer": str(path.parent / values["tokenizer"])}
    model = _value(ModelChanges if is_tuning else ModelRecipe, values, str(path), "model")
    assert isinstance(model, (ModelRecipe, ModelChanges))
    return model


def _data(values: Any, path: Path) -> Any:
    """Normalise the manifests, which may be one path, a list of paths, or mappings."""
    if isinstance(values, Mapping):
        _check_keys(DataRecipe, values, str(path), "data.")  # before `train` is missed, which may be misspelt
    if not isinstance(values, Mapping) or "train" not in values:
        raise UsageError(f"{path}: data.train: give the manifests to train on")
    values = dict(values)
    for key in ("train", "validation"):
        given = values.get(key, [])
        parts = given if isinstance(given, list) else [given]
        values[key] = [_manifest(part, f"data.{key}", path) for part in parts]
    if values.get("language") is False:
        raise UsageError(f'{path}: data.language: YAML reads no as false; write "no"')
    for section, key, other in (("train", "decides", "validation"), ("validation", "share", "train")):
        if any(part.get(key) for part in values[section]):
            raise UsageError(f"{path}: data.{section}: {key} is for manifests of data.{other}")
    return values


def _manifest(part: Any, where: str, path: Path) -> dict[str, Any]:
    part = {"path": part} if isinstance(part, str) else part
    if not isinstance(part, Mapping) or not isinstance(part.get("path"), str):
        raise UsageError(f"{path}: {where}: not a manifest's path, or {{path: .., repeat: ..}}")
    return {**part, **{key: str(path.parent / part[key]) for key in ("path", "tar") if isinstance(part.get(key), str)}}


def _check_keys(kind: type, values: Mapping[Any, Any], path: str, where: str) -> dict[str, Any]:
    """Return the fields of a section with their types. Raise UsageError for another key, with the nearest or all names."""
    hints = typing.get_type_hints(kind)
    for key in values:
        if key not in hints:
            known = [_OTHER_NAMES[key]] if key in _OTHER_NAMES else difflib.get_close_matches(str(key), hints, n=1)
            near = [f"{where}{name}?" for name in known if name in hints]
            cure = near[0] if near else f"the keys here are {', '.join(hints)}"
            raise UsageError(f"{path}: {where}{key}: no such key; {cure}")
    return hints


def _parse_section(kind: type, values: Any, path: str, where: str) -> Any:
    """Build a frozen dataclass from a mapping and check the type of every value."""
    if not isinstance(values, Mapping):
        raise UsageError(f"{path}: {where.rstrip('.')}: not a mapping")
    hints = _check_keys(kind, values, path, where)
    parsed = {key: _value(hints[key], value, path, f"{where}{key}") for key, value in values.items()}
    try:
        return kind(**parsed)
    except UsageError as error:  # a value out of range
        raise UsageError(f"{path}: {where}{error}") from error


def _value(kind: Any, value: Any, path: str, where: str) -> Any:
    if dataclasses.is_dataclass(value):
        return value  # parsed before
    kinds = _kinds(kind)
    for one in kinds:
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            if isinstance(value, Mapping) or len(kinds) == 1:  # of several, it may be left out
                # None if all of its keys are commented out.
                return _parse_section(one, {} if value is None else value, path, f"{where}.")
        elif typing.get_origin(one) is tuple:
            arguments, num_given = typing.get_args(one), len(value) if isinstance(value, (list, tuple)) else None
            parts = arguments[:1] * (num_given or 0) if arguments[-1] is ... else arguments
            if num_given == len(parts):
                pairs = enumerate(zip(parts, value, strict=True))
                return tuple(_value(part, held, path, f"{where}[{number}]") for number, (part, held) in pairs)
        elif _has_type(one, value):
            is_number = isinstance(value, int) and not isinstance(value, bool)
            return float(value) if is_number and float in kinds else value
    raise UsageError(f"{path}: {where}: {value!r} is not {_description(kind)}")


def _kinds(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union; of another type, itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def _has_type(kind: Any, value: Any) -> bool:
    """Return True if a value has a type that is no union, list or section."""
    if typing.get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in typing.get_args(kind))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return isinstance(value, kind)


def _description(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if len(kinds := _kinds(kind)) > 1:
        return " or ".join(map(_description, kinds))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        return "a list" if arguments[-1] is ... else f"a list of {len(arguments)}"
    names = {int: "a whole number from 0", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(kind, "a mapping")
