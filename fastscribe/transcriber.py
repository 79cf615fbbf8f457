"""The straight path over many files: inputs to transcripts, in windows, batches and order of completion.

    inputs -> probe -> split -> plan -> load -> features -> encode -> decode -> assemble

The next window of inputs is probed and cut while the model works on the last; audio loads in threads ahead of the model;
a file's transcript leaves as soon as its last utterance is decoded, and nothing of it stays behind. A manifest row that
says how long it is goes into a batch unopened: whoever loads it looks. Whatever fails becomes that file's Failure.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Protocol

from fastscribe.audio.failures import to_failure
from fastscribe.audio.inputs import expand
from fastscribe.audio.probe import planned, probe
from fastscribe.checkpoint.reader import Checkpoint, read_checkpoint
from fastscribe.config import Options
from fastscribe.cuda.device import host_array, short_switch_interval
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.engine import Engine, Outcome
from fastscribe.pipeline.gap_recovery import Candidate, GapRecovery
from fastscribe.pipeline.loader import default_threads, load_batches
from fastscribe.pipeline.prefetch import prefetch_map
from fastscribe.pipeline.recognizer import Recognizer, to_stderr
from fastscribe.pipeline.sort_buffer import SortBuffer
from fastscribe.pipeline.stats import RunStats, Stopwatch
from fastscribe.report.prices import price_of
from fastscribe.segmentation.segment import split
from fastscribe.segmentation.vad import check_vad
from fastscribe.text import transcript
from fastscribe.text.transcript import Part
from fastscribe.types import AudioInfo, Failure, Hypothesis, Source, Transcript, Utterance

Prepared = tuple[Utterance, ...] | Failure  # a recording's utterances, or why there are none

_BATCHES_AHEAD = 2
_BATCHES_PER_WINDOW = 64
_BELIEVED_S = 86_400.0  # a longer duration is looked at, where utterances may be of any length
_DEFAULTS = Options()

Parts = list[Part]


class Ledger(Protocol):
    """Says which of the inputs are this run's to do."""

    def expect(self, source: Source | Failure) -> bool:
        """Called once an input, in order of index, from one thread. False: it is not this run's, but another shard's."""

    def is_done(self, source: Source | Failure) -> bool:
        """Called from several threads, before anything of the input is opened. True: an earlier run has done it."""


class Watcher(Protocol):
    """Is told of every batch whose results are here, from the thread that drives the model."""

    def batch(self, utterances: Sequence[Utterance], num_frames: Sequence[int]) -> None: ...


@dataclass
class Progress:
    """What a run has done so far; read by progress bars and reports while the run writes it."""

    files: int = 0
    failed: int = 0
    skipped: int = 0  # done by an earlier run, and not among `files`
    audio_s: float = 0.0  # of files transcribed
    planned_s: float = 0.0  # of files probed
    gaps: int = 0  # stretches with speech in which no words were found, in files transcribed
    gap_s: float = 0.0
    recovered_words: int = 0  # that gap recovery added, in files transcribed
    recovered_s: float = 0.0
    padded_frames: int = 0
    real_frames: int = 0
    stopwatch: Stopwatch = field(default_factory=Stopwatch)


