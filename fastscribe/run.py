"""The straight path over many files: inputs to transcripts, in windows, batches and order of completion.

    inputs -> probe -> split -> plan -> load -> features -> encode -> decode -> assemble

The next window of inputs is probed and cut while the model works on the last; audio loads in threads ahead of the model;
a file's transcript leaves as soon as its last utterance is decoded, and nothing of it stays behind. Whatever fails
becomes that file's Failure.
"""

from __future__ import annotations

import math
import os
import platform
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter

from fastscribe import batching, transcript
from fastscribe.audio.inputs import expand
from fastscribe.audio.loader import default_threads, load_batches
from fastscribe.audio.probe import probe_all
from fastscribe.audio.source import to_failure
from fastscribe.batching import Budget
from fastscribe.checkpoint import Checkpoint, read_checkpoint
from fastscribe.config import Options
from fastscribe.device import host_array, launching
from fastscribe.engine import Engine, Outcome
from fastscribe.recognizer import Recognizer, to_stderr
from fastscribe.segment import split
from fastscribe.stats import RunStats, Stopwatch, list_price
from fastscribe.types import AudioInfo, Failure, Hypothesis, Transcript, Utterance
from fastscribe.windows import Windows

Prepared = tuple[Utterance, ...] | Failure  # a recording's utterances, or why there are none

_BATCHES_AHEAD = 2
_BATCHES_PER_WINDOW = 64
_SPLITTING_AHEAD = 4  # long recordings a thread, being read for where to cut them
_DEFAULTS = Options()

Parts = list[tuple[Utterance, Hypothesis]]


@dataclass
class Progress:
    """What a run has done so far; read by progress bars and reports while the run writes it."""

    files: int = 0
    failed: int = 0
    audio_s: float = 0.0  # of files transcribed
    planned_s: float = 0.0  # of files probed
    padded_frames: int = 0
    real_frames: int = 0
    stopwatch: Stopwatch = field(default_factory=Stopwatch)


