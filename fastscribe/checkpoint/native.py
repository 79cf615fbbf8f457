"""fastscribe's own format: a folder with config.json (ModelConfig as JSON), model.safetensors (our names), the tokenizer file
and an optional language model. A timestamps aligner is a folder of the same format, named `aligner`, inside it.

Only these folders may store matrices in 8 bits, with a scale per row: half the size of bfloat16. They are float32 as soon as
they are read. A tensor W of rows R is stored as int8 values, and as W.row_scales, [R] in float32.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from fastscribe._system.file_kinds import safe_read
from fastscribe.checkpoint.lazy_weights import LazyWeights, TensorSource
from fastscribe.checkpoint.validate import validate
from fastscribe.checkpoint.value import (
    FORMAT,
    Checkpoint,
    check_aligner,
    one_line,
    read_json,
    read_tokenizer,
    report_invalid_config,
)
from fastscribe.checkpoint.weights import load_safetensors
from fastscribe.config import ATTENTION_KINDS, AttentionConfigs, EncoderSettings, ModelConfig
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.families.registry import ENCODER_KINDS, class_of
from fastscribe.languages import language_tag

if TYPE_CHECKING:
    import torch

FORMAT_VERSION = 1
KEEPS_SPACES_KEY = "keeps_spaces"  # true: keep spaces before punctuation as in training; NeMo removes them
LANGUAGES_KEY = "languages"  # tags of the languages that the model knows
RANDOM_KEY = "random_weights"  # true: a model for benchmarks
ALIGNER_FOLDER = "aligner"
LANGUAGE_MODEL_FILE = "language_model.safetensors.gz"  # the room context reads it
_SUFFIX = ".row_scales"
_LEVELS = 127  # on either side of zero
_MIN_COLUMNS = 32  # shorter rows would save little
_MIN_SCALE = 1e-30  # of a row of zeros
_FIRST_KIND = "conformer"  # whose settings have no kind
INT8 = "int8"
T = TypeVar("T")


def read(folder: Path, stored: Mapping[str, Any]) -> Checkpoint:
    """Read a folder.

    Args:
        folder: the folder.
        stored: content of its config.json.

    Returns:
        The checkpoint, with lazy weights.

    Raises:
        CheckpointError: the folder is damaged or was not written by `write`.
    """
    config = read_config(stored, folder)
    tokenizer = read_tokenizer(folder, config)
    path = folder / "model.safetensors"
    weights = LazyWeights(restored(load_safetensors(path, allows_int8=True), path))
    if stored.get(KEEPS_SPACES_KEY) is True:
        tokenizer = replace(tokenizer, attached="nowhere")
    return Checkpoint(
        folder,
        "fastscribe",
        config,
        tokenizer,
        weights,
        stored.get(RANDOM_KEY) is True,
        _language_model(folder, config),
        _languages(folder, stored),
        _aligner(folder, config),
    )


def _languages(folder: Path, stored: Mapping[str, Any]) -> tuple[str, ...]:
    tags = stored.get(LANGUAGES_KEY, [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and language_tag(tag) == tag for tag in tags):
        raise CheckpointError(
            folder / "config.json", f"{LANGUAGES_KEY} is {tags!r:.60}: not a list of codes such as en"
        )
    return tuple(tags)


def _aligner(folder: Path, config: ModelConfig) -> Checkpoint | None:
    """Read the aligner, if there is one. Raises CheckpointError if it is damaged or does not fit the model."""
    path = folder / ALIGNER_FOLDER
    if not os.path.lexists(path):
        return None
    try:
        stored = read_json(path / "config.json")
    except FileNotFoundError:
        raise CheckpointError(path, "holds no config.json; convert the model again") from None
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise CheckpointError(path / "config.json", "not what fastscribe convert writes")
    if os.path.lexists(path / ALIGNER_FOLDER):
        raise CheckpointError(path, "refused: an aligner inside an aligner")
    aligner = read(path, stored)
    check_aligner(aligner.config, config, path)
    return aligner


def read_config(stored: Mapping[str, Any], where: object) -> ModelConfig:
    """Read the configuration alone; `where` names the folder in messages. Raises CheckpointError."""
    if stored.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            where, f"format_version {stored.get('format_version')!r}; this fastscribe reads {FORMAT_VERSION}"
        )
    with report_invalid_config(f"{where}: config.json"):
        config = config_from_json(stored["model"])
        validate(config, f"{where}: config.json")
        if config.language_heads:  # convert writes models of one language
            raise UnsupportedCheckpoint(where, "language_heads", list(config.language_heads), "none")
    return config


def _language_model(folder: Path, config: ModelConfig) -> Any:
    """Read the language model; None if there is none. Raises CheckpointError if it is damaged or does not fit the model."""
    path = folder / LANGUAGE_MODEL_FILE
    if not os.path.lexists(path):  # a broken link is an incomplete download, and an error below
        return None
    from fastscribe.context import language_model

    try:
        content = safe_read(path, language_model.MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be read: {one_line(error)}") from error
    return language_model.parse(content, path, config.blank_id)


def config_from_json(data: Mapping[str, Any]) -> ModelConfig:
    """Build a config from to_json's output. Raises ValueError that names missing or unknown keys."""
    return _from_mapping(ModelConfig, data, "config")


