"""A transcriber whose model is on the actors of a Ray cluster. Inputs are listed and results written here, on the driver.

    inputs -> sources -> ledger, lengths -> blocks -> map_batches(BlockWorker) -> results

Inputs come in windows, and each window is a dataset of its own: the driver's memory does not grow with the number of inputs.
Ray Data runs the actors: it hands blocks out, and starts an actor again that has died, which gets its blocks again. A block is
a row of its dataset, with pickled content: Arrow sees no field of a manifest, and nested ones come back as they were. Where
actors die with a block again and again, each of its recordings is tried alone, and one with which they die alone is a Failure.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from fastscribe.config import OutputStyle
from fastscribe.errors import DeviceFailed, UsageError, first_line
from fastscribe.fast_paths import RefusedPaths
from fastscribe.pipeline.interfaces import IDLE
from fastscribe.pipeline.loader import default_threads
from fastscribe.pipeline.stats import DeviceShare, Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.ray.blocks import Recording, in_blocks, list_inputs, seconds_of
from fastscribe.ray.library import connected, signals_pass, without_bars
from fastscribe.ray.worker import (
    BLOCK,
    NUMBER,
    Begun,
    BlockResults,
    BlockWorker,
    Facts,
    Refusal,
    Setup,
    Undone,
    look,
)
from fastscribe.results.interfaces import Ledger
from fastscribe.rooms import paths_in
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs

_NO_WORKER_S = 60.0
_MAX_BROKEN = 3  # blocks in a row that a place's device could not do


@dataclass(frozen=True)
class Places:
    """The actors of a run: their number, and what each takes of a node, as arguments of ray.remote."""

    workers: int
    num_gpus: float
    num_cpus: float


class RayTranscriber(Transcriber):
    """A Transcriber whose model is on the actors of a cluster. start() makes one.

    Args:
        ray: The module, connected.
        setup: What the actors load.
        places: How many there are.
        facts: Of the model, as a worker has loaded it.
        say: Receives one line at a time for the user.
    """

    def __init__(self, ray: Any, setup: Setup, places: Places, facts: Facts, say: Callable[[str], None]) -> None:
        self._actors = _Actors(facts)
        model = SimpleNamespace(
            config=facts.config, languages=facts.languages, tokenizer=None, path=setup.model, has_random_weights=False
        )
        super().__init__(cast(Any, model), cast(Any, self._actors), setup.options, facts.load_s)
        self._say = self._refused = RefusedPaths.around(say)
        self._ray, self._setup, self._places, self._facts = ray, setup, places, facts
        self._said: set[str] = set()
        self._broken: Counter[str] = Counter()  # by place: blocks in a row that its device could not do
        self._repeat(facts.said)

    @classmethod
    @contextmanager
    def start(
        cls,
        setup: Setup,
        say: Callable[[str], None],
        *,
        address: str | None = None,
        workers: int | None = None,
    ) -> Iterator[RayTranscriber]:
        """Connect to a cluster for as long as the block runs. Let a worker load the model and tell what it is.

        Args:
            setup: What the actors load.
            say: Receives one line at a time for the user.
            address: As library.connected().
            workers: Number of actors; None: one for each GPU, or for each node.

        Raises:
            UsageError: Ray is not installed, the cluster cannot be reached or has no GPU, or the model cannot be loaded.
        """
        if setup.device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"--device {setup.device}: Ray gives each worker its device: auto, cpu or cuda")
        others = paths_in(setup.options, "file", "model", "side model")
        paths: dict[str, Any] = {name: on_all_nodes(path) for name, path in others.items()}
        setup = replace(setup, model=on_all_nodes(setup.model), options=replace(setup.options, **paths))
        with connected(address) as ray:
            places = placement([node["Resources"] for node in ray.nodes() if node["Alive"]], workers, setup.device)
            yield cls(ray, setup, places, _facts(ray, setup, places, say), say)

    @property
    def model_digest(self) -> str:
        """Digest of the model's content, as a worker has read it."""
        return self._facts.model_digest

    def _content_digests(self) -> dict[str, str]:
        return self._facts.content_digests

    def _language_settings(self) -> dict[str, str]:
        return self._facts.language_settings

    def results(
        self, inputs: Inputs, *, style: OutputStyle | None = None, ledger: Ledger | None = None
    ) -> Generator[Any]:
        self._setup = replace(self._setup, style=style)  # the workers start now
        progress = self.progress = Progress()
        self._actors.by_place.clear()
        self._broken.clear()
        pool = ReplacingThreadPool(self._options.threads or default_threads(), "list")
        listed = list_inputs(inputs, ledger, self._options, progress, pool, self._places.workers)
        with closing(pool), closing(listed):
            for window in listed:
                if window is not IDLE:
                    for result in self._of_window(window):
                        progress.count(result)
                        progress.queued_files, progress.queued_s, progress.has_all = listed.queued()
                        progress.skipped = listed.num_skipped
                        yield result
            progress.skipped, progress.has_all = listed.num_skipped, True

    def _of_window(self, window: list[Recording | Failure]) -> Generator[Transcript | Failure]:
        """Yield the results of a window, which is empty then."""
        self.progress.planned_files += len(window)
        self.progress.planned_s += sum(map(seconds_of, window))
        recordings = [one for one in window if isinstance(one, Recording)]
        yield from (one for one in window if isinstance(one, Failure))
        window.clear()
        parts = in_blocks(recordings, self._places.workers, self._facts.model.is_gpu)
        blocks = dict(enumerate(map(_Block.of, parts)))
        del recordings
        yield from self._done(blocks)
        recordings = [one for block in blocks.values() for one in block.recordings()]
        alone = {number: _Block.of([one]) for number, one in enumerate(recordings)}
        yield from self._done(alone)
        problem = "workers ended, or their device failed, each time they transcribed it alone"
        for source in (one.source for block in alone.values() for one in block.recordings()):
            yield Failure(source.path, source.id, "model", "WorkerDied", problem, source.row, source.index)

    def _done(self, blocks: dict[int, _Block]) -> Generator[Transcript | Failure]:
        """Yield the results of blocks, in one pipeline, and remove these blocks; those that no actor could do stay.

        Raises:
            DeviceFailed: A device could do none of several blocks in a row.
            UsageError: A worker refuses its blocks.
        """
        if not blocks:
            return
        with closing(self._pipeline(blocks)) as done:
            for number, found in done:
                if isinstance(found, Refusal):
                    raise UsageError(found.message)
                if isinstance(found, Undone):
                    self._broken[found.place] += bool(found.problem)
                    if self._broken[found.place] == _MAX_BROKEN:
                        raise DeviceFailed(found.place, RuntimeError(found.problem))
                    continue
                block = blocks.pop(number)
                self._add(found)
                for result in found.results:
                    self.progress.done_s += block.seconds / len(found.results)
                    yield result

    def _pipeline(self, blocks: dict[int, _Block]) -> Generator[tuple[int, BlockResults | Undone | Refusal]]:
        """Yield what the actors return for each block, in order of completion."""
        import pyarrow as pa

        with without_bars(self._ray):
            with signals_pass():
                dataset = self._ray.data.from_blocks(
                    [pa.table({NUMBER: [number], BLOCK: [block.content]}) for number, block in blocks.items()]
                ).map_batches(
                    BlockWorker,
                    fn_constructor_kwargs={"setup": self._setup, "expected": self._facts, "begin": _begin(self._ray)},
                    batch_size=1,
                    batch_format="pyarrow",
                    compute=self._ray.data.ActorPoolStrategy(size=min(self._places.workers, len(blocks))),
                    num_gpus=self._places.num_gpus,
                    num_cpus=self._places.num_cpus,
                )
            batches = iter(dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
            while True:
                with signals_pass(), self.progress.stopwatch.time("wait_for_workers"):
                    table = next(batches, None)
                if table is None:
                    return
                for row in table.to_pylist():
                    yield row[NUMBER], pickle.loads(row[BLOCK])

    def _add(self, block: BlockResults) -> None:
        """Add what a worker has done to the run's statistics."""
        for stage, seconds in block.stage_s.items():
            self.progress.stopwatch.add(stage, seconds)
        self.progress.padded_frames += block.padded_frames
        self.progress.real_frames += block.real_frames
        self._actors.add(block.share)
        self._broken.pop(block.share.name, None)
        self._repeat(block.said)

    def _repeat(self, said: Sequence[str]) -> None:
        """Print lines of workers, each once."""
        for line in said:
            if line not in self._said:
                self._said.add(line)
                self._say(line)


@dataclass(frozen=True)
class _Block:
    """Recordings that an actor gets together, pickled, and their length in seconds."""

    content: bytes
    seconds: float

    @classmethod
    def of(cls, recordings: Sequence[Recording]) -> _Block:
        content = pickle.dumps([one.source for one in recordings])
        return cls(content, sum(one.seconds for one in recordings))

    def recordings(self) -> list[Recording]:
        """Return its recordings; their lengths do not count any more."""
        return [Recording(source, 0.0) for source in pickle.loads(self.content)]


class _Actors:
    """What reports and fingerprints ask of an executor, of the cluster's."""

    style: OutputStyle | None = None

    def __init__(self, facts: Facts) -> None:
        self.facts = facts.model
        self.by_place: dict[str, DeviceShare] = {}  # of the last run

    def add(self, share: DeviceShare) -> None:
        """Add what an actor did for a block."""
        earlier = self.by_place.get(share.name, DeviceShare(share.name, share.device))
        peaks = {name: max(getattr(earlier, name), getattr(share, name)) for name in ("peak_bytes", "pinned_bytes")}
        self.by_place[share.name] = replace(earlier.plus(share), **peaks)

    def shares(self) -> list[DeviceShare]:
        """Return what was done at each place in the last run."""
        return list(self.by_place.values())

    def peak_bytes(self) -> int:
        """Return the largest peak of a device."""
        return max((share.peak_bytes for share in self.shares()), default=0)


def placement(nodes: Sequence[dict[str, float]], workers: int | None, device: str = "auto") -> Places:
    """Return the number of actors and what each takes.

    Args:
        nodes: Resources of each node of the cluster.
        workers: The number that the user asks for; None: one for each GPU, or for each node of a cluster without GPUs.
        device: "cpu": use no GPU.

    Raises:
        UsageError: The device is "cuda", and the cluster has no GPU.

    >>> placement([{"CPU": 8, "GPU": 2}, {"CPU": 8, "GPU": 2}], None)
    Places(workers=4, num_gpus=1, num_cpus=1)
    >>> placement([{"CPU": 8}, {"CPU": 8}], 4)
    Places(workers=4, num_gpus=0, num_cpus=4)
    """
    all_gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if all_gpus and device != "cpu":
        return Places(workers or all_gpus, 1, 1)
    if device == "cuda":
        raise UsageError("--device cuda: the cluster has no GPU")
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    number = workers or max(1, len(processors))
    share = sum(processors) // number if processors else 1
    return Places(number, 0, max(1, min([share, *processors])))


def on_all_nodes(path: str) -> str:
    """Return the absolute path of a file or folder; a name that is none here as it is, because each node looks it up."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _facts(ray: Any, setup: Setup, places: Places, say: Callable[[str], None]) -> Facts:
    """Let a worker load the model, and wait for it. Say what is missing if none starts."""
    given = {"num_gpus": places.num_gpus, "num_cpus": places.num_cpus, "max_calls": 1}
    answer, told_at = ray.remote(**given)(look).remote(setup), perf_counter()
    ready: list[Any] = []
    while not ready:
        with signals_pass():
            ready, _ = ray.wait([answer], timeout=1.0)
        if perf_counter() - told_at > _NO_WORKER_S and not ready:
            told_at = perf_counter()
            have = {name: amount for name, amount in ray.cluster_resources().items() if name in ("CPU", "GPU")}
            say(f"no worker has loaded the model yet; the cluster has {have}, and parts of it may be in use")
    with signals_pass():
        try:
            found: Facts | Refusal = ray.get(answer)
        except ray.exceptions.RayError as error:
            raise UsageError(f"a worker ended while it loaded the model: {first_line(error)}") from error
    if isinstance(found, Refusal):
        raise UsageError(found.message)
    return found


def _begin(ray: Any) -> Callable[[int], int]:
    """Return Begun.begin(), for actors on all nodes. The count lies on the driver's node: no other one's end loses it."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    here = affinity(ray.get_runtime_context().get_node_id(), soft=False)
    counter = ray.remote(num_cpus=0, scheduling_strategy=here)(Begun).remote()
    return lambda number: ray.get(counter.begin.remote(number))