class Transcriber:
    """A loaded model and the options of its runs. `transcribe` may be called any number of times, one run at a time."""

    def __init__(self, checkpoint: Checkpoint, engine: Engine, options: Options, load_s: float) -> None:
        self.config = checkpoint.config
        self.tokenizer = checkpoint.tokenizer
        self.engine = engine
        self.recognizer = engine.recognizer
        self.options = options
        self.load_s = load_s
        self.progress = Progress()
        self._auto_budget: Budget | None = None
        self._threads = options.threads or default_threads()

    @classmethod
    def load(
        cls,
        model: str | Path,
        device: str = "auto",
        dtype: str = "auto",
        options: Options = _DEFAULTS,
        say: Callable[[str], None] = to_stderr,
    ) -> Transcriber:
        """Loads a checkpoint: a .nemo file, a Hugging Face folder or a fastscribe folder.

        `say` is given one line for each fast path that this machine turned out not to have. Raises CheckpointError or
        UsageError (both ValueError) for a model, device, dtype, decoder or graph mode that cannot be had.
        """
        start = perf_counter()
        checkpoint = read_checkpoint(model)
        recognizer = Recognizer.build(checkpoint, device, dtype, options, say)
        checkpoint = replace(checkpoint, weights={})  # the model owns them now
        return cls(checkpoint, Engine(recognizer), options, perf_counter() - start)

    def transcribe(
        self, inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    ) -> Generator[Transcript | Failure]:
        """Files, folders, globs, NeMo manifests or "-" (paths on stdin) -> results in order of completion."""
        self.progress = Progress()
        self.engine.stopwatch = self.progress.stopwatch
        self.engine.budget = self._budget()
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
        probed = probe_all(expand(os.fspath(path) for path in given), self._threads)
        with closing(Windows(self._split_all(probed), _seconds, self.options.window, self._window_s())) as windows:
            yield from self._count(self._results(windows))

    def _budget(self) -> Budget:
        """What a batch may hold; anything where only the number of rows is limited."""
        asked = self.options.batch_frames
        if isinstance(asked, int):
            return Budget(asked)
        if asked is None and self.options.batch_size is not None:
            return Budget(math.inf)
        if self._auto_budget is None:  # kept, with what it has learnt, for later runs
            self._auto_budget = self.recognizer.choose_budget()
        return self._auto_budget

    def _window_s(self) -> float:
        """Hours of audio close a window early: sorting spreads a long recording's parts over the whole window, so its
        transcript leaves near the window's end."""
        if math.isfinite(self.engine.budget.frames):
            return _BATCHES_PER_WINDOW * self.engine.budget.frames * self.config.frame_s
        longest_s = self.options.max_utterance_s or Options.max_utterance_s
        return _BATCHES_PER_WINDOW * (self.options.batch_size or 1) * longest_s

    def _split_all(self, probed: Generator[AudioInfo | Failure, None, None]) -> Generator[Prepared, None, None]:
        """Recordings as their utterances, in order. Only those that must be cut are read here, in threads."""
        waiting: deque[Future[Prepared]] = deque()
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="split")
        with closing(probed):
            try:
                for item in probed:
                    if not waiting and not self._must_be_cut(item):
                        yield self._split(item)
                        continue
                    waiting.append(pool.submit(self._split, item))
                    while waiting and (waiting[0].done() or len(waiting) > _SPLITTING_AHEAD * self._threads):
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _must_be_cut(self, item: AudioInfo | Failure) -> bool:
        return isinstance(item, AudioInfo) and 0 < self.options.max_utterance_s < item.duration_s

    def _split(self, item: AudioInfo | Failure) -> Prepared:
        if isinstance(item, Failure):
            return item
        try:
            return split(item, self.options.max_utterance_s, self.options.channel)
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(item, "split", error)

    def _count(self, results: Iterable[Transcript | Failure]) -> Iterator[Transcript | Failure]:
        for result in results:
            self.progress.files += 1
            if isinstance(result, Failure):
                self.progress.failed += 1
            else:
                self.progress.audio_s += result.audio.duration_s
            yield result  # a caller that cannot write it says so with `not_written`

    def not_written(self, transcript: Transcript) -> None:
        """Counts a transcript that was made and could not be kept as failed."""
        self.progress.failed += 1
        self.progress.audio_s -= transcript.audio.duration_s

    def _results(self, windows: Windows[Prepared]) -> Iterator[Transcript | Failure]:
        pending = _Pending()
        loaded = load_batches(
            self._plans(windows, pending),
            sample_rate=self.config.features.sample_rate,
            channel=self.options.channel,
            threads=self._threads,
            ahead=_BATCHES_AHEAD,
            allocate=partial(host_array, device=self.recognizer.device),
            native=self.recognizer.device.type == "cuda",
        )
        with closing(loaded), closing(self.engine), launching(self.recognizer.device):
            while True:
                with self.progress.stopwatch.time("wait_for_audio"):
                    item = next(loaded, None)
                yield from pending.take_failures()
                if item is None:
                    break
                batch, failures = item
                for utterance, failure in failures:
                    yield from self._finished(pending.add(utterance, failure))
                # Without a batch there is nothing to do at present, so nothing under way should wait for the next.
                yield from self._texts(self.engine.drain() if batch is None else self.engine.push(batch), pending)
            yield from self._texts(self.engine.drain(), pending)

    def _plans(self, windows: Windows[Prepared], pending: _Pending) -> Iterator[tuple[Utterance, ...]]:
        """Batches to load; an empty one when the inputs let the model wait."""
        for window in windows:
            utterances = [utterance for item in window for utterance in pending.expect(item)]
            self.progress.planned_s += sum(map(_seconds, window))
            if not window:
                yield ()
            yield from batching.plan(utterances, self._num_frames, self.engine.budget, self.options.batch_size)

    def _num_frames(self, utterance: Utterance) -> int:
        return self.config.num_frames(utterance.duration_s)

    def _texts(self, outcomes: Iterable[Outcome], pending: _Pending) -> Iterator[Transcript | Failure]:
        for batch, outcome in outcomes:
            if isinstance(outcome, Exception):
                for utterance in batch.utterances:
                    yield from self._finished(pending.add(utterance, to_failure(utterance.audio, "model", outcome)))
                continue
            lengths = [self._num_frames(utterance) for utterance in batch.utterances]
            self.progress.real_frames += sum(lengths)
            self.progress.padded_frames += len(lengths) * max(lengths)
            for utterance, hypothesis in zip(batch.utterances, outcome, strict=True):
                yield from self._finished(pending.add(utterance, hypothesis))

    def _finished(self, parts: Parts | Failure | None) -> Iterator[Transcript | Failure]:
        """What there is to say of a recording after one more of its utterances: often nothing yet."""
        if isinstance(parts, Failure):
            yield parts
        elif parts is not None:
            yield self._assemble(parts[0][0].audio, parts)

    def _assemble(self, audio: AudioInfo, parts: Parts) -> Transcript | Failure:
        is_tdt = self.recognizer.decoder_name == "tdt"
        try:
            with self.progress.stopwatch.time("assemble"):
                return transcript.assemble(audio, parts, self.tokenizer, self.config.frame_s, is_tdt)
        except Exception as error:  # see _split
            return to_failure(audio, "assemble", error)


