"""What a device's process and a helper have in common: their pipes, and signals, which they leave to the coordinator.

They print nothing: lines for the user are messages, and what libraries print goes to stderr, which the coordinator reads. They
end at once when the coordinator is gone, however that ended.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from threading import Thread
from typing import Any

from fastscribe.pipeline.workers.messages import Channel


def open_channel() -> Channel:
    """Take stdin and stdout for messages; what libraries print goes to stderr, and what they read is empty."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return Channel(os.fdopen(reader, "rb"), os.fdopen(writer, "wb"))


def listen(channel: Channel, receive: Callable[[Any], None]) -> None:
    """Pass messages on in a thread, so that the end of the coordinator ends this process at once, whatever it does."""

    def pass_on() -> None:
        try:
            while (message := channel.receive()) is not None:
                receive(message)
        except BaseException:  # a mistake of ours: a process that hears nothing more would be waited for
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    Thread(target=pass_on, name="inbox", daemon=True).start()
