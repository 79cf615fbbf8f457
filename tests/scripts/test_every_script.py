"""Every script explains itself, and every benchmark that the documentation names can be run."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

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
    assert list(missing_names(SCRIPTS / "default_model" / "drawn.py", lasting + text)) == [found]


# --- the benchmarks that README.md and docs/ name ---------------------------------------------------------------------

DATA = ROOT / "tests" / "data"
MODEL = ("--model", str(DATA / "models" / "tdt_demo" / "model.nemo"))
CLIP = str(DATA / "audio" / "01_0_00010.flac")
SPLIT = ("SPEECH", "--splits", "few")
GREEDY = (*MODEL, "--decoders", "tdt --beam 1")
HALVES = (*SPLIT, "--seen", "more", "--by-speaker", "none", *GREEDY)

# Its smallest run. SPEECH stands for a folder of manifests, OUT for a new file.
SMALLEST: dict[str, Sequence[str]] = {
    "boost": (*HALVES, "--sizes", "10"),
    "boost_weights": (*HALVES, "--weights", "3", "--every", "1"),
    "crosstalk": (*SPLIT, *GREEDY),
    "decoder": ("--random", "tiny", "--batch-sizes", "1", "--duration-s", "0.5", "--max-seconds", "0.1"),
    "dtypes": (CLIP, "--models", MODEL[1], "--dtypes", "bf16"),
    "durability": ("--clips", "5", "--repeats", "1"),
    "formats": ("--files", "1", "--seconds", "1", "--repeats", "1"),
    "gap_recovery": (*SPLIT, *GREEDY),
    "host": ("--clips", "5", "--seconds", "1", "--repeats", "1"),
    "in_turn": SPLIT,
    "kernel_registers": ("--capabilities", "80", "--dtypes", "bf16"),
    "language_models": (*SPLIT, "--domain", "more", "--by-speaker", "none", "--only", "own"),
    "load": ("--shape", "tiny", "--repeats", "1"),
    "long_recordings": (*SPLIT, *MODEL, "--lengths-s", "10", "--limits", "6"),
    "loss": ("--quick", "--batch-sizes", "1", "--max-seconds", "0.1"),
    "loss_blocks": ("OUT", "--frames", "20"),
    "opposite_phase": (*SPLIT, *GREEDY),
    "remote": (
        *("--clips", "3", "--seconds", "1", "--long-files", "1", "--long-seconds", "5"),
        *("--latencies-ms", "0", "--listed", "1000", "--repeats", "1"),
    ),
    "revisions": ("HEAD", "--turns", "1", "--cases", "help"),
    "size": ("--rows", "20"),
    "start_up": (str(ROOT), str(ROOT), "--turns", "1"),
    "start_up_large": (
        *(str(ROOT), str(ROOT), *MODEL, "--clip", CLIP),
        *("--peer-python", "false", "--peer-model", "none"),  # whatever it is asked to import, `false` fails
    ),
    "surround": ("SPEECH", "--splits", "four", *GREEDY),
    "train": ("--random", "tiny", "--batch-sizes", "1", "--sequence-s", "0.5", "--dtype", "fp32"),
    "training_turns": ("--layers", "1", "--d-model", "16", "--batch-size", "1", "--sequence-s", "0.5", "--turns", "1"),
}
MISSING = {
    "start_up_large": "onnx-asr cannot be imported there"
}  # the last words of those that need more than a checkout
NULL_DEVICE = ("--null-device", "25000", "--files", "40", "--seconds", "1", "--turns", "1", "--format")
# Take more than six seconds of processor time: only where FASTSCRIBE_TEST_BENCHMARKS is "all", as in CI.
LONG = {"crosstalk", "decoder", "dtypes", "in_turn", "kernel_registers", "load", "start_up", "surround"}
# What some need beside the extras and the group that all tests need.
LIBRARIES = {"remote": ("obstore", "the extra remote")}
REVISIONS = {"revisions", "start_up", "start_up_large"}  # ask git for revisions
TESTS_ALL = os.environ.get("FASTSCRIBE_TEST_BENCHMARKS") == "all"


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with manifests of two, four and eight sentences by speakers."""
    folder = tmp_path_factory.mktemp("speech")
    rows = map(json.loads, (DATA / "manifest.jsonl").read_text(encoding="utf-8").splitlines())
    spoken = sorted((row for row in rows if "_0_" in row["audio_filepath"]), key=lambda row: row["duration"])
    for name, number in {"few": 2, "four": 4, "more": 8}.items():
        given = (
            {**row, "audio_filepath": str(DATA / row["audio_filepath"]), "speaker": row["voice"]} for row in spoken
        )
        lines = [json.dumps(row) for row in list(given)[:number]]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_every_benchmark_of_the_documents_has_a_smallest_run() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    named = {name for text in texts for name in re.findall(r"scripts[/.]benchmarks[/.](\w+)", text)}
    assert named == SMALLEST.keys()


@pytest.mark.linux
@pytest.mark.parametrize("name", [name for name in SMALLEST if TESTS_ALL or name not in LONG])
def test_smallest_run(name: str, speech: Path, tmp_path: Path) -> None:
    """Its last line is the result, or says what is missing. By itself each would take two seconds more, for torch."""
    library, of = LIBRARIES.get(name, ("json", ""))
    if find_spec(library) is None:
        pytest.skip(f"needs {library}, of {of}")
    if name in REVISIONS and not ((ROOT / ".git").exists() and shutil.which("git")):
        pytest.skip("needs git and the history of the checkout")
    # The checkout may be another user's.
    environment = os.environ | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    replaced = {"SPEECH": str(speech), "OUT": str(tmp_path / "out.json")}
    arguments, path = [replaced.get(one, one) for one in SMALLEST[name]], SCRIPTS / "benchmarks" / f"{name}.py"
    if TESTS_ALL:
        command = [sys.executable, "-m", module_name(path), *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    else:
        done = LIBRARIES_ALONE.python(PROGRAM, path, module_name(path), *arguments, env=environment, timeout_s=280)
    if name in MISSING:
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.endswith(f"{MISSING[name]}\n")
        return
    assert done.returncode == 0, done.stderr
    result = (tmp_path / "out.json").read_text() if "OUT" in SMALLEST[name] else done.stdout.splitlines()[-1]
    assert name == "kernel_registers" or json.loads(result)


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["flac", "wav", "mp3"])
def test_a_null_device_for_each_kind_of_file(kind: str) -> None:
    command = [sys.executable, "-m", "scripts.benchmarks.host", *NULL_DEVICE, kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["format"], found["files"], found["turns"].keys()) == (kind, 40, {"helpers", "process"})
    assert found["helpers"] >= 1 and found["files_per_s"] > 0
