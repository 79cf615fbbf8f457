"""Batches of one device, in this process: an engine whose batches threads read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import RemoteMedium
from fastscribe.config import Options, OutputStyle
from fastscribe.cuda.device import host_array, short_switch_interval
from fastscribe.errors import ModelClosed
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.engine import Engine
from fastscribe.pipeline.executor import HostWork, Outcome, Plan
from fastscribe.pipeline.interfaces import IDLE, Idle, ModelFacts
from fastscribe.pipeline.loader import REMOTE_THREADS, Loaded, default_threads, load_batches
from fastscribe.pipeline.stats import DeviceShare, Stopwatch
from fastscribe.pipeline.text_stage import local_texts
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.segmentation.silence import with_cuts
from fastscribe.types import Utterance

if TYPE_CHECKING:
    from fastscribe.pipeline.interfaces import Additions
    from fastscribe.pipeline.preparation import Preparation
    from fastscribe.pipeline.recognizer import Recognizer
    from fastscribe.pipeline.text_stage import TextStage

BATCHES_AHEAD = 2


class LocalExecutor(Engine):
    """See Executor. It is the engine itself, with threads that read its batches."""

    num_devices = 1

    def __init__(self, recognizer: Recognizer, say: Callable[[str], None] = log_to_stderr) -> None:
        super().__init__(recognizer, say)
        self.opens_files = self.device.type == "cpu"  # what a GPU resamples must be known before
        self.style: OutputStyle | None = None
        self._options = Options()
        self._readers: ReplacingThreadPool | None = None
        self._is_closed = False

    @property
    def facts(self) -> ModelFacts:
        return self.recognizer.facts

    def choose_budget(self) -> Budget:
        return self.recognizer.choose_budget()

    def begin(self, options: Options, budget: Budget, stopwatch: Stopwatch) -> None:
        self._options = options
        self.budget, self.stopwatch = budget, stopwatch
        self._readers = ReplacingThreadPool(options.threads or default_threads(), "read")
        if self._is_closed:  # asked last: another thread's close() ends the readers or is seen here
            self.end()
            raise ModelClosed

    def host_work(self, preparation: Preparation, stage: TextStage, rooms: Additions) -> HostWork:
        return HostWork(local_texts(stage, rooms))

    def execute(self, plans: Iterable[Plan | Idle]) -> Generator[Outcome | Idle, None, None]:
        try:
            with closing(self.load(plans)) as batches, short_switch_interval(self.device):
                while True:
                    with self.stopwatch.time("wait_for_audio"):
                        loaded = next(batches, None)
                    yield from self.decode(loaded)
                    yield IDLE
                    if loaded is None:
                        return
        finally:
            self.drop()

    def load(self, plans: Iterable[Plan | Idle], ahead: int = BATCHES_AHEAD) -> Generator[Loaded | Idle, None, None]:
        """Yield the planned batches with their samples, in memory that copies fast to the device (loader.load_batches)."""
        assert self._readers is not None, "begin() comes first"
        return load_batches(
            self._with_threads(plans),
            pool=self._readers,
            sample_rate=self.recognizer.sample_rate,
            ahead=ahead,
            allocate=partial(host_array, device=self.device),
            native=self.device.type == "cuda",
            least_samples=self.facts.least_samples,
        )

    def decode(self, loaded: Loaded | Idle | None) -> Iterator[Outcome]:
        """Decode a batch; without one, finish all in flight, because the next one may take long or never come."""
        if loaded is None or loaded is IDLE:
            outcomes = self.drain()
        else:
            batch, settled = loaded
            for utterance, result in settled:
                yield (utterance,), (result,)
            if batch is None:
                return
            outcomes = self.push(batch)
        for batch, outcome in outcomes:
            if isinstance(outcome, Exception):
                yield batch.utterances, [to_failure(one.audio, "model", outcome) for one in batch.utterances]
            elif batch.cuts:
                frame_s = self.facts.token_frame_s
                marks = repeat(self.facts.marks)
                yield batch.utterances, list(map(with_cuts, outcome, batch.cuts, repeat(frame_s), marks))
            else:
                yield batch.utterances, outcome

    def release(self, index: int) -> None:
        """Nothing: the run itself holds the recording."""

    def end(self) -> None:
        if self._readers is not None:
            self._readers.close()

    def close(self) -> None:
        self._is_closed = True
        self.end()

    def peak_bytes(self) -> int:
        return self.recognizer.peak_bytes()

    def shares(self) -> list[DeviceShare]:
        return []

    def _with_threads(self, plans: Iterable[Plan | Idle]) -> Iterator[Plan | Idle]:
        """Pass the plans on; the first recording in a store starts the threads that wait for it."""
        for plan in plans:
            if plan is not IDLE and not self._options.threads and any(map(_is_remote, plan)):
                assert self._readers is not None
                self._readers.threads = max(self._readers.threads, REMOTE_THREADS)
            yield plan


def _is_remote(utterance: Utterance) -> bool:
    unread = utterance.audio.unread
    return isinstance(utterance.audio.file if unread is None else unread.file, RemoteMedium)
