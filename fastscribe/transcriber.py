"""The transcriber: a stream of inputs becomes a stream of transcripts, in order of completion.

    inputs -> probe -> split -> plan -> load -> features -> encode -> decode -> assemble

While the model works on one window of inputs, threads probe and cut the next one and read audio for the next batches. A
transcript leaves as soon as its last utterance is decoded; the transcriber keeps nothing of it. A manifest row that states
its duration enters a batch unopened, and the loader probes its file. An input that fails becomes a Failure.
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
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, Hypothesis, Source, Transcript, Utterance

PreparedInput = tuple[Utterance, ...] | Failure  # a recording's utterances, or why there are none

_BATCHES_AHEAD = 2
_BATCHES_PER_WINDOW = 64
_MAX_TRUSTED_S = 86_400.0  # a longer duration is looked at, where utterances may be of any length
_DEFAULTS = Options()

DecodedUtterances = list[DecodedUtterance]


class Ledger(Protocol):
    """Decides which inputs this run transcribes."""

    def expect(self, source: Source | Failure) -> bool:
        """Return False if the input belongs to another shard.

        Called once per input, in order of index, from one thread.
        """

    def is_done(self, source: Source | Failure) -> bool:
        """Return True if an earlier run has transcribed the input.

        Called from several threads, before the input is opened.
        """


class Watcher(Protocol):
    """Observes every decoded batch. Called by the thread that drives the model."""

    def batch(self, utterances: Sequence[Utterance], num_frames: Sequence[int]) -> None:
        """Receive a decoded batch's utterances and their lengths in encoder frames."""


