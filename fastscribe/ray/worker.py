"""The actor that transcribes: a process of the cluster with a loaded model.

It receives Sources and opens the recordings itself. Results leave in groups as they are finished, so that a worker that dies
loses only what it has not sent. The object store holds texts, never audio.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from fastscribe._system.openmp import limit_openmp_spin
from fastscribe.config import ModelConfig, Options, OutputStyle
from fastscribe.errors import FastscribeError, UsageError
from fastscribe.pipeline.model_facts import ModelFacts
from fastscribe.results.formats.writers import rendered
from fastscribe.types import Failure, File, Source, Transcript, Utterance
from fastscribe.version import __version__

if TYPE_CHECKING:
    from fastscribe.dry_run import DryRunReport

_GROUP_S, _GROUP_RESULTS = 0.5, 256


@dataclass(frozen=True)
class Setup:
    """What every worker of a run loads.

    Attributes:
        model: A path that all nodes have, "default" or a name on the Hugging Face hub.
        device: "auto", "cpu" or "cuda".
        dtype: As Transcriber.load().
        options: Options of the run.
        style: Results come rendered for it, without their words, which saves the driver two thirds of its time. None: whole
            transcripts.
        run_id: Names the run on each node.
    """

    model: str
    device: str
    dtype: str
    options: Options
    style: OutputStyle | None
    run_id: str


@dataclass(frozen=True)
class Facts:
    """A loaded worker: what reports and the journal's fingerprint need."""

    place: str  # "ADDRESS pid NUMBER"
    node_id: str
    model: ModelFacts
    batch_frames: float
    config: ModelConfig
    model_digest: str
    content_digests: dict[str, str]  # of what the options name, by the option's name
    language_settings: dict[str, str]  # of the fingerprint
    load_s: float
    version: str = __version__
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why a worker cannot load the model: a mistake of the user's, which no other worker would escape."""

    message: str


@dataclass(frozen=True)
class ChunkStats:
    """The last thing a worker sends of a chunk."""

    wall_s: float
    batches: int
    utterances: int
    stage_s: dict[str, float]
    padded_frames: int
    real_frames: int
    peak_bytes: int
    said: tuple[str, ...] = ()


@dataclass(repr=False)
class Worker:
    """Transcribes chunks, one at a time. `load` comes first."""

    setup: Setup
    _said: list[str] = field(default_factory=list)
    _transcriber: Any = None
    _batches: int = 0
    _utterances: int = 0

    def load(self) -> Facts | Refusal:
        """Load the model, which is on this node's disk once."""
        limit_openmp_spin()
        from fastscribe.ray.node_model import model_on_node, options_on_node
        from fastscribe.results.fingerprint import content_digests
        from fastscribe.transcriber import Transcriber

        setup = self.setup
        start = perf_counter()
        try:
            model, options = model_on_node(setup.model, setup.run_id, self._said.append), setup.options
            options, digests = options_on_node(options, setup.run_id, self._said.append)
            found = Transcriber.load(model.path, setup.device, setup.dtype, options, self._said.append)
            digests = found._digests_of_rooms(content_digests(options, digests))
        except (FastscribeError, OSError) as error:
            return Refusal(" ".join(str(error).split()))
        self._transcriber = found
        found._watcher = self
        place, node_id = _place()
        return Facts(
            place=place,
            node_id=node_id,
            model=found._executor.facts,
            batch_frames=found._budget().frames,
            config=found._config,
            model_digest=model.digest,
            content_digests=digests,
            language_settings=found._language_settings(),
            load_s=perf_counter() - start,
            said=self._take_said(),
        )

    def transcribe(
        self, sources: Sequence[Source]
    ) -> Generator[list[tuple[int, Transcript | Failure]] | ChunkStats | Refusal]:
        """Yield groups of results with their positions among the sources, and at the end the chunk's statistics."""
        try:
            yield from self._transcribe(sources)
        except UsageError as error:  # an option that is not possible here, and on no other worker
            yield Refusal(" ".join(str(error).split()))

    def _transcribe(self, sources: Sequence[Source]) -> Iterator[list[tuple[int, Transcript | Failure]] | ChunkStats]:
        start = group_start = perf_counter()
        self._batches = self._utterances = 0
        group: list[tuple[int, Transcript | Failure]] = []
        for result in self._transcriber._results(iter(sources)):
            group.append((result.index, self._light(result)))
            if len(group) >= _GROUP_RESULTS or perf_counter() - group_start > _GROUP_S:
                yield group
                group, group_start = [], perf_counter()
        if group:
            yield group
        progress, edits = self._transcriber.progress, self._transcriber._edits
        self._said += progress.lines
        if edits is not None:
            self._said += edits.lines
            edits.left_alone.clear()
        if self._transcriber._languages is not None:
            self._said += self._transcriber._languages.take_lines()
        yield ChunkStats(
            perf_counter() - start,
            self._batches,
            self._utterances,
            dict(progress.stopwatch.seconds),
            progress.padded_frames,
            progress.real_frames,
            self._transcriber._executor.peak_bytes(),
            self._take_said(),
        )

    def estimate(self, sources: Sequence[Source]) -> tuple[DryRunReport, list[Failure]]:
        """Probe the sources and time a few batches of them, as a dry run does."""
        from fastscribe.dry_run import estimate_run
        from fastscribe.results.ledger import Ledger

        failures: list[Failure] = []
        report = estimate_run(self._transcriber, cast(Iterable[str], sources), Ledger(), None, failures.append)
        return report, failures

    def batch(self, utterances: Sequence[Utterance], num_frames: Sequence[int]) -> None:
        """Count a decoded batch, as the transcriber's watcher."""
        self._batches += 1
        self._utterances += len(utterances)

    def _light(self, result: Transcript | Failure) -> Transcript | Failure:
        """Return a result without what the driver knows or does not need."""
        if isinstance(result, Failure):
            return result
        if self.setup.style is not None:
            return rendered(result, self.setup.style)
        return replace(result, audio=replace(result.audio, file="", unread=None))

    def _take_said(self) -> tuple[str, ...]:
        said = tuple(self._said)
        self._said.clear()
        return said


def packed(sources: Sequence[Source]) -> list[Source]:
    """Return sources as a worker needs them: files by absolute path, without the keys, which the driver keeps."""
    return [replace(source, file=_absolute(source.file), given_key=None) for source in sources]


def _absolute(file: File) -> File:
    return os.path.abspath(file) if isinstance(file, str) else file


def unpacked(result: Transcript | Failure, source: Source) -> Transcript | Failure:
    """Return a worker's result with its source's index, key and row."""
    if isinstance(result, Failure):
        return replace(result, index=source.index, row=source.row, given_key=source.given_key)
    audio = replace(result.audio, index=source.index, row=source.row, given_key=source.given_key)
    return replace(result, audio=audio)


def _place() -> tuple[str, str]:
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    return f"{ray.util.get_node_ip_address()} pid {os.getpid()}", node_id
