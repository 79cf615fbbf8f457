"""Every script explains itself, and every benchmark that the documentation names can be run."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import soundfile

from scripts.benchmarks import host
from tests.conftest import PACKAGE, ROOT
from tests.helpers.warm_process import LIBRARIES_ALONE

SCRIPTS = ROOT / "scripts"
# A script of a package runs as a module of it, any other by its path.
PROGRAM = f"""
import os, runpy, sys
os.chdir({str(ROOT)!r})
path, module, *arguments = sys.argv[1:]
sys.argv = [path, *arguments]
sys.path.insert(0, {str(ROOT)!r} if module else os.path.dirname(path))
sys.path.append({str(ROOT)!r})
if module:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
else:
    runpy.run_path(path, run_name="__main__")
"""


def commands() -> list[Path]:
    """Return the files of scripts/ that are run, not only imported."""
    files = (path for path in SCRIPTS.rglob("*") if path.is_file() and path.suffix in ("", ".py"))
    contents = {path: path.read_text(encoding="utf-8") for path in files}
    return sorted(path for path, text in contents.items() if text.startswith("#!") or '__name__ == "__main__"' in text)


def module_name(path: Path) -> str:
    """Return its name in its package, "" if it belongs to none."""
    is_module = path.suffix == ".py" and (path.parent / "__init__.py").exists()
    return ".".join(path.relative_to(ROOT).with_suffix("").parts) if is_module else ""


@pytest.mark.posix
@pytest.mark.parametrize("path", commands(), ids=lambda path: path.relative_to(SCRIPTS).as_posix())
def test_help(path: Path) -> None:
    """Each in a process that has imported none of the project; those of Python are forks of one that has torch."""
    if path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash"):
        done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=10)
    else:
        done = LIBRARIES_ALONE.python(PROGRAM, path, module_name(path), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout.lower() or path.stem in done.stdout


# --- what scripts import: some print their help first -------------------------------------------------------------------


def programs() -> list[Path]:
    """Return the files of scripts/ that are Python."""
    files = [path for path in SCRIPTS.rglob("*") if path.is_file() and path.suffix in ("", ".py")]
    return [path for path in files if path.suffix or "python" in path.read_text(encoding="utf-8").split("\n", 1)[0]]


def file_of(module: str, script: Path) -> Path | None:
    """Return the file or the folder of a module of this project, beside the script too; None for a library's."""
    first, *_ = names = module.split(".")
    roots = {"fastscribe": PACKAGE.parent, "scripts": ROOT, "tests": ROOT}
    if first not in roots and not (script.parent / f"{first}.py").exists():
        return None
    place = roots.get(first, script.parent).joinpath(*names)
    return place if place.is_dir() else place.with_name(f"{names[-1]}.py")


@cache
def names_of(file: Path) -> set[str]:
    """Return the names that a module binds, outside of functions and classes."""
    names = set()
    pending: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            pending += ast.iter_child_nodes(node)
    return names


def exists(module: str, script: Path, name: str = "") -> bool:
    """Return whether a module of this project exists and has the name; True for a library's."""
    file = file_of(module, script)
    if file is None:
        return True
    if name and exists(f"{module}.{name}", script):
        return True
    source = file / "__init__.py" if file.is_dir() else file
    if not source.exists():  # a folder of scripts/ or tests/ without one holds modules too
        return not name and file.is_dir()
    if not name or name in names_of(source):
        return True
    return "__getattr__" in names_of(source) and hasattr(importlib.import_module(module), name)


def missing_names(script: Path, text: str) -> Iterator[str]:
    """Yield what a script imports from this project, or takes from a module that it imports so, and is not there."""
    modules, tree = {}, ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if not exists(str(node.module), script, one.name):
                    yield f"{node.module}.{one.name}"
                modules[one.asname or one.name] = f"{node.module}.{one.name}"
        elif isinstance(node, ast.Import):
            for one in node.names:
                if not exists(one.name, script):
                    yield one.name
                modules[one.asname or one.name] = one.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            module = modules.get(ast.unparse(node.value), "")
            file = file_of(module, script) if module else None
            if file is not None and file.exists() and not exists(module, script, node.attr):
                yield f"{module}.{node.attr}"


@pytest.mark.parametrize("path", programs(), ids=lambda path: path.relative_to(SCRIPTS).as_posix())
def test_imported_names_exist(path: Path) -> None:
    assert list(missing_names(path, path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from fastscribe.config import Options, Gone", "fastscribe.config.Gone"),
        ("from fastscribe.gone import x", "fastscribe.gone.x"),
        ("from fastscribe import gone", "fastscribe.gone"),
        ("def late():\n    import scripts.gone", "scripts.gone"),
        ("import scripts.house\nscripts.house.gone", "scripts.house.gone"),
        ("from fastscribe.audio import inputs as i\ni.expand, i.gone", "fastscribe.audio.inputs.gone"),
        ("from tests.helpers.warm_process import WARM, gone", "tests.helpers.warm_process.gone"),
        ("import sentences\nsentences.gone", "sentences.gone"),
    ],
)
def test_a_missing_name_is_found(text: str, found: str) -> None:
    lasting = "from fastscribe import Transcriber\nfrom fastscribe.ray import transcribe\nimport torch\ntorch.gone\n"
    assert list(missing_names(SCRIPTS / "default_model" / "ngrams.py", lasting + text)) == [found]


# --- the benchmark that README.md and docs/ name ----------------------------------------------------------------------

NULL_DEVICE = ("--null-device", "25000", "--files", "40", "--seconds", "1", "--turns", "1", "--format")


def test_every_benchmark_of_the_documents_is_run_below() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    named = {name for text in texts for name in re.findall(r"scripts[/.]benchmarks[/.](\w+)", text)}
    assert named == {"host"}


@pytest.mark.linux
def test_a_null_device() -> None:
    done = LIBRARIES_ALONE.python(PROGRAM, host.__file__, host.__name__, *NULL_DEVICE, "mp3")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["format"], found["files"], found["turns"].keys()) == ("mp3", 40, {"helpers", "process"})
    assert found["helpers"] >= 1 and found["files_per_s"] > 0


@pytest.mark.parametrize("kind", host.KINDS)
def test_clips_of_each_kind(kind: str, tmp_path: Path) -> None:
    """They last half the mean and a little more, because there are few."""
    host.make_clips(tmp_path / "clips", host.KINDS[kind], 2, 1.0)
    found = [soundfile.info(path) for path in sorted((tmp_path / "clips").glob(f"*.{host.KINDS[kind].extension}"))]
    assert [one.duration for one in found] == pytest.approx([0.5, 0.51], abs=0.06)
    assert {(one.format, one.samplerate) for one in found} == {(kind[:4].strip("-").upper(), host.KINDS[kind].rate)}
