"""Every script explains itself, and every benchmark that the documentation names can be run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT
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


@pytest.mark.parametrize("path", commands(), ids=lambda path: path.relative_to(SCRIPTS).as_posix())
def test_help(path: Path) -> None:
    """Each in a process that has imported none of the project; those of Python are forks of one that has torch."""
    if path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash"):
        done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=10)
    else:
        done = LIBRARIES_ALONE.python(PROGRAM, path, module_name(path), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout.lower() or path.stem in done.stdout


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
    "ray_cluster": ("driver", "--rows", "50", "--whole-us", "500"),
    "remote": (
        *("--clips", "3", "--seconds", "1", "--long-files", "1", "--long-seconds", "5"),
        *("--latencies-ms", "0", "--listed", "1000", "--repeats", "1"),
    ),
    "revisions": ("HEAD", "--turns", "1", "--cases", "help"),
    "size": ("--rows", "20"),
    "start_up": (str(ROOT), str(ROOT), "--turns", "1"),
    "start_up_large": (
        *(str(ROOT), str(ROOT), *MODEL, "--clip", CLIP),
        *("--peer-python", sys.executable, "--peer-model", "none"),
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
    replaced = {"SPEECH": str(speech), "OUT": str(tmp_path / "out.json")}
    arguments, path = [replaced.get(one, one) for one in SMALLEST[name]], SCRIPTS / "benchmarks" / f"{name}.py"
    if TESTS_ALL:
        command = [sys.executable, "-m", module_name(path), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    else:
        done = LIBRARIES_ALONE.python(PROGRAM, path, module_name(path), *arguments, timeout_s=280)
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
