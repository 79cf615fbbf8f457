"""A transcriber whose model runs on the workers of a Ray cluster. Inputs are listed and results written here, on the driver.

    inputs -> sources -> ledger, lengths -> windows -> chunks -> workers -> results

The driver's memory does not grow with the number of inputs: windows of sources are made as workers need them, a worker
pauses while the driver has not taken its results, and a result that has left is forgotten.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, cast

from fastscribe.config import Options, OutputStyle
from fastscribe.dry_run import DryRunReport
from fastscribe.errors import UsageError
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import Executor
from fastscribe.pipeline.prices import price_of
from fastscribe.pipeline.stats import DeviceShare, Progress
from fastscribe.pipeline.windows import Ledger
from fastscribe.ray.chunks import ChunkQueue, Item
from fastscribe.ray.inputs import Windows
from fastscribe.ray.library import connected
from fastscribe.ray.node_model import on_all_nodes
from fastscribe.ray.pool import Died, Done, Handle, Results, Size, WorkerPool
from fastscribe.ray.worker import ChunkStats, Facts, Setup, unpacked
from fastscribe.rooms import paths_in
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs
    from fastscribe.results.ledger import Ledger as ResumeLedger

MAX_DEATHS = 3  # workers that one recording may cost
_CHUNK_S = 20.0  # of a worker's time, once its speed is known
_FIRST_CHUNK_S = 300.0  # of audio, before
_MAX_GROWTH = 4.0  # of a chunk's audio from one to the next
_CHUNKS_AHEAD = 2  # at a worker: the one it works on, and the next
_MIN_CHUNK_S = 30.0  # of audio; a smaller one would hardly fill a batch
_POLL_S = 0.2
_NO_WORKER_S = 60.0


class RayTranscriber(Transcriber):
    """A Transcriber whose model is on the workers of a cluster. `load` makes one; `close` ends the workers.

    Args:
        ray: The module, connected.
        pool: Workers, of which one is ready.
        facts: Of that worker.
        options: Options of every run.
        say: Receives one line at a time for the user.
    """

    def __init__(self, ray: Any, pool: WorkerPool, facts: Facts, options: Options, say: Callable[[str], None]) -> None:
        self._ray, self._pool, self._facts = ray, pool, facts
        self._say = self._refused = RefusedPaths.around(say)
        self._config, self._options = facts.config, options
        self._load_s = facts.load_s
        self._workers = _RemoteExecutor(pool, facts)
        self._executor = cast("Executor", self._workers)
        self.progress = Progress()
        self._watcher, self._limit, self._edits, self._languages, self._opened_stages = None, None, None, None, None
        self._is_running = False
        self._said: set[str] = set()
        self._stack = ExitStack()

    @classmethod
    def start(
        cls,
        model: str,
        device: str,
        dtype: str,
        options: Options,
        say: Callable[[str], None],
        *,
        address: str | None = None,
        size: Size | None = None,
        style: OutputStyle | None = None,
    ) -> RayTranscriber:
        """Connect to a cluster, start workers and wait until one has loaded the model.

        Args:
            model: A path that all nodes have, "default" or a name on the Hugging Face hub.
            device: "auto", "cpu" or "cuda".
            dtype: As Transcriber.load().
            options: Options of every run.
            say: Receives one line at a time for the user.
            address: As library.connected().
            size: Number and resources of the workers; None: one for each GPU, or for each node.
            style: Results come rendered for it, without words; None: whole transcripts.

        Raises:
            UsageError: Ray is not installed, the cluster cannot be reached, or the workers cannot load the model.
        """
        say = RefusedPaths.around(say)
        if device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"--device {device}: Ray gives each worker its device: auto, cpu or cuda")
        model = on_all_nodes(model)
        others = paths_in(options, "file", "model", "side model")
        paths: dict[str, Any] = {name: on_all_nodes(path) for name, path in others.items()}
        options = replace(options, **paths)
        with ExitStack() as stack:
            ray = stack.enter_context(connected(address))
            setup = Setup(model, device, dtype, options, style, uuid.uuid4().hex)
            pool = stack.enter_context(closing(WorkerPool(ray, setup, size or Size())))
            found = cls(ray, pool, _first_ready(ray, pool, say), options, say)
            found._stack = stack.pop_all()
        return found

    def __enter__(self) -> RayTranscriber:
        return self

    def close(self) -> None:
        """End the workers, and the cluster if this object started it."""
        self._stack.close()

    @property
    def model_digest(self) -> str:
        """Digest of the model's content, as the workers read it."""
        return self._facts.model_digest

    def _content_digests(self) -> dict[str, str]:
        return self._facts.content_digests

    def _language_settings(self) -> dict[str, str]:
        return self._facts.language_settings

    def usd_per_hour(self, price_per_hour: float | None, wall_s: float) -> tuple[float | None, str | None]:
        """Return the price of the workers and its source: the given one for all together, or the list's for each."""
        usd, source = price_of(self._facts.model.device_name, price_per_hour)
        if usd is None or price_per_hour is not None:
            return usd, source
        mean_workers = self._pool.total_worker_s() / max(wall_s, 1e-9)
        return usd * max(1.0, mean_workers), source

    def _results(self, inputs: Inputs, ledger: Ledger | None = None) -> Generator[Transcript | Failure]:
        if self._is_running:
            raise UsageError("another run of this Transcriber is not finished: read all its results, or close() it")
        self._is_running = True
        self.progress, self._workers.device_shares = Progress(), {}
        try:
            with closing(Windows(inputs, ledger, self._options, self.progress)) as windows:
                yield from _Run(self, windows).results()
        finally:
            self._is_running = False

    def estimate(
        self, inputs: Inputs, ledger: ResumeLedger, usd_per_hour: float | None, on_failure: Callable[[Failure], None]
    ) -> DryRunReport:
        """Return what a run would do: the workers probe the inputs and time a few batches of each chunk."""
        from fastscribe.ray.estimate import estimate

        self.progress = Progress()
        with closing(Windows(inputs, ledger, self._options, self.progress)) as windows:
            return estimate(self._ray, self._pool, windows, ledger, self.progress, usd_per_hour, on_failure)

    def _check(self, facts: Facts) -> None:
        """Raise UsageError for a worker whose results would differ from those of the first."""
        own, others = self._facts, facts.content_digests
        for what, first, other in (
            ("fastscribe", own.version, facts.version),
            ("the model's content", own.model_digest, facts.model_digest),
            *(
                (f"the content of --{name.replace('_', '-')}", digest, others[name])
                for name, digest in own.content_digests.items()
            ),
            ("--dtype", own.model.dtype, facts.model.dtype),
            ("--decoder", own.model.decoder_name, facts.model.decoder_name),
            ("--attention", own.model.attention, facts.model.attention),
        ):
            if first != other:
                raise UsageError(
                    f"the nodes of the cluster differ: {what} is {first} at {own.place} and {other} at {facts.place}"
                )
        self._repeat(facts.said)

    def _repeat(self, said: tuple[str, ...]) -> None:
        """Print lines of workers, each once."""
        for line in said:
            if line not in self._said:
                self._said.add(line)
                self._say(line)


