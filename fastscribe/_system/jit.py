"""Compile functions with numba, and keep the machine code for later processes if there is a folder for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
