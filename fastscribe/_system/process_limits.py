"""How many files and processes the system lets this process have."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from fastscribe._system.cgroups import settings

_MAX_FILES = 4096  # more than a run opens; programs that use select() or close all numbers one by one stay right
_SPARE_FILES, _SPARE_TASKS = 28, 32  # for everything else that a run does
_DEVICE_FILES, _DEVICE_TASKS = 4, 32  # of a device's process, whose libraries have many threads
_COUNTED_TASKS = 16_384  # a user's processes are counted, which takes a moment, if the limit is below


def raise_soft_limits() -> None:
    """Let this process and those that it starts have as many files and processes as the hard limits allow."""
    if sys.platform == "win32":
        return
    import resource

    no_limit = resource.RLIM_INFINITY
    for kind, most in ((resource.RLIMIT_NOFILE, _MAX_FILES), (resource.RLIMIT_NPROC, no_limit)):
        soft, hard = resource.getrlimit(kind)
        wanted = min((one for one in (hard, most) if one != no_limit), default=no_limit)
        if soft != no_limit and (wanted == no_limit or wanted > soft):
            with suppress(OSError, ValueError):  # macOS allows less than it says
                resource.setrlimit(kind, (wanted, hard))


def room_for_processes(num_devices: int, num_files: int, num_tasks: int) -> tuple[int, str]:
    """Return the number of processes that can start beside what a run needs, and the limit in words.

    Args:
        num_devices: Devices of the run that have a process each.
        num_files: Files that this process opens for each.
        num_tasks: Processes and threads that each adds, here too.
    """
    if sys.platform == "win32":
        return sys.maxsize, ""
    import resource

    rooms = [(sys.maxsize, "")]
    spare_files = _SPARE_FILES + num_devices * _DEVICE_FILES
    spare_tasks = _SPARE_TASKS + num_devices * _DEVICE_TASKS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY:
        is_short = f"a process may open {limit:,} files here (ulimit -n)"
        rooms.append(((limit - _num_open_files() - spare_files) // num_files, is_short))
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.getuid() and 0 <= limit < _COUNTED_TASKS:
        is_short = f"a user may have {limit:,} processes and threads here (ulimit -u)"
        rooms.append(((limit - _num_tasks_of_user() - spare_tasks) // num_tasks, is_short))
    for most, now in settings("pids", "pids.max", "pids.current"):
        if most != "max":
            is_short = f"a control group may have {int(most):,} processes and threads here (pids.max)"
            rooms.append(((int(most) - int(now) - spare_tasks) // num_tasks, is_short))
    return min(rooms)


def _num_open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0


def _num_tasks_of_user() -> int:
    import psutil

    found = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended
            found += process.num_threads() if process.uids().real == os.getuid() else 0
    return found
