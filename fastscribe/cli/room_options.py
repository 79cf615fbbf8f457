"""Options that rooms add to commands.

A room's module `options` declares them: its OPTIONS has a function for each command that it adds to, with the options as its
arguments, as a command has them. The table of the rooms has their names. So a command line imports the rooms alone whose
options it names, or whose options an environment variable sets; help, completion, the documents, and a word that is no option
need all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, NamedTuple

import typer

from fastscribe.cli.app import Command, new_app, variable_of
from fastscribe.rooms import ROOMS

_CALLS, _VALUES = "fastscribe.room_calls", "fastscribe.values"  # keys of a context's meta
_HELP = {"-h", "--help", "--help-all"}


class AddedOptions(NamedTuple):
    """What a room adds to a command.

    Attributes:
        function: Has the options as its arguments; it checks them, and returns what the command is to do, or None.
        after: The command's own option that they follow in help.
    """

    function: Callable[..., Any]
    after: str


class CommandWithRooms(Command):
    """A command to which rooms add options."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._own = list(self.params)
        self._added: dict[str, Any] = {}  # by room: typer's command of its function
        self._places: dict[str, str] = {}

    def add_rooms(self) -> None:
        """Add the options of all rooms."""
        self._add({room.name for room in ROOMS if room.flags.get(self.name or "")})

    def _add(self, wanted: Collection[str]) -> None:
        """Add the options of some rooms, by name."""
        for room in wanted:
            if room not in self._added:
                added: AddedOptions = import_module(f"fastscribe.{room}.options").OPTIONS[self.name]
                application = new_app()
                application.command()(added.function)
                self._added[room], self._places[room] = typer.main.get_command(application), added.after
        self.params = []
        for parameter in self._own:
            self.params.append(parameter)
            for name in (room.name for room in ROOMS if room.name in self._added):  # in the order of the table
                if self._places[name] in parameter.opts:
                    self.params += self._added[name].params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options, with those of the rooms that the command line or the environment names."""
        before = args[: args.index("--")] if "--" in args else args
        names = (word.partition("=")[0] for word in before if word.startswith("-"))
        words = {name.replace("_", "-") if name.startswith("--") else name for name in names}
        rooms = [(room, flags) for room in ROOMS if (flags := room.flags.get(self.name or ""))]
        known = {name for one in self._own for name in (*one.opts, *one.secondary_opts)}
        known |= {flag for _, flags in rooms for flag in flags} | {"-", "--"}
        self._add(
            {
                room.name
                for room, flags in rooms
                if any(flag in words or os.environ.get(variable_of(flag)) for flag in flags)
            }
        )
        if ctx.resilient_parsing or _HELP & words or words - known:
            self.add_rooms()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which has the values of its own options; room_hooks() has the others."""
        ctx.meta[_VALUES] = dict(ctx.params)
        ctx.meta[_CALLS] = [
            (added.callback, {one.name: ctx.params.pop(one.name) for one in added.params})
            for added in (self._added[room.name] for room in ROOMS if room.name in self._added)
        ]
        return super().invoke(ctx)


def room_hooks(context: typer.Context) -> list[Any]:
    """Have the rooms that options name check them. Return what each of them does, in the order of the table.

    Raises:
        typer.BadParameter: Options do not fit together.
        UsageError: The value of one cannot be used.
    """
    hooks = [call(**values) for call, values in context.meta[_CALLS]]
    return [hook for hook in hooks if hook is not None]


def value_of(context: typer.Context, name: str) -> Any:
    """Return the value of any of the command's options, for the checks of a room; None: its room is not asked for."""
    return context.meta[_VALUES].get(name)
