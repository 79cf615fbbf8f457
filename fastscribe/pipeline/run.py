"""One run: a stream of inputs becomes a stream of transcripts, in order of completion.

    sources -> windows -> batches -> loaded batches -> outcomes -> recordings -> (gap recovery) -> results
      probe, split      plan        load            encode, decode          assemble

While the model works on one window of inputs, threads probe and cut the next one and read audio for the next batches. A
transcript leaves as soon as its last utterance is decoded; the run keeps nothing of it. A manifest row that states its
duration enters a batch unopened, and the loader probes its file. An input that fails becomes a Failure.

Threads: the caller's, which drives the model; one that iterates over the sources; a pool that reads batches and one that
prepares inputs and searches gaps, each with a thread that replaces hung ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from fastscribe.audio.failures import to_failure
from fastscribe.audio.given import all_of, sources
from fastscribe.audio.media import held_memory, is_held
from fastscribe.audio.probe import planned, probe
from fastscribe.audio.remote_file import RemoteFile, forget_objects
from fastscribe.audio.sound_file_cache import close_held
from fastscribe.config import ModelConfig, Options
from fastscribe.cuda.device import host_array, short_switch_interval
from fastscribe.pipeline import batching
from fastscribe.pipeline.alignment import TextAligner, held
from fastscribe.pipeline.engine import Engine, Outcome
from fastscribe.pipeline.gap_recovery import GapRecovery
from fastscribe.pipeline.idle import IDLE, Idle
from fastscribe.pipeline.loader import REMOTE_THREADS, Loaded, default_threads, load_batches
from fastscribe.pipeline.sort_buffer import SortBuffer
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.time_limit import TimeLimit
from fastscribe.segmentation.segment import split
from fastscribe.text import transcript
from fastscribe.text.nbest import nbest
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.types import AudioInfo, Failure, File, Hypothesis, Source, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs

AttachText = Callable[[Source | Failure], Source | Failure]
PreparedInput = tuple[Utterance, ...] | Failure  # a recording's utterances, or why there are none
Window = list[PreparedInput]

_BATCHES_AHEAD = 2
_BATCHES_PER_WINDOW = 64
MAX_WINDOW_BYTES = 512 << 20  # the caller's data in a window, while the model works on another
_MAX_TRUSTED_S = 86_400.0  # without a limit for utterances, files with a longer stated duration are probed first


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


class Run:
    """The threads of one transcribe() call and the recordings in flight. close() stops the threads.

    Args:
        config: The model's config.
        tokenizer: The model's tokenizer.
        engine: Runs the model, within its budget.
        options: The run's options.
        recover_gaps: Decode speech without words again.
        progress: Counts the run.
        watcher: Observes every decoded batch.
        limit: Ends the run early.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        engine: Engine,
        options: Options,
        recover_gaps: bool,
        progress: Progress,
        watcher: Watcher | None = None,
        limit: TimeLimit | None = None,
    ) -> None:
        self._by_phrase = options.max_utterance_s is None and config.learnt_on_short
        self._max_utterance_s = config.max_utterance_s if options.max_utterance_s is None else options.max_utterance_s
        options = replace(options, max_utterance_s=self._max_utterance_s)
        self._config, self._tokenizer, self._engine, self._options = config, tokenizer, engine, options
        self._progress, self._watcher, self._limit = progress, watcher, limit
        threads = options.threads or default_threads()  # more once there are URLs
        # Two pools: inputs that hang or take long to probe must not keep batches from being read.
        self._readers, self._preparers = ReplacingThreadPool(threads, "read"), ReplacingThreadPool(threads, "prepare")
        self._windows: SortBuffer[Source | Failure, PreparedInput] | None = None
        self._input_error: Exception | None = None
        self._last_data = 0  # id of the memory that the last source holds
        self._waiting: dict[int, tuple[int, list[DecodedUtterance]]] = {}  # by index: utterances expected, decoded
        self._undone_s: dict[int, float] = {}  # by index: audio of a recording in flight that is not decoded yet
        self._finished: deque[Transcript | Failure] = deque()
        self._recovery = GapRecovery(options, recover_gaps, self._preparers, self._finished.append)
        self._aligner: TextAligner | None = None
        self._attach_text: AttachText | None = None
        self._to_align: list[tuple[AudioInfo, Sequence[DecodedUtterance]]] = []  # decoded recordings

    def align_texts(self, aligner: TextAligner, attach: AttachText) -> None:
        """Make results of known texts instead of the decoder's.

        Args:
            aligner: Aligns the recordings that a batch completes; the decoder gives it emissions.
            attach: Returns a source with its text, or the Failure of one without.
        """
        self._aligner, self._attach_text = aligner, attach

    def close(self) -> None:
        """Drop what is in flight and stop the threads. A read in progress ends in the background."""
        if self._windows is not None:
            self._windows.close()
        self._readers.close()
        self._preparers.close()
        forget_objects()
        close_held()

    def results(self, inputs: Inputs, ledger: Ledger | None) -> Iterator[Transcript | Failure]:
        """Yield the results, counted, in order of completion. As Transcriber.transcribe().

        An error of a caller's iterator is raised at the end, after the results of the inputs before it.
        """
        with closing(self._engine), short_switch_interval(self._engine.recognizer.device):
            yield from self._transcribe(self._plan_windows(self.windows(inputs, ledger)))
            while self._recovery.wait_for_search():
                yield from self._take_finished()
            if not self._is_stopped:  # else their recordings have no result
                yield from self._transcribe(self.plan(self._utterances_to_recover()))
        if self._input_error is not None:
            raise self._input_error

    def windows(self, inputs: Inputs, ledger: Ledger | None) -> Iterator[Window | Idle]:
        """Yield the inputs, probed and split into utterances, in windows that are sorted together. Callable once."""
        options, progress = self._options, self._progress
        repeats = None if ledger is None else progress.repeats  # without a ledger each input gets a result
        found = self._with_threads(sources(self._until_error(inputs), progress.left_out, repeats))
        prepare = partial(self._prepare, ledger)
        expected = _expected_sources(found, ledger, options.track, self._attach_text)
        self._windows = SortBuffer(
            expected,
            prepare,
            _duration_s,
            self._preparers,
            options.window,
            self._max_window_s(),
            self._added_bytes,
            MAX_WINDOW_BYTES,
        )
        for window in self._windows:
            if window is not IDLE:
                self._progress.planned_files += len(window)
                self._progress.planned_s += sum(map(_duration_s, window))
            self._count_queued(self._windows)
            yield window
        self._count_queued(self._windows)

    def _with_threads(self, sources: Iterable[Source | Failure]) -> Iterator[Source | Failure]:
        """Pass the sources on; the first in a store starts the threads that wait for it."""
        for source in sources:
            if self._options.threads is None and isinstance(source, Source) and isinstance(source.file, RemoteFile):
                for pool in (self._readers, self._preparers):
                    pool.threads = max(pool.threads, REMOTE_THREADS)
            yield source

    def _added_bytes(self, source: Source | Failure) -> int:
        """Return the memory that a source adds to the ones before. Parts of the same data come one after another."""
        data, num_bytes = (0, 0) if isinstance(source, Failure) else held_memory(source.file)
        is_same, self._last_data = data == self._last_data, data
        return 0 if is_same else num_bytes

    def _until_error(self, inputs: Inputs) -> Iterator[Any]:
        """Yield the caller's inputs. The caller's error ends them."""
        try:
            yield from all_of(inputs)
        except Exception as error:  # anything that a caller's iterator raises
            self._input_error = error

    def plan(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, ...]]:
        """Yield batches of the utterances, longest first, within the engine's budget."""
        return batching.plan(utterances, self.num_frames, self._engine.budget, self._options.batch_size)

    def num_frames(self, utterance: Utterance) -> int:
        """Return the utterance's length in encoder frames."""
        return self._config.num_frames(utterance.duration_s)

    def load(
        self, plans: Iterable[Sequence[Utterance] | Idle], ahead: int = _BATCHES_AHEAD
    ) -> Generator[Loaded | Idle, None, None]:
        """Yield the planned batches with their samples, in memory that copies fast to the model's device."""
        device = self._engine.recognizer.device
        return load_batches(
            plans,
            pool=self._readers,
            sample_rate=self._config.features.sample_rate,
            channel=self._options.channel,
            ahead=ahead,
            allocate=partial(host_array, device=device),
            native=device.type == "cuda",
        )

    def _plan_windows(self, windows: Iterable[Window | Idle]) -> Iterator[tuple[Utterance, ...] | Idle]:
        """Yield batches of each window's utterances and of those that gap recovery has ready."""
        for window in windows:
            if window is IDLE:
                yield IDLE
                yield from self.plan(self._utterances_to_recover())
                continue
            for part in self._parts(window):
                self._undone_s |= {item[0].audio.index: _duration_s(item) for item in part if isinstance(item, tuple)}
                utterances = [utterance for item in part for utterance in self._expect(item)]
                yield from self.plan([*utterances, *self._utterances_to_recover()])
            if self._is_stopped:
                return

    @property
    def _is_stopped(self) -> bool:
        return self._limit is not None and self._limit.is_reached

    def _parts(self, window: Window) -> Iterable[Window]:
        """Return the window; in a run with a limit, parts of it that fit, without recordings that do not."""
        if self._limit is None:
            return [window]
        probe_s = self._max_window_s() / _BATCHES_PER_WINDOW
        return self._limit.parts(window, _duration_s, lambda: sum(self._undone_s.values()), probe_s)

    def _utterances_to_recover(self) -> list[Utterance]:
        found = self._recovery.take_utterances()
        return [utterance for utterances in found for utterance in self._expect(utterances)]

    def _expect(self, item: PreparedInput) -> tuple[Utterance, ...]:
        """Return the utterances to decode; none if the recording has failed or is silent."""
        if isinstance(item, Failure):
            self._finished.append(item)
            return ()
        if not item[0].num_samples:
            self._count_done(item[0].audio.index, math.inf)
            self._complete([(item[0], Hypothesis())])
            return ()
        self._waiting[item[0].audio.index] = len(item), []
        return item

    def _transcribe(self, plans: Iterable[tuple[Utterance, ...] | Idle]) -> Iterator[Transcript | Failure]:
        """Load and decode the batches; yield the recordings that they complete."""
        with closing(self.load(plans)) as batches:
            while True:
                with self._progress.stopwatch.time("wait_for_audio"):
                    loaded = next(batches, None)
                if self._windows is not None:
                    self._count_queued(self._windows)
                loaded = loaded if self._fits(loaded) else None
                for utterance, outcome in self._decode(loaded):
                    self._add(utterance, outcome)
                    yield from self._take_finished()  # at once: a batch's transcripts together would leave the CPU's cache
                self._align()
                yield from self._take_finished()
                if loaded is None:
                    return

    def _fits(self, loaded: Loaded | Idle | None) -> bool:
        """Return False if the run's limit allows no more work."""
        if self._limit is None or loaded is None:
            return True
        batch = None if loaded is IDLE else loaded[0]
        return self._limit.begin(0.0 if batch is None else batch.audio_s)

    def _decode(self, loaded: Loaded | Idle | None) -> Iterator[tuple[Utterance, Hypothesis | Failure]]:
        """Decode a batch; without one, finish all in flight, because the next one may take long or never come."""
        if loaded is None or loaded is IDLE:
            yield from self._decoded_utterances(self._engine.drain())
            return
        batch, failures = loaded
        yield from failures
        if batch is not None:
            yield from self._decoded_utterances(self._engine.push(batch))

    def _decoded_utterances(self, outcomes: Iterable[Outcome]) -> Iterator[tuple[Utterance, Hypothesis | Failure]]:
        for batch, outcome in outcomes:
            if self._limit is not None:
                self._limit.done(batch.audio_s)
            if isinstance(outcome, Exception):
                yield from (
                    (utterance, to_failure(utterance.audio, "model", outcome)) for utterance in batch.utterances
                )
                continue
            lengths = [self.num_frames(utterance) for utterance in batch.utterances]
            self._progress.real_frames += sum(lengths)
            self._progress.padded_frames += len(lengths) * max(lengths)
            if self._watcher is not None:
                self._watcher.batch(batch.utterances, lengths)
            yield from zip(batch.utterances, outcome, strict=True)

    def _add(self, utterance: Utterance, outcome: Hypothesis | Failure) -> None:
        """Add an utterance to its recording. After one that failed, the recording's others are dropped."""
        index = utterance.audio.index
        if index not in self._waiting:
            return
        expected, parts = self._waiting[index]
        if not isinstance(outcome, Failure):
            parts.append((utterance, outcome if self._aligner is None or expected == 1 else held(outcome)))
            if len(parts) < expected:
                self._count_done(index, utterance.duration_s)
                return
        del self._waiting[index]
        self._count_done(index, math.inf)
        candidate = self._recovery.pop_candidate(index)
        if isinstance(outcome, Failure):  # if the second decoding fails, the words of the first stay
            _release(utterance.audio.file if utterance.audio.unread is None else utterance.audio.unread.file)
            self._finished.append(outcome if candidate is None else candidate.with_gaps(candidate.transcript))
        elif candidate is None:
            self._complete(parts)
        else:
            result = self._assemble(candidate.transcript.audio, candidate.parts, parts)
            self._finished.append(result if isinstance(result, Failure) else candidate.with_gaps(result, parts))

    def _count_done(self, index: int, duration_s: float) -> None:
        """Count audio as done; gap recovery decodes what is counted already."""
        undone_s = self._undone_s.pop(index, 0.0)
        self._progress.done_s += min(duration_s, undone_s)
        if duration_s < undone_s:
            self._undone_s[index] = undone_s - duration_s

    def _count_queued(self, windows: SortBuffer[Source | Failure, PreparedInput]) -> None:
        progress = self._progress
        progress.skipped = windows.num_skipped
        progress.queued_files, progress.queued_s, progress.has_all = windows.queued()

    def _complete(self, parts: Sequence[DecodedUtterance]) -> None:
        """Assemble a recording that was decoded for the first time; gap recovery finishes it, or the aligner of texts."""
        if self._aligner is not None:
            self._to_align.append((parts[0][0].audio, parts))
            return
        result = self._assemble(parts[0][0].audio, parts)
        if isinstance(result, Failure):
            self._finished.append(result)
        else:
            self._recovery.submit(result, parts)

    def _align(self) -> None:
        """Align the recordings that wait for it, together."""
        if self._aligner is not None and self._to_align:
            recordings, self._to_align = self._to_align, []
            with self._progress.stopwatch.time("align"):
                self._finished += self._aligner.align(recordings)

    def _assemble(
        self, audio: AudioInfo, parts: Sequence[DecodedUtterance], recovered: Sequence[DecodedUtterance] = ()
    ) -> Transcript | Failure:
        recognizer = self._engine.recognizer
        no_time, frame_s = recognizer.zero_duration_punctuation, recognizer.token_frame_s
        try:
            with self._progress.stopwatch.time("assemble"):
                result = transcript.assemble(audio, parts, self._tokenizer, frame_s, no_time, recovered)
                if self._options.nbest is None:
                    return result
                return replace(result, nbest=nbest(parts, self._options.nbest, self._tokenizer, frame_s, no_time))
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(audio, "assemble", error)

    def _take_finished(self) -> Iterator[Transcript | Failure]:
        """Yield the finished recordings, counted, each once."""
        self._recovery.collect_searched()
        while self._finished:
            result = _released(self._finished.popleft())
            self._progress.count(result)
            yield result  # a caller that cannot write it calls progress.not_written()

    def _max_window_s(self) -> float:
        """Return the seconds of audio that fill a window.

        Utterances of a long recording are spread over its whole window by length, so its transcript leaves only near the end.
        """
        frames = self._engine.budget.frames
        most_s = math.inf if self._aligner is None else self._aligner.max_held_s / 2  # of two windows
        if math.isfinite(frames):
            return min(most_s, _BATCHES_PER_WINDOW * frames * self._config.frame_s)
        longest_s = self._max_utterance_s or self._config.max_utterance_s
        return min(most_s, _BATCHES_PER_WINDOW * (self._options.batch_size or 1) * longest_s)

    def _prepare(self, ledger: Ledger | None, source: Source | Failure) -> PreparedInput | None:
        """Probe and split one input. Return None if an earlier run has done it. Called from several threads."""
        if ledger is not None and ledger.is_done(source):
            return None
        if isinstance(source, Failure):
            return source
        stage = "probe"
        try:
            if self._trusts_manifest(source):
                audio = planned(source, self._config.features.sample_rate)
                return (Utterance(audio, 0, audio.num_samples),)
            audio = probe(source)
            stage = "split"  # reads samples only if the recording must be cut
            options = self._options
            frame_s, limit_s = self._config.frame_s, self._max_utterance_s
            return split(audio, limit_s, options.channel, frame_s, options.vad, self._by_phrase)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            _release(source.file)
            return to_failure(source, stage, error)

    def _trusts_manifest(self, source: Source) -> bool:
        """Return True if the manifest states a duration that is short enough for one utterance."""
        longest_s = self._max_utterance_s or _MAX_TRUSTED_S
        return source.duration_s is not None and source.duration_s <= longest_s


def _expected_sources(
    sources: Iterable[Source | Failure], ledger: Ledger | None, track: int | None, attach_text: AttachText | None = None
) -> Generator[Source | Failure, None, None]:
    """Number the sources by position, set the track of those that name none, and yield those of this run."""
    for index, source in enumerate(sources):
        numbered: Source | Failure = replace(source, index=index)
        if attach_text is not None:
            numbered = attach_text(numbered)
        if isinstance(numbered, Source) and numbered.track is None:
            numbered = replace(numbered, track=track)
        if ledger is None or ledger.expect(numbered):
            yield numbered


def _released(result: Transcript | Failure) -> Transcript | Failure:
    """Return the result without the caller's data, which would stay in memory with it."""
    if isinstance(result, Failure):
        return result
    _release(result.audio.file)
    return replace(result, audio=replace(result.audio, file="")) if is_held(result.audio.file) else result


def _release(file: File) -> None:
    """Free what reading a recording has left in memory."""
    if isinstance(file, RemoteFile):
        file.drop()  # the caller may keep the transcript
    elif is_held(file):
        close_held(file)


def _duration_s(item: PreparedInput) -> float:
    return 0.0 if isinstance(item, Failure) else item[0].audio.duration_s