class Transcriber:
    """A loaded model and the options of its runs. `transcribe` may be called any number of times, one run at a time."""

    def __init__(self, checkpoint: Checkpoint, engine: Engine, options: Options, load_s: float) -> None:
        self.config = checkpoint.config
        self.tokenizer = checkpoint.tokenizer
        self.has_random_weights = checkpoint.has_random_weights
        self.engine = engine
        self.recognizer = engine.recognizer
        self.options = options
        asked = options.recover_gaps
        self.recovers_gaps = self.recognizer.recovers_gaps if asked is None else asked
        self.load_s = load_s
        self.progress = Progress()
        self.watcher: Watcher | None = None
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

        `say` is given one line for each fast path that this machine turned out not to have, and one for a .nemo file that
        is used instead of the folder it lies in. Raises CheckpointError or UsageError (both ValueError) for a model,
        device, dtype, decoder or graph mode that cannot be had.
        """
        start = perf_counter()
        if options.vad == "silero":
            check_vad()
        checkpoint = read_checkpoint(model, say)
        recognizer = Recognizer.build(checkpoint, device, dtype, options, say)
        checkpoint = replace(checkpoint, weights={}, aligner=None)  # the models own them now
        return cls(checkpoint, Engine(recognizer), options, perf_counter() - start)

    def transcribe(
        self, inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], ledger: Ledger | None = None
    ) -> Generator[Transcript | Failure]:
        """Files, folders, globs, NeMo manifests or "-" (paths on stdin) -> results in order of completion.

        An input that the `ledger` says is not this run's, or is done, is not looked at and has no result.
        """
        with closing(self.windows(inputs, ledger)) as windows:
            yield from self._count(self._results(windows))

    def windows(
        self, inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], ledger: Ledger | None
    ) -> SortBuffer[Prepared]:
        """The first stages of a run, which this begins: inputs looked at, cut, and gathered."""
        self.progress = Progress()
        self.engine.stopwatch = self.progress.stopwatch
        self.engine.budget = self._budget()
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
        sources = _numbered(expand(os.fspath(path) for path in given), ledger)
        prepared = _not_done(
            prefetch_map(partial(self._prepare, ledger), sources, self._threads, "probe"), self.progress
        )
        return SortBuffer(prepared, _seconds, self.options.window, self._window_s())

    def plan(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, ...]]:
        """Batches of them, longest first."""
        return batching.plan(utterances, self.num_frames, self.engine.budget, self.options.batch_size)

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

    def _prepare(self, ledger: Ledger | None, source: Source | Failure) -> Prepared | None:
        """Up to where batches are planned; None for what an earlier run has done. Called from several threads."""
        if ledger is not None and ledger.is_done(source):
            return None
        if isinstance(source, Failure):
            return source
        stage = "probe"
        try:
            if self._needs_no_look(source):
                audio = planned(source, self.config.features.sample_rate)
                return (Utterance(audio, 0, audio.num_samples),)
            audio = probe(source)
            stage = "split"  # only what must be cut is read here
            options = self.options
            return split(audio, options.max_utterance_s, options.channel, self.config.frame_s, options.vad)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            return to_failure(source, stage, error)

    def _needs_no_look(self, source: Source) -> bool:
        """It says how long it is at most, which is not too long for one utterance."""
        longest_s = self.options.max_utterance_s or _BELIEVED_S
        return source.duration_s is not None and source.duration_s <= longest_s

    def _count(self, results: Iterable[Transcript | Failure]) -> Iterator[Transcript | Failure]:
        for result in results:
            self.progress.files += 1
            if isinstance(result, Failure):
                self.progress.failed += 1
            else:
                self._count_transcript(result, 1)
            yield result  # a caller that cannot write it says so with `not_written`

    def not_written(self, transcript: Transcript) -> None:
        """Counts a transcript that was made and could not be kept as failed."""
        self.progress.failed += 1
        self._count_transcript(transcript, -1)

    def _count_transcript(self, transcript: Transcript, sign: int) -> None:
        progress, recovered = self.progress, [segment for segment in transcript.segments if segment.recovered]
        progress.audio_s += sign * transcript.audio.duration_s
        progress.gaps += sign * len(transcript.gaps)
        progress.gap_s += sign * sum(gap.end_s - gap.start_s for gap in transcript.gaps)
        progress.recovered_words += sign * sum(len(segment.words) for segment in recovered)
        progress.recovered_s += sign * sum(segment.end_s - segment.start_s for segment in recovered)

    def _results(self, windows: SortBuffer[Prepared]) -> Iterator[Transcript | Failure]:
        pending = _Pending(GapRecovery(self.options, self.recovers_gaps, self._threads))
        with closing(pending.recovery), closing(self.engine), short_switch_interval(self.recognizer.device):
            yield from self._work(self._plans(windows, pending), pending)
            while pending.is_recovering:
                yield from self._searched(pending, wait=True)
                yield from self._work(self.plan(pending.take_candidates()), pending)

    def _work(self, plans: Iterator[tuple[Utterance, ...]], pending: _Pending) -> Iterator[Transcript | Failure]:
        """Batches through the model, and what becomes whole by them."""
        loaded = load_batches(
            plans,
            sample_rate=self.config.features.sample_rate,
            channel=self.options.channel,
            threads=self._threads,
            ahead=_BATCHES_AHEAD,
            allocate=partial(host_array, device=self.recognizer.device),
            native=self.recognizer.device.type == "cuda",
        )
        with closing(loaded):
            while True:
                with self.progress.stopwatch.time("wait_for_audio"):
                    item = next(loaded, None)
                yield from pending.take_failures()
                yield from self._searched(pending, wait=False)
                if item is None:
                    break
                batch, failures = item
                for utterance, failure in failures:
                    yield from self._finished(pending, pending.add(utterance, failure))
                # Without a batch there is nothing to do at present, so nothing under way should wait for the next.
                yield from self._texts(self.engine.drain() if batch is None else self.engine.push(batch), pending)
            yield from self._texts(self.engine.drain(), pending)

    def _plans(self, windows: SortBuffer[Prepared], pending: _Pending) -> Iterator[tuple[Utterance, ...]]:
        """Batches to load; an empty one when the inputs let the model wait."""
        for window in windows:
            utterances = [utterance for item in window for utterance in pending.expect(item)]
            self.progress.planned_s += sum(map(_seconds, window))
            if not window:
                yield ()
            yield from self.plan([*utterances, *pending.take_candidates()])

    def num_frames(self, utterance: Utterance) -> int:
        return self.config.num_frames(utterance.duration_s)

    def _texts(self, outcomes: Iterable[Outcome], pending: _Pending) -> Iterator[Transcript | Failure]:
        for batch, outcome in outcomes:
            if isinstance(outcome, Exception):
                for utterance in batch.utterances:
                    yield from self._finished(
                        pending, pending.add(utterance, to_failure(utterance.audio, "model", outcome))
                    )
                continue
            lengths = [self.num_frames(utterance) for utterance in batch.utterances]
            self.progress.real_frames += sum(lengths)
            self.progress.padded_frames += len(lengths) * max(lengths)
            if self.watcher is not None:
                self.watcher.batch(batch.utterances, lengths)
            for utterance, hypothesis in zip(batch.utterances, outcome, strict=True):
                yield from self._finished(pending, pending.add(utterance, hypothesis))

    def _finished(self, pending: _Pending, parts: Parts | Failure | None) -> Iterator[Transcript | Failure]:
        """What there is to say of a recording after one more of its utterances: often nothing yet."""
        if isinstance(parts, Failure):
            candidate = pending.candidates.pop(parts.index, None)  # recovery failed; the words from before it stand
            yield parts if candidate is None else candidate.with_gaps(candidate.transcript, ())
        elif parts is not None:
            audio = parts[0][0].audio
            candidate = pending.candidates.pop(audio.index, None)
            result = self._assemble(audio, parts) if candidate is None else self._assemble_again(candidate, parts)
            if candidate is not None or isinstance(result, Failure) or not pending.recovery.submit(result, parts):
                yield result

    def _searched(self, pending: _Pending, wait: bool) -> Iterator[Transcript | Failure]:
        """Recordings that were searched for gaps and have nothing to decode again; the others wait for that."""
        for candidate in pending.recovery.take(wait):
            if candidate.failure is not None:
                yield candidate.failure
            elif candidate.to_decode:
                pending.expect_again(candidate)
            else:
                yield candidate.with_gaps(candidate.transcript, ())

    def _assemble(
        self, audio: AudioInfo, parts: Sequence[Part], recovered: Sequence[Part] = ()
    ) -> Transcript | Failure:
        no_time, frame_s = self.recognizer.zero_duration_punctuation, self.recognizer.token_frame_s
        try:
            with self.progress.stopwatch.time("assemble"):
                return transcript.assemble(audio, parts, self.tokenizer, frame_s, no_time, recovered)
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)

    def _assemble_again(self, candidate: Candidate, decoded: Sequence[Part]) -> Transcript | Failure:
        result = self._assemble(candidate.transcript.audio, candidate.parts, decoded)
        return result if isinstance(result, Failure) else candidate.with_gaps(result, decoded)


def _numbered(sources: Iterable[Source | Failure], ledger: Ledger | None) -> Iterator[Source | Failure]:
    """Those of them that are this run's; each knows its place among all."""
    for index, source in enumerate(sources):
        numbered = replace(source, index=index)
        if ledger is None or ledger.expect(numbered):
            yield numbered


