"""Errors of values that an option does not take. They name the environment variable that has set one."""

from __future__ import annotations

import re
from typing import Any

import typer


class BadValue(typer.BadParameter):
    """A value that an option does not take, in this program's words: pydantic's speak of "input" and hide the value."""

    def __init__(self, ctx: Any, error: typer.BadParameter) -> None:
        super().__init__(error.message.removeprefix("Value error, "), ctx, error.param)
        found: Any = getattr(error.__cause__, "errors", list)()
        self.value = found[0]["input"] if found else None
        self.problem = _problem(found[0]) if found else None

    def format_message(self) -> str:
        parameter: Any = self.param
        is_option = parameter.param_type_name == "option"
        name = max(parameter.opts, key=len) if is_option else parameter.metavar or parameter.name.upper()
        if self.ctx is not None and _is_from_environment(self.ctx, parameter):
            name = f"{parameter.envvar} in the environment ({name})"
        return f"{name}: {self.message}" if self.problem is None else f"{name} {self.value}: {self.problem}"


def _problem(found: dict[str, Any]) -> str | None:
    """Return what is wrong with a value that pydantic refused; None: it has a message of our own or of typer's."""
    limits = found.get("ctx", {})
    if "ge" in limits:
        return f"not a number from {limits['ge']:g}"
    if "le" in limits:
        return f"not a number up to {limits['le']:,}"
    kinds = {
        "int_parsing": "not a whole number",
        "int_from_float": "not a whole number",
        "float_parsing": "not a number",
    }
    return kinds.get(found["type"])


def variables(ctx: Any, message: str) -> list[str]:
    """Return the environment variables that set the options that a message names."""
    named = set(re.findall("--[a-z-]+", message))
    found = [one for one in ctx.command.params if named & set(one.opts) and _is_from_environment(ctx, one)]
    return [str(one.envvar) for one in found]


def _is_from_environment(ctx: Any, parameter: Any) -> bool:
    source = ctx.get_parameter_source(parameter.name)
    return source is not None and source.name == "ENVIRONMENT"
