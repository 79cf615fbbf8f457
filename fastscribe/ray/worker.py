"""The actor that transcribes blocks of recordings. It opens no recording itself.

The model has a process of its own beside it, with helpers that read, as with `--devices`. So a recording that ends its process
each time becomes a Failure, and the others of its block are done.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from fastscribe._system.process_settings import limit_openmp_spin
from fastscribe._system.processors import num_gpus, usable_processors
from fastscribe.checkpoint.location import locate
from fastscribe.config import ModelConfig, Options, OutputStyle
from fastscribe.errors import CheckpointError, DeviceFailed, FastscribeError, UsageError
from fastscribe.pipeline.interfaces import ModelFacts
from fastscribe.pipeline.stats import DeviceShare
from fastscribe.pipeline.workers.devices import Device, parse_devices, split_processors
from fastscribe.results.fingerprint import model_digest
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Source, Transcript
from fastscribe.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEATHS = 3  # of actors that one block may cost, on all nodes
_TRIES = 2  # of a block whose device fails: the next process may find it in order
_MIN_HELPERS = 2  # one may wait for a slow file
NUMBER, BLOCK = "number", "block"  # columns: the number of a block, and its pickled content


@dataclass(frozen=True)
class Setup:
    """What every worker of a run loads.

    Attributes:
        model: A path that all nodes have, "default" or a name on the Hugging Face hub.
        device: "auto" (a GPU if Ray gives the worker one), "cpu" or "cuda".
        dtype: As Transcriber.load().
        options: Options of the run.
        style: Results come rendered for it, without their words; None: whole transcripts.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    options: Options = field(default_factory=Options)
    style: OutputStyle | None = None


@dataclass(frozen=True)
class Facts:
    """A loaded model: what reports and the journal's fingerprint need, and what all workers must have in common."""

    place: str
    model: ModelFacts
    config: ModelConfig
    model_digest: str
    content_digests: dict[str, str]  # of what the options name, by the option's name
    language_settings: dict[str, str]  # of the fingerprint
    load_s: float
    languages: Sequence[str] = ()  # that the model states
    version: str = __version__
    said: tuple[str, ...] = ()

    def check(self, other: Facts) -> None:
        """Raise UsageError for a worker whose results would differ from those of this one."""
        for what, own, its in (
            ("fastscribe", self.version, other.version),
            ("the model's content", self.model_digest, other.model_digest),
            *(
                (f"the content of --{name.replace('_', '-')}", digest, other.content_digests.get(name))
                for name, digest in self.content_digests.items()
            ),
            ("--dtype", self.model.dtype, other.model.dtype),
            ("--decoder", self.model.decoder_name, other.model.decoder_name),
            ("--attention", self.model.attention, other.model.attention),
        ):
            if own != its:
                raise UsageError(
                    f"the nodes of the cluster differ: {what} is {own} at {self.place} and {its} at {other.place}"
                )


@dataclass(frozen=True)
class Refusal:
    """Why a worker cannot do what it is asked: a mistake of the user's, which no other worker would escape."""

    message: str


@dataclass(frozen=True)
class Undone:
    """What an actor returns of a block with which actors have died MAX_DEATHS times, or with which its device has failed."""

    place: str = ""
    problem: str = ""  # of the device


class Begun:
    """Counts how often each block was begun: an actor beside the driver."""

    def __init__(self) -> None:
        self._times: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Return how often a block was begun, this time included."""
        self._times[number] += 1
        return self._times[number]


@dataclass(frozen=True)
class BlockResults:
    """The results of a block, each with its recording's position in the run, and what the worker did for them."""

    results: list[Transcript | Failure]
    share: DeviceShare
    stage_s: dict[str, float]
    padded_frames: int
    real_frames: int
    said: tuple[str, ...] = ()


def look(setup: Setup) -> Facts | Refusal:
    """Load a model in this process, and tell what it is."""
    limit_openmp_spin()
    said: list[str] = []
    try:
        setup = on_this_node(setup, said.append)
        found = Transcriber.load(setup.model, setup.device, setup.dtype, setup.options, said.append)
        return facts_of(found, setup, said)
    except (FastscribeError, OSError) as error:
        return _refusal(error)


