"""Writing of safetensors and torch.save files with one tensor in memory at a time; weights.py reads them.

torch.save needs all tensors in memory, and the safetensors library needs them twice.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from fastscribe._system.safe_files import write_atomic
from fastscribe.checkpoint.lazy_weights import ITEM_BYTES, TensorSource
from fastscribe.checkpoint.weights import SAFETENSORS_NAMES

if TYPE_CHECKING:
    import torch

_STORAGES = {"float32": "FloatStorage", "bfloat16": "BFloat16Storage", "int64": "LongStorage"}
_FOLDER = "archive"  # of the members in the zip
_ZIP_VERSION = b"3\n"


class _Storage(NamedTuple):
    key: str
    dtype: str
    num_elements: int


class _Tensor:
    """A tensor of its own storage, pickled as torch does."""

    def __init__(self, storage: _Storage, shape: tuple[int, ...]) -> None:
        self.storage, self.shape = storage, shape

    def __reduce__(self) -> tuple[Any, ...]:
        import torch

        hooks: OrderedDict[str, Any] = OrderedDict()
        return _rebuild(), (self.storage, 0, self.shape, torch.empty(self.shape, device="meta").stride(), False, hooks)


def _rebuild() -> Any:
    """Return what every file of torch.save names for a tensor; None if this torch has it elsewhere."""
    import torch

    return getattr(getattr(torch, "_utils", None), "_rebuild_tensor_v2", None)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> tuple[Any, ...] | None:
        if not isinstance(value, _Storage):
            return None
        import torch

        return "storage", getattr(torch, _STORAGES[value.dtype]), value.key, "cpu", value.num_elements


def write_safetensors(path: Path, sources: Mapping[str, TensorSource], dtypes: Mapping[str, torch.dtype]) -> None:
    """Write a safetensors file atomically; the weights may have been read from the file that it replaces.

    Args:
        path: of the file.
        sources: tensors by name. They are stored in the order of their names.
        dtypes: dtype of each stored tensor: float32, bfloat16, int64 or int8.

    Raises:
        CheckpointError: a tensor cannot be read.
        OSError: the file cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(sources):
        type_name = str(dtypes[name]).removeprefix("torch.")
        start, end = end, end + sources[name].num_elements * ITEM_BYTES[type_name]
        header[name] = {
            "dtype": SAFETENSORS_NAMES[type_name],
            "shape": list(sources[name].shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)

    def write_all(file: BinaryIO) -> None:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in sorted(sources):
            file.write(_bytes_of(sources[name], dtypes[name]))

    write_atomic(path, write_all)


def write_state(file: BinaryIO, sources: Mapping[str, TensorSource], dtypes: Mapping[str, torch.dtype]) -> None:
    """Write a state dict.

    Args:
        file: seekable; the zip begins at its position 0.
        sources: tensors by name, in the order of the state dict.
        dtypes: dtype of each stored tensor: float32, bfloat16 or int64.

    Raises:
        CheckpointError: a tensor cannot be read.
        OSError: the file cannot be written.
    """
    import torch

    if _rebuild() is None:
        whole = {name: source.read().detach().to("cpu", dtypes[name]).contiguous() for name, source in sources.items()}
        torch.save(whole, file)
        return
    storages = {
        name: _Storage(str(number), str(dtypes[name]).removeprefix("torch."), source.num_elements)
        for number, (name, source) in enumerate(sources.items())
    }
    listing = io.BytesIO()
    _Pickler(listing, protocol=2).dump({name: _Tensor(storages[name], sources[name].shape) for name in sources})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for member, content in (("data.pkl", listing.getvalue()), ("byteorder", b"little"), ("version", _ZIP_VERSION)):
            archive.writestr(zipfile.ZipInfo(f"{_FOLDER}/{member}"), content)  # without today's date
        for name, source in sources.items():
            _write_tensor(archive, storages[name], source, dtypes[name])


def _write_tensor(archive: zipfile.ZipFile, storage: _Storage, source: TensorSource, dtype: torch.dtype) -> None:
    member = zipfile.ZipInfo(f"{_FOLDER}/data/{storage.key}")
    member.file_size = storage.num_elements * ITEM_BYTES[storage.dtype]  # decides whether it needs zip64
    content = _bytes_of(source, dtype)
    with archive.open(member, "w") as opened:
        opened.write(content)


def _bytes_of(source: TensorSource, dtype: torch.dtype) -> memoryview:
    import torch

    tensor = source.read().detach().to("cpu", dtype).contiguous()
    return tensor.view(-1).view(torch.uint8).numpy().data
