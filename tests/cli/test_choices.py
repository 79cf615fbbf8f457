"""Options with fixed choices: each set is declared once, as a Literal, and a wrong value is one clear line."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from fastscribe import config
from fastscribe.cli import app
from fastscribe.errors import UsageError
from fastscribe.evaluation.scores import NormalizerName
from tests.helpers.processes import on_terminal

PACKAGE = Path(config.__file__).parent
OPTIONS = [
    ("transcribe --decoder", config.DecoderName),
    ("transcribe --dtype", config.DtypeChoice),
    ("transcribe --cuda-graphs", config.GraphMode),
    ("transcribe --vad", config.VadName),
    ("train --dtype", config.TrainDtypeChoice),
    ("convert --dtype", config.FloatDtypeName),
    ("convert --to", config.ExportFormat),
    ("evaluate --normalizer", NormalizerName),
    ("bench --dtype", config.DtypeChoice),
]
HELP = {"transcribe": "--help-all"}
REPEATABLE = ["bench --dtype"]


BUILD = typer.main.get_command


@cache
def root() -> Any:
    """The command line as click sees it, which typer takes 50 ms to build, and 100 ms each of its commands."""
    return BUILD(app)


@pytest.fixture(autouse=True)
def _commands_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("typer.main.get_command", "typer.testing._get_command"):
        monkeypatch.setattr(module, lambda given: root() if given is app else BUILD(given))


def parameter(name: str) -> Any:
    """The option as declared on the command line."""
    *commands, option = name.split()
    command = root()
    for part in commands:
        command = command.commands[part]
    return next(one for one in command.params if option in one.opts)


def parsed(name: str, *words: str) -> Any:
    """The value that the command gets if the option is given once for each word."""
    *commands, option = name.split()
    arguments = [part for word in words for part in (option, word)]
    command = root()
    for part in commands:
        command = command.commands[part]
    found, _, _ = command.make_parser(context := typer.Context(command)).parse_args(arguments)
    return parameter(name).process_value(context, found.get(parameter(name).name))


@pytest.mark.parametrize(("name", "choices"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_option_choices(name: str, choices: Any, capsys: pytest.CaptureFixture) -> None:
    """Each word is taken, completed and in the help; another one is refused with all of them."""
    words = get_args(choices)
    for word in words:
        assert parsed(name, word) == ([word] if name in REPEATABLE else word)
    with pytest.raises(typer.BadParameter) as caught:
        app([*name.split(), "nonsense", "x", "y"], standalone_mode=False)
    message = caught.value.format_message()
    assert caught.value.exit_code == 2 and "\n" not in message
    for part in (name.split()[-1], "'nonsense'", *map(repr, words)):
        assert part in message
    *commands, _ = name.split()
    app([*commands, HELP.get(commands[0], "--help")], standalone_mode=False)
    assert "|".join(words) in capsys.readouterr().out
    completed = parameter(name).shell_complete(typer.Context(root()), "f")
    assert [one.value for one in completed] == [word for word in words if word.startswith("f")]


COMMANDS = ("", "transcribe", "evaluate", "merge", "inspect", "convert", "train", "bench")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_words_for_values(name: str) -> None:
    """No type of Python stands where a metavar should, and a list of commands cuts no help."""
    done = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=80, prog_name="fastscribe")
    usage, _, rest = done.output.partition("\n\n")
    assert done.exit_code == 0 and usage.startswith(f"Usage: fastscribe {name}".rstrip())
    assert not {"{", "}"} & set(usage) and "......" not in usage
    options = rest.partition("Options:")[2]
    assert not [word for word in (" range>", "<list", "<str>", "<int>", "<float>") if word in options]
    assert "..." not in options.partition("Commands:")[2]


def test_transcribe_help_is_one_screen_of_everyday_options() -> None:
    code, shown = on_terminal("transcribe", "--help", stream="stdout", columns=80)
    lines = shown.decode().splitlines()
    everyday = ("--model", "--output-dir", "--format", "--language", "--speakers", "--quiet", "--help", "--help-all")
    assert code == 0 and len(lines) <= 30 and max(map(len, lines)) <= 80
    assert not [name for name in everyday if f"{name} " not in shown.decode()]
    transcribe = BUILD(app).commands["transcribe"]  # type: ignore[attr-defined]
    transcribe.add_rooms()
    number = len([one for one in transcribe.params if one.param_type_name == "option"]) + 1  # and --help
    assert re.search(f"All {number} options, in groups: .*fastscribe transcribe --help-all", shown.decode())
    assert "Exit codes: 0 done, 1 some failed, 3 failed earlier (docs/transcribe.md)" in shown.decode()


def test_transcribe_help_all_fits_two_screens() -> None:
    """Two screens of 45 lines; the groups begin with the basics, and details stay out."""
    code, shown = on_terminal("transcribe", "--help-all", stream="stdout", columns=80)
    output = shown.decode()
    lines = output.splitlines()
    groups = [line.removesuffix(":") for line in lines if re.fullmatch("[A-Z][a-z ]+:", line)]
    assert code == 0 and len(lines) <= 92 and max(map(len, lines)) <= 80
    assert groups[:2] == ["Arguments", "Basics"] and len(groups) == 9
    assert "\f" not in output and "takes a few times as long" not in output and "x>=" not in output
    basics = output.replace("\r", "").split("Basics:")[1].split("\n\n")[0]
    assert all(name in basics for name in ("--model", "--output-dir", "--format", "--device", "--quiet", "--help"))


@pytest.mark.parametrize("typo", ["--overwite", "--overwrit", "--overwrites", "--over-write", "--override"])
def test_no_typo_suggests_overwrite(typo: str) -> None:
    done = CliRunner().invoke(app, ["transcribe", "a.wav", typo], prog_name="fastscribe")
    assert done.exit_code == 2 and typo in done.output and "--overwrite" not in done.output.replace(typo, "")
    done = CliRunner().invoke(app, ["transcribe", "a.wav", "--langauge", "en"], prog_name="fastscribe")
    assert "--language" in done.output


@pytest.mark.parametrize(
    ("words", "name"), [([], ""), (["transcribe"], "transcribe"), (["models", "pull"], "models pull")]
)
def test_help_is_a_word_too(words: list[str], name: str) -> None:
    asked, meant = (
        CliRunner().invoke(app, arguments, prog_name="fastscribe")
        for arguments in (["help", *words], [*words, "--help"])
    )
    assert asked.exit_code == 0 and asked.output == meant.output and f"fastscribe {name}".strip() in asked.output


def test_short_names_of_options() -> None:
    assert CliRunner().invoke(app, ["-V"], prog_name="fastscribe").output.startswith("fastscribe ")
    names = [one.opts for one in root().commands["transcribe"].params]
    assert ["--language", "-l"] in names


def test_a_value_may_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a word in an input's place is taken for a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-q").touch()
    transcribe = root().commands["transcribe"]
    for words in (
        ["--model", "-x.wav", "a.wav"],
        ["-q", "a.wav"],
        ["a.wav", "--", "-b.wav"],
        ["--log-file=x.mp3", "a.wav"],
    ):
        transcribe.parse_args(typer.Context(transcribe), words)
    (tmp_path / "-kept").touch()
    with pytest.raises(UsageError, match=r"give \./-kept"):
        transcribe.parse_args(typer.Context(transcribe), ["-kept"])


def test_first_words() -> None:
    """`fastscribe` alone: a page for a reader, whose commands exist."""
    done = CliRunner().invoke(app, [], prog_name="fastscribe")
    lines = done.stderr.splitlines()
    assert done.exit_code == 2 and done.stdout == "" and 8 <= len(lines) <= 20 and max(map(len, lines)) <= 90
    commands = [line.split("   ")[0].split() for line in lines if re.match(" *fastscribe [a-z-]+ ?[a-z-]*", line)]
    assert len(commands) >= 5
    transcribe = root().commands["transcribe"]
    for words in commands:
        if words[1] == "transcribe" and "--help" not in words:
            assert transcribe.parse_args(typer.Context(transcribe), words[2:]) == []


def test_transcribe_is_the_first_command() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert done.output.partition("Commands:\n")[2].split()[0] == "transcribe"


def test_choices_declared_once() -> None:
    """The command line has no enums, and no module repeats the words of a Literal in config.py."""
    declared = {
        frozenset(get_args(value))
        for value in vars(config).values()
        if all(isinstance(w, str) for w in get_args(value))
    }
    declared = {words for words in declared if len(words) > 1}
    assert len(declared) > 15
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        is_of_command_line = path.parent.name in ("cli", "bench") and "cli" in path.parts
        has_words = any(all(f'"{word}"' in text for word in words) for words in declared)
        if not (has_words or (is_of_command_line and "Enum" in text)):
            continue  # parsing all takes seconds
        tree = ast.parse(text)
        if is_of_command_line:
            assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Enum"], path
        if path.name == "config.py" and path.parent == PACKAGE:
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
                words = [element.value for element in node.elts if isinstance(element, ast.Constant)]
                assert len(words) < len(node.elts) or frozenset(words) not in declared, f"{path}:{node.lineno}: {words}"


def test_every_option_is_used() -> None:
    """One that its command does not hand on would be in the help and do nothing. typer itself serves --help-all."""
    unused = set[str]()
    patterns = ("cli/transcribe.py", "cli/export.py", "*/options.py", "*/command.py")
    for path in (path for pattern in patterns for path in PACKAGE.glob(pattern)):
        for one in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(one, ast.FunctionDef):
                given = {argument.arg for argument in (*one.args.args, *one.args.kwonlyargs)}
                unused |= given - {node.id for node in ast.walk(one) if isinstance(node, ast.Name)}
    assert unused == {"help_all"}


def test_help_under_optimisation() -> None:
    """Python drops docstrings, which are the descriptions of commands."""
    program = "from fastscribe.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-OO", "-c", program, "evaluate", "--help"], capture_output=True, text=True, check=True
    )
    assert "Compute word and character error rates" in done.stdout


def test_a_suggested_command_is_quoted() -> None:
    done = CliRunner().invoke(app, ["my talk.wav", "-o", "out put"], prog_name="fastscribe")
    assert "transcribe 'my talk.wav' -o 'out put'" in done.output


def test_the_packaged_model_is_here() -> None:
    done = CliRunner().invoke(app, ["models", "pull", "default"])
    assert done.exit_code == 0 and (Path(done.stdout.strip()) / "config.json").exists() and "is here" in done.stderr
