"""No test can hang or fail on a busy machine, and tests that simulate a GPU are marked."""

from __future__ import annotations

import ast
import re
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


def test_hanging_property_test_is_stopped(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Also if the test catches every exception."""
    method = pytestconfig.getini("timeout_method")
    (tmp_path / "test_it.py").write_text(HANGS, encoding="utf-8")
    options = ["--timeout", "1", "-o", f"timeout_method={method}", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_it.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode not in (0, 5)
    assert "Timeout" in done.stdout + done.stderr


SIMULATIONS = ("tests.fakes.cuda", "FakeCuda", "TRITON_INTERPRET", "simulated_cuda_loss", "compiled_kernels")
SIMULATING = [
    path
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if path != Path(__file__) and any(name in path.read_text(encoding="utf-8") for name in SIMULATIONS)
]


@pytest.mark.parametrize("path", SIMULATING, ids=lambda path: path.stem)
def test_simulated_gpus_are_declared(path: Path) -> None:
    header = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    said = "no gpu takes part|no gpu is needed|only tests marked `cuda` need a gpu"
    assert re.search(said, " ".join(header.lower().split())), f"the docstring of {path.name} says one of: {said}"


def test_simulating_modules_are_found() -> None:
    assert len(SIMULATING) >= 8
