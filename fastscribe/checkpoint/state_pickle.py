"""A pickle interpreter for the tensor list of a torch.save file that cannot run code.

It supports the opcodes and globals of a state dict of plain tensors, and builds only dicts, tuples, numbers, strings and the
records below. It refuses everything else.
"""

from __future__ import annotations

import pickle
import pickletools
from typing import Any, NamedTuple

_MAX_TUPLE, _MAX_MARKS = 200, 20  # items of a tuple; nesting depth of tuples and dictionaries
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
_ARGUMENTS = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_SHORT_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


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


class _Global(NamedTuple):
    name: str


def parse(content: bytes) -> object:
    """Parse a pickle.

    Args:
        content: bytes of data.pkl.

    Returns:
        The object, with a StorageView for each tensor.

    Raises:
        UnpicklingError: names an opcode or global that a state dict does not need.
        EOFError, LookupError, TypeError, ValueError: the content is damaged.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def above_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _ARGUMENTS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            marks.append(len(stack))
            if len(marks) > _MAX_MARKS:
                raise pickle.UnpicklingError("a tuple of an absurd length")
        elif name == "TUPLE":
            items = above_mark()
            if len(items) > _MAX_TUPLE:
                raise pickle.UnpicklingError("a tuple of an absurd length")
            stack.append(tuple(items))
        elif name in _SHORT_TUPLES:
            start = len(stack) - _SHORT_TUPLES[name]
            stack[start:] = [tuple(stack[start:])]
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _dict(stack[-1])[key] = value
        elif name == "SETITEMS":
            items = above_mark()
            _dict(stack[-1]).update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL" and argument in _GLOBALS:
            stack.append(_Global(argument))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_call(function, arguments))
        elif name == "BUILD":  # attributes of the dict, such as the versions of modules
            stack.pop()
            _dict(stack[-1])
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            raise pickle.UnpicklingError(f"{name} {str(argument)[:100]}")
    raise EOFError("the list of tensors has no end")


def _dict(value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise pickle.UnpicklingError(f"{type(value).__name__} in place of a dictionary")
    return value


def _storage(identity: object) -> Storage:
    match identity:
        case ("storage", _Global(name), str(key), str(), int(num_elements)) if name in _STORAGES:
            return Storage(key, _STORAGES[name], num_elements)
    raise pickle.UnpicklingError("an invalid storage")


def _call(function: object, arguments: object) -> object:
    match function, arguments:
        case _Global(name), () if name == _ORDERED_DICT:
            return {}
        case _Global(name), (StorageView() as view, bool(), dict()) if name == _PARAMETER:
            return view
        case _Global(name), (Storage() as storage, int(offset), tuple(shape), tuple(stride), bool(), dict(), *more) if (
            name == _TENSOR and not any(more)  # flags such as "negated"
        ):
            if len(shape) == len(stride) and all(type(n) is int and n >= 0 for n in (offset, *shape, *stride)):
                return StorageView(storage, offset, shape, stride)
    raise pickle.UnpicklingError(
        f"REDUCE {function.name if isinstance(function, _Global) else type(function).__name__}"
    )
