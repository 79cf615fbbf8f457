"""A device's process that hangs in a call which keeps Python's lock, as drivers do: no thread of it hears of anything any more.

    python -m tests.helpers.hung_process

is its coordinator, which starts it in a thread that ends, prints its number and when it hangs, and waits.
"""

from __future__ import annotations

import ctypes
import time
from threading import Event, Thread

from fastscribe.pipeline.workers import messages, process
from fastscribe.pipeline.workers.arena import Arena
from fastscribe.pipeline.workers.messages import listen, open_channel

HANGS_S = 600


def main() -> None:
    """Be the device's process."""
    channel = open_channel()
    channel.receive()
    listen(channel, print)
    channel.send(messages.Say("hangs"))
    while True:  # a signal that prints where threads stand ends the call
        ctypes.PyDLL(None).sleep(HANGS_S)


def coordinate() -> None:
    """Be the coordinator."""
    process.PROGRAMS["device"] = __spec__.name
    arena, relay = Arena(4096), process.StderrRelay()

    hangs = Event()

    def start() -> None:
        given = "device", "device", messages.Say("begin"), lambda *_: hangs.set(), relay, {}, arena.file
        print(process.WorkerProcess(*given).pid, flush=True)
        hangs.wait()

    starter = Thread(target=start)
    starter.start()
    starter.join()
    print("hangs", flush=True)
    time.sleep(HANGS_S)


if __name__ == "__main__":
    coordinate()