class _RemoteExecutor:
    """What reports and fingerprints ask of an executor, of the workers'."""

    def __init__(self, pool: WorkerPool, facts: Facts) -> None:
        self._pool = pool
        self.facts, self.budget = facts.model, Budget(facts.batch_frames)
        self.largest_peak_bytes = 0
        self.device_shares: dict[str, DeviceShare] = {}  # by place, in the order of the first results

    @property
    def num_devices(self) -> int:
        """Workers that are loaded by now."""
        return len(self._pool.ready)

    def peak_bytes(self) -> int:
        """Return the largest peak of a worker."""
        return self.largest_peak_bytes

    def shares(self) -> list[DeviceShare]:
        """Return what each worker did in the last run."""
        return list(self.device_shares.values())


class _Run:
    """One run: hands chunks out, takes results in, and deals with workers that die."""

    def __init__(self, transcriber: RayTranscriber, windows: Windows) -> None:
        self._transcriber, self._windows = transcriber, windows
        self._pool, self._progress = transcriber._pool, transcriber.progress
        self._queue = ChunkQueue(MAX_DEATHS)
        self._unusable: list[Failure] = []
        self._idle_since = monotonic()

    def results(self) -> Iterator[Transcript | Failure]:
        """Yield the results, counted, in order of completion."""
        while True:
            self._refill()
            while self._unusable:
                yield self._counted(self._unusable.pop())
            self._hand_out()
            if not self._is_busy() and self._windows.has_ended and not len(self._queue):
                return
            with self._progress.stopwatch.time("wait_for_workers"):
                events = list(self._pool.events(_POLL_S))
            for event in events:
                yield from self._handle(event)
            self._watch_for_workers(bool(events))

    def _is_busy(self) -> bool:
        return any(handle.running for handle in self._pool.handles)

    def _refill(self) -> None:
        """Take another window if little is left, and wait for it only if there is nothing else to do."""
        if self._windows.has_ended or len(self._queue) > self._transcriber.options.window:
            return
        window = self._windows.take(0.0 if self._is_busy() or len(self._queue) else _POLL_S)
        items = [item for item in window if isinstance(item, Item)]
        self._unusable += [item for item in window if isinstance(item, Failure)]
        self._queue.add(items)
        self._progress.queued_files, self._progress.queued_s = len(self._queue), self._queue.seconds
        self._progress.has_all = self._windows.has_ended

    def _hand_out(self) -> None:
        """Give each worker up to two chunks, the idle workers first."""
        for is_idle in (True, False):
            for handle in self._pool.ready:
                is_free = not handle.running if is_idle else 0 < len(handle.running) < _CHUNKS_AHEAD
                if not is_free or (handle.running and handle.running[0][1].is_suspect):
                    continue
                num_workers = len(self._pool.handles)
                chunk = self._queue.take(_target_s(handle), _min_s(handle), num_workers, is_idle)
                if chunk is not None:
                    self._pool.give(handle, chunk)
                    self._progress.planned_files += len(chunk.items)
                    self._progress.planned_s += chunk.seconds
        self._progress.queued_files, self._progress.queued_s = len(self._queue), self._queue.seconds

    def _handle(self, event: Handle | Results | Done | Died) -> Iterator[Transcript | Failure]:
        if isinstance(event, Results):
            yield from self._received(event)
        elif isinstance(event, Done):
            self._finished(event)
        elif isinstance(event, Died):
            yield from self._lost(event)
        elif event.facts is not None:
            self._transcriber._check(event.facts)

    def _received(self, event: Results) -> Iterator[Transcript | Failure]:
        for position, result in event.group:
            item = event.chunk.items.pop(position)
            found = unpacked(result, item.source)
            self._progress.done_s += item.seconds
            if isinstance(found, Transcript):
                self._share(event.handle).audio_s += found.audio.duration_s
                if item.num_bytes:
                    self._windows.lengths.learn(item.num_bytes, found.audio.duration_s)
            yield self._counted(found)

    def _finished(self, event: Done) -> None:
        stats, handle = event.stats, event.handle
        self._add(stats, handle)
        if event.chunk.seconds > 0 and stats.wall_s > 0:
            handle.audio_per_s = event.chunk.seconds / stats.wall_s
        if event.chunk.items:  # a worker that says nothing about a recording has not done it
            self._queue.put_back(event.chunk)

    def _add(self, stats: ChunkStats, handle: Handle) -> None:
        progress = self._progress
        for stage, seconds in stats.stage_s.items():
            progress.stopwatch.add(stage, seconds)
        progress.padded_frames += stats.padded_frames
        progress.real_frames += stats.real_frames
        share = self._share(handle)
        share.busy_s += stats.wall_s
        share.batches += stats.batches
        share.utterances += stats.utterances
        share.peak_bytes = max(share.peak_bytes, stats.peak_bytes)
        workers = self._transcriber._workers
        workers.largest_peak_bytes = max(workers.largest_peak_bytes, stats.peak_bytes)
        self._transcriber._repeat(stats.said)

    def _lost(self, event: Died) -> Iterator[Failure]:
        """Queue what a dead worker had again. A node that is gone is no fault of its recordings."""
        facts = event.handle.facts
        if facts is not None:
            self._share(event.handle).died += 1
        left = sum(len(chunk.items) for chunk in event.chunks)
        where = facts.place if facts is not None else "not placed yet"
        self._transcriber._say(f"worker {where} ended ({event.reason}); {left} recordings go to others")
        for number, chunk in enumerate(event.chunks):
            self._progress.planned_files -= len(chunk.items)
            self._progress.planned_s -= sum(item.seconds for item in chunk.items.values())
            if number > 0 or event.is_node_gone:
                self._queue.put_back(chunk)
                continue
            for item in self._queue.split(chunk):
                yield cast(Failure, self._counted(_given_up(item, event.reason)))

    def _share(self, handle: Handle) -> DeviceShare:
        assert handle.facts is not None
        shares, facts = self._transcriber._workers.device_shares, handle.facts
        return shares.setdefault(facts.place, DeviceShare(facts.place, facts.model.device_name))

    def _counted(self, result: Transcript | Failure) -> Transcript | Failure:
        self._progress.count(result)
        return result

    def _watch_for_workers(self, has_news: bool) -> None:
        """Say so if there is work but no worker for a while."""
        if has_news or self._pool.ready:
            self._idle_since = monotonic()
        elif monotonic() - self._idle_since > _NO_WORKER_S:
            self._idle_since = monotonic()
            self._transcriber._say("no worker is left, and none starts: the run waits for a node with room for one")


