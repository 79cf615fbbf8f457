"""One run: a stream of inputs becomes a stream of transcripts, in order of completion.

    sources -> windows -> batches -> (executor) -> outcomes -> recordings -> (gap recovery) -> results
      probe, split      plan     load, encode, decode         assemble, merge

While the model works on one window of inputs, threads probe and cut the next one and read audio for the next batches. A
transcript leaves as soon as its last utterance is decoded; the run keeps nothing of it. An input that fails becomes a Failure.

windows.py prepares the inputs, and recordings.py makes transcripts of utterances. An executor (executor.py) loads, encodes and
decodes the planned batches, on one device or on several.

Threads: the caller's; one that iterates over the sources; a pool that prepares inputs and searches gaps, with a thread that
replaces hung ones; the executor's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from fastscribe.audio.failures import to_failure
from fastscribe.audio.remote_file import forget_objects
from fastscribe.audio.sound_file_cache import close_held
from fastscribe.config import ModelConfig, Options
from fastscribe.context.language_filter import LanguageFilter
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import Executor, Plan
from fastscribe.pipeline.idle import IDLE, Idle
from fastscribe.pipeline.loader import default_threads
from fastscribe.pipeline.preparation import Preparation
from fastscribe.pipeline.recordings import RecordingsInFlight
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.text_stage import TextStage
from fastscribe.pipeline.texts import LocalTexts, Texts
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.time_limit import TimeLimit
from fastscribe.pipeline.windows import AttachText, InputWindows, Ledger, Window, work_s
from fastscribe.readable.edits import TextEdits
from fastscribe.speakers.config import VoiceModelConfig
from fastscribe.speakers.rttm import RttmTurns
from fastscribe.speakers.voice_spans import MAX_STRETCH_S
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Failure, Hypothesis, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.alignment.text_aligner import TextAligner
    from fastscribe.audio.given import Inputs

_BATCHES_PER_WINDOW = 64
_IDLE_S = 0.25  # the longest wait of what is to be decoded again for the next window, or for others
# Frames of a speaker model's batch on a CPU: four recordings, two for each of two cores, which read all weights for each chunk.
_SPEAKER_FRAMES = 2500
_LARGEST_CPU_BATCH = 2 * _SPEAKER_FRAMES
_MAX_HELD_BYTES, _BYTES_PER_SAMPLE = 2 << 30, 4  # of recordings that a speaker model sees, which are held as a whole


class Watcher(Protocol):
    """Observes every decoded batch. Called by the thread that drives the model."""

    def batch(self, utterances: Sequence[Utterance], num_frames: Sequence[int]) -> None:
        """Receive a decoded batch's utterances and their lengths in encoder frames."""


