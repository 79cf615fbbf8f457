"""The typer application that every command registers with, and what their options share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fastscribe.checkpoint.location import locate
from fastscribe.cli.terminal import say
from fastscribe.report.files import check_page

app = typer.Typer(
    name="fastscribe",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --batch_size is --batch-size
    },
)

MODEL_HELP = ".nemo file, Hugging Face folder or name (organisation/model[@revision]), or fastscribe folder."


def find_model(
    model: str | None,
    say: Callable[[str], None] = say,
    *,
    show_progress: bool = True,
    prefer_nemo: bool = False,
) -> Path:
    """The path of the model that every --model names, downloaded if need be: model_location.locate, said on stderr."""
    return locate(model, say, show_progress=show_progress, prefer_nemo=prefer_nemo)


def option(*names: str, **settings: Any) -> Any:
    """A typer option that FASTSCRIBE_<LONG NAME> in the environment sets too."""
    long = next(name for name in names if name.startswith("--"))
    variable = "FASTSCRIBE_" + long.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(*names, envvar=variable, show_envvar=False, **settings)


def repeated_choice(*names: str, among: Sequence[str], **settings: Any) -> Any:
    """A repeatable option of type list[str] that takes the words `among`: typer accepts Literal, but no list of it."""

    def check(values: list[str] | None) -> list[str]:
        unknown = [value for value in values or () if value not in among]
        if unknown:
            raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(map(repr, among))}.")
        return values or []  # older versions of typer fail on None

    def complete(incomplete: str) -> list[str]:
        return [word for word in among if word.startswith(incomplete)]

    return option(*names, metavar=f"<{'|'.join(among)}>", callback=check, autocompletion=complete, **settings)


def _check_page_path(path: Path | None) -> Path | None:
    return None if path is None else check_page(path)


ReportHtml = Annotated[
    Path | None,
    option("--report-html", callback=_check_page_path, help="Draw the result into this file, a page for a browser."),
]


class StdoutClosed(Exception):
    """The reader of our stdout has gone. typer would answer a BrokenPipeError with exit code 1."""
