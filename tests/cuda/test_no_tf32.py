"""no_tf32 disables TF32 and restores every setting, on a simulated CUDA device.

No GPU is needed: every build of torch has CUDA's precision settings.
"""

from __future__ import annotations

from tests.helpers.warm_process import LIBRARIES_ALONE


def test_settings_restored() -> None:
    """See float32_settings.py, which needs a process of its own."""
    done = LIBRARIES_ALONE.python(
        "import runpy; runpy.run_module('tests.helpers.float32_settings', run_name='__main__')"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("starts\n")
