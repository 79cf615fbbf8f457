"""Lock of one shard of an output URL: one run at a time, on any machine.

No store has locks, and not every store has conditional writes. So a run first writes an object of its own, and then lists
those of others: of two runs that start at once, one sees the other at least. A run renews its object while it lives. An object
that nobody renews for STALE_S was left by a run that was killed. Clocks of machines are not compared.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any

from fastscribe.errors import PlaceInUse
from fastscribe.results.objects import ObjectFolder

RENEW_S = 20.0
STALE_S = 120.0
POLL_S = 2.0


class ObjectLock:
    """A lock that is held from `acquire` to `release`.

    Args:
        folder: The output URL's objects.
        name: Of the object that this run renews. No other run has the same.
    """

    def __init__(self, folder: ObjectFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._number, self._is_lost = 0, False
        self._renewed_s = monotonic()
        self._renewing, self._released = Lock(), Event()
        self._thread = Thread(target=self._work, name="store lock", daemon=True)

    def acquire(self, others: Callable[[], Sequence[str]], say: Callable[[str], object]) -> None:
        """Lock the shard, and delete the objects of runs that were killed.

        Args:
            others: Lists the names of all runs' objects.
            say: Shows one line to the user before a wait.

        Raises:
            PlaceInUse: Another run holds the lock.
            OSError: The store cannot be written.
        """
        self._write()
        self._thread.start()
        try:
            dead = [name for name in others() if name != self._name]
            check_dead(self._folder, dead, say)
            self._folder.delete(dead)
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Renew the lock if it has not been renewed for long. Raise OSError if another run has taken it."""
        if monotonic() - self._renewed_s > STALE_S / 2:
            self._renew()
        if self._is_lost:
            raise OSError(None, "this run stood still for so long that another one took over", self._folder.url)

    def release(self) -> None:
        """Unlock the shard. Raises OSError."""
        self._released.set()
        with self._renewing:
            if not self._is_lost:
                self._folder.delete([self._name])

    def _work(self) -> None:
        while not self._released.wait(RENEW_S):
            with suppress(OSError):  # the next commit says what is wrong
                self._renew()

    def _renew(self) -> None:
        with self._renewing:
            if self._released.is_set() or self._is_lost:
                return
            if self._folder.exists(self._name):
                self._write()
            else:
                self._is_lost = True

    def _write(self) -> None:
        self._number += 1
        holder: dict[str, Any] = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "since": _STARTED,
            "machine": _machine(),
            "ticks": _start_ticks(os.getpid()),
        }
        content = json.dumps({"fastscribe_run": holder, "renewed": self._number}) + "\n"
        self._folder.put(self._name, content.encode())
        self._renewed_s = monotonic()


_STARTED = datetime.now().isoformat(" ", "seconds")


def check_dead(folder: ObjectFolder, names: Sequence[str], say: Callable[[str], object]) -> None:
    """Wait until it is certain that none of these runs lives.

    Args:
        folder: The output URL's objects.
        names: Objects that the runs renew.
        say: Shows one line to the user before a wait.

    Raises:
        PlaceInUse: One of them lives.
    """
    seen = {name: folder.read_if_there(name) for name in names}
    waiting = {
        name: content for name, content in seen.items() if content and _lives_here(_holder(content)) is not False
    }
    for content in waiting.values():
        if _lives_here(_holder(content)):
            raise _in_use(folder, content)
    if not waiting:
        return
    shown = _shown(next(iter(waiting.values())))
    say(f"{folder.url}: {shown} may be writing here; waiting up to {STALE_S:.0f} s to see whether it still does")
    deadline, pause = monotonic() + STALE_S, Event()
    while waiting and monotonic() < deadline:
        pause.wait(POLL_S)
        for name, content in list(waiting.items()):
            now = folder.read_if_there(name)
            if not now:  # it has finished
                del waiting[name]
            elif now != content:
                raise _in_use(folder, now)


def _in_use(folder: ObjectFolder, holder: bytes) -> PlaceInUse:
    return PlaceInUse(
        f"{folder.url}: another run is writing here ({_shown(holder)}): wait for it or choose another output folder"
    )


def _holder(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)["fastscribe_run"]
    except (ValueError, TypeError, KeyError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _shown(content: bytes) -> str:
    holder = _holder(content)
    return f"process {holder.get('process')} on {holder.get('host')} since {holder.get('since')}" if holder else "a run"


def _lives_here(holder: dict[str, Any]) -> bool | None:
    """Return whether a process of this machine still runs; None if it is another machine's, or the system cannot tell."""
    started = _start_ticks(holder.get("process"))
    return None if holder.get("machine") != _machine() or started is None else started == holder.get("ticks")


def _start_ticks(process_id: object) -> int | None:
    """Return when a process started, in Linux's clock ticks since the boot, 0 if there is none; None without /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return 0
    return int(stat.rpartition(b")")[2].split()[19])  # the name before may hold spaces and brackets


@cache
def _machine() -> str:
    """Return what two processes share only if process numbers mean the same for both. Containers may share a host's name."""
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    parts += [boot.read_text().strip()] if boot.exists() else []
    parts += [os.readlink("/proc/self/ns/pid")] if os.path.lexists("/proc/self/ns/pid") else []
    return " ".join(parts)