def _from_mapping(cls: type[T], data: Any, where: str) -> T:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: not a JSON object")
    fields: Any = cls
    fields = dataclasses.fields(fields)
    names = {field.name for field in fields}
    required = {field.name for field in fields if field.default is dataclasses.MISSING}
    missing, unknown = required - data.keys(), data.keys() - names
    if missing or unknown:
        raise ValueError(f"{where}: missing keys {sorted(missing)}, unknown keys {sorted(unknown)}")
    types = get_type_hints(cls)
    return cls(**{name: _value(types[name], value, f"{where}.{name}") for name, value in data.items()})


def _value(kind: Any, data: Any, where: str) -> Any:
    """Return a field's value: another config, a tuple, or the data itself."""
    if data is None:
        return None
    if kind is EncoderSettings:
        name = _kind(ENCODER_KINDS, _FIRST_KIND, data, where)
        return _from_mapping(class_of(name, "config"), data, where)
    if kind == AttentionConfigs | None:
        return _from_mapping(ATTENTION_KINDS[_kind(tuple(ATTENTION_KINDS), "local", data, where)], data, where)
    if isinstance(kind, UnionType):  # with None
        kind = next(one for one in get_args(kind) if one is not type(None))
    if dataclasses.is_dataclass(kind):
        return _from_mapping(kind, data, where)  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        part = get_args(kind)[0]
        if not dataclasses.is_dataclass(part):
            return tuple(data)
        return tuple(_from_mapping(part, one, f"{where}.{number}") for number, one in enumerate(data))  # type: ignore[arg-type]
    return data


def _kind(kinds: tuple[str, ...], default: str, data: Any, where: str) -> str:
    kind = data.get("kind", default) if isinstance(data, Mapping) else default
    if kind not in kinds:
        raise ValueError(f"{where}: kind {kind!r}, not one of {', '.join(kinds)}")
    return str(kind)


def is_stored_in_rows(source: TensorSource) -> bool:
    """Return True for a matrix, or a convolution's kernel, with long rows."""
    return len(source.shape) > 1 and source.num_elements >= _MIN_COLUMNS * source.shape[0] > 0


def quantised(
    sources: Mapping[str, TensorSource], dtype: torch.dtype
) -> tuple[dict[str, TensorSource], dict[str, torch.dtype]]:
    """Return the tensors to store and their dtypes: matrices with long rows in 8 bits with their scales, others in `dtype`."""
    import torch

    stored: dict[str, TensorSource] = {}
    dtypes: dict[str, torch.dtype] = {}
    for name, source in sources.items():
        if is_stored_in_rows(source):
            scales = name + _SUFFIX
            stored[name] = TensorSource(INT8, source.shape, partial(_values, source))
            stored[scales] = TensorSource("float32", source.shape[:1], partial(_scales, source))
            dtypes[name], dtypes[scales] = torch.int8, torch.float32
        else:
            stored[name], dtypes[name] = source, dtype
    return stored, dtypes


def _scales(source: TensorSource) -> torch.Tensor:
    return source.read().float().flatten(1).abs().amax(dim=1).div(_LEVELS).clamp_(min=_MIN_SCALE)


def _values(source: TensorSource) -> torch.Tensor:
    import torch

    rows = source.read().float().flatten(1) / _scales(source)[:, None]
    return rows.round().to(torch.int8).view(source.shape)


def restored(sources: Mapping[str, TensorSource], where: object) -> dict[str, TensorSource]:
    """Return the tensors of a file with those in 8 bits as float32; reads no values.

    Raises:
        CheckpointError: the scales of a tensor in 8 bits are missing or do not fit.
    """
    found = {}
    for name, source in sources.items():
        if source.dtype == INT8:
            scales = sources.get(name + _SUFFIX)
            if scales is None or scales.dtype != "float32" or not source.shape or scales.shape != source.shape[:1]:
                raise CheckpointError(where, f"damaged weights: {name[:120]} has 8 bits and not one scale for each row")
            found[name] = TensorSource("float32", source.shape, partial(_product, source, scales), INT8)
        elif (values := sources.get(name.removesuffix(_SUFFIX))) is None or values.dtype != INT8:
            found[name] = source
    return found


def _product(source: TensorSource, scales: TensorSource) -> torch.Tensor:
    rows = source.read().float()
    return rows.mul_(scales.read().view(-1, *[1] * (len(source.shape) - 1)))
