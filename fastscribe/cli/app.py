"""The typer application that every command registers with, the options that they share, and values that a shell completes.

Each completion starts the program, so it does without torch. A shell completes file names where nothing here fits.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from fastscribe.audio.formats import MAGIC, is_audio_name
from fastscribe.checkpoint.hub_name import DEFAULT
from fastscribe.config import OUTPUT_FORMATS
from fastscribe.errors import OptionError, UsageError
from fastscribe.rooms import ROOMS

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Words for the values of options in --help, where typer prints types: <float range>, <list[str]>.
_METAVARS = {
    "DEVICE": "--device",
    "FIELD": "--reference-field --hypothesis-field --group-by",
    "FILE": "--log-file --events --report-html --json --manifest",
    "FOLDER": "--output-dir",
    "FORMAT": "--format",
    "LANGUAGE": "--language --target-language",
    "MODEL": "--model --init",
    "N": "--beam --nbest --track --max-line-width --max-lines --max-chars-per-second --window --batch-size --threads "
    "--epochs --clips --passes",
    "SECONDS": "--max-utterance-s --max-cue-s --min-cue-s",
    "SECONDS,...": "--durations-s",
    "USD": "--price-per-hour",
}
_URL_AS_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\\\]")
LIMIT = re.compile(r" *\[(?:x>=[0-9.]+|[0-9.]+<=x<=[0-9.]+)\]|; (?:x>=[0-9.]+|[0-9.]+<=x<=[0-9.]+)(?=\])")
# What options of other tools are called here, where no close match says so.
_ELSEWHERE = {
    "--diarize": ["--speakers"],
    "--min-speakers": ["--speakers"],
    "--max-speakers": ["--speakers"],
    "--hotwords": ["--boost"],
    "--initial-prompt": ["--boost"],
    "--output-format": ["--format"],
}
_METAVAR_OF = {name: metavar for metavar, names in _METAVARS.items() for name in names.split()}


class Command(TyperCommand):
    """A command whose --help has its options in groups (rich_help_panel), without the details of each.

    The help of an option is one sentence for --help and, after a form feed, details for the option reference and the manual.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        parameters: list[Any] = self.params
        for parameter in parameters:
            parameter.help, _, parameter.details = (parameter.help or "").partition("\f")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse options; refuse words that are empty, and recordings that begin with a dash.

        No mistyped option suggests the one that deletes results.
        """
        if not ctx.resilient_parsing:  # which is completion
            _check_words(args, self.get_params(ctx))
        try:
            return list(super().parse_args(ctx, args))
        except Exception as error:
            alike = getattr(error, "possibilities", None)
            if possibilities := _ELSEWHERE.get(getattr(error, "option_name", ""), alike):
                own = {name for one in self.get_params(ctx) for name in one.opts} - {"--overwrite"}
                error.possibilities = [name for name in possibilities if name in own]  # type: ignore[attr-defined]
            if isinstance(error, typer.BadParameter) and error.param is not None:
                _name_value(ctx, error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors name options as they are typed."""
        try:
            return super().invoke(ctx)
        except OptionError as error:
            raise UsageError(error.on_command_line) from error

    def grouped(self, ctx: Any) -> dict[str, list[Any]]:
        """Return the parameters by group: the arguments, the group of the first option, and so on."""
        groups: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = "Arguments"
            else:
                first = next((name for name in groups if name != "Arguments"), "Options")
                name = getattr(parameter, "rich_help_panel", None) or first
            groups.setdefault(name, []).append(parameter)
        return groups

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups without the limits of numbers, which an error names.

        A command with --help-all writes the options that are declared with everyday=True, and how to see the others. One whose
        recordings may fail names its exit codes.
        """
        groups = self.grouped(ctx)
        options = [one for name, group in groups.items() for one in group if name != "Arguments"]
        is_short = not ctx.meta.get(_SHOWS_ALL) and any(one.name == "help_all" for one in options)
        if is_short:
            shown = [one for one in options if one.name in ("help", "help_all") or EVERYDAY & set(one.opts)]
            groups = {"Arguments": groups["Arguments"], "Options": shown}
        for name, parameters in groups.items():
            records = [(one, record) for one in parameters if (record := one.get_help_record(ctx)) is not None]
            with formatter.section(name):
                is_argument = name == "Arguments"  # to whose metavar typer adds its type
                written = [((is_argument and one.metavar) or names, text) for one, (names, text) in records]
                formatter.write_dl([(names, LIMIT.sub("", text)) for names, text in written])
        notes = [f"All {len(options)} options, in groups: {ctx.command_path} --help-all"] if is_short else []
        notes += [_EXIT_CODES] if any(one.name == "allow_failures" for one in options) else []
        if notes:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text("\b\n" + "\n".join(notes))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage with INPUTS... where typer has {INPUTS}..."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def _name_value(ctx: Any, error: Any) -> None:
    """Name the value that an option refuses, which pydantic calls "Input", and the environment variable that it came from."""
    refused: Sequence[Any] = getattr(error.__cause__, "errors", list)()
    error.message = error.message.removeprefix("Value error, ")
    if refused and error.message.startswith("Input "):
        error.message = f"{str(refused[0]['input'])!r}{error.message.removeprefix('Input')}"
    source = ctx.get_parameter_source(error.param.name)
    if source is not None and source.name == "ENVIRONMENT":
        error.param_hint = f"{error.param.envvar} in the environment ({max(error.param.opts, key=len)})"


def _check_words(args: Sequence[str], parameters: Sequence[Any]) -> None:
    """Raise UsageError for an empty word, an option as the value of another, and a recording whose name begins with a dash."""
    options = [one for one in parameters if one.param_type_name == "option"]
    long_names = {name: max(one.opts, key=len) for one in options for name in (*one.opts, *one.secondary_opts)}
    flags = {name for one in options if one.is_flag for name in (*one.opts, *one.secondary_opts)}
    option = None  # whose value comes next
    for word in args[: args.index("--")] if "--" in args else args:
        name, equals, value = word.replace("_", "-").partition("=")
        named = long_names.get(name)
        if (option is not None and not word) or (option is None and named is not None and equals and not value):
            raise UsageError(f"{option or named} is empty (a variable that is not set?)")
        if option is not None and named is not None:
            raise UsageError(
                f"{option} lacks its value: {word}, which follows, is an option (as a value: {option}={word})"
            )
        is_unknown = option is None and named is None and word.startswith("-") and word != "-"
        if is_unknown and (os.path.lexists(word) or (is_audio_name(word) and not equals)):
            raise UsageError(f"{word}: begins with a dash, as options do: for a file of this name give ./{word}")
        option = named if option is None and not equals and name not in flags else None
    if "" in args:
        raise UsageError("an argument is empty (a variable that is not set?)")


def _is_input(word: str) -> bool:
    """Return True for a word that names a recording rather than a command."""
    return word == "-" or os.path.lexists(word) or "://" in word or is_audio_name(word) or bool(MAGIC.search(word))


class Group(TyperGroup):
    """A group of commands that says what is missing where a recording or an option stands in a command's place."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command; name the command of an option that belongs to one. `help X` is `X --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        typed = shlex.join(args)
        try:
            return list(super().parse_args(ctx, args))
        except Exception as error:
            name = getattr(error, "option_name", None)
            first = None if name is None else self.commands.get("transcribe")
            names = {flag for room in ROOMS for flag in room.flags.get("transcribe", ())}
            if first is not None and name in names | {name for one in first.params for name in one.opts}:
                error.message = f"{name} belongs to a command: {ctx.command_path} transcribe {typed}"  # type: ignore[attr-defined]
                error.possibilities = None  # type: ignore[attr-defined]
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; if there is a recording in its place, say what is missing."""
        if args and self.get_command(ctx, args[0]) is None and "transcribe" in self.commands and _is_input(args[0]):
            ctx.fail(f"{args[0]} is no command. To transcribe it: {ctx.command_path} transcribe {shlex.join(args)}")
        if args and args[0] == "version" and "transcribe" in self.commands:
            ctx.fail(f"version is no command. Use {ctx.command_path} --version")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in their order."""
        return list(self.commands)


