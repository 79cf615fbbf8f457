"""What every checkpoint reader returns, and the two ways of reading weights that run no code."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from fastscribe.config import EncoderConfig, ModelConfig
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint
from fastscribe.tokenizer import Tokenizer


@dataclass(frozen=True)
class Checkpoint:
    """Weights have fastscribe's own names (model.state_dict()) and the dtype they were stored in."""

    path: Path
    source: str  # "nemo", "huggingface" or "fastscribe"
    config: ModelConfig
    tokenizer: Tokenizer
    weights: Mapping[str, torch.Tensor]

    @property
    def num_parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.weights.values() if tensor.is_floating_point())

    @property
    def dtypes(self) -> tuple[str, ...]:
        names = {str(t.dtype).removeprefix("torch.") for t in self.weights.values() if t.is_floating_point()}
        return tuple(sorted(names))


def load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(path, "no such file") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(path, f"cannot be read as safetensors: {error}") from error


def load_torch(file: IO[bytes], num_bytes: int, where: object) -> dict[str, torch.Tensor]:
    """A torch.save state dict of plain tensors; anything a pickle could run is refused."""
    _refuse_inflating_zip(file, num_bytes, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on odd pickles before it refuses them
            state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(where, f"refused: holds more than plain tensors ({reason})") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(where, f"damaged weights: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict) or not all(isinstance(t, torch.Tensor) for t in state.values()):
        raise CheckpointError(where, "not a flat dictionary of tensors")
    return state


def _refuse_inflating_zip(file: IO[bytes], num_bytes: int, where: object) -> None:
    """torch stores its members uncompressed, so a zip that says it unpacks to more than its own size is a bomb."""
    if zipfile.is_zipfile(file):
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > num_bytes + (1 << 20):
            raise CheckpointError(where, f"refused: {num_bytes} bytes that unpack to {unpacked}")
    file.seek(0)


class Section:
    """One part of a foreign config, read key by key, so that every key is either used, known to be harmless, or an error."""

    def __init__(self, values: Any, name: str, where: object) -> None:
        if not isinstance(values, Mapping):
            raise CheckpointError(where, f"config has no section {name}")
        self.values, self.name, self.where = dict(values), name, where
        self._seen: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, default: Any) -> Any:
        self._seen.add(key)
        return self.values.get(key, default)

    def take(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """A value that must be there and have this type (bool is not an int here)."""
        value = self.get(key, None)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise UnsupportedCheckpoint(self.where, f"{self.name}.{key}", value, wanted)
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        if default is not None and key not in self:
            self._seen.add(key)
            return default
        value = self.take(key, int)
        if value <= 0:
            raise UnsupportedCheckpoint(self.where, f"{self.name}.{key}", value, "positive numbers")
        return int(value)

    def choose(self, key: str, default: Any, supported: tuple[Any, ...]) -> Any:
        value = self.get(key, default)
        if not any(value == option and type(value) is type(option) for option in supported):
            shown = ", ".join("null" if option is None else str(option) for option in supported)
            raise UnsupportedCheckpoint(self.where, f"{self.name}.{key}", value, shown)
        return value

    def ignore(self, *keys: str) -> None:
        """Keys that only matter in training, or not to the result."""
        self._seen.update(keys)

    def finish(self) -> None:
        """Every key left must be off; an unknown one that is on would change what the model computes."""
        for key in self._unseen():
            if self.values[key] not in (None, False):
                raise UnsupportedCheckpoint(self.where, f"{self.name}.{key}", self.values[key], "absent, null or false")

    def _unseen(self) -> Iterator[str]:
        return (key for key in self.values if key not in self._seen and not key.startswith("_"))


def check_encoder(config: EncoderConfig, where: object) -> None:
    """Raises UnsupportedCheckpoint for sizes that do not go together."""
    if config.d_model % config.num_heads or config.d_model % 2:
        raise UnsupportedCheckpoint(
            where, "encoder width", config.d_model, f"even multiples of {config.num_heads} heads"
        )
    if config.conv_kernel % 2 == 0:
        raise UnsupportedCheckpoint(where, "encoder.conv_kernel_size", config.conv_kernel, "odd numbers")
