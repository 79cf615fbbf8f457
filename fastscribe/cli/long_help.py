"""Help of a command with many options: --help shows those of every day on one screen, --help-all shows all in their groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fastscribe.cli.app import EVERYDAY, names_of
from fastscribe.cli.room_options import CommandWithRooms

_SHOWS_ALL = "fastscribe.shows_all"  # key of a context's meta


class CommandWithLongHelp(CommandWithRooms):
    """A command whose --help has the options that are declared with everyday=True."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options of every day, and how to see the others."""
        if ctx.meta.get(_SHOWS_ALL):
            super().format_options(ctx, formatter)
            return
        groups = self.grouped(ctx)
        arguments = groups.pop("Arguments", [])
        options = [one for group in groups.values() for one in group]
        shown = [one for one in options if one.name in ("help", "help_all") or EVERYDAY & set(one.opts)]
        for title, parameters in (("Arguments", arguments), ("Options", shown)):
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (names_of(one, record[0]), record[1])
                        for one in parameters
                        if (record := one.get_help_record(ctx))
                    ]
                )
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"All {len(options)} options, in groups: {ctx.command_path} --help-all")


def _show_all(ctx: typer.Context, value: bool) -> None:
    if value:
        ctx.meta[_SHOWS_ALL] = True
        print(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", is_eager=True, callback=_show_all, help="Show all options and exit.", rich_help_panel="Basics"
    ),
]
