"""no_tf32 disables TF32 and restores every setting, on a simulated CUDA device.

No GPU is needed: every build of torch has CUDA's precision settings.
"""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_settings_restored() -> None:
    """See float32_settings.py, which needs a process of its own."""
    command = [sys.executable, "-m", "tests.helpers.float32_settings"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("starts\n")