class Application(typer.Typer):
    """A typer application with commands of this program's kind."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[_Function], _Function]:
        register = super().command(*arguments, **({"cls": Command} | settings))
        return lambda function: register(described(function))


def described(function: _Function) -> _Function:
    """Give a function its docstring back, which --help shows and which Python drops under PYTHONOPTIMIZE=2."""
    if function.__doc__ is None:
        with suppress(OSError):  # no source
            function.__doc__ = ast.get_docstring(ast.parse(inspect.getsource(function)).body[0])  # type: ignore[arg-type]
    return function


def new_app(name: str | None = None) -> Application:
    """An application with the settings of `fastscribe`, or of a part of its commands, which has no name."""
    return Application(
        name=name,
        cls=Group,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=name is not None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda token: token.replace("_", "-"),  # --batch_size is --batch-size
        },
    )


app = new_app("fastscribe")
WHEN_STOPPED: list[Callable[[], str]] = []  # says what a run has done that a signal ends, and how it goes on
EVERYDAY: set[str] = set()  # options that are declared so
_SHOWS_ALL = "fastscribe.shows_all"  # key of a context's meta

_EXIT_CODES = "Exit codes: 0 done, 1 some failed, 3 failed earlier (docs/transcribe.md)"
MODEL_HELP = ".nemo file, Hugging Face folder or name (organisation/model[@revision]), or fastscribe folder."


def complete_formats(incomplete: str) -> list[str]:
    """Complete the last of a list of formats."""
    before, comma, last = incomplete.rpartition(",")
    used = before.split(",")
    return [f"{before}{comma}{name}" for name in OUTPUT_FORMATS if name.startswith(last) and name not in used]


def complete_models(incomplete: str) -> list[str]:
    """Complete what --model takes: the packaged model, and published ones by their names on the hub."""
    return [name for name in (DEFAULT, *(hub for _, hub in _published())) if name.startswith(incomplete)]


def complete_published_models(incomplete: str) -> list[str]:
    """Complete what `models pull` takes: the names of the table, and those on the hub."""
    return [name for names in _published() for name in names if name.startswith(incomplete)]


def _published() -> list[tuple[str, str]]:
    from fastscribe.checkpoint.known_models import known_models  # here, as every command line imports this file

    return [(model.name, model.hub) for model in known_models() if model.hub]


_COMPLETED = {"--format": complete_formats, "--init": complete_models, "--model": complete_models}


def option(*names: str, everyday: bool = False, **settings: Any) -> Any:
    """Make a typer option that the environment variable FASTSCRIBE_<LONG NAME> also sets, with its metavar and values.

    Args:
        names: Its names.
        everyday: Show it in the short help of a command that has --help-all.
        settings: Of typer.Option().
    """
    long = next(name for name in names if name.startswith("--"))
    if everyday:
        EVERYDAY.add(long)
    settings.setdefault("metavar", _METAVAR_OF.get(long))
    settings.setdefault("autocompletion", _COMPLETED.get(long))
    return typer.Option(*names, envvar=variable_of(long.partition("/")[0]), show_envvar=False, **settings)


def variable_of(option: str) -> str:
    """Return the environment variable that sets an option."""
    return "FASTSCRIBE_" + option.removeprefix("--").replace("-", "_").upper()


def options_in(group: str) -> Callable[..., Any]:
    """Return `option` for a group of --help."""
    return partial(option, rich_help_panel=group)


def local_file(path: Path | None) -> Path | None:
    """Check that an option's file is no URL, of whose slashes a Path keeps one."""
    if path is not None and _URL_AS_PATH.match(str(path)):
        raise typer.BadParameter("takes a local file, not a URL")
    return path


def repeated_choice(*names: str, among: Sequence[str], **settings: Any) -> Any:
    """Make a repeatable option of type list[str] with fixed choices; typer accepts Literal, but no list of it."""

    def check(values: list[str] | None) -> list[str]:
        unknown = [value for value in values or () if value not in among]
        if unknown:
            raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(map(repr, among))}.")
        return values or []  # older versions of typer fail on None

    def complete(incomplete: str) -> list[str]:
        return [word for word in among if word.startswith(incomplete)]

    return option(*names, metavar=f"<{'|'.join(among)}>", callback=check, autocompletion=complete, **settings)


class Stopped(Exception):
    """A command has ended before its end, and has said so itself.

    Args:
        code: The exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class StdoutClosed(Exception):
    """The reader of our stdout is gone. typer would answer a BrokenPipeError with exit code 1."""


def is_on_terminal() -> bool:
    """Return True if stdout is a terminal, whose reader wants no JSON that was not asked for."""
    return sys.stdout is not None and sys.stdout.isatty()


def check_stdout() -> None:
    """Raise StdoutClosed if the process has no stdout (`>&-`), for a command that does nothing but print."""
    if sys.stdout is None:
        raise StdoutClosed


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
