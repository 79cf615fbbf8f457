"""Inputs that helpers prepare; threads of this process prepare those whose data it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import RemoteMedium, is_held
from fastscribe.errors import DeviceFailed
from fastscribe.pipeline.preparation import Preparation, PreparedInput
from fastscribe.pipeline.sort_buffer import PreparationGroup
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.workers.helpers import HelperPool, Job
from fastscribe.types import Failure, Source


class HelperInputs:
    """Prepares the inputs of a run in other processes, and never waits for one that hangs.

    Args:
        preparation: What is done.
        helpers: They do it.
        wake: Wakes the thread that drives the run.
        homes: Gets, by the index of a remote recording, the helper that has its bytes.
    """

    chunk = 32  # inputs that are prepared together: two milliseconds of reading headers

    def __init__(
        self, preparation: Preparation, helpers: HelperPool, wake: Callable[[], None], homes: dict[int, int]
    ) -> None:
        self._preparation, self._helpers, self.wake, self._homes = preparation, helpers, wake, homes

    def group(self, sources: Sequence[Source | Failure]) -> PreparationGroup[Source | Failure, PreparedInput]:
        """Return the group that prepares some inputs."""
        return _Inputs(self._preparation, self._helpers, sources, self._homes)


class _Inputs(PreparationGroup[Source | Failure, PreparedInput]):
    def __init__(
        self,
        preparation: Preparation,
        helpers: HelperPool,
        sources: Sequence[Source | Failure],
        homes: dict[int, int],
    ) -> None:
        super().__init__(preparation.prepare, sources)
        self._helpers, self._homes = helpers, homes
        self.may_be_slow = False
        self.all_started = True

    def start(self, pool: ReplacingThreadPool, finished: Callable[[int], None]) -> None:
        """Start to prepare all. Remote recordings are shared out, because each helper keeps the bytes of its own."""
        local: list[int] = []
        remote: list[int] = []
        here: list[int] = []
        for index, source in enumerate(self.sources):
            if isinstance(source, Failure) or is_held(source.file):
                here.append(index)
            else:
                (remote if isinstance(source.file, RemoteMedium) else local).append(index)
        self.may_be_slow = bool(here)
        if local:
            self._submit(local, False, finished)
        size = -(-len(remote) // self._helpers.number) if remote else 1
        for begin in range(0, len(remote), size):
            self._submit(remote[begin : begin + size], True, finished)
        for index in here:
            pool.submit(partial(self.attempt, index, finished))

    def _submit(self, indices: Sequence[int], is_remote: bool, finished: Callable[[int], None]) -> None:
        def done(position: int, result: Any, helper: int) -> None:
            index = indices[position]
            source = self.sources[index]
            assert isinstance(source, Source)
            if isinstance(result, DeviceFailed):  # no helper can be started
                self.errors[index] = result
                finished(index)
                return
            if isinstance(result, BaseException):
                result = to_failure(source, "probe", result)
            if is_remote:
                self._homes[source.index] = helper
            self.items[index] = result if source.given_key is None else _with_key(result, source.given_key)
            finished(index)

        items = [
            one if one.given_key is None else replace(one, given_key=None)
            for one in map(self.sources.__getitem__, indices)
        ]
        self._helpers.submit(Job("prepare", None, items, done, self.expect_late, is_remote))


def _with_key(item: PreparedInput, key: Any) -> PreparedInput:
    if isinstance(item, Failure):
        return replace(item, given_key=key)
    audios = {id(one.audio): replace(one.audio, given_key=key) for one in item}
    return tuple(replace(one, audio=audios[id(one.audio)]) for one in item)
