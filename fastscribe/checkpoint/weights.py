"""Named tensors from the two kinds of weight files, read so that no code in them runs, and looked over before they are used."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch

from fastscribe.checkpoint.value import DAMAGE, each_key_once, one_line
from fastscribe.errors import CheckpointError, FastscribeError
from fastscribe.regular_file import open_regular

_DAMAGED_ZIP = (zipfile.BadZipFile, struct.error, NotImplementedError)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_COUNTER_SUFFIX = ".num_batches_tracked"  # BatchNorm's, the only whole numbers among weights
_MAX_TENSORS = 20_000
_MAX_DIMENSIONS = 8
_MAX_DIRECTORY_BYTES = 8 << 20  # names and places of that many tensors
_MAX_PICKLE_BYTES = 4 << 20
_MAX_TUPLE, _MAX_MARKS = 200, 20  # opcodes in a tuple; tuples and dictionaries begun in each other
_SAVE_AGAIN = "if an older one wrote it, torch.save(torch.load(FILE, weights_only=True), FILE) with a newer"
_PLAIN_OPCODES = """
    PROTO STOP MARK GLOBAL REDUCE BUILD BINPERSID EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 NONE
    NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINUNICODE BINPUT LONG_BINPUT BINGET LONG_BINGET
""".split()  # noqa: SIM905
# All that a state dict of plain tensors needs; torch's own loader would also make it sets, byte arrays and other tensors.
_PLAIN_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in ("Float", "BFloat16", "Half", "Double", "Long")),
}


def load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Raises CheckpointError where the file is damaged, or check_weights refuses it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with open_regular(path) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            _check_header(file, path)
        weights = load_file(path)
    except FileNotFoundError:
        raise CheckpointError(path, "no such file") from None
    except FastscribeError:
        raise
    except (*DAMAGE, RecursionError, SafetensorError) as error:
        raise CheckpointError(path, f"cannot be read as safetensors: {one_line(error)}") from error
    check_weights(weights, num_bytes, path)
    return weights


def _check_header(file: IO[bytes], path: Path) -> None:
    """What safetensors itself does not mind, or answers slowly; it checks sizes, places and types."""
    num_bytes = int.from_bytes(file.read(8), "little")
    if num_bytes > _MAX_DIRECTORY_BYTES:
        raise CheckpointError(path, f"refused: its header claims {num_bytes} bytes")
    entries = json.loads(file.read(num_bytes), object_pairs_hook=each_key_once)
    if len(entries) > _MAX_TENSORS:
        raise CheckpointError(path, f"refused: {len(entries)} tensors")
    if any(len(entry.get("shape", ())) > _MAX_DIMENSIONS for entry in entries.values()):
        raise CheckpointError(path, f"refused: a tensor of more than {_MAX_DIMENSIONS} dimensions")


def load_torch(file: IO[bytes], num_bytes: int, where: object) -> dict[str, torch.Tensor]:
    """A torch.save state dict of plain tensors.

    Raises CheckpointError for anything that a pickle could run, for damage, and for what check_weights refuses.
    """
    try:
        _check_zip(file, num_bytes, where)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on odd pickles before it refuses them
            state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(where, f"refused: holds more than plain tensors ({one_line(error)})") from error
    except FastscribeError:
        raise
    except (*DAMAGE, *_DAMAGED_ZIP) as error:
        raise CheckpointError(where, f"damaged weights: {one_line(error)}") from error
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(where, "not a flat dictionary of tensors")
    check_weights(state, num_bytes, where)
    return state


def check_weights(weights: Mapping[str, object], num_bytes: int, where: object) -> None:
    """Raises CheckpointError for what is no finite float tensor, and for more of them than the file's bytes can hold."""
    if len(weights) > _MAX_TENSORS:
        raise CheckpointError(where, f"refused: {len(weights)} tensors")
    claimed_bytes = 0
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(where, "not a flat dictionary of tensors")
        if tensor.dtype not in _FLOATS and not (tensor.dtype is torch.int64 and name.endswith(_COUNTER_SUFFIX)):
            raise CheckpointError(where, f"refused: {name[:120]} is of {tensor.dtype}, not of a float type")
        tensor_bytes = tensor.numel() * tensor.element_size()
        claimed_bytes += tensor_bytes
        # A stride of 0 repeats what is there; so do many tensors in one place, but for a few that layers may share.
        if tensor_bytes > tensor.untyped_storage().nbytes() or claimed_bytes > 2 * num_bytes:
            raise CheckpointError(where, f"refused: {name[:120]} claims more than it holds")
    for name, tensor in weights.items():
        assert isinstance(tensor, torch.Tensor)
        if not _is_finite(tensor):
            raise CheckpointError(where, f"refused: {name[:120]} holds NaN or infinity")


def _is_finite(tensor: torch.Tensor) -> bool:
    """A sum is 25 times as fast as asking each number, and only wrong where it overflows."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _check_zip(file: IO[bytes], num_bytes: int, where: object) -> None:
    """Refuses a zip unlike those torch.save writes: with packed, doubled or overlapping members, or odd globals.

    It holds for torch's zip reader what zipfile sees, as only a directory that both find at the same place gets here.
    """
    _check_directory(file, num_bytes, where)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        held = archive.infolist()
        unpacked = sum(member.file_size for member in held)
        if unpacked > num_bytes or any(member.compress_type != zipfile.ZIP_STORED for member in held):
            raise CheckpointError(where, f"refused: {num_bytes} bytes that unpack to {unpacked}")
        if len({member.filename.lower() for member in held}) < len(held):
            raise CheckpointError(where, "refused: two members of the same name")
        pickles = [member for member in held if member.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE_BYTES:
            raise CheckpointError(where, "refused: not one list of tensors, or one of an absurd size")
        _check_pickle(archive.read(pickles[0]))
    file.seek(0)


def _check_directory(file: IO[bytes], num_bytes: int, where: object) -> None:
    """The directory, where the zip says it is, must end where the records that close the file begin."""
    file.seek(max(0, num_bytes - 98))
    tail = file.read(98)
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


def _check_pickle(content: bytes) -> None:
    """Reads the pickle without running it. Raises UnpicklingError naming what a state dict has no use for."""
    marks = []
    for index, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name not in _PLAIN_OPCODES or (opcode.name == "GLOBAL" and argument not in _PLAIN_GLOBALS):
            raise pickle.UnpicklingError(f"{opcode.name} {str(argument)[:100]}")
        if opcode.name == "MARK":
            marks.append(index)
        is_long = opcode.name in ("TUPLE", "SETITEMS") and index - marks.pop() > _MAX_TUPLE and opcode.name == "TUPLE"
        if is_long or len(marks) > _MAX_MARKS:  # a shape of thousands of dimensions keeps torch busy for minutes
            raise pickle.UnpicklingError("a tuple of an absurd length")
