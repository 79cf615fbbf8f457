"""Options with a closed set of values: each set is declared once, as a Literal, and wrong values are one clear line."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from fastscribe import config
from fastscribe.bench import loss
from fastscribe.bench.against.peers import PEERS, PeerName
from fastscribe.cli import app
from fastscribe.decode.families import DECODERS
from fastscribe.evaluation.scores import NormalizerName
from fastscribe.output.writers import render
from fastscribe.types import AudioInfo, Transcript

PACKAGE = Path(config.__file__).parent
OPTIONS = [
    ("transcribe --decoder", config.DecoderName),
    ("transcribe --dtype", config.DtypeChoice),
    ("transcribe --cuda-graphs", config.GraphMode),
    ("transcribe --vad", config.VadName),
    ("train --dtype", config.TrainDtypeChoice),
    ("convert --dtype", config.FloatDtypeName),
    ("evaluate --normalizer", NormalizerName),
    ("bench throughput --dtype", config.DtypeChoice),
    ("bench throughput --against", PeerName),
    ("bench latency --dtype", config.DtypeChoice),
    ("bench decoder --dtype", config.DtypeChoice),
    ("bench train --dtype", config.FloatDtypeName),
    ("bench leaderboard --dtype", config.FloatDtypeName),
    ("bench loss --dtype", config.LossDtypeName),
]
REPEATABLE = [f"bench {command} --dtype" for command in ("throughput", "latency", "train", "loss")]


def parameter(name: str) -> Any:
    """The option as the command line has it."""
    *commands, option = name.split()
    command: Any = typer.main.get_command(app)
    for part in commands:
        command = command.commands[part]
    return next(one for one in command.params if option in one.opts)


def parsed(name: str, *words: str) -> Any:
    """What the command gets when the option is given once for each word."""
    *commands, option = name.split()
    arguments = [part for word in words for part in (option, word)]
    command: Any = typer.main.get_command(app)
    for part in commands:
        command = command.commands[part]
    found, _, _ = command.make_parser(context := typer.Context(command)).parse_args(arguments)
    return parameter(name).process_value(context, found.get(parameter(name).name))


@pytest.mark.parametrize(("name", "choices"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_an_option_takes_its_choices_and_no_other_word(name: str, choices: Any) -> None:
    words = get_args(choices)
    for word in words:
        assert parsed(name, word) == ([word] if name in REPEATABLE else word)
    with pytest.raises(typer.BadParameter) as caught:
        app([*name.split(), "nonsense", "x", "y"], standalone_mode=False)
    message = caught.value.format_message()
    assert caught.value.exit_code == 2 and "\n" not in message
    for part in (name.split()[-1], "'nonsense'", *map(repr, words)):
        assert part in message


@pytest.mark.parametrize(("name", "choices"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_help_and_completion_show_the_choices(name: str, choices: Any, capsys: pytest.CaptureFixture) -> None:
    *commands, _ = name.split()
    app([*commands, "--help"], standalone_mode=False)
    assert "|".join(get_args(choices)) in capsys.readouterr().out
    option = parameter(name)
    completed = [one.value for one in option.shell_complete(typer.Context(typer.main.get_command(app)), "f")]
    assert completed == [word for word in get_args(choices) if word.startswith("f")]


@pytest.mark.parametrize("name", REPEATABLE)
def test_a_repeatable_option_keeps_every_value(name: str) -> None:
    assert parsed(name, "bf16", "fp32") == ["bf16", "fp32"]
    assert parsed(name) == []


def test_tables_by_choice_leave_none_out() -> None:
    assert set(DECODERS) == set(get_args(config.DecoderName))
    assert tuple(PEERS) == get_args(PeerName)
    assert tuple(loss.DTYPES) == get_args(config.LossDtypeName)
    transcript = Transcript(AudioInfo("a.wav", "a.wav", 16000, 1, 16000), "", (), ())
    assert all(isinstance(render(transcript, format), str) for format in config.OUTPUT_FORMATS)


def test_no_choices_are_declared_again() -> None:
    """The command line has no enums of its own, and no module lists the words of a Literal in config.py again."""
    declared = {
        frozenset(get_args(value))
        for value in vars(config).values()
        if all(isinstance(w, str) for w in get_args(value))
    }
    declared = {words for words in declared if len(words) > 1}
    assert len(declared) > 15
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.parent.name in ("cli", "bench") and "cli" in path.parts:
            assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Enum"], path
        if path.name == "config.py" and path.parent == PACKAGE:
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
                words = [element.value for element in node.elts if isinstance(element, ast.Constant)]
                assert len(words) < len(node.elts) or frozenset(words) not in declared, f"{path}:{node.lineno}: {words}"
