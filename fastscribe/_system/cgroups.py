"""Control groups of Linux, of both versions: what a container, a service or a batch system may use.

The process's own group is asked and each group above it, because any of them may have the smallest limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = "/proc/self"


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
