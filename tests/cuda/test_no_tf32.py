"""no_tf32 forbids TF32 whatever the process has set, and puts every setting back, on a pretended CUDA device.

No GPU takes part: torch keeps CUDA's precision settings in every build, and the test reads them.
"""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_every_starting_state_is_put_back() -> None:
    """See float32_settings.py, which needs a process of its own."""
    command = [sys.executable, "-m", "tests.helpers.float32_settings"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("starts\n")
