"""The garbage collector is off while a program imports torch, and on behind it."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from fastscribe._system.collector import without_collector


def test_only_the_import_of_torch_is_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.setitem(sys.modules, "torch", object())
    with without_collector():
        assert gc.isenabled()
    assert frozen == []
    monkeypatch.delitem(sys.modules, "torch")
    with without_collector():
        assert not gc.isenabled()
    assert gc.isenabled() and frozen == [False]


END = """
import sys
from fastscribe._system.collector import without_collector
with without_collector():
    import torch
import triton
from fastscribe.cli import main
sys.argv[1:] = ["--version"]
main()
"""


def test_triton_reports_no_leaks_at_the_end() -> None:
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fastscribe ") and done.stderr == ""
