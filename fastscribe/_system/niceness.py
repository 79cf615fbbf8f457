"""Let a process step back where processors are few."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from threading import Thread

_NICENESS = 2  # two thirds of the time of a process that is not nice: 5 halved a run beside other programs
_TRIES, _INTERVAL_S = 20, 0.15


def let_others_first() -> None:
    """Let processes that are not nice have the processor first, for good."""
    if os.name == "nt":
        return
    with suppress(OSError):
        os.nice(_NICENESS)
    Thread(target=_let_other_sessions_first, name="niceness", daemon=True).start()


def _let_other_sessions_first() -> None:
    """Step back where Linux shares the processor out among sessions: niceness counts among a session's own processes there."""
    for _ in range(_TRIES):
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write(str(_NICENESS))
            return
        except BlockingIOError:  # it takes one change in a tenth of a second from all processes
            time.sleep(_INTERVAL_S)
        except OSError:
            return