def _seconds(item: Prepared) -> float:
    return 0.0 if isinstance(item, Failure) else item[0].audio.duration_s


class _Pending:
    """Recordings that still wait for utterances. One that fails leaves at once; its other parts are dropped."""

    def __init__(self) -> None:
        # By identity, since two inputs may be equal; the recording is kept so that its identity stays taken.
        self._waiting: dict[int, tuple[AudioInfo, int, Parts]] = {}
        self._failures: list[Failure] = []

    def expect(self, item: Prepared) -> tuple[Utterance, ...]:
        """The utterances to transcribe of a recording; none of one that has failed already."""
        if isinstance(item, Failure):
            self._failures.append(item)
            return ()
        self._waiting[id(item[0].audio)] = item[0].audio, len(item), []
        return item

    def take_failures(self) -> list[Failure]:
        """Recordings that failed before they had utterances, each once."""
        failures, self._failures = self._failures, []
        return failures

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> Parts | Failure | None:
        """All parts when this was the last one missing, the Failure when it is the file's first, else None."""
        key = id(utterance.audio)
        if key not in self._waiting:
            return None
        _, expected, parts = self._waiting[key]
        if isinstance(outcome, Failure):
            del self._waiting[key]
            return outcome
        parts.append((utterance, outcome))
        if len(parts) < expected:
            return None
        del self._waiting[key]
        return parts


def run_stats(transcriber: Transcriber, wall_s: float, price_per_hour: float | None) -> RunStats:
    """The report of the transcriber's last run."""
    import torch

    from fastscribe import __version__

    progress, recognizer = transcriber.progress, transcriber.recognizer
    price = None if price_per_hour is not None else list_price(recognizer.device_name)
    return RunStats(
        files=progress.files,
        failed=progress.failed,
        audio_s=progress.audio_s,
        load_s=transcriber.load_s,
        wall_s=wall_s,
        stage_s=dict(progress.stopwatch.seconds),
        padded_frames=progress.padded_frames,
        real_frames=progress.real_frames,
        peak_bytes=recognizer.peak_bytes(),
        device=recognizer.device_name,
        dtype=recognizer.dtype,
        usd_per_hour=price.usd_per_hour if price else price_per_hour,
        price_source=price.cited if price else "--price-per-hour" if price_per_hour is not None else None,
        versions={"fastscribe": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
