"""The commands by name. A command is imported when it is looked up, so that a command line imports the one that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from fastscribe.cli.app import Group, app, new_app
from fastscribe.rooms import ROOMS

# The module of each command of the core, in the order of --help.
_CORE = {
    "transcribe": "transcribe",
    "export": "export",
    "merge": "merge",
    "inspect": "models",
    "convert": "models",
    "schema": "schema",
    "models": "known_models",
}
_SHELLS = (["bash"], ["zsh"], ["fish"], ["powershell"], ["pwsh"])
_MODULES = {name: f"fastscribe.cli.{module}" for name, module in _CORE.items()}
_MODULES |= {name: f"fastscribe.{room.name}.{module}" for room in ROOMS for name, module in room.commands.items()}


class LazyCommands(Mapping[str, Any]):
    """Typer's commands by name."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        for own in _CORE:
            yield own
            for room in ROOMS:
                if room.after == own:
                    yield from room.commands

    def __len__(self) -> int:
        return len(_MODULES)

    def __contains__(self, name: object) -> bool:
        return name in _MODULES

    def _build(self, name: str) -> Any:
        """Import the module of a command, which registers it, and make typer's command of it alone."""
        import_module(_MODULES[name])
        alone = new_app()
        alone.registered_commands = [
            one for one in app.registered_commands if name == (one.name or getattr(one.callback, "__name__", None))
        ]
        alone.registered_groups = [one for one in app.registered_groups if name == one.name]
        built: Any = typer.main.get_command(alone)
        return built.commands[name] if alone.registered_groups else built


class ProgramGroup(Group):
    """The group of all commands of `fastscribe`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands: Any = LazyCommands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command. A shell after --show-completion is that one, not the current one."""
        if args[:1] in (["--show-completion"], ["--install-completion"]) and args[1:] in _SHELLS:
            shown: Any = next(one for one in self.get_params(ctx) if args[0] in one.opts)
            shown.callback(ctx, shown, args[1])
        return list(super().parse_args(ctx, args))