class BlockWorker:
    """Transcribes blocks, one at a time: the class that map_batches runs in actors.

    Args:
        setup: What to load.
        expected: Facts of another worker of the run. One that differs refuses its blocks.
        begin: Counts how often each block is begun, in all actors.
    """

    def __init__(self, setup: Setup, expected: Facts, begin: Callable[[int], int]) -> None:
        self._setup, self._expected, self._begin = setup, expected, begin
        self._said = list[str]()
        self._problem = self._load()

    def _load(self) -> Refusal | Undone | None:
        """Load the model. Return why no block can be done, if so."""
        with ExitStack() as loaded:  # closes a model that is not used, whose process would keep a GPU's memory
            try:
                setup = on_this_node(self._setup, self._said.append)
                self._transcriber = load(setup, self._said.append)
                loaded.callback(self._transcriber.close)
                facts = facts_of(self._transcriber, setup)
                self._expected.check(facts)
                self._share = DeviceShare(facts.place, facts.model.device_name)
            except DeviceFailed as error:
                return Undone(_place(), error.problem)
            except (FastscribeError, OSError) as error:
                return _refusal(error)
            loaded.pop_all()
        return None

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return a block's number, and pickled what became of it: BlockResults, Undone or a Refusal."""
        import pyarrow as pa

        number, content = batch[NUMBER][0].as_py(), batch[BLOCK][0].as_py()
        for _ in range(_TRIES):
            if isinstance(self._problem, Undone):
                self._problem = self._load()
            done = self._problem or self._transcribe_if_it_may(number, pickle.loads(content))
            if not isinstance(done, Undone):
                break
        return pa.table({NUMBER: [number], BLOCK: [pickle.dumps(done)]})

    def _transcribe_if_it_may(self, number: int, sources: Sequence[Source]) -> BlockResults | Undone | Refusal:
        """Transcribe a block, unless actors died with it: Ray repeats the blocks of an actor that dies without an end."""
        return Undone() if self._begin(number) > MAX_DEATHS else self._transcribe(sources)

    def _transcribe(self, sources: Sequence[Source]) -> BlockResults | Undone | Refusal:
        transcriber = self._transcriber
        try:
            with closing(transcriber.results(cast(Any, sources), style=self._setup.style)) as results:
                done = [_light(result, sources[result.index].index) for result in results]
        except DeviceFailed as error:
            transcriber.close()
            self._problem = Undone(self._share.name, error.problem)
            return self._problem
        except UsageError as error:  # an option that is not possible here
            return _refusal(error)
        progress, edits, languages = transcriber.progress, transcriber._edits, transcriber._languages
        self._said += progress.lines
        if edits is not None:
            self._said += edits.lines
            edits.left_alone.clear()
        if languages is not None:
            self._said += languages.take_lines()
        said = tuple(self._said)
        self._said.clear()
        [share] = transcriber.shares()
        share = replace(share, name=self._share.name, device=self._share.device)
        stage_s, frames = dict(progress.stopwatch.seconds), (progress.padded_frames, progress.real_frames)
        return BlockResults(done, share, stage_s, *frames, said)


def _light(result: Transcript | Failure, index: int) -> Transcript | Failure:
    """Return a result with its position in the run, without what the driver does not need."""
    if isinstance(result, Failure):
        return replace(result, index=index)
    return replace(result, audio=replace(result.audio, index=index, file="", unread=None))


def on_this_node(setup: Setup, say: Callable[[str], None]) -> Setup:
    """Return the setup with the path of the model, which a node downloads if need be. Raises CheckpointError."""
    path = locate(setup.model, say, show_progress=False)
    if not path.exists():
        raise CheckpointError(path, "no such file or folder on this node; a path must be the same on all nodes")
    return replace(setup, model=str(path))


def load(setup: Setup, say: Callable[[str], None]) -> Transcriber:
    """Load the model in a process beside this one, on its share of the node, with helpers. Raises as Transcriber.load()."""
    num_processors, has_gpu = given_by_ray()
    options = setup.options
    if not options.threads:  # processors beside this process and the model's
        options = replace(options, threads=max(_MIN_HELPERS, num_processors - 2))
    devices = "all" if has_gpu and setup.device != "cpu" else "cpu:1"
    return _OnShare.load(setup.model, "auto", setup.dtype, options, say, devices=devices)


class _OnShare(Transcriber):
    """A Transcriber whose model takes this process's share of the processors, where Ray gives no GPU."""

    @classmethod
    def _devices_of(cls, devices: str) -> tuple[Device, ...]:
        return parse_devices(devices) if devices == "all" else split_processors(1, given_by_ray()[0])


def given_by_ray() -> tuple[int, bool]:
    """Return the number of processors that are this process's share, and whether it has a GPU."""
    import ray

    if not ray.is_initialized():
        return usable_processors(), num_gpus() > 0
    context = ray.get_runtime_context()
    given, node_id = context.get_assigned_resources(), context.get_node_id()
    num_processors, gpus = given.get("CPU", 1.0), given.get("GPU", 0.0)
    if gpus:  # whatever is asked for, a GPU needs its share of the processors to read audio
        node = next(one["Resources"] for one in ray.nodes() if one["NodeID"] == node_id)
        num_processors = max(num_processors, node.get("CPU", 1.0) * gpus / node["GPU"])
    return min(usable_processors(), max(1, int(num_processors))), gpus > 0


def facts_of(transcriber: Transcriber, setup: Setup, said: Sequence[str] = ()) -> Facts:
    """Return what a loaded model is. Raises OSError if its files cannot be read again."""
    return Facts(
        place=_place(),
        model=transcriber.facts,
        config=transcriber._config,
        model_digest=model_digest(setup.model),
        content_digests=transcriber._content_digests(),
        language_settings=transcriber._language_settings(),
        load_s=transcriber.load_s,
        languages=transcriber.known_languages,
        said=tuple(said),
    )


def _place() -> str:
    """Return where this process is: "ADDRESS GPU 0", or "ADDRESS pid 123" without a GPU."""
    import ray

    if not ray.is_initialized():
        return f"pid {os.getpid()}"
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return f"{ray.util.get_node_ip_address()} {'GPU ' + ','.join(gpus) if gpus else f'pid {os.getpid()}'}"


def _refusal(error: Exception) -> Refusal:
    return Refusal(" ".join(str(error).split()))