@dataclass
class Progress:
    """Counts of the current run. Progress bars and reports read it while the run writes it."""

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
    """A loaded model and the options of its runs.

    Call transcribe() any number of times, one run at a time. After a run, `progress` holds its counts and run_stats() its
    report.
    """

    def __init__(self, checkpoint: Checkpoint, engine: Engine, options: Options, load_s: float) -> None:
        """Make a transcriber of parts that are loaded already; load() is the usual way.

        Args:
            checkpoint: The model's config and tokenizer; its weights may be gone.
            engine: Runs the recognizer that was built from the checkpoint.
            options: Options of every run.
            load_s: Seconds that loading took, for the report.
        """
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
        """Load a model.

        Args:
            model: A .nemo file, a Hugging Face folder or a fastscribe folder.
            device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
            dtype: "auto", "fp32", "bf16", "int8" (CPU) or "fp8" (GPU).
            options: Options of every run.
            say: Called with one line for each fast path that is unavailable on this machine, and for a .nemo file that is
                used instead of the folder around it.

        Returns:
            A transcriber whose model is on its device.

        Raises:
            CheckpointError: The model is missing, unsafe, unsupported or does not match its config.
            UsageError: The device, dtype, decoder, graph mode or detector is unavailable here.
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
        """Transcribe recordings and yield results in order of completion.

        Close the generator to cancel the run. A recording that fails is yielded as a Failure and the run goes on.

        Args:
            inputs: One input or several: audio files, folders, glob patterns, NeMo manifests (.json, .jsonl), or "-" for
                paths on stdin, one a line.
            ledger: Decides which inputs belong to this run and are not done; the others are not opened and have no result.
                None: transcribe all.

        Yields:
            A Transcript, or a Failure with the stage that failed; `index` is the recording's position among the inputs, from
            0. Times are in seconds.

        Raises:
            DeviceFailed: The GPU is lost.
            UsageError: A graph mode that was asked for by name is unavailable.
        """
        with closing(self.prepare_inputs(inputs, ledger)) as windows:
            yield from self._count_results(self._results(windows))

    def prepare_inputs(
        self, inputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], ledger: Ledger | None
    ) -> SortBuffer[PreparedInput]:
        """Start a run and return its inputs, probed and split into utterances, in windows that are sorted together.

        Resets `progress` and the engine's budget. Close the result to stop its threads.

        Args:
            inputs: As in transcribe().
            ledger: As in transcribe().
        """
        self.progress = Progress()
        self.engine.stopwatch = self.progress.stopwatch
        self.engine.budget = self._budget()
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
        sources = _expected_sources(expand(os.fspath(path) for path in given), ledger)
        prepared = _skip_done(
            prefetch_map(partial(self._prepare, ledger), sources, self._threads, "probe"), self.progress
        )
        return SortBuffer(prepared, _duration_s, self.options.window, self._max_window_s())

    def plan(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, ...]]:
        """Yield batches of the utterances, longest first, within the engine's budget."""
        return batching.plan(utterances, self.num_frames, self.engine.budget, self.options.batch_size)

    def _budget(self) -> Budget:
        """Return the budget of a batch; infinite if only the number of rows is limited."""
        asked = self.options.batch_frames
        if isinstance(asked, int):
            return Budget(asked)
        if asked is None and self.options.batch_size is not None:
            return Budget(math.inf)
        if self._auto_budget is None:  # kept, with what it has learnt, for later runs
            self._auto_budget = self.recognizer.choose_budget()
        return self._auto_budget

    def _max_window_s(self) -> float:
        """Return the seconds of audio that fill a window.

        Utterances of a long recording are spread over its whole window by length, so its transcript leaves only near the end.
        """
        if math.isfinite(self.engine.budget.frames):
            return _BATCHES_PER_WINDOW * self.engine.budget.frames * self.config.frame_s
        longest_s = self.options.max_utterance_s or Options.max_utterance_s
        return _BATCHES_PER_WINDOW * (self.options.batch_size or 1) * longest_s

    def _prepare(self, ledger: Ledger | None, source: Source | Failure) -> PreparedInput | None:
        """Probe and split one input. Return None if an earlier run has done it. Called from several threads."""
        if ledger is not None and ledger.is_done(source):
            return None
        if isinstance(source, Failure):
            return source
        stage = "probe"
        try:
            if self._trusts_manifest(source):
                audio = planned(source, self.config.features.sample_rate)
                return (Utterance(audio, 0, audio.num_samples),)
            audio = probe(source)
            stage = "split"  # only what must be cut is read here
            options = self.options
            return split(audio, options.max_utterance_s, options.channel, self.config.frame_s, options.vad)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            return to_failure(source, stage, error)

    def _trusts_manifest(self, source: Source) -> bool:
        """Return True if the manifest states a duration that is short enough for one utterance."""
        longest_s = self.options.max_utterance_s or _MAX_TRUSTED_S
        return source.duration_s is not None and source.duration_s <= longest_s

    def _count_results(self, results: Iterable[Transcript | Failure]) -> Iterator[Transcript | Failure]:
        for result in results:
            self.progress.files += 1
            if isinstance(result, Failure):
                self.progress.failed += 1
            else:
                self._count_transcript(result, 1)
            yield result  # a caller that cannot write it says so with `not_written`

    def not_written(self, transcript: Transcript) -> None:
        """Count a transcript as failed because it could not be written."""
        self.progress.failed += 1
        self._count_transcript(transcript, -1)

    def _count_transcript(self, transcript: Transcript, sign: int) -> None:
        progress, recovered = self.progress, [segment for segment in transcript.segments if segment.recovered]
        progress.audio_s += sign * transcript.audio.duration_s
        progress.gaps += sign * len(transcript.gaps)
        progress.gap_s += sign * sum(gap.end_s - gap.start_s for gap in transcript.gaps)
        progress.recovered_words += sign * sum(len(segment.words) for segment in recovered)
        progress.recovered_s += sign * sum(segment.end_s - segment.start_s for segment in recovered)

    def _results(self, windows: SortBuffer[PreparedInput]) -> Iterator[Transcript | Failure]:
        pending = _PendingRecordings(GapRecovery(self.options, self.recovers_gaps, self._threads))
        with closing(pending.recovery), closing(self.engine), short_switch_interval(self.recognizer.device):
            yield from self._run_batches(self._planned_batches(windows, pending), pending)
            while pending.is_recovering:
                yield from self._collect_candidates(pending, wait=True)
                yield from self._run_batches(self.plan(pending.take_candidates()), pending)

    def _run_batches(
        self, plans: Iterator[tuple[Utterance, ...]], pending: _PendingRecordings
    ) -> Iterator[Transcript | Failure]:
        """Load, encode and decode the batches; yield the recordings that they complete."""
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
                yield from self._collect_candidates(pending, wait=False)
                if item is None:
                    break
                batch, failures = item
                for utterance, failure in failures:
                    yield from self._on_utterance_done(pending, pending.add(utterance, failure))
                # Without a batch there is nothing to do at present, so nothing under way should wait for the next.
                yield from self._collect_outcomes(
                    self.engine.drain() if batch is None else self.engine.push(batch), pending
                )
            yield from self._collect_outcomes(self.engine.drain(), pending)

    def _planned_batches(
        self, windows: SortBuffer[PreparedInput], pending: _PendingRecordings
    ) -> Iterator[tuple[Utterance, ...]]:
        """Yield batches to load; an empty one if no input is ready, so that the engine finishes what is in flight."""
        for window in windows:
            utterances = [utterance for item in window for utterance in pending.expect(item)]
            self.progress.planned_s += sum(map(_duration_s, window))
            if not window:
                yield ()
            yield from self.plan([*utterances, *pending.take_candidates()])

    def num_frames(self, utterance: Utterance) -> int:
        """Return the utterance's length in encoder frames."""
        return self.config.num_frames(utterance.duration_s)

    def _collect_outcomes(
        self, outcomes: Iterable[Outcome], pending: _PendingRecordings
    ) -> Iterator[Transcript | Failure]:
        for batch, outcome in outcomes:
            if isinstance(outcome, Exception):
                for utterance in batch.utterances:
                    yield from self._on_utterance_done(
                        pending, pending.add(utterance, to_failure(utterance.audio, "model", outcome))
                    )
                continue
            lengths = [self.num_frames(utterance) for utterance in batch.utterances]
            self.progress.real_frames += sum(lengths)
            self.progress.padded_frames += len(lengths) * max(lengths)
            if self.watcher is not None:
                self.watcher.batch(batch.utterances, lengths)
            for utterance, hypothesis in zip(batch.utterances, outcome, strict=True):
                yield from self._on_utterance_done(pending, pending.add(utterance, hypothesis))

    def _on_utterance_done(
        self, pending: _PendingRecordings, parts: DecodedUtterances | Failure | None
    ) -> Iterator[Transcript | Failure]:
        """Yield the recording's result if `parts` completes it."""
        if isinstance(parts, Failure):
            candidate = pending.candidates.pop(parts.index, None)  # recovery failed; the words from before it stand
            yield parts if candidate is None else candidate.with_gaps(candidate.transcript, ())
        elif parts is not None:
            audio = parts[0][0].audio
            candidate = pending.candidates.pop(audio.index, None)
            result = self._assemble(audio, parts) if candidate is None else self._assemble_recovered(candidate, parts)
            if candidate is not None or isinstance(result, Failure) or not pending.recovery.submit(result, parts):
                yield result

    def _collect_candidates(self, pending: _PendingRecordings, wait: bool) -> Iterator[Transcript | Failure]:
        """Yield the searched recordings that have nothing to decode again; queue the utterances of the others."""
        for candidate in pending.recovery.pop_searched(wait):
            if candidate.failure is not None:
                yield candidate.failure
            elif candidate.to_decode:
                pending.expect_candidate(candidate)
            else:
                yield candidate.with_gaps(candidate.transcript, ())

    def _assemble(
        self, audio: AudioInfo, parts: Sequence[DecodedUtterance], recovered: Sequence[DecodedUtterance] = ()
    ) -> Transcript | Failure:
        no_time, frame_s = self.recognizer.zero_duration_punctuation, self.recognizer.token_frame_s
        try:
            with self.progress.stopwatch.time("assemble"):
                return transcript.assemble(audio, parts, self.tokenizer, frame_s, no_time, recovered)
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)

    def _assemble_recovered(self, candidate: Candidate, decoded: Sequence[DecodedUtterance]) -> Transcript | Failure:
        result = self._assemble(candidate.transcript.audio, candidate.parts, decoded)
        return result if isinstance(result, Failure) else candidate.with_gaps(result, decoded)


