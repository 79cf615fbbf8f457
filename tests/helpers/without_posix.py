"""Import and run the program in a process without what only POSIX systems have, as an approximation of Windows.

python -m tests.helpers.without_posix ARGUMENT..    runs `fastscribe ARGUMENT..` so; without arguments imports every module

Third-party packages were imported before and keep theirs. What is not imitated: paths with backslashes, rules of Windows'
file system, its console and its signals.
"""

from __future__ import annotations

import importlib
import importlib.abc
import os
import pkgutil
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import filelock  # noqa: F401 - before the names are gone
import psutil
import rich.progress  # noqa: F401
import soundfile

MODULES = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty")
OS_NAMES = """
    O_CLOEXEC O_DIRECTORY O_DSYNC O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC chown confstr ctermid fchmod fchown fdatasync
    fork forkpty fpathconf fstatvfs getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getresuid getsid
    getuid initgroups kill killpg lchown lockf major makedev memfd_create mkfifo mknod nice openpty pathconf pipe2 posix_fadvise
    posix_fallocate posix_spawn pread preadv pwrite pwritev readv register_at_fork sched_getaffinity sched_setaffinity
    sched_yield sendfile setpriority setsid statvfs sync sysconf sysconf_names tcgetpgrp ttyname uname wait wait3 wait4 writev
""".split()  # noqa: SIM905
SIGNAL_NAMES = """
    SIGALRM SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIGUSR2 setitimer alarm pthread_kill pthread_sigmask
""".split()  # noqa: SIM905
TIME_NAMES = ("clock_gettime", "clock_gettime_ns", "pthread_getcpuclockid")


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def import_all() -> list[str]:
    """Import every module of the package and return their names."""
    import fastscribe

    names = [found.name for found in pkgutil.walk_packages(fastscribe.__path__, "fastscribe.")]
    for name in names:
        importlib.import_module(name)
    return names


def forget() -> None:
    """Remove the package's modules, so that they are imported again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "fastscribe"]:
        del sys.modules[name]


def become_windows() -> None:
    """Remove modules, functions and constants that Windows lacks."""
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Missing())
    for owner, names in ((os, OS_NAMES), (signal, SIGNAL_NAMES), (time, TIME_NAMES)):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    _add_windows_names()
    soundfile._sys = SimpleNamespace(**vars(sys))  # it asks at each call which system's libsndfile this is
    sys.platform = "win32"


def _add_windows_names() -> None:
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=123_456_789))
    psutil.Process = lambda: process
    signal.SIGBREAK = signal.SIGURG  # type: ignore[attr-defined]  # any signal that is not in use


def main(arguments: list[str]) -> Any:
    import_all()
    forget()
    become_windows()
    print(f"{len(import_all())} modules", file=sys.stderr)
    if arguments:
        sys.argv = ["fastscribe", *arguments]
        importlib.import_module("fastscribe.__main__").main()


if __name__ == "__main__":
    main(sys.argv[1:])
