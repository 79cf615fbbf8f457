"""The commands of scripts/benchmarks parse, fail and store as those of `fastscribe bench` do."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import typer.main

from fastscribe import config
from fastscribe.errors import UsageError
from scripts.benchmarks import decoder, leaderboard, loss, loss_cases, train
from tests.conftest import ROOT
from tests.helpers import random_models

COMMANDS = {"decoder": decoder, "leaderboard": leaderboard, "loss": loss, "train": train}
ARGUMENTS = {"leaderboard": ("a.jsonl",)}
DTYPES = {
    "decoder": config.DtypeChoice,
    "leaderboard": config.FloatDtypeName,
    "loss": loss_cases.LossDtypeName,
    "train": config.FloatDtypeName,
}


def call(name: str, *arguments: object) -> None:
    COMMANDS[name].app([*ARGUMENTS.get(name, ()), *map(str, arguments)], standalone_mode=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_command_and_its_choices(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    call(name, "--help")
    text = capsys.readouterr().out
    assert f"Example: python -m scripts.benchmarks.{name} " in " ".join(text.split())
    assert "|".join(get_args(DTYPES[name])) in text
    assert "--json" in text and "--install-completion" not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_choice_is_one_line_with_the_right_ones(name: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        call(name, "--dtype", "nonsense")
    message = caught.value.format_message()
    assert "\n" not in message
    for word in ("--dtype", "'nonsense'", *map(repr, get_args(DTYPES[name]))):
        assert word in message


@pytest.mark.parametrize("name", COMMANDS)
def test_only_a_result_is_overwritten(name: str) -> None:
    with pytest.raises(UsageError, match="no benchmark's result"):
        call(name, "--json", __file__)


def test_a_command_runs_from_a_checkout_and_stores_its_command_line(tmp_path: Path) -> None:
    model = str(random_models.folder("tiny", tmp_path))
    options = ["--model", model, "--batch-sizes", "1", "--duration-s", "0.5", "--device", "cpu", "--quick"]
    command = [sys.executable, "-m", "scripts.benchmarks.decoder", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["command"] == " ".join(["python -m scripts.benchmarks.decoder", *options])


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_an_expected_error_is_one_line_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--shape", "nothing"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("scripts.benchmarks.train", run_name="__main__")
    out, said = capfd.readouterr()
    assert ended.value.code == 2 and out == ""
    assert said.startswith("fastscribe: ") and said.count("\n") == 1


def test_the_loss_is_measured_in_every_dtype() -> None:
    assert tuple(loss_cases.DTYPES) == get_args(loss_cases.LossDtypeName)
