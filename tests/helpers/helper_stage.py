"""A stage for helpers whose items say what happens to the process that works on them. It imports nothing heavy."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Item:
    """Doubles a number, after something else.

    Attributes:
        number: The number.
        gate: A FIFO that has a writer once the item may end; "": it ends at once.
        kills: Ends the process.
        mark: A file that the item makes; the process ends only if it was not there before. "": it ends each time.
        busy_s: Seconds that it computes.
        reads_s: Seconds in which it reads a byte now and then.
        tells: Its result is the number of the process.
        index: As Source.index.
    """

    number: int
    gate: str = ""
    kills: bool = False
    mark: str = ""
    busy_s: float = 0.0
    reads_s: float = 0.0
    tells: bool = False
    index: int = 0


class ItemStage:
    """Works on items. What a job's items have in common is added to each result."""

    def opened(self, memory: Any, shared: int) -> Callable[[Item], int]:
        if shared < 0:
            raise ValueError("a mistake of ours")

        def work(item: Item) -> int:
            if item.gate:
                os.close(os.open(item.gate, os.O_RDONLY))
            end_s = time.monotonic() + item.busy_s
            while time.monotonic() < end_s:
                pass
            end_s = time.monotonic() + item.reads_s
            while time.monotonic() < end_s:
                Path(__file__).read_bytes()
                time.sleep(0.05)
            if item.kills and not (item.mark and Path(item.mark).exists()):
                if item.mark:
                    Path(item.mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return os.getpid() if item.tells else 2 * item.number + shared

        return work
