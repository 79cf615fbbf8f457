"""Shell completion: commands, options, values and models' names, without torch."""

from __future__ import annotations

import os

import pytest

from fastscribe.config import OUTPUT_FORMATS
from tests.helpers.processes import fastscribe
from tests.helpers.warm_process import LIBRARIES_ALONE

PROGRAM = """
import sys
libraries = {"torch", "soundfile"}
sys.modules |= dict.fromkeys(name for name in [*libraries, *sys.modules] if name.split(".")[0] in libraries)
sys.argv = ["fastscribe"]
from fastscribe.__main__ import main
main()
"""


def completed(shell: str, **variables: str) -> str:
    """Return what a shell gets; importing torch or soundfile would be an error."""
    done = LIBRARIES_ALONE.python(PROGRAM, env=os.environ | {"_FASTSCRIBE_COMPLETE": f"complete_{shell}", **variables})
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fastscribe do", ["doctor"]),
        ("fastscribe transcribe --dtype b", ["bf16"]),
        ("fastscribe transcribe -f ", list(OUTPUT_FORMATS)),
        ("fastscribe export out --format jsonl,s", ["jsonl,srt"]),
        ("fastscribe transcribe --model d", ["default"]),
        ("fastscribe transcribe -m nvidia/parakeet-ctc", ["nvidia/parakeet-ctc-0.6b", "nvidia/parakeet-ctc-1.1b"]),
        ("fastscribe models ", ["list", "pull"]),
        ("fastscribe bench calls/ --price", ["--price-per-hour"]),
    ],
)
def test_bash(words: str, expected: list[str]) -> None:
    assert completed("bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))).split() == expected


def test_fish_and_zsh() -> None:
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": "fastscribe transcribe --vad "}
    assert completed("fish", **fish).split() == ["energy", "silero"]
    assert '"doctor"' in completed("zsh", _TYPER_COMPLETE_ARGS="fastscribe do")


def test_the_shell_that_is_named() -> None:
    done = fastscribe("--show-completion", "zsh")
    assert done.returncode == 0 and done.stdout.startswith("#compdef ")
