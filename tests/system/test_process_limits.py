"""Limits are raised, and known before they are met. These are processes of their own, whose limits are real."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.posix

LIMITED = """
import json, os, resource, sys
for name, limits in json.loads(sys.argv[1]).items():
    resource.setrlimit(getattr(resource, name), limits)
from fastscribe._system import limits
limits.raise_soft_limits()
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(int(sys.argv[2]))]
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), limits.room_for_processes(int(sys.argv[3]), 2, 4)]))
"""


def limited(limits: dict[str, tuple[int, int]], num_open: int = 0, num_devices: int = 1) -> Any:
    """Return the limits of files and the room of a process with these limits and files."""
    command = [sys.executable, "-c", LIMITED, json.dumps(limits), str(num_open), str(num_devices)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_soft_limit_is_raised_to_the_hard_one_and_what_it_leaves_is_known() -> None:
    (soft, hard), (room, reason) = limited({"RLIMIT_NOFILE": (64, 100)})
    assert (soft, hard) == (100, 100)
    assert 20 <= room <= 32 and reason == "a process may open 100 files here (ulimit -n)"
    _, (less, _) = limited({"RLIMIT_NOFILE": (64, 100)}, num_open=20)
    assert less == room - 10
    _, (less, _) = limited({"RLIMIT_NOFILE": (64, 100)}, num_devices=4)
    assert less == room - 3 * 2  # four files each


def test_a_soft_limit_is_raised_no_higher_than_a_run_needs() -> None:
    """Some programs close all descriptors that there may be, one by one."""
    hard = hard_limit(10_000)
    [limits, _] = limited({"RLIMIT_NOFILE": (64, hard)})
    assert limits == [min(4096, hard), hard]
    [limits, _] = limited({"RLIMIT_NOFILE": (hard - 100, hard)})
    assert limits == [max(hard - 100, min(4096, hard)), hard]


def hard_limit(wanted: int) -> int:
    """Return the limit of files nearest to it that a process may have, which cannot raise its own."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
