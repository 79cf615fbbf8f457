"""What the system lets this process have: memory, files and processes; and what control groups of Linux say of them.

Control groups are those of a container, a service or a batch system, of both versions. The process's own group is asked and
each group above it, because any of them may have the smallest limit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import resource

_PROC = "/proc/self"
_MAX_FILES = 4096  # more than a run opens; programs that use select() or close all numbers one by one stay right
_SPARE_FILES, _SPARE_TASKS = 28, 32  # for everything else that a run does
_DEVICE_FILES, _DEVICE_TASKS = 4, 32  # of a device's process, whose libraries have many threads
_COUNTED_TASKS = 16_384  # a user's processes are counted, which takes a moment, if the limit is below


def settings(controller: str, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield what some files say, for each group that has all of them. A system without groups has none.

    Args:
        controller: Their controller: "memory", "cpu" or "pids".
        names: Names of the files.
    """
    for folder in _folders(controller):
        try:
            yield tuple(_text(os.path.join(folder, name)).strip() for name in names)
        except OSError:  # of the other version, or the group at the root, or hidden by a container
            continue


def _folders(controller: str) -> Iterator[str]:
    """Yield the folder of the process's group and of each group above it, in all hierarchies with the controller."""
    try:
        groups = [line.split(":", 2) for line in _text(f"{_PROC}/cgroup").splitlines()]
        mounts = [line.split(" - ", 1) for line in _text(f"{_PROC}/mountinfo").splitlines()]
    except OSError:
        return
    for where, what in mounts:
        system, _, options = what.split(" ", 2)
        if system not in ("cgroup", "cgroup2") or (system == "cgroup" and controller not in options.split(",")):
            continue
        root, top = where.split(" ")[3:5]
        wanted = controller if system == "cgroup" else ""
        path = next((path for _, names, path in groups if wanted in names.split(",")), "/")
        # A container may see its own group at the top, and not know where that is.
        below = os.path.relpath(path, root) if os.path.commonpath((path, root)) == root else "."
        folder = Path(os.path.normpath(os.path.join(top, below)))
        yield from (str(one) for one in (folder, *folder.parents) if one.is_relative_to(top))


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def total_bytes() -> int:
    """Memory of the machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def usable_bytes() -> int:
    """Memory of the machine, or of this process's control group or one above it if that has less."""
    names = "memory.max", "memory.limit_in_bytes"  # version 2, version 1
    limits = (limit for name in names for [limit] in settings("memory", name))
    return min([total_bytes(), *(int(limit) for limit in limits if limit != "max")])


def available_bytes() -> int:
    """Memory that new allocations can take without swapping, as the system estimates it."""
    import psutil

    return int(psutil.virtual_memory().available)


def peak_process_bytes() -> int:
    """Largest resident size of this process so far."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def raise_soft_limits() -> None:
    """Let this process and those that it starts have as many files and processes as the hard limits allow."""
    if sys.platform == "win32":
        return
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
