"""Groups of commands of which one need not be named."""

from __future__ import annotations

from typing import Any

from fastscribe.cli.app import Group


class DefaultCommandGroup(Group):
    """A group with a default command: `args_with_default` adds its name if the user left it out."""

    default: str

    def args_with_default(self, ctx: Any, args: list[str]) -> list[str]:
        raise NotImplementedError

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_word_to_complete = ctx.resilient_parsing and not args  # the next word may name a command
        return list(super().parse_args(ctx, args if is_word_to_complete else self.args_with_default(ctx, args)))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the name of a command, or an option of the default one."""
        if not incomplete.startswith("-"):
            return list(super().shell_complete(ctx, incomplete))
        command = self.commands[self.default]
        return list(command.shell_complete(type(ctx)(command, parent=ctx, resilient_parsing=True), incomplete))
