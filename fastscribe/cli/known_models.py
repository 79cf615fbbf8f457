"""`fastscribe models`: published models that load, and their download."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.known_models import download, hub_name, known_models
from fastscribe.checkpoint.location import is_packaged
from fastscribe.cli.app import Application, Group, app, check_stdout, complete_published_models
from fastscribe.cli.terminal import say
from fastscribe.rooms import SIDE_MODELS

if TYPE_CHECKING:
    from fastscribe.checkpoint.known_models import KnownModel


class _Group(Group):
    """`fastscribe models` is `fastscribe models list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_word_to_complete = ctx.resilient_parsing and not args  # the next word may name a command
        is_list = args[:1] in ([], ["--json"]) and not is_word_to_complete
        return list(super().parse_args(ctx, ["list", *args] if is_list else args))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the name of a command, or an option of `list`."""
        if not incomplete.startswith("-"):
            return list(super().shell_complete(ctx, incomplete))
        command = self.commands["list"]
        return list(command.shell_complete(type(ctx)(command, parent=ctx, resilient_parsing=True), incomplete))


models = Application(
    cls=_Group, no_args_is_help=False, help="List published models that load, or download one. Without a command: list."
)
app.add_typer(models, name="models")


@models.command("list", epilog="Example: fastscribe models --json | jq -r '.[] | select(.cached) | .hub'")
def list_models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, with the source of each value.")
    ] = False,
) -> None:
    """List published models that load: family, size, languages, licence, and whether a copy is in the Hugging Face cache.

    Models of these families that are not in the list load too. A value that is not known is -.
    """
    check_stdout()
    rows = [_row(model) for model in known_models()]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    lines = [_cells(row) for row in rows]
    heading = ("NAME", "FAMILY", "SIZE", "DOWNLOAD", "LANGUAGES", "LICENCE", "")
    widths = [max(len(line[column]) for line in [heading, *lines]) for column in range(len(heading))]
    for line in (heading, *lines):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
    for option, kind in SIDE_MODELS.items():
        say(f"for --{option}: {kind.example}, {kind.what}")


@models.command(epilog="Example: fastscribe transcribe calls/ --model $(fastscribe models pull parakeet-tdt-0.6b-v3)")
def pull(
    name: Annotated[
        str,
        typer.Argument(
            help="A name of the list, or organisation/name[@revision] on the Hugging Face hub.",
            autocompletion=complete_published_models,
        ),
    ],
) -> None:
    """Download a model to the Hugging Face cache, and print its path.

    A download that broke off goes on where it stopped. Nothing is downloaded again unless the hub has a newer version.
    """
    check_stdout()
    if is_packaged(name):
        say("the small English model comes with fastscribe, so it is here: transcribe uses it without --model")
        print(PACKAGED)
        return
    found = hub_name(name)
    path = download(found, say, announce=False)
    say(f"{found}: ready; use it with --model {found}")
    print(path)


def _row(model: KnownModel) -> dict[str, Any]:
    cached = model.cached()
    return asdict(model) | {"family": model.family, "cached": None if cached is None else str(cached)}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    size, download = row["parameters_millions"], row["download_gb"]
    return (
        row["hub"] or row["name"],
        row["family"],
        f"{size:,} M" if size else "-",
        f"{download} GB" if download else "-",
        row["languages"] or "-",
        row["licence"] or "-",
        "" if row["cached"] is None else "here",
    )
