"""Reading of the tensor list of a torch.save file, a pickle, without running code.

Its opcodes and globals are those of a state dict of plain tensors, which build only dicts, tuples, numbers, strings and the
records below. Everything else is refused before the pickle is loaded.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NamedTuple

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


def parse(content: bytes) -> object:
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
