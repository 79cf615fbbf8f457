"""Every script explains itself."""

from __future__ import annotations

import subprocess
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
