"""A ModelConfig from the JSON of fastscribe's own folders, which ModelConfig.to_json() writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from fastscribe.config import ATTENTION_KINDS, AttentionConfigs, EncoderSettings, ModelConfig
from fastscribe.families.registry import ENCODER_KINDS, config_class

_FIRST_KIND = "conformer"  # whose settings have no kind
T = TypeVar("T")


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
        return _from_mapping(config_class(name), data, where)
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
