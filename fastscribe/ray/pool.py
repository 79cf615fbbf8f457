"""The workers of a run: actors that are started, fed, watched and replaced. run.py decides what they get.

Plain actors instead of Ray Data's executor, because a run must know which recordings a dead worker had, must give small chunks
out at the end, and must not keep results anywhere but in the output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from fastscribe.errors import UsageError, first_line
from fastscribe.ray.chunks import Chunk
from fastscribe.ray.library import signals_pass
from fastscribe.ray.worker import ChunkStats, Facts, Refusal, Setup, Worker, packed
from fastscribe.types import Failure, Transcript

_GROUPS_AHEAD = 4  # groups of results that wait for the driver before their worker pauses
_SCALE_EVERY_S = 5.0
_MAX_FAILED_STARTS = 3  # one after another


@dataclass(frozen=True)
class Size:
    """How many workers, and what each takes of a node.

    Attributes:
        workers: Number; None: one for each GPU of the cluster, or one for each node if there are no GPUs.
        gpus: GPUs of a worker; None: 1 if the cluster has any.
        cpus: Processors of a worker; None: 1 with a GPU, else an equal share of the cluster's.
    """

    workers: int | None = None
    gpus: float | None = None
    cpus: float | None = None


@dataclass(frozen=True)
class Results:
    """Results of a worker, with their positions in its chunk."""

    handle: Handle
    chunk: Chunk
    group: list[tuple[int, Transcript | Failure]]


@dataclass(frozen=True)
class Done:
    """A worker has finished a chunk."""

    handle: Handle
    chunk: Chunk
    stats: ChunkStats


@dataclass(frozen=True)
class Died:
    """A worker is gone. `chunks` are those that it had, the one it worked on first."""

    handle: Handle
    chunks: list[Chunk]
    reason: str
    is_node_gone: bool


@dataclass(eq=False)
class Handle:
    """The driver's side of a worker."""

    actor: Any
    loading: Any  # the reference of its Facts, until they are there
    facts: Facts | None = None
    running: deque[tuple[Any, Chunk]] = field(default_factory=deque)  # generators and their chunks, in order
    audio_per_s: float = 0.0  # measured, 0 before
    ready_at: float = 0.0


