"""Every script explains itself, and every benchmark that the documentation names can be run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import soundfile

from scripts.benchmarks import host
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
