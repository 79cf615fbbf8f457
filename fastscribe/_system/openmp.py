"""Shorten OpenMP's spinning, which has to happen before torch loads its OpenMP library.

Between two parallel regions OpenMP's threads wait by spinning, by default for milliseconds. A decoder is thousands of
small operations, so on a busy machine the spinning takes the cores from the thread that all the others wait for: the sample
recordings took 0.4 s on an idle two-core machine and 4 to 16 s beside one busy process. With a short spin it is 0.4 s and
about 1 s (docs/log.md, 2026-11-21).
"""

from __future__ import annotations

import os

_SPINS = "1000"


def limit_openmp_spin() -> None:
    """Set the spin count. No effect if the user has chosen a policy, or once torch is imported."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
