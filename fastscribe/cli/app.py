"""The typer application that every command registers with, and what their options share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fastscribe.model_location import locate
from fastscribe.report.files import check_page
from fastscribe.terminal import download_bar, say

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
    quiet: bool = False,
    show_progress: bool = True,
    prefer_nemo: bool = False,
) -> Path:
    """Return the path of the model that every --model names, downloaded if need be.

    Args:
        model: as the user gave it.
        say: takes each line that people should see.
        quiet: do not announce a download.
        show_progress: draw a download on a terminal.
        prefer_nemo: of a model that the hub has in both formats, take the .nemo file.

    Raises:
        UsageError, CheckpointError: as model_location.locate.
    """
    return locate(model, say, partial(download_bar, quiet=quiet, draw=show_progress), prefer_nemo=prefer_nemo)


def option(*names: str, **settings: Any) -> Any:
    """A typer option that FASTSCRIBE_<LONG NAME> in the environment sets too."""
    long = next(name for name in names if name.startswith("--"))
    variable = "FASTSCRIBE_" + long.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(*names, envvar=variable, show_envvar=False, **settings)


def _usable(path: Path | None) -> Path | None:
    return None if path is None else check_page(path)


ReportHtml = Annotated[
    Path | None,
    option("--report-html", callback=_usable, help="Draw the result into this file, a page for a browser."),
]


class StdoutClosed(Exception):
    """The reader of our stdout has gone. typer would answer a BrokenPipeError with exit code 1."""