class Run:
    """The threads of one transcribe() call and the recordings in flight. close() stops the threads.

    Args:
        config: The model's config.
        tokenizer: The model's tokenizer.
        executor: Decodes the batches. close() ends its part of the run.
        options: The run's options.
        recover_gaps: Decode speech without words again.
        progress: Counts the run.
        watcher: Observes every decoded batch.
        limit: Ends the run early.
        edits: Changes the texts of the results.
        languages: Has the language that each recording is kept to; None: of none.
        rttm: Has the turns of each recording's speakers (Options.rttm).
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        executor: Executor,
        options: Options,
        recover_gaps: bool,
        progress: Progress,
        watcher: Watcher | None = None,
        limit: TimeLimit | None = None,
        edits: TextEdits | None = None,
        languages: LanguageFilter | None = None,
        rttm: RttmTurns | None = None,
    ) -> None:
        by_phrase = options.max_utterance_s is None and config.learnt_on_short
        self._max_utterance_s = config.max_utterance_s if options.max_utterance_s is None else options.max_utterance_s
        options = replace(options, max_utterance_s=self._max_utterance_s)
        self._config, self._executor, self._options = config, executor, options
        self._progress, self._watcher, self._limit, self._edits = progress, watcher, limit, edits
        self._max_held_s = math.inf
        threads = options.threads or default_threads()  # more once there are URLs
        # The executor has other threads: inputs that hang or take long to probe must not keep batches from being read.
        self._preparers = ReplacingThreadPool(threads, "prepare")
        self._speaker_model, self._voice_model = executor.facts.others.get("turns"), executor.facts.others.get("voices")
        if self._speaker_model is not None:
            self._max_held_s = _MAX_HELD_BYTES / _BYTES_PER_SAMPLE / config.features.sample_rate
        trusts = executor.opens_files
        preparation = Preparation(config, options, by_phrase, self._speaker_model, rttm, trusts_manifests=trusts)
        stage = TextStage(options, recover_gaps, tokenizer, executor.facts, rttm)
        # Speakers are known to this process alone.
        is_plain = rttm is None and self._speaker_model is None and self._voice_model is None
        elsewhere = executor.elsewhere(preparation, stage, edits) if is_plain else None
        inputs = None if elsewhere is None else elsewhere.inputs
        self._inputs = InputWindows(preparation, options, self._preparers, progress, inputs)
        self._inputs.languages = languages
        make: Callable[..., Texts] = partial(LocalTexts, stage) if elsewhere is None else elsewhere.make_texts
        make_texts = partial(make, self._preparers, progress.stopwatch)
        self._recordings = RecordingsInFlight(make_texts, progress, self._voice_model is not None)

    def align_texts(self, aligner: TextAligner, attach: AttachText) -> None:
        """Make results of known texts instead of the decoder's.

        Args:
            aligner: Aligns the recordings that a batch completes; the decoder gives it emissions.
            attach: Returns a source with its text, or the Failure of one without.
        """
        self._recordings.aligner, self._inputs.attach_text = aligner, attach
        self._max_held_s = aligner.max_held_s

    def close(self) -> None:
        """Drop what is in flight and stop the threads. A read in progress ends in the background."""
        self._inputs.close()
        self._executor.end()
        self._preparers.close()
        forget_objects()
        close_held()

    def results(self, inputs: Inputs, ledger: Ledger | None) -> Iterator[Transcript | Failure]:
        """Yield the results, counted, in order of completion. As Transcriber.transcribe().

        An error of a caller's iterator is raised at the end, after the results of the inputs before it.
        """
        yield from self._transcribe(self._with_voices(self._plan_windows(self.windows(inputs, ledger, waits=False))))
        if not self._is_stopped:  # else their recordings have no result
            yield from self._transcribe(self._with_voices(self.plan(self._recordings.utterances_to_recover())))
        # Even if the limit is reached: recordings that wait for their voices are decoded, and the executor begins what fits.
        yield from self._transcribe(self.plan(self._recordings.voices.take_utterances()))
        if self._inputs.error is not None:
            raise self._inputs.error

    def windows(
        self, inputs: Inputs, ledger: Ledger | None, hold: bool = True, waits: bool = True
    ) -> Iterator[Window | Idle]:
        """Yield the inputs, probed and split into utterances, in windows that are sorted together. Callable once.

        With a speaker model, `hold` reads each recording as a whole.
        """
        holds = hold and self._speaker_model is not None
        return self._inputs.read(inputs, ledger, self._max_window_s(), holds, waits)

    def plan(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, ...]]:
        """Yield batches of the utterances, longest first, within the executor's budget; then those for the other models."""
        given, budget, batch_size = list(utterances), self._executor.budget, self._options.batch_size
        words, turns, voices = (
            [one for one in given if one.purpose == purpose] for purpose in ("words", "turns", "voices")
        )
        yield from batching.plan(words, self.num_frames, budget, batch_size)
        # A speaker cache makes long recordings cost the same, but a batch holds their samples, padded to the longest.
        for group in batching.padded_within(turns, lambda one: one.duration_s, self._max_held_s / 2):
            yield from batching.plan(group, self._speaker_frames, self._speaker_budget(), batch_size)
        yield from batching.plan(voices, self._voice_frames, budget, batch_size)

    def num_frames(self, utterance: Utterance) -> int:
        """Return the utterance's length in encoder frames."""
        return self._config.num_frames(utterance.duration_s)

    def _speaker_budget(self) -> Budget:
        """Return the budget of the speaker model's batches; the user's if there is one."""
        budget, chosen = self._executor.budget, self._options.batch_frames
        is_chosen = self._options.batch_size is not None or chosen not in (None, "auto")
        if is_chosen or budget.frames > _LARGEST_CPU_BATCH:
            return budget
        return replace(budget, frames=_SPEAKER_FRAMES)

    def _speaker_frames(self, utterance: Utterance) -> int:
        """Return the most frames that the speaker model sees of an utterance at once."""
        assert self._speaker_model is not None
        return self._speaker_model.num_seen(round(utterance.duration_s * self._config.features.sample_rate))

    def _voice_frames(self, utterance: Utterance) -> int:
        """Return the frames of an utterance for the voice model."""
        assert self._voice_model is not None
        return self._voice_model.num_frames(round(utterance.duration_s * self._config.features.sample_rate))

    def _plan_windows(self, windows: Iterable[Window | Idle]) -> Iterator[tuple[Utterance, ...] | Idle]:
        """Yield batches of each window's utterances and of those that gap recovery has ready."""
        last_plan_at = perf_counter()
        for window in windows:
            if window is IDLE:
                yield IDLE
                if perf_counter() - last_plan_at < _IDLE_S:  # else each utterance would be a batch of its own
                    continue
                last_plan_at = perf_counter()
                waiting = [*self._recordings.utterances_to_recover(), *self._recordings.voices.take_utterances()]
                yield from self.plan(waiting)
                continue
            last_plan_at = perf_counter()
            for part in self._parts(window):
                utterances = self._recordings.begin(part)
                yield from self.plan([*utterances, *self._recordings.utterances_to_recover()])
            if self._is_stopped:
                return

    def _with_voices(self, plans: Iterable[Plan | Idle]) -> Iterator[Plan | Idle]:
        """Yield the batches, and before each one those of voices, once these fill a batch or keep much in memory."""
        for plan in plans:
            if self._voice_model is not None:
                batch_s, max_held_s = self._voice_batch_s(self._voice_model), self._max_held_s / 4
                yield from self.plan(self._recordings.voices.take_utterances(batch_s, max_held_s))
            yield plan

    def _voice_batch_s(self, model: VoiceModelConfig) -> float:
        """Return the seconds of speech that fill a batch for the voice model."""
        frames = self._executor.budget.frames
        return frames * model.frame_s if math.isfinite(frames) else (self._options.batch_size or 1) * MAX_STRETCH_S

    @property
    def _is_stopped(self) -> bool:
        return self._limit is not None and self._limit.is_reached

    def _parts(self, window: Window) -> Iterable[Window]:
        """Return the window; in a run with a limit, parts of it that fit, without recordings that do not."""
        if self._limit is None:
            return [window]
        probe_s = self._max_window_s() / _BATCHES_PER_WINDOW
        return self._limit.parts(window, work_s, self._recordings.undone_s, probe_s)

    def _transcribe(self, plans: Iterable[Plan | Idle]) -> Iterator[Transcript | Failure]:
        """Decode the batches; yield the recordings that they complete."""
        with closing(self._executor.execute(plans)) as outcomes:
            for outcome in outcomes:
                self._inputs.count_queued()
                if outcome is not IDLE:
                    utterances, results = outcome
                    self._count_frames(utterances, results)
                    for utterance, result in zip(utterances, self._recordings.texts.rows(results), strict=True):
                        self._recordings.add(utterance, result)
                        if self._recordings.finished:
                            yield from self._take_finished()  # at once: many transcripts together would leave the CPU's cache
                self._recordings.flush()
                yield from self._take_finished()
        self._recordings.flush()  # those without sound have no batch
        yield from self._take_finished()
        while self._recordings.texts.wait():
            yield from self._take_finished()

    def _count_frames(self, utterances: Sequence[Utterance], results: Sequence[Hypothesis | Failure]) -> None:
        if isinstance(results[0], Failure) or utterances[0].purpose != "words":
            return
        self._progress.first_batch_at = self._progress.first_batch_at or perf_counter()
        lengths = [self.num_frames(utterance) for utterance in utterances]
        self._progress.real_frames += sum(lengths)
        self._progress.padded_frames += len(lengths) * max(lengths)
        if self._watcher is not None:
            self._watcher.batch(utterances, lengths)

    def _take_finished(self) -> Iterator[Transcript | Failure]:
        """Yield the finished recordings, counted, each once."""
        for result in self._recordings.take_finished():
            self._executor.release(result.index)
            result = self._edited(result)
            self._progress.count(result)
            yield result  # a caller that cannot write it calls progress.not_written()

    def _edited(self, result: Transcript | Failure) -> Transcript | Failure:
        """Return a result with its text changed as the options ask."""
        if self._edits is None or (self._recordings.texts.is_finished and isinstance(result, Transcript)):
            return result
        try:
            with self._progress.stopwatch.time("assemble"):
                return self._edits.apply(result)
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            assert isinstance(result, Transcript)
            return self._edits.apply(to_failure(result.audio, "assemble", error))

    def _max_window_s(self) -> float:
        """Return the seconds of audio that fill a window.

        Utterances of a long recording are spread over its whole window by length, so its transcript leaves only near the end.
        """
        frames = self._executor.budget.frames
        most_s = self._max_held_s / 2  # of two windows
        if math.isfinite(frames):
            return min(most_s, _BATCHES_PER_WINDOW * frames * self._config.frame_s)
        longest_s = self._max_utterance_s or self._config.max_utterance_s
        return min(most_s, _BATCHES_PER_WINDOW * (self._options.batch_size or 1) * longest_s)
