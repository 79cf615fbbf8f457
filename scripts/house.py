"""The size and the order of the package, as numbers with limits: python -m scripts.house.

Prints what each number is and what it may be at most (LIMITS), and the imports that point up. tests/test_house.py fails above a
limit, and where a number has fallen far below, so that a limit follows what has been won. Its message has a limit that passes.
Limits of lines were set with 2 % of room for additions. Those of options and the like have none on purpose: each one more is a
decision.
"""

from __future__ import annotations

import argparse
import ast
import gc
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import fastscribe
from fastscribe.rooms import ROOMS
from scripts.command_tree import commands

ROOT = Path(__file__).parents[1]
PACKAGE = Path(fastscribe.__file__).parent  # the checkout's, or the installed one's
CLIP = ROOT / "tests" / "data" / "audio" / "15_1_00203.flac"
MODEL = ROOT / "tests" / "data" / "models" / "tdt_demo" / "model.nemo"
# The core from the ground up, by whole package. A package imports those of its own tier and of earlier ones.
TIERS = (
    (
        "types",
        "config",
        "errors",
        "fast_paths",
        "languages",
        "version",
        "rooms",
        "python_names",
        "_system",
    ),
    ("audio", "cuda"),
    ("segmentation", "text"),
    ("checkpoint", "families"),
    ("decode", "results"),
    ("pipeline",),
    ("transcriber", "single", "dry_run"),
    ("cli", "__main__"),
)
# The modules of the core that look at an option or a command of a room, and import that room. They import it late:
# inside a function, or for types alone.
DOORS = {
    "checkpoint.native": ("context",),
    "checkpoint.native_writer": ("context",),
    "checkpoint.reader": ("context", "speakers"),
    "cli.describe": ("bench",),
    "cli.models": ("speakers",),
    "config": ("speakers",),
    "decode.aed": ("context",),
    "decode.aed_graphs": ("context",),
    "decode.batched_beam": ("context",),
    "decode.cpu_looping": ("context",),
    "decode.ctc": ("context",),
    "decode.label_looping": ("context",),
    "decode.transducer_graphs": ("context",),
    "pipeline.interfaces": ("context", "readable", "speakers"),
    "pipeline.recordings": ("speakers",),
    "pipeline.run_rooms": ("alignment", "context", "speakers"),
    "pipeline.workers.stages": ("readable",),
    "results.fingerprint": ("context",),
    "transcriber": ("readable", "speakers"),
}
ROOM = 1.04  # a limit is set with 2 % of room; with more than twice that left, it is out of date
_SHORTER = "Delete as much elsewhere; if users need the addition more than that, raise the limit"
_LATER = "Import the module where its option is looked at; if every run needs it, raise the limit"
_DOWN = "Import from the same tier or an earlier one, or move what both need down"


class Limit(NamedTuple):
    """How large a number may be.

    Attributes:
        at_most: The number; where it grows by lines, as limit_for() has it.
        advice: What to do about a number above it.
    """

    at_most: int
    advice: str


LIMITS = {
    "modules that a plain run loads": Limit(120, _LATER),
    "their lines": Limit(21_300, _LATER),
    "lines of the package": Limit(75_750, _SHORTER),
    "lines of the tests": Limit(65_750, _SHORTER),
    "lines of the scripts": Limit(11_500, _SHORTER),
    "options of all commands": Limit(140, "Choose what most people want, without an option; a fork raises the limit"),
    "imports that point up, by module": Limit(0, _DOWN),
    "folders that import up": Limit(0, _DOWN),
    "folders whose code mentions speakers": Limit(8, "Keep what is about speakers in fastscribe/speakers"),
    "arguments of Run": Limit(5, "Put what belongs together into one object that the caller has already"),
}
# Run in a process of its own, which this changes as little as possible.
_COUNT = """
import atexit, json, sys
from pathlib import Path

def count():
    own = [one for name, one in list(sys.modules.items()) if name.split(".")[0] == "fastscribe"]
    files = {Path(one.__file__) for one in own if str(getattr(one, "__file__", "")).endswith(".py")}
    lines = sum(len(one.read_text(encoding="utf-8").splitlines()) for one in files)
    print(json.dumps([len(files), lines]), file=sys.stderr)

atexit.register(count)
sys.argv = ["fastscribe", *sys.argv[1:]]
from fastscribe.__main__ import main
main()
"""


@cache
def room_names() -> tuple[str, ...]:
    """Return the folders of the rooms, as the package's own table has them."""
    return tuple(room.name for room in ROOMS)


