"""Examples of the documents run, and commands that are only shown have options that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path
from select import select
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
import soundfile
import typer

from fastscribe.cli import app
from tests.conftest import AUDIO, DATA, ROOT, waveform
from tests.helpers.forked_command import forked_command
from tests.helpers.markdown import Block, blocks, documents
from tests.helpers.warm_process import LIBRARIES_ALONE

PAGES = documents()
RUN_PAGES = [page for page in PAGES if any(block.is_run for block in blocks(page, "console"))]
PYTHON_PAGES = [page for page in PAGES if blocks(page, "python")]
SCRIPTS = sysconfig.get_path("scripts")
LIMIT_S = 240.0  # for a command, which may import torch on a machine that is busy
RUN_BLOCKS = """
import json, sys
for name, text in json.loads(sys.argv[1]):
    exec(compile(text, name, "exec"), {"__name__": "__main__"})
    print(end=chr(0))
"""
PROGRAM = typer.main.get_command(app)
# The same threshold as for quickstart: another processor may round otherwise.
MIN_SIMILARITY = 0.97


def name_of(item: Path | Block) -> str:
    return item.name


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A folder as the guides have it: two short recordings, a long one, and a call with a speaker on each channel."""
    for source, name in (("01_0_00010", "lobby"), ("09_1_00056", "monday/desk")):
        place = tmp_path / "recordings" / f"{name}.flac"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(AUDIO / f"{source}.flac", place)
    (tmp_path / "long").mkdir()
    shutil.copy(AUDIO / "e10_concat_45s.flac", tmp_path / "long" / "meeting.flac")
    (tmp_path / "calls").mkdir()
    first, second = (waveform(tmp_path / "recordings" / name) for name in ("lobby.flac", "monday/desk.flac"))
    pause = np.zeros(8_000, np.int16)
    agent = np.concatenate([first, pause, np.zeros_like(second)])
    customer = np.concatenate([np.zeros_like(first), pause, second])
    soundfile.write(tmp_path / "calls" / "order.wav", np.stack([agent, customer], axis=1), 16_000)
    return tmp_path


def test_the_guides_are_among_the_examples() -> None:
    names = {"transcribe.md", "models.md", "long-audio.md", "big-jobs.md", "measure.md"}
    assert names <= {page.name for page in RUN_PAGES}
    assert len(PYTHON_PAGES) >= 4


@pytest.mark.posix
@pytest.mark.timeout(0)  # each command has LIMIT_S
@pytest.mark.parametrize("page", RUN_PAGES, ids=name_of)
def test_console_examples_run(page: Path, recordings: Path, programs: Path) -> None:
    """A page's blocks run in one shell, one after the other, with the packaged model."""
    shown = [
        (f"{block.name}: {command}", command, "\n".join(lines))
        for block in blocks(page, "console")
        if block.is_run
        for command, lines in block.commands
    ]
    if any("fastscribe evaluate" in command for _, command, _ in shown) and find_spec("jiwer") is None:
        pytest.skip("evaluate needs jiwer, of the extra eval")
    done = in_shell([command for _, command, _ in shown], recordings, programs)
    for (place, _, expected), (code, printed, said) in zip(shown, done, strict=True):
        assert code == 0, f"{place}\n{said}"
        similarity = SequenceMatcher(None, expected, printed.strip(), autojunk=False).ratio()
        assert not expected or similarity > MIN_SIMILARITY, f"{place}\n{printed}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `fastscribe`."""
    assert shutil.which("fastscribe", path=SCRIPTS), f"the command is not installed in {SCRIPTS}"
    folder = tmp_path_factory.mktemp("bin")
    with forked_command(folder):
        yield folder