def _target_s(handle: Handle) -> float:
    """Return the audio of a worker's next chunk, in seconds."""
    if not handle.audio_per_s:
        return _FIRST_CHUNK_S
    last_s = handle.running[-1][1].seconds if handle.running else _FIRST_CHUNK_S
    return min(_CHUNK_S * handle.audio_per_s, _MAX_GROWTH * max(last_s, _FIRST_CHUNK_S))


def _min_s(handle: Handle) -> float:
    """Return the least audio of a chunk, in seconds: as much as fills a batch, or a second of a worker's time."""
    return max(_MIN_CHUNK_S, handle.audio_per_s)


def _given_up(item: Item, reason: str) -> Failure:
    source = item.source
    message = f"{item.deaths} workers ended while they transcribed it, the last one with it alone: {reason}"
    return Failure(source.path, source.id, "model", "WorkerDied", message, source.row, source.index, source.given_key)


def _first_ready(ray: Any, pool: WorkerPool, say: Callable[[str], None]) -> Facts:
    """Wait for the first loaded worker; say what is missing if none starts."""
    told_at = perf_counter()
    while not pool.ready:
        for event in pool.events(1.0):
            if isinstance(event, Died):
                say(f"a worker ended while it loaded the model ({event.reason}); another one starts")
        if perf_counter() - told_at > _NO_WORKER_S and not pool.ready:
            told_at = perf_counter()
            have = {name: amount for name, amount in ray.cluster_resources().items() if name in ("CPU", "GPU")}
            say(f"no worker has started yet; the cluster has {have}, and parts of it may be in use")
    facts = pool.ready[0].facts
    assert facts is not None
    for line in facts.said:
        say(line)
    return facts