def _expected_sources(sources: Iterable[Source | Failure], ledger: Ledger | None) -> Iterator[Source | Failure]:
    """Number the sources by position and yield those of this run."""
    for index, source in enumerate(sources):
        numbered = replace(source, index=index)
        if ledger is None or ledger.expect(numbered):
            yield numbered


def _skip_done(
    prepared: Generator[PreparedInput | None, None, None], progress: Progress
) -> Generator[PreparedInput, None, None]:
    with closing(prepared):
        for item in prepared:
            if item is None:
                progress.skipped += 1
            else:
                yield item


def _duration_s(item: PreparedInput) -> float:
    return 0.0 if isinstance(item, Failure) else item[0].audio.duration_s


class _PendingRecordings:
    """Recordings that wait for utterances. After a failed utterance, the recording's other utterances are dropped."""

    def __init__(self, recovery: GapRecovery) -> None:
        self.recovery = recovery
        self.candidates: dict[int, Candidate] = {}  # by place among the inputs: part of these is decoded again
        self._waiting: dict[int, tuple[int, DecodedUtterances]] = {}  # by place, too: parts due, parts here
        self._failures: list[Failure] = []
        self._to_decode_again: list[Utterance] = []

    @property
    def is_recovering(self) -> bool:
        return bool(self._to_decode_again) or self.recovery.is_waiting

    def expect_candidate(self, candidate: Candidate) -> None:
        self.candidates[candidate.transcript.audio.index] = candidate
        self._to_decode_again += self.expect(candidate.to_decode)

    def take_candidates(self) -> list[Utterance]:
        """Return the utterances to decode again, each once."""
        utterances, self._to_decode_again = self._to_decode_again, []
        return utterances

    def expect(self, item: PreparedInput) -> tuple[Utterance, ...]:
        """Return the utterances to transcribe; none if the recording has failed."""
        if isinstance(item, Failure):
            self._failures.append(item)
            return ()
        self._waiting[item[0].audio.index] = len(item), []
        return item

    def take_failures(self) -> list[Failure]:
        """Return the recordings that failed before they had utterances, each once."""
        failures, self._failures = self._failures, []
        return failures

    def add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> DecodedUtterances | Failure | None:
        """Return all utterances of the recording if this is the last, its Failure if it is the first failure, else None."""
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
    """Return the report of the transcriber's last run.

    Args:
        transcriber: The transcriber, after its run.
        wall_s: Seconds from the loaded model to the last row written.
        price_per_hour: USD an hour for the machine; None: the price list's entry for the device, if it has one.
    """
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