def in_shell(commands: list[str], folder: Path, programs: Path, limit_s: float = LIMIT_S) -> list[tuple[int, str, str]]:
    """Run commands in a shell, up to the first that fails; return exit code, stdout and stderr of each."""
    ours, theirs = os.pipe()
    mark = f"\ncode=$?; printf '\\0%d\\0' $code; printf '\\0' >&2; printf . >&{theirs}; [ $code = 0 ] || exit $code\n"
    command_line = ["bash", "-c", "".join(command + mark for command in commands)]
    with os.fdopen(ours, "rb", 0) as ends, TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        shell = subprocess.Popen(
            command_line, cwd=folder, env=clean_environment(programs), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            pass_fds=[theirs], start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        try:
            for command in commands:
                assert select([ends], [], [], limit_s)[0], f"no end after {limit_s:.0f} s: {command}"
                if not ends.read(1):
                    break
            shell.wait(limit_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        stdout.seek(0)
        stderr.seek(0)
        printed, said = stdout.read().split("\0"), stderr.read().split("\0")
    return [(int(code), out, err) for code, out, err in zip(printed[1::2], printed[::2], said, strict=False)]


def clean_environment(*programs: Path) -> dict[str, str]:
    """The environment of a reader who has installed fastscribe: without settings, also those that the tests make."""
    ours = ("FASTSCRIBE_", "PYTEST_", "GOMP_SPINCOUNT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PATH": os.pathsep.join([*map(str, programs), SCRIPTS, kept["PATH"]])}


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=name_of)
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    """A page's blocks run in one process without anything of fastscribe; each has variables of its own."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "data").symlink_to(DATA)
    found = blocks(page, "python")
    texts = json.dumps([(block.name, block.text) for block in found])
    done = LIBRARIES_ALONE.python(RUN_BLOCKS, texts, env=clean_environment(), cwd=tmp_path, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    *printed, rest = done.stdout.split("\0")
    assert len(printed) == len(found) and all(map(str.strip, printed)) and not rest
    assert "At Rice Stadium" in printed[0] or page.name != "README.md"


def fastscribe_calls(line: str) -> list[list[str]]:
    """The arguments of each call of fastscribe in a line for the shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;>&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    calls, words = [], list(lexer)
    while words:
        end = next((index for index, word in enumerate(words) if word in ("|", ";", ">", "&&")), len(words))
        part, words = words[:end], words[end + 1 :]
        start = next((index for index, word in enumerate(part) if Path(word).name == "fastscribe"), None)
        if start is not None and (start == 0 or part[start - 1] == "-m"):
            calls.append(part[start + 1 :])
    return calls


def check_call(arguments: list[str]) -> None:
    """Parse a call as the program does.

    Raises:
        Exception: An option or a choice does not exist.
    """
    command: Any = PROGRAM
    while hasattr(command, "commands"):
        if arguments[:1] in (["--install-completion"], ["--help"]):
            return
        default = {"models": "list"}.get(command.name)
        name = arguments[0] if arguments[:1] and arguments[0] in command.commands else default
        assert name is not None, f"no command {arguments[:1]}"
        arguments = arguments[1:] if arguments[:1] == [name] else arguments
        command = command.commands[name]
    command.make_context(command.name, list(arguments))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_shown_exist(page: Path) -> None:
    for block in blocks(page, "console"):
        for line, _ in block.commands:
            for arguments in fastscribe_calls(line):
                try:
                    check_call(arguments)
                except Exception as error:
                    pytest.fail(f"{block.name}: {line}\n{error!r}")


def test_every_command_is_shown() -> None:
    shown = {
        arguments[0]
        for page in PAGES
        for block in blocks(page, "console")
        for line, _ in block.commands
        for arguments in fastscribe_calls(line)
    }
    assert set(PROGRAM.commands) <= shown  # type: ignore[attr-defined]


def test_options_in_prose_exist() -> None:
    """Every option in backticks is fastscribe's; the page that translates other tools' options has a test of its own."""
    listed = known_options()
    others = {"--index-url", "--install-completion", "--help", "--preserve-status", "--memory", "--shm-size"}
    for page in PAGES:
        if page.name in ("switching.md", "gpu.md", "options.md", "CONTRIBUTING.md"):
            continue
        text = page.read_text(encoding="utf-8")
        options = set(re.findall(r"`(--[a-z][a-z-]+)(?!_)\b", text)) - others
        assert options <= listed, page.name


def known_options() -> set[str]:
    """Every option of every command, those of rooms too: a command has them once it has a context."""
    found: set[str] = set()

    def visit(command: Any) -> None:
        command.make_context(command.name, [], resilient_parsing=True)
        for parameter in command.params:
            found.update(parameter.opts, parameter.secondary_opts)
        for child in getattr(command, "commands", {}).values():
            visit(child)

    visit(PROGRAM)
    return found


def test_options_beside_those_of_others_exist() -> None:
    """The second column of the tables that translate options."""
    text = (ROOT / "docs" / "switching.md").read_text(encoding="utf-8")
    cells = [row.split(" | ")[1] for row in re.findall(r"^\| `.*", text, re.MULTILINE)]
    options = {option for cell in cells for option in re.findall(r"--[a-z][a-z-]+", cell)}
    assert len(options) > 15
    assert options <= known_options()


def test_recipes_and_json_are_valid(tmp_path: Path) -> None:
    """A recipe with a key that --init decides is of a new model."""
    from fastscribe.training.recipe import read_recipe

    recipes = [block for page in PAGES for block in blocks(page, "yaml")]
    assert recipes
    for block in recipes:
        (tmp_path / "recipe.yaml").write_text(block.text, encoding="utf-8")
        assert read_recipe(tmp_path / "recipe.yaml", is_tuning="d_model" not in block.text).data.train
    for block in (block for page in PAGES for block in blocks(page, "json")):
        json.loads(block.text)
