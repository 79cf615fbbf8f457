"""Values of options that need no conversion. typer has pydantic convert each, which takes a tenth of a second of a command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

_NUMBERS = {int: re.compile("[0-9]{1,9}"), float: re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")}
_CONVERTERS = ("parser", "click_type", "formats", "clamp", "exists", "resolve_path", "path_type", "writable")


def skip_conversions_(parameters: Iterable[Any]) -> None:
    """Have plain values converted here; all others, and what is refused, go to typer.

    Args:
        parameters: Of a command. One stays as it is if this typer converts in another way, or if it asks for more.
    """
    for parameter in parameters:
        descriptor = getattr(parameter, "type_descriptor", None)
        if descriptor is None or not hasattr(type(parameter), "get_runtime_param"):
            continue
        info, typers = descriptor.parameter_info, partial(type(parameter).get_runtime_param, parameter)
        if info.file_okay and info.dir_okay and not any(getattr(info, name, None) for name in _CONVERTERS):
            parameter.get_runtime_param = partial(_Conversion, typers, descriptor.annotation, info)


class _Conversion:
    """Takes the place of typer's."""

    def __init__(self, get_typers: Callable[[], Any], annotation: Any, info: Any) -> None:
        self._get_typers, self._annotation, self._info = get_typers, annotation, info

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        takes_several = param.multiple or param.nargs == -1
        if value is None:
            return () if takes_several else None
        values = value if takes_several else [value]
        kind = get_args(self._annotation)[0] if takes_several else self._annotation
        if isinstance(values, (list, tuple)) and all(self._is_plain(one, kind) for one in values):
            plain = [kind(one) if kind in (int, float, Path) else one for one in values]
            return plain if takes_several else plain[0]
        return self._get_typers().coerce(value, param=param, ctx=ctx)

    def _is_plain(self, value: Any, kind: Any) -> bool:
        """Return True for a value of a kind, or a word that its type or nothing converts."""
        if get_origin(kind) is Literal:
            return value in get_args(kind)
        if kind in _NUMBERS:
            lowest, highest = (getattr(self._info, name, None) for name in ("min", "max"))
            is_number = type(value) is kind or (type(value) is str and _NUMBERS[kind].fullmatch(value) is not None)
            return (
                is_number and (lowest is None or kind(value) >= lowest) and (highest is None or kind(value) <= highest)
            )
        if kind is Path:
            path = Path(value) if isinstance(value, (str, Path)) else None  # without a slash at its end
            return path is not None and (not os.path.exists(path) or os.access(path, os.R_OK))
        return kind is str and type(value) is str
