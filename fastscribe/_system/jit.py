"""Compile functions with numba, and keep the machine code for later processes if there is a folder for it.

numba's names that are not public stand in docs/log.md; without one of them numba does the same in its own, slower way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial, wraps
from inspect import signature
from pathlib import Path
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numpy as np

LAST_NUMBA_TRIED = (0, 68)  # with `_load_or_compile`
_REASSOCIATE = {"reassoc", "contract", "nsz", "arcp"}  # sums may be split; infinities and NaN keep their meaning
_Made = TypeVar("_Made", bound=Callable[..., Any])


def runs_in_python() -> bool:
    """Return True if NUMBA_DISABLE_JIT has numba leave functions as they are. Does not import numba."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0").strip() not in ("", "0")


def compile_cached(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile with numba's cache, beside the function's file or in the user's cache folder; without one if neither is writable.

    Args:
        function: A function that numba.njit takes. Its machine code is kept under its file and its qualified name; those of
            what it calls do not count, so the name must change with them (`digest_of`).
        options: Options of numba.njit.

    Returns:
        The compiled function. Its `compile` takes the types of its arguments, to compile or load it before the first call.
    """
    import numba

    options |= _known(no_cfunc_wrapper=True)  # which only C would call
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return cast("Callable[..., Any]", numba.njit(**options)(function))
    if not hasattr(compiled, "overloads"):
        return _uncompiled(function)

    load_or_compile = partial(_load_or_compile, compiled)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        try:
            if not compiled.overloads:
                load_or_compile(tuple(map(compiled.typeof_pyval, arguments)))
            return compiled(*arguments)
        except OSError:  # the code could not be kept (a full disk), but it is compiled
            return compiled(*arguments)

    call.compile = load_or_compile  # type: ignore[attr-defined]
    return call


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the interface of a compiled one. Compiled code does not warn of overflow either."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    call.compile = lambda types: None  # type: ignore[attr-defined]
    return call


def _load_or_compile(compiled: Any, types: tuple[Any, ...]) -> None:
    """Load machine code that numba has kept, or compile."""
    import numba

    if numba.version_info.short > LAST_NUMBA_TRIED or not _has_loaded(compiled, types):
        compiled.compile(types)


def _has_loaded(compiled: Any, types: tuple[Any, ...]) -> bool:
    """Load kept machine code and return True; False if there is none, or if this numba lacks a name.

    numba's public way gets its whole compiler ready to load, which takes 0.4 s. Code that is kept needs its runtime alone.
    """
    try:
        from numba.core.compiler_lock import global_compiler_lock
        from numba.core.runtime.nrt import rtsys

        cache, context = compiled._cache, compiled.targetctx
        load = cache._load_overload
    except (ImportError, AttributeError):
        return False
    with global_compiler_lock:
        if types in compiled.overloads:
            return True
        rtsys.initialize(context)
        try:
            kept = load(types, context)
        except Exception:  # files that are damaged, or those of a broken disk; numba would raise at every run
            with suppress(OSError):
                cache.flush()
            return False
        if kept is not None:
            compiled.add_overload(kept)
        return kept is not None


def _known(**options: Any) -> dict[str, Any]:
    """Return those of numba's options that this version has. All of these only save time."""
    try:
        from numba.core.options import DefaultOptions
    except ImportError:
        return {}
    return {name: value for name, value in options.items() if hasattr(DefaultOptions, name)}


def compile_helper(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return what compiles functions that only compiled functions call: without the way in from Python, which takes time.

    They become a part of each caller. Else the process that compiles runs the code that they have by themselves, and later ones
    run that of the caller's kept file, which adds in another order.
    """
    import numba

    options |= _known(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
    compiler: Callable[[Callable[..., Any]], Any] = numba.njit(**options)
    return compiler


def made_once(make: _Made) -> _Made:
    """functools.cache in which threads that ask for the same at the same time get one result: each would compile its own."""
    kept, making = cache(make), RLock()

    @wraps(make)
    def get(*arguments: Any) -> Any:
        with making:
            return kept(*arguments)

    get.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
    return cast("_Made", get)


def argument_types(loop: Callable[..., Any], stored: str, others: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the types of a loop's arguments, which its first call has, by their names.

    Args:
        loop: A function whose arrays have a letter for each dimension at the end of their names. Other arguments are int64.
        stored: numpy's name of the type of the arrays' elements.
        others: Types of the arguments, by name, that have another one; behind a space, dimensions that the name lacks.
    """
    from numba import types

    def of(name: str) -> Any:
        other, _, dimensions = others.get(name, "").partition(" ")
        dimensions = dimensions or name.rpartition("_")[2]
        if not dimensions.isupper():
            return getattr(types, other or "int64")
        return types.Array(getattr(types, other or stored), len(dimensions), "C")

    return tuple(of(name) for name in signature(loop).parameters)


def digest_of(*modules: ModuleType) -> str:
    """Return eight characters that change with the modules' sources or with the compiler's options."""
    contents = [Path(str(module.__file__)).read_bytes() for module in modules] + [Path(__file__).read_bytes()]
    return hashlib.sha256(b"".join(contents)).hexdigest()[:8]


def loop_options() -> dict[str, Any]:
    """Return numba's options for loops that release the GIL and allocate nothing.

    Reference counting of the arrays made such loops 20 times slower.
    """
    return {"nogil": True, "error_model": "numpy", "fastmath": _REASSOCIATE, **_known(_nrt=False)}


def rebind(function: Callable[..., Any], names: dict[str, Any], variant: str) -> Callable[..., Any]:
    """Copy the function so that it looks its names up in `names`; numba caches compiled code by the qualified name."""
    copy = FunctionType(function.__code__, names, function.__name__)
    copy.__qualname__ = f"{function.__name__}_{variant}"
    return copy


def compile_together(
    compiler: Callable[[Callable[..., Any]], Any],
    functions: Mapping[str, Callable[..., Any]],
    variant: str,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compile functions that call each other by these names, in any order, and compiled ones that are known by theirs.

    Returns:
        All names that they know, with the compiled functions, for `rebind`.
    """
    names: dict[str, Any] = {}
    for function in functions.values():
        names |= function.__globals__
    names |= known or {}
    for name, function in functions.items():
        names[name] = compiler(rebind(function, names, variant))
    return names
