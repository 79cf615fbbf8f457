"""Compile functions with numba, and keep the machine code for later processes if there is a folder for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

_REASSOCIATE = {"reassoc", "contract", "nsz", "arcp"}  # sums may be split; infinities and NaN keep their meaning


def compile_cached(function: Callable[..., Any], **options: Any) -> Any:
    """Compile with numba's cache, beside the function's file or in the user's cache folder; without one if neither is writable.

    Args:
        function: A function that numba.njit takes.
        options: Options of numba.njit.
    """
    import numba

    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


def loop_options() -> dict[str, Any]:
    """Return numba's options for loops that release the GIL and allocate nothing.

    Reference counting of the arrays made such loops 20 times slower.
    """
    from numba.core.options import DefaultOptions

    without_counting = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
    return {"nogil": True, "error_model": "numpy", "fastmath": _REASSOCIATE, **without_counting}


def rebind(function: Callable[..., Any], names: Mapping[str, Any], variant: str) -> Callable[..., Any]:
    """Copy the function so that it looks its names up in `names`; numba caches compiled code by the qualified name."""
    copy = FunctionType(function.__code__, names if isinstance(names, dict) else dict(names), function.__name__)
    copy.__qualname__ = f"{function.__name__}_{variant}"
    return copy
