"""Headers of safetensors and torch.save files. Reading them checks sizes, reads no values and runs no code of the file.

The tensor list of a torch.save file is a pickle. Its opcodes and globals are those of a state dict of plain tensors, which
build only dicts, tuples, numbers, strings and the records below. Everything else is refused before the pickle is loaded.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fastscribe._system.file_kinds import safe_open
from fastscribe.checkpoint.lazy_weights import (
    COUNTER_SUFFIX,
    ITEM_BYTES,
    FileBytes,
    RandomAccess,
    StoredTensor,
    TensorSource,
)
from fastscribe.checkpoint.value import DAMAGE, one_line, reject_duplicate_keys
from fastscribe.errors import CheckpointError, FastscribeError

_DAMAGED_ZIP = (zipfile.BadZipFile, struct.error, NotImplementedError)
_MAX_TENSORS = 20_000
_MAX_DIMENSIONS = 8
_MAX_DIRECTORY_BYTES = 8 << 20  # names and offsets of _MAX_TENSORS
_MAX_PICKLE_BYTES = 4 << 20
_SAVE_AGAIN = "if an older one wrote it, torch.save(torch.load(FILE, weights_only=True), FILE) with a newer"
_LOCAL_HEADER_BYTES = 30  # of a zip member, before its name and extra field
SAFETENSORS_NAMES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "int8": "I8",
}
# torch's names and the bits of all of them, with those that models here do not have
_SAFETENSORS_DTYPES = {theirs: (ours, 8 * ITEM_BYTES[ours]) for ours, theirs in SAFETENSORS_NAMES.items()} | {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "U64": ("uint64", 64),
}
_STORAGES = {
    "torch FloatStorage": "float32",
    "torch BFloat16Storage": "bfloat16",
    "torch HalfStorage": "float16",
    "torch DoubleStorage": "float64",
    "torch LongStorage": "int64",
}
_ORDERED_DICT, _TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_GLOBALS = {_ORDERED_DICT, _TENSOR, _PARAMETER, *_STORAGES}
_OPCODES = (
    "PROTO STOP BININT BININT1 BININT2 LONG1 BINUNICODE NONE NEWTRUE NEWFALSE BINPUT LONG_BINPUT BINGET LONG_BINGET MARK TUPLE"
    " EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS GLOBAL BINPERSID REDUCE BUILD"
)
_KNOWN_OPCODES = frozenset(_OPCODES.split())
# Stands for EMPTY_DICT, whose dictionary takes any key: EMPTY_TUPLE and BINPERSID, for which _Unpickler makes a _Dict.
_CHECKED_DICT = b")Q"


def load_safetensors(path: Path, allows_int8: bool = False) -> dict[str, TensorSource]:
    """Read the header of a safetensors file.

    Args:
        path: the file.
        allows_int8: accept tensors in 8 bits too (native.py).

    Returns:
        Lazy tensors by name.

    Raises:
        CheckpointError: the file is missing, damaged, or has a tensor that is not float.
    """
    try:
        with safe_open(path) as file:
            return _safetensors(FileBytes.of(file), path, allows_int8)
    except FileNotFoundError:
        raise CheckpointError(path, "no such file") from None
    except FastscribeError:
        raise
    except (*DAMAGE, RecursionError) as error:
        raise CheckpointError(path, f"cannot be read as safetensors: {one_line(error)}") from error


def _safetensors(file: RandomAccess, path: Path, allows_int8: bool) -> dict[str, TensorSource]:
    """Parse the format: length of the JSON header, header, and tensor bytes without gaps or overlaps."""
    header_bytes = int.from_bytes(file.content(0, 8), "little")
    if header_bytes > _MAX_DIRECTORY_BYTES:
        raise CheckpointError(path, f"refused: its header claims {header_bytes} bytes")
    entries = json.loads(file.content(8, header_bytes), object_pairs_hook=reject_duplicate_keys)
    if len(entries) > _MAX_TENSORS:
        raise CheckpointError(path, f"refused: {len(entries)} tensors")
    entries.pop("__metadata__", None)
    if any(len(entry["shape"]) > _MAX_DIMENSIONS for entry in entries.values()):
        raise CheckpointError(path, f"refused: a tensor of more than {_MAX_DIMENSIONS} dimensions")
    data_start = 8 + header_bytes
    end, sources = 0, {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        shape = entry["shape"]
        dtype, bits = _SAFETENSORS_DTYPES[entry["dtype"]]
        start, stop = entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
            raise ValueError(f"{name[:120]}: invalid shape or offsets")
        if start != end or stop - start != math.prod(shape) * bits // 8:
            raise ValueError(f"{name[:120]}: lies elsewhere than its header says")
        if not (allows_int8 and dtype == "int8"):
            _check_dtype(name, dtype, path)
        sources[name] = StoredTensor(file, path, name, dtype, tuple(shape), data_start + start).source()
        end = stop
    if data_start + end != file.num_bytes():
        raise ValueError(f"{file.num_bytes()} bytes, where its header says {data_start + end}")
    return {name: sources[name] for name in entries}


def _check_dtype(name: str, dtype: str, where: object) -> None:
    if dtype not in ITEM_BYTES or dtype == "int8" or (dtype == "int64" and not name.endswith(COUNTER_SUFFIX)):
        raise CheckpointError(where, f"refused: {name[:120]} is of torch.{dtype}, not of a float type")


def load_torch(file: RandomAccess, where: object) -> dict[str, TensorSource]:
    """Read the tensor list of a torch.save file.

    Args:
        file: its bytes.
        where: the file, for messages.

    Returns:
        Lazy tensors by name.

    Raises:
        CheckpointError: the file is damaged, its pickle has more than plain tensors, or a tensor exceeds its storage.
    """
    try:
        state, storages = _read_zip(file, where)
        return _torch_sources(state, storages, file, where)
    except pickle.UnpicklingError as error:
        raise CheckpointError(where, f"refused: holds more than plain tensors ({one_line(error)})") from error
    except FastscribeError:
        raise
    except (*DAMAGE, *_DAMAGED_ZIP) as error:
        raise CheckpointError(where, f"damaged weights: {one_line(error)}") from error


def _torch_sources(
    state: object, storages: Mapping[str, tuple[int, int]], file: RandomAccess, where: object
) -> dict[str, TensorSource]:
    """`storages`: start and size in bytes of each storage by its key."""
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(where, "not a flat dictionary of tensors")
    if len(state) > _MAX_TENSORS:
        raise CheckpointError(where, f"refused: {len(state)} tensors")
    claimed_bytes, sources = 0, {}
    for name, view in state.items():
        if not isinstance(view, StorageView):
            raise CheckpointError(where, "not a flat dictionary of tensors")
        dtype, item_bytes = view.storage.dtype, ITEM_BYTES[view.storage.dtype]
        _check_dtype(name, dtype, where)
        if len(view.shape) > _MAX_DIMENSIONS:
            raise CheckpointError(where, f"refused: a tensor of more than {_MAX_DIMENSIONS} dimensions")
        count = math.prod(view.shape)
        claimed_bytes += count * item_bytes
        # A stride of 0 or many views of one storage could expand a small file; a factor of 2 allows tied weights.
        if count > view.storage.num_elements or claimed_bytes > 2 * file.num_bytes():
            raise CheckpointError(where, f"refused: {name[:120]} claims more than it holds")
        start, num_bytes = storages[view.storage.key]
        last = view.offset + sum((size - 1) * step for size, step in zip(view.shape, view.stride, strict=True))
        if count and not last < view.storage.num_elements <= num_bytes // item_bytes:
            raise ValueError(f"{name[:120]} reaches beyond its storage")
        stride = view.stride if count else None
        start_byte = start + view.offset * item_bytes
        sources[name] = StoredTensor(file, where, name, dtype, view.shape, start_byte, stride).source()
    return sources


def _read_zip(file: RandomAccess, where: object) -> tuple[object, dict[str, tuple[int, int]]]:
    """Return the pickled object, and start and size in bytes of each storage. Refuse a zip that torch.save does not write:
    with compressed, duplicate or overlapping members, or more than plain tensors in its pickle."""
    _check_directory(file, where)
    with ExitStack() as opened:
        buffered = io.BufferedReader(file)
        opened.callback(buffered.detach)  # the caller's file stays open
        archive = opened.enter_context(zipfile.ZipFile(buffered))
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > file.num_bytes() or any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise CheckpointError(where, f"refused: {file.num_bytes()} bytes that unpack to {unpacked}")
        if len({member.filename.lower() for member in members}) < len(members):
            raise CheckpointError(where, "refused: two members of the same name")
        pickles = [member for member in members if member.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE_BYTES:
            raise CheckpointError(where, "refused: not one list of tensors, or one of an absurd size")
        state = parse_pickle(archive.read(pickles[0]))
        folder = pickles[0].filename.removesuffix("data.pkl")
        byte_order = [archive.read(member) for member in members if member.filename == folder + "byteorder"]
        if byte_order not in ([], [b"little"]):
            raise CheckpointError(where, "refused: its numbers are not little-endian; save them on another machine")
        prefix = folder + "data/"
        storages = {
            member.filename.removeprefix(prefix): (_member_start(file, member), member.file_size)
            for member in members
            if member.filename.startswith(prefix)
        }
    return state, storages


def _member_start(file: RandomAccess, member: zipfile.ZipInfo) -> int:
    """Return the offset of a member's bytes, after its local header, whose length is not in the directory."""
    header = file.content(member.header_offset, _LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    start = member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    if header[:4] != b"PK\3\4" or start + member.file_size > file.num_bytes():
        raise zipfile.BadZipFile("a member is not where the directory says")
    return int(start)


def _check_directory(file: RandomAccess, where: object) -> None:
    """Check that the directory ends where the zip's end records begin."""
    num_bytes = file.num_bytes()
    tail = file.content(max(0, num_bytes - 98), min(98, num_bytes))
    if len(tail) < 22 or tail[-22:-18] != b"PK\5\6" or tail[-2:] != b"\0\0":
        raise CheckpointError(where, f"refused: not the zip file that torch.save writes since 1.6: {_SAVE_AGAIN}")
    size, start = struct.unpack("<LL", tail[-10:-2])
    end = num_bytes - 22
    if tail[-42:-38] == b"PK\6\7":
        end = num_bytes - 98
        if struct.unpack("<Q", tail[-34:-26])[0] != end or tail[:4] != b"PK\6\6":
            raise zipfile.BadZipFile("its directory is not where it says")
        size, start = struct.unpack("<QQ", tail[40:56])
    if start + size != end or size > _MAX_DIRECTORY_BYTES:
        raise zipfile.BadZipFile("its directory is not where it says, or of an absurd size")


class Storage(NamedTuple):
    """The member `data/<key>` of the zip, with `num_elements` numbers."""

    key: str
    dtype: str
    num_elements: int


class StorageView(NamedTuple):
    """A tensor in a storage; offset and stride are in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Dict(dict[Any, Any]):
    """Every dictionary of a pickle. Its keys are text: the hash of nested tuples may take years, or all of the stack."""

    def __setitem__(self, key: object, value: object) -> None:
        if not isinstance(key, str):
            raise pickle.UnpicklingError("a dictionary's key is no text")
        super().__setitem__(key, value)

    def __setstate__(self, state: object) -> None:
        """Leave out attributes, such as the versions of modules."""


class _Global(NamedTuple):
    """A name in a pickle."""

    name: str

    def __call__(self, *arguments: object) -> object:
        """Return what the pickle builds by a call."""
        match self.name, arguments:
            case name, () if name == _ORDERED_DICT:
                return _Dict()
            case name, (StorageView() as view, bool(), dict()) if name == _PARAMETER:
                return view
            case name, (Storage() as storage, int(offset), tuple(shape), tuple(stride), bool(), dict(), *more) if (
                name == _TENSOR and not any(more)  # flags such as "negated"
            ):
                if len(shape) == len(stride) and all(type(n) is int and n >= 0 for n in (offset, *shape, *stride)):
                    return StorageView(storage, offset, shape, stride)
        raise pickle.UnpicklingError(f"REDUCE {self.name}")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Global:
        return _Global(f"{module} {name}")

    def persistent_load(self, identity: object) -> Storage | _Dict:
        match identity:
            case ():
                return _Dict()
            case ("storage", _Global(name), str(key), str(), int(num_elements)) if name in _STORAGES:
                return Storage(key, _STORAGES[name], num_elements)
        raise pickle.UnpicklingError("an invalid storage")


def parse_pickle(content: bytes) -> object:
    """Parse a pickle.

    Args:
        content: bytes of data.pkl.

    Returns:
        The object, with a StorageView for each tensor.

    Raises:
        UnpicklingError: names an opcode or global that a state dict does not need.
        AttributeError, EOFError, LookupError, TypeError, ValueError: the content is damaged.
    """
    checked, end = io.BytesIO(), 0
    for opcode, argument, position in pickletools.genops(content):
        is_known = opcode.name in _KNOWN_OPCODES and (opcode.name != "GLOBAL" or argument in _GLOBALS)
        # It takes memory for all up to it.
        is_far = opcode.name == "LONG_BINPUT" and (argument or 0) > len(content)
        if not is_known or is_far:
            raise pickle.UnpicklingError(f"{opcode.name} {str(argument)[:100]}")
        if opcode.name == "EMPTY_DICT":
            assert position is not None
            checked.write(content[end:position] + _CHECKED_DICT)
            end = position + 1
    checked.write(content[end:])
    checked.seek(0)
    return _Unpickler(checked).load()
