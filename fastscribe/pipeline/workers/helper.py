"""A helper: a process that prepares inputs, reads samples into shared memory and makes texts. It has no model and no torch."""

from __future__ import annotations

import gc
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

from fastscribe.audio.remote_file import divide_memory, forget_objects
from fastscribe.pipeline.workers import messages
from fastscribe.pipeline.workers.arena import SharedMemory
from fastscribe.pipeline.workers.messages import listen, open_channel


def main() -> None:
    """Serve the coordinator until it closes stdin."""
    channel = open_channel()
    start = channel.receive()
    if start is not None:
        if start.is_nice:
            let_others_first()
        _Helper(channel, start).serve()
    os._exit(0)


class _Helper:
    def __init__(self, channel: messages.Channel, start: messages.StartHelper) -> None:
        self._channel = channel
        self._memory = SharedMemory(start.shared)
        self._queued: SimpleQueue[messages.Job | messages.Setup] = SimpleQueue()
        self._stages: dict[messages.Kind, Any] = {}
        self._folder = os.getcwd()
        self._num_helpers = start.num_helpers
        self._kept_files: dict[int, Any] = {}  # stages.kept_files

    def serve(self) -> None:
        """Work on jobs, one after another."""
        from fastscribe.pipeline.workers import stages  # while the model loads, instead of with the first job

        divide_memory(self._num_helpers)
        self._kept_files = stages.kept_files
        gc.freeze()
        self._channel.send(messages.HelperReady())
        listen(self._channel, self._receive)
        while True:
            message = self._queued.get()
            if isinstance(message, messages.Job):
                self._work(message)
            else:
                self._stages = dict(message.stages)
                self._kept_files.clear()
                forget_objects()

    def _receive(self, message: Any) -> None:
        if isinstance(message, messages.Forget):
            self._kept_files.pop(message.index, None)
        else:
            self._queued.put(message)

    def _work(self, job: messages.Job) -> None:
        if job.folder != self._folder:
            with suppress(OSError):
                os.chdir(job.folder)
            self._folder = job.folder
        start = time.process_time()
        call = self._stages[job.kind].opened(self._memory, job.shared)
        if job.threads > 1:
            with ThreadPoolExecutor(job.threads) as threads:
                calls = {threads.submit(call, item): position for position, item in enumerate(job.items)}
                for one in as_completed(calls):  # each at once: another may wait long for its answer
                    self._send(messages.Done(job.number, calls[one], [one.result()], 0.0))
            self._send(messages.Done(job.number, len(job.items), [], time.process_time() - start))
            return
        results = [call(item) for item in job.items]
        self._send(messages.Done(job.number, 0, results, time.process_time() - start))

    def _send(self, message: object) -> None:
        try:
            self._channel.send(message)
        except (OSError, ValueError):  # the coordinator is gone
            os._exit(0)
        except (pickle.PicklingError, TypeError, AttributeError) as error:  # a mistake of ours
            raise RuntimeError(f"{type(message).__name__} cannot be sent") from error


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
