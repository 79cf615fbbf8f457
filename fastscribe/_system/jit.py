"""Compile functions with numba, and keep the machine code for later processes if there is a folder for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

_REASSOCIATE = {"reassoc", "contract", "nsz", "arcp"}  # sums may be split; infinities and NaN keep their meaning


def compile_cached(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile with numba's cache, beside the function's file or in the user's cache folder; without one if neither is writable.

    Args:
        function: A function that numba.njit takes. Its machine code is kept under its file and its qualified name; those of
            what it calls do not count, so the name must change with them (`digest_of`).
        options: Options of numba.njit.
    """
    import numba

    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return cast("Callable[..., Any]", numba.njit(**options)(function))

    @wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            return compiled(*arguments)
        except OSError:  # the code could not be kept (a full disk), but it is compiled
            return compiled(*arguments)

    return call


def digest_of(*modules: ModuleType) -> str:
    """Return eight characters that change with the modules' sources or with the compiler's options."""
    contents = [Path(str(module.__file__)).read_bytes() for module in modules] + [Path(__file__).read_bytes()]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:8]


def loop_options() -> dict[str, Any]:
    """Return numba's options for loops that release the GIL and allocate nothing.

    Reference counting of the arrays made such loops 20 times slower.
    """
    from numba.core.options import DefaultOptions

    without_counting = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
    return {"nogil": True, "error_model": "numpy", "fastmath": _REASSOCIATE, **without_counting}


def rebind(function: Callable[..., Any], names: dict[str, Any], variant: str) -> Callable[..., Any]:
    """Copy the function so that it looks its names up in `names`; numba caches compiled code by the qualified name."""
    copy = FunctionType(function.__code__, names, function.__name__)
    copy.__qualname__ = f"{function.__name__}_{variant}"
    return copy


def compile_together(
    compiler: Callable[[Callable[..., Any]], Any], functions: Mapping[str, Callable[..., Any]], variant: str
) -> dict[str, Any]:
    """Compile functions that call each other by these names, in any order.

    Returns:
        All names that they know, with the compiled functions, for `rebind`.
    """
    names: dict[str, Any] = {}
    for function in functions.values():
        names |= function.__globals__
    for name, function in functions.items():
        names[name] = compiler(rebind(function, names, variant))
    return names
