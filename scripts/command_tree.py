"""The program's commands with their options as help shows them, for docs/options.md and for the man page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import typer


class Command(NamedTuple):
    """A command; a group of commands has no usage.

    Attributes:
        name: As it is typed: "fastscribe models pull".
        help: Its whole help.
        usage: Its arguments: "[OPTIONS] INPUTS...".
        groups: By the title of a group in help: names with metavar, and meaning with all details, of arguments and options.
        example: The line below its help.
    """

    name: str
    help: str
    usage: str
    groups: dict[str, list[tuple[str, str]]]
    example: str


def commands() -> Iterator[Command]:
    """Yield every command below `fastscribe`, a group before its commands."""
    from fastscribe.cli import app

    root = typer.main.get_command(app)
    context = root.make_context("fastscribe", [], resilient_parsing=True)
    yield from _below(root, context, "fastscribe")


def _below(group: Any, context: Any, prefix: str) -> Iterator[Command]:
    for name in group.list_commands(context):
        command = group.commands[name]
        own = command.make_context(name, [], parent=context, resilient_parsing=True)
        is_group = hasattr(command, "commands")
        groups = {} if is_group else _groups(command, own)
        usage = "" if is_group else " ".join(command.collect_usage_pieces(own))
        yield Command(f"{prefix} {name}", command.help or "", usage, groups, command.epilog or "")
        if is_group:
            yield from _below(command, own, f"{prefix} {name}")


def _groups(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for title, parameters in command.grouped(context).items():
        own = [parameter for parameter in parameters if parameter in command.params]  # not --help
        groups[title] = [record for parameter in own if (record := _record(parameter, context)) is not None]
    return groups


def _record(parameter: Any, context: Any) -> tuple[str, str] | None:
    """Return names and meaning, with the details that --help leaves out before the default and the limits."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, meaning = record
    return names, meaning.replace(parameter.help, f"{parameter.help} {parameter.details}", 1)
