"""What every checkpoint reader returns, and the two ways of reading weights that run no code."""

from __future__ import annotations

import math
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from fastscribe.config import ModelConfig
from fastscribe.errors import CheckpointError, FastscribeError, UnsupportedCheckpoint
from fastscribe.tokenizer import Tokenizer, from_folder

# What zipfile, pickle and torch raise on damaged bytes.
_DAMAGE = (RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
_DAMAGED_ZIP = (zipfile.BadZipFile, struct.error)


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
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(path, f"cannot be read as safetensors: {_one_line(error)}") from error


def load_torch(file: IO[bytes], num_bytes: int, where: object) -> dict[str, torch.Tensor]:
    """A torch.save state dict of plain tensors; anything a pickle could run is refused."""
    try:
        _refuse_inflating_zip(file, num_bytes, where)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on odd pickles before it refuses them
            state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(where, f"refused: holds more than plain tensors ({reason})") from error
    except FastscribeError:
        raise
    except (*_DAMAGE, *_DAMAGED_ZIP) as error:
        raise CheckpointError(where, f"damaged weights: {_one_line(error)}") from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(where, "not a flat dictionary of tensors")
    for name, tensor in state.items():
        _check_tensor(name, tensor, where)
    return state


def _check_tensor(name: str, tensor: object, where: object) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise CheckpointError(where, "not a flat dictionary of tensors")
    # A stride of 0 repeats what is there.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(where, f"refused: {name} claims more than it holds")


def read_tokenizer(folder: Path, num_labels: int) -> Tokenizer:
    """Raises CheckpointError where the folder's tokenizer is none, or is not this model's."""
    try:
        tokenizer = from_folder(folder, num_labels)
    except (*_DAMAGE, RecursionError) as error:
        raise CheckpointError(folder, f"tokenizer cannot be read: {_one_line(error)}") from error
    if not all(isinstance(piece, str) for piece in tokenizer.pieces):
        raise CheckpointError(folder, "tokenizer cannot be read: a piece is not text")
    if len(tokenizer.pieces) != num_labels:
        raise CheckpointError(
            folder,
            f"the tokenizer has {len(tokenizer.pieces)} pieces, but the model {num_labels} labels besides the blank",
        )
    return tokenizer


@contextmanager
def odd_values_refused(where: object) -> Iterator[None]:
    """The net under a reader: what a config of odd types makes Python raise becomes a CheckpointError."""
    try:
        yield
    except FastscribeError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(where, f"config cannot be read: {type(error).__name__}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error)[:300].split())


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
        """The section under this key; an optional one that is absent or null is empty."""
        value = self.get(key, None)
        return Section({} if optional and value is None else value, self.path(key), self.where)

    def path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def number(self, key: str, default: float | None, *, nullable: bool = False) -> float | None:
        """A finite number; where null is allowed it is None."""
        value = self.get(key, default)
        if value is None and nullable:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UnsupportedCheckpoint(self.where, self.path(key), value, "numbers" + ", null" * nullable)
        return float(value)

    def take(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """A value that must be there and have this type (bool is not an int here)."""
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

    def choose(self, key: str, default: Any, supported: tuple[Any, ...]) -> Any:
        value = self.get(key, default)
        if not any(value == option and type(value) is type(option) for option in supported):
            shown = ", ".join("null" if option is None else str(option) for option in supported)
            raise UnsupportedCheckpoint(self.where, self.path(key), value, shown)
        return value

    def ignore(self, *keys: str) -> None:
        """Keys that only matter in training, or not to the result."""
        self._seen.update(keys)

    def finish(self) -> None:
        """Every key left must be off; an unknown one that is on would change what the model computes."""
        for key in self._unseen():
            if self.values[key] not in (None, False):
                raise UnsupportedCheckpoint(self.where, self.path(key), self.values[key], "absent, null or false")

    def _unseen(self) -> Iterator[str]:
        return (key for key in self.values if key not in self._seen and not key.startswith("_"))