def _not_done(prepared: Generator[Prepared | None, None, None], progress: Progress) -> Generator[Prepared, None, None]:
    with closing(prepared):
        for item in prepared:
            if item is None:
                progress.skipped += 1
            else:
                yield item


def _seconds(item: Prepared) -> float:
    return 0.0 if isinstance(item, Failure) else item[0].audio.duration_s


class _Pending:
    """Recordings that still wait for utterances. One that fails leaves at once; its other parts are dropped."""

    def __init__(self, recovery: GapRecovery) -> None:
        self.recovery = recovery
        self.candidates: dict[int, Candidate] = {}  # by place among the inputs: part of these is decoded again
        self._waiting: dict[int, tuple[int, Parts]] = {}  # by place, too: parts due, parts here
        self._failures: list[Failure] = []
        self._to_decode_again: list[Utterance] = []

    @property
    def is_recovering(self) -> bool:
        return bool(self._to_decode_again) or self.recovery.is_waiting

    def expect_again(self, candidate: Candidate) -> None:
        self.candidates[candidate.transcript.audio.index] = candidate
        self._to_decode_again += self.expect(candidate.to_decode)

    def take_candidates(self) -> list[Utterance]:
        """Return the utterances to decode again, each once."""
        utterances, self._to_decode_again = self._to_decode_again, []
        return utterances

    def expect(self, item: Prepared) -> tuple[Utterance, ...]:
        """The utterances to transcribe of a recording; none of one that has failed already."""
        if isinstance(item, Failure):
            self._failures.append(item)
            return ()
        self._waiting[item[0].audio.index] = len(item), []
        return item

    def take_failures(self) -> list[Failure]:
        """Recordings that failed before they had utterances, each once."""
        failures, self._failures = self._failures, []
        return failures

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> Parts | Failure | None:
        """All parts when this was the last one missing, the Failure when it is the file's first, else None."""
        key = utterance.audio.index
        if key not in self._waiting:
            return None
        expected, parts = self._waiting[key]
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

    from fastscribe.version import __version__

    progress, recognizer = transcriber.progress, transcriber.recognizer
    usd_per_hour, price_source = price_of(recognizer.device_name, price_per_hour)
    return RunStats(
        files=progress.files,
        failed=progress.failed,
        audio_s=progress.audio_s,
        load_s=transcriber.load_s,
        wall_s=wall_s,
        stage_s=dict(progress.stopwatch.seconds),
        padded_frames=progress.padded_frames,
        real_frames=progress.real_frames,
        gaps=progress.gaps,
        gap_s=progress.gap_s,
        recovered_words=progress.recovered_words,
        recovered_s=progress.recovered_s,
        peak_bytes=recognizer.peak_bytes(),
        device=recognizer.device_name,
        dtype=recognizer.dtype,
        usd_per_hour=usd_per_hour,
        price_source=price_source,
        versions={"fastscribe": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )
