"""Messages for Python programs: settings have their names in Python, where messages for a shell have options."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache

from fastscribe.config import Options
from fastscribe.errors import FastscribeError

_OPTION = re.compile(r"--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?: (?=([0-9]+|[A-Z]{2,})\b))?")


def speak_python() -> None:
    """Have all later messages of this process name settings as Python does."""
    FastscribeError.spoken = in_python


def in_python(message: str) -> str:
    """Return a message with the names of settings in place of the command line's options.

    >>> in_python("--dtype fp8: unavailable; give --max-utterance-s 30, or leave --overwrite out")
    'dtype fp8: unavailable; give max_utterance_s=30, or leave --overwrite out'
    """
    return _OPTION.sub(_setting, message) if "--" in message else message


def _setting(option: re.Match[str]) -> str:
    name = option[2].replace("-", "_")
    if name not in _names():
        return option[0]
    return (
        f"{name}=False"
        if option[1]
        else f"{name}="
        if option[3]
        else name + option[0][option.end(2) - option.start() :]
    )


@cache
def _names() -> frozenset[str]:
    return frozenset(field.name for field in fields(Options)) | {"model", "device", "devices", "dtype", "text"}