class WorkerPool:
    """The actors of one run.

    Args:
        ray: The module, connected.
        setup: What the workers load.
        size: Their number and resources.
    """

    def __init__(self, ray: Any, setup: Setup, size: Size) -> None:
        self._ray, self._setup, self._size = ray, setup, size
        self.handles: list[Handle] = []
        self.worker_s = 0.0  # time of all workers that are gone, from ready to their end
        self._failed_starts = 0
        self._scaled_at = -_SCALE_EVERY_S
        self._scale()

    @property
    def ready(self) -> list[Handle]:
        """Workers with a loaded model."""
        return [handle for handle in self.handles if handle.facts is not None]

    def total_worker_s(self) -> float:
        """Return the time of all workers, from ready to their end or now."""
        return self.worker_s + sum(monotonic() - handle.ready_at for handle in self.ready)

    def give(self, handle: Handle, chunk: Chunk) -> None:
        """Queue a chunk at a worker."""
        call = handle.actor.transcribe.options(
            num_returns="streaming", _generator_backpressure_num_objects=_GROUPS_AHEAD
        )
        sources = [item.source for item in chunk.items.values()]
        chunk.items = dict(enumerate(chunk.items.values()))
        handle.running.append((call.remote(packed(sources)), chunk))

    def events(self, timeout_s: float) -> Iterator[Handle | Results | Done | Died]:
        """Yield what has happened; wait for something for at most this time. A Handle is a worker that has become ready.

        Raises:
            UsageError: The model cannot be loaded, or workers end again and again while they load it.
        """
        self._scale()
        waiting = {self._next_of(handle): handle for handle in self.handles if handle.loading or handle.running}
        if not waiting:
            return
        with signals_pass():
            ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0, fetch_local=False)
            if not ready:
                ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=timeout_s, fetch_local=False)
        for reference in ready:
            with signals_pass():
                event = self._event(waiting[reference])
            yield event

    def close(self) -> None:
        """End all workers. What they are doing is lost."""
        for handle in self.handles:
            self._kill(handle)
        self.handles = []

    @staticmethod
    def _next_of(handle: Handle) -> Any:
        return handle.loading or handle.running[0][0]

    def _event(self, handle: Handle) -> Handle | Results | Done | Died:
        try:
            if handle.loading is not None:
                return self._loaded(handle)
            generator, chunk = handle.running[0]
            received = self._ray.get(next(generator))
            if isinstance(received, Refusal):
                raise UsageError(received.message)
            if isinstance(received, ChunkStats):
                handle.running.popleft()
                return Done(handle, chunk, received)
            return Results(handle, chunk, received)
        except (self._ray.exceptions.RayError, StopIteration) as error:
            return self._died(handle, error)

    def _loaded(self, handle: Handle) -> Handle:
        answer: Facts | Refusal = self._ray.get(handle.loading)
        if isinstance(answer, Refusal):
            raise UsageError(answer.message)
        handle.facts, handle.loading, handle.ready_at = answer, None, monotonic()
        self._failed_starts = 0
        return handle

    def _died(self, handle: Handle, error: BaseException) -> Died:
        reason = _reason(error)
        if handle.facts is None:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise UsageError(f"workers end while they load the model: {reason}") from error
        else:
            self.worker_s += monotonic() - handle.ready_at
        self._kill(handle)
        self.handles.remove(handle)
        self._scaled_at = -_SCALE_EVERY_S  # replace it at once
        return Died(handle, [chunk for _, chunk in handle.running], reason, self._is_node_gone(handle))

    def _is_node_gone(self, handle: Handle) -> bool:
        if handle.facts is None:
            return False
        return handle.facts.node_id not in {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}

    def _kill(self, handle: Handle) -> None:
        self._ray.kill(handle.actor, no_restart=True)

    def _scale(self) -> None:
        """Start workers that are missing; nodes that join get theirs. Workers that find no room wait for it."""
        if monotonic() - self._scaled_at < _SCALE_EVERY_S:
            return
        self._scaled_at = monotonic()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        number, resources = placement(nodes, self._size)
        actor_class = self._ray.remote(**resources, max_restarts=0, max_task_retries=0)(Worker)
        while len(self.handles) < number:
            actor = actor_class.remote(self._setup)
            self.handles.append(Handle(actor, actor.load.remote()))


def placement(nodes: Sequence[dict[str, float]], size: Size) -> tuple[int, dict[str, float]]:
    """Return the number of workers, and the resources of each as arguments of ray.remote.

    Args:
        nodes: Resources of each node of the cluster.
        size: What the user asks for.

    >>> placement([{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 2}], Size())
    (4, {'num_gpus': 1, 'num_cpus': 1})
    >>> placement([{"CPU": 8}, {"CPU": 8}], Size(workers=4))
    (4, {'num_gpus': 0, 'num_cpus': 4})
    """
    all_gpus = sum(node.get("GPU", 0) for node in nodes)
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    gpus = size.gpus if size.gpus is not None else min(1, all_gpus)
    if gpus:
        number = size.workers or max(1, int(all_gpus / gpus))
        return number, {"num_gpus": gpus, "num_cpus": size.cpus or 1}
    if size.cpus is not None:
        return size.workers or max(1, int(sum(processors) / size.cpus)), {"num_gpus": 0, "num_cpus": size.cpus}
    number = size.workers or max(1, len(processors))
    share = sum(processors) // number if processors else 1
    return number, {"num_gpus": 0, "num_cpus": max(1, min([share, *processors]))}


def _reason(error: BaseException) -> str:
    """Return why a worker died, in one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):  # an exception of our own code in the worker
        return f"{type(cause).__name__}: {first_line(cause)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("The actor is dead because")]
    text = (told or lines or [type(error).__name__])[0]
    text = text.removeprefix("The actor is dead because ").partition(" Some common causes")[0]
    return text.partition(" Worker exit type")[0].rstrip(".")[:300]