@cache
def modules() -> dict[str, Path]:
    """Return the files of the package by their dotted names without `fastscribe.`."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "__init__.py"
    }


def syntax(path: Path) -> ast.Module:
    was_on = gc.isenabled()
    gc.disable()  # it would look at every new node again and again, which takes two thirds of the time
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if was_on:
            gc.enable()


def imports(path: Path, at_import_time: bool = False) -> set[str]:
    """Return the modules of the package that a file imports, also inside functions and for types alone.

    Args:
        path: The file.
        at_import_time: Only what is imported with the file.
    """
    return _imports(path)[at_import_time]


@cache
def _imports(path: Path) -> tuple[set[str], set[str]]:
    """Return all that a file imports, and what is imported with it."""
    known, every, with_it = modules(), set[str](), set[str]()

    def visit(statements: list[ast.stmt], is_with_it: bool) -> None:
        for one in statements:
            found = set()
            if isinstance(one, ast.Import):
                found = {alias.name for alias in one.names}
            elif isinstance(one, ast.ImportFrom) and one.module:
                for alias in one.names:
                    name = f"{one.module}.{alias.name}"
                    found.add(name if name.removeprefix("fastscribe.") in known else one.module)
            every.update(found)
            if is_with_it:
                with_it.update(found)
            is_later = isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_for_types(one)
            for block in ("body", "orelse", "finalbody"):
                visit(getattr(one, block, []), is_with_it and not is_later)
            for part in (*getattr(one, "handlers", ()), *getattr(one, "cases", ())):
                visit(part.body, is_with_it and not is_later)

    visit(syntax(path).body, True)
    return _own_names(every), _own_names(with_it)


def _own_names(found: set[str]) -> set[str]:
    own = {name for name in found if name.startswith("fastscribe") or name not in modules()}  # not the library `ray`
    return {name.removeprefix("fastscribe.") for name in own}


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)


def tier_of(module: str) -> int | None:
    """Return the number of a core module's tier, from 0; None for a module of a room.

    Raises:
        LookupError: Its package is in no tier and no room.
    """
    package = module.split(".")[0]
    if package in room_names():
        return None
    for number, names in enumerate(TIERS):
        if package in names:
            return number
    raise LookupError(f"{module} is in no tier of scripts/house.py and in no room of fastscribe/rooms.py")


def is_door(module: str, target: str) -> bool:
    """Return True if a module of the core may import another one late, because it looks at an option of its room."""
    return target.split(".")[0] in DOORS.get(module, ())


def upward_imports() -> list[tuple[str, str]]:
    """Return each import of the core that points to a higher tier or to a room, as (module, imported module).

    Those of DOORS do not count.
    """
    found = []
    for module, path in modules().items():
        tier = tier_of(module)
        if tier is None:
            continue
        for target in sorted(imports(path) & modules().keys()):
            if is_door(module, target) and target not in imports(path, at_import_time=True):
                continue
            target_tier = tier_of(target)
            if target_tier is None or target_tier > tier:
                found.append((module, target))
    return found


def folders_that_mention(word: str) -> list[str]:
    """Return the folders of the package whose code has a name or a text with this word; comments and docstrings do not count.

    The modules beside the folders are one folder.
    """
    found = set()
    for module, path in modules().items():
        if word not in path.read_text(encoding="utf-8").lower():
            continue
        if any(word in text for text in _words(syntax(path))):
            found.add(module.split(".")[0] if path.parent != PACKAGE else "fastscribe")
    return sorted(found)


def _words(tree: ast.Module) -> Iterator[str]:
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        for name in ("id", "attr", "arg", "name", "module", "value"):
            text = getattr(node, name, None)
            if isinstance(text, str):
                yield text.lower()


def num_arguments(module: str, name: str) -> int:
    """Return how many arguments the constructor of a class takes, beside self."""
    for node in ast.walk(syntax(modules()[module])):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    return len(method.args.args) - 1 + len(method.args.kwonlyargs)
    raise LookupError(f"{module} has no class {name} with a constructor")


def plain_run() -> tuple[int, int]:
    """Transcribe one recording on the CPU, and return how many modules of the package that loads, and their lines."""
    command = [sys.executable, "-c", _COUNT, "transcribe", str(CLIP), "-m", str(MODEL)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    num_modules, num_loaded_lines = ast.literal_eval(run.stderr.splitlines()[-1])
    return num_modules, num_loaded_lines


def num_lines(paths: Iterable[Path]) -> int:
    """Return how many lines the files among these paths have together."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths if path.is_file())


def num_options() -> int:
    """Return how many options the commands have together, those of the rooms too; one of two commands counts twice."""
    return sum(
        names.startswith("-") for command in commands() for options in command.groups.values() for names, _ in options
    )


def limit_for(value: int) -> int:
    """Return a limit that suits a number: a round one with 2 % of room, or the number itself if it is small."""
    step = 10 ** max(0, len(str(value)) - 3)
    return value if value < 100 else math.ceil(value * 1.02 / step) * step


def problem_of(name: str, value: int) -> str | None:
    """Return a line for a contributor whose change brings a number above its limit or far below; None if it keeps within."""
    limit = LIMITS[name]
    if value <= limit.at_most <= value * ROOM + 1:
        return None
    advice = f"{limit.advice}: {{:,}} passes" if value > limit.at_most else "Lower it to {:,}"
    return f"{name}: {value:,}, and LIMITS in scripts/house.py allows {limit.at_most:,}. {advice.format(limit_for(value))}."


def measure() -> dict[str, int]:
    """Return the numbers by their names in LIMITS."""
    num_loaded, loaded_lines = plain_run()
    upward = upward_imports()
    folders = {(module.split(".")[0], target.split(".")[0]) for module, target in upward}
    return {
        "modules that a plain run loads": num_loaded,
        "their lines": loaded_lines,
        "lines of the package": num_lines(PACKAGE.rglob("*.py")),
        "lines of the tests": num_lines((ROOT / "tests").rglob("*.py")),
        "lines of the scripts": num_lines(path for path in (ROOT / "scripts").rglob("*") if path.suffix != ".pyc"),
        "options of all commands": num_options(),
        "imports that point up, by module": len(upward),
        "folders that import up": len(folders),
        "folders whose code mentions speakers": len(folders_that_mention("speaker")),
        "arguments of Run": num_arguments("pipeline.run", "Run"),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, value in measure().items():
        print(f"{name:40} {value:8,}   at most {LIMITS[name].at_most:,}")
        if (problem := problem_of(name, value)) is not None:
            print(f"  {problem}")
    for module, target in upward_imports():
        print(f"{module} -> {target}")


if __name__ == "__main__":
    main()
