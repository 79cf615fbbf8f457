"""The tests themselves: none hangs, none fails because a machine is busy, and those that pretend to have a GPU say so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import ROOT

HANGS = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_hangs(number):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""


def test_no_example_has_a_deadline() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_a_property_test_that_hangs_is_ended(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Also where the test catches whatever a signal would raise."""
    method = pytestconfig.getini("timeout_method")
    (tmp_path / "test_it.py").write_text(HANGS, encoding="utf-8")
    options = ["--timeout", "1", "-o", f"timeout_method={method}", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_it.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode not in (0, 5)
    assert "Timeout" in done.stdout + done.stderr


PRETENCES = ("pretended_cuda", "FakeCuda", "TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM", "compiled_kernels")
PRETENDING = [
    path
    for path in sorted((ROOT / "tests").glob("*.py"))
    if path != Path(__file__) and any(pretence in path.read_text(encoding="utf-8") for pretence in PRETENCES)
]


@pytest.mark.parametrize("path", PRETENDING, ids=lambda path: path.stem)
def test_a_module_that_pretends_to_have_a_gpu_says_so(path: Path) -> None:
    header = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert "no gpu takes part" in " ".join(header.lower().split())
