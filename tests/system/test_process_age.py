"""The time since a process started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from fastscribe._system.process_settings import process_age_s
from tests.conftest import ROOT


@pytest.mark.linux
def test_a_new_process_counts_its_own_start() -> None:
    code = "import time; time.sleep(0.2); from fastscribe._system.process_settings import process_age_s; print(process_age_s())"
    start = perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert 0.2 <= float(done.stdout) <= perf_counter() - start + 0.02  # a clock tick is 10 ms


@pytest.mark.parametrize("stat", ["", "1 (a b) c) S 1 2", "1 (sh) S" + " 0" * 49, "1 (sh) S" + " x" * 49])
def test_a_system_that_does_not_tell(stat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: stat)
    assert process_age_s() is None
