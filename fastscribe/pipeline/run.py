"""One run: a stream of inputs becomes a stream of transcripts, in order of completion.

    sources -> windows -> batches -> (executor) -> outcomes -> recordings -> results
      probe, split      plan     load, encode, decode         assemble, merge

While the model works on one window of inputs, threads probe and cut the next one and read audio for the next batches. A
transcript leaves as soon as its last utterance is decoded; the run keeps nothing of it. An input that fails becomes a Failure.

windows.py prepares the inputs, and recordings.py makes transcripts of utterances. An executor (executor.py) loads, encodes and
decodes the planned batches, on one device or on several.

Threads: the caller's; one that iterates over the sources; a pool that prepares inputs and searches gaps, with a thread that
replaces hung ones; the executor's own.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from fastscribe.audio.media import forget_media
from fastscribe.audio.sound import close_held
from fastscribe.config import Options
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import in_turn
from fastscribe.pipeline.executor import Executor, HostWork, Plan
from fastscribe.pipeline.interfaces import IDLE, Additions, Idle
from fastscribe.pipeline.loader import default_threads
from fastscribe.pipeline.preparation import Preparation, PreparedInput
from fastscribe.pipeline.recordings import RecordingsInFlight
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.text_stage import TextStage, edited, local_texts
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.pipeline.windows import InputWindows, Window, long_s
from fastscribe.types import WORDS, Failure, Hypothesis, Transcript, Utterance

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs
    from fastscribe.checkpoint.value import Checkpoint
    from fastscribe.results.interfaces import Ledger

_BATCHES_PER_WINDOW = 64
# Of long recordings that a CPU sorts together: 1 to 3 % slower than 64 (docs/bench/long/in-turn.json).
_BATCHES_IN_TURN = 16
_IDLE_S = 0.25  # the longest wait of what is to be decoded again for the next window, or for others


class Run:
    """The threads of one transcribe() call and the recordings in flight. close() stops the threads.

    Args:
        model: Its config and tokenizer count here.
        executor: Decodes the batches. close() ends its part of the run.
        options: The run's options.
        rooms: What rooms add to the run.
        progress: Counts the run.
    """

    def __init__(
        self,
        model: Checkpoint,
        executor: Executor,
        options: Options,
        rooms: Additions,
        progress: Progress,
    ) -> None:
        config = model.config
        is_by_phrase = options.max_utterance_s is None and config.learnt_on_short
        self._max_utterance_s = config.max_utterance_s if options.max_utterance_s is None else options.max_utterance_s
        options = replace(options, max_utterance_s=self._max_utterance_s)
        self._config, self._rooms, self._progress = config, rooms, progress
        threads = options.threads or default_threads()  # more once there are URLs
        # The executor has other threads: inputs that hang or take long to probe must not keep batches from being read.
        self._preparers = ReplacingThreadPool(threads, "prepare")
        preparation = Preparation(config, options, is_by_phrase, rooms.inputs, trusts_manifests=executor.opens_files)
        self._executor, self._stage = executor, TextStage(options, model.tokenizer, executor.facts, rooms.transcripts)
        self._work = executor.host_work(preparation, self._stage, rooms)
        texts = self._work.make_texts(self._preparers, progress.stopwatch)
        self._recordings = RecordingsInFlight(texts, progress, rooms.follow_up)
        self._inputs = InputWindows(preparation, rooms, self._preparers, progress)
        self._windows: Iterable[Window | Idle] = ()
        self._parts: deque[Sequence[PreparedInput]] = deque()  # of windows, that are not planned yet

    def close(self) -> None:
        """Drop what is in flight and stop the threads. A read in progress ends in the background."""
        self._inputs.close()
        self._executor.end()
        self._preparers.close()
        forget_media()
        close_held()

    def results(self, inputs: Inputs, ledger: Ledger | None) -> Iterator[Transcript | Failure]:
        """Yield the results, counted, in order of completion. As Transcriber.transcribe().

        An error of a caller's iterator or ledger is raised at the end, after the results of the inputs before it.
        """
        self._windows = self._inputs.read(inputs, ledger, self._max_window_s(), self._work)
        yield from self._results()
        self._raise_error_of_inputs()

    def decoded(self) -> Iterator[Transcript | Failure]:
        """After the executor has failed: yield the results of what it has decoded, whose texts may still be in the making."""
        self._recordings.texts.flush()
        while self._recordings.collect(wait=True):
            yield from self._take_finished()

    def rest(self, executor: Executor, last: Collection[int]) -> Iterator[Transcript | Failure]:
        """After the executor has failed: yield the results of all that has none, from another executor, in this process.

        Args:
            executor: It has begun the run.
            last: Positions of recordings that may have ended a process. They come last, when all else is written.
        """
        self._executor, self._work = executor, HostWork(local_texts(self._stage, self._rooms))
        self._recordings.texts = self._work.make_texts(self._preparers, self._progress.stopwatch)
        self._inputs.prepare_here()
        gc.collect()  # reference cycles hold the memory that the processes shared: up to 2 GiB a device
        taken = self._recordings.take_undecoded()
        self._parts.appendleft([one for one in taken if one[0].audio.index not in last])
        yield from self._results()
        self._parts.append([one for one in taken if one[0].audio.index in last])
        yield from self._results()
        self._raise_error_of_inputs()

    def _results(self) -> Iterator[Transcript | Failure]:
        yield from self._transcribe(self._with_follow_ups(self._plan_windows()))
        yield from self._transcribe(self.plan(self._recordings.utterances_to_follow_up()))

    def _raise_error_of_inputs(self) -> None:
        if self._inputs.error is not None:
            raise self._inputs.error

    def windows(self, inputs: Inputs, ledger: Ledger | None, dry: bool = False) -> Generator[Window | Idle, None, None]:
        """Yield the inputs, probed and split into utterances, in windows that are sorted together. Callable once.

        Threads of this process prepare them, and the caller waits for each window. `dry` is for an estimate, as in
        InputWindows.read().
        """
        alone = HostWork(self._work.make_texts)
        yield from self._inputs.read(inputs, ledger, self._max_window_s(), alone, dry)
        self._raise_error_of_inputs()

    def plan(self, utterances: Iterable[Utterance]) -> Iterator[tuple[Utterance, ...]]:
        """Yield batches of the utterances, longest first, within the executor's budget; then those for the other models."""
        given, budget = list(utterances), self._executor.budget
        yield from batching.plan([one for one in given if one.purpose == WORDS], self.num_frames, budget)
        for purpose, plan in self._rooms.plans.items():
            yield from plan([one for one in given if one.purpose == purpose], budget)

    def num_frames(self, utterance: Utterance) -> int:
        """Return the utterance's length in encoder frames."""
        return self._config.num_frames(utterance.duration_s)

    def _plan_windows(self) -> Iterator[tuple[Utterance, ...] | Idle]:
        """Yield batches of each window's utterances, and in a pause of those for other models."""
        yield from self._plan_parts()
        last_plan_at = perf_counter()
        for window in self._windows:
            if window is IDLE:
                yield IDLE
                if perf_counter() - last_plan_at < _IDLE_S:  # else each utterance would be a batch of its own
                    continue
                last_plan_at = perf_counter()
                yield from self.plan(self._recordings.utterances_to_follow_up())
                continue
            last_plan_at = perf_counter()
            self._parts.extend(self.parts(window))
            yield from self._plan_parts()

    def _plan_parts(self) -> Iterator[tuple[Utterance, ...]]:
        while self._parts:
            yield from self.plan(self._recordings.begin(self._parts.popleft()))

    def _with_follow_ups(self, plans: Iterable[Plan | Idle]) -> Iterator[Plan | Idle]:
        """Yield the batches, and before each one those for other models, once these fill a batch or keep much in memory."""
        for plan in plans:
            if self._rooms.follow_up is not None:
                frames, max_held_s = self._executor.budget.frames, self._rooms.max_held_s / 4
                yield from self.plan(self._recordings.utterances_to_follow_up(frames, max_held_s))
            yield plan

    def parts(self, window: Window) -> Iterator[Window]:
        """Yield the window in parts, so that a CPU finishes long recordings in turn.

        A GPU is through a window in seconds, and small parts would not fill its batches. Batches of other models hold whole
        recordings, which are few in a window.
        """
        batch_s = self._max_window_s() / _BATCHES_PER_WINDOW
        is_whole = self._executor.facts.is_gpu or self._rooms.plans
        yield from [window] if is_whole else in_turn(window, long_s, _BATCHES_IN_TURN * batch_s)

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
                self._recordings.texts.flush()
                yield from self._take_finished()
        self._recordings.texts.flush()  # those without sound have no batch
        yield from self._take_finished()
        while self._recordings.collect(wait=True):
            yield from self._take_finished()

    def _count_frames(self, utterances: Sequence[Utterance], results: Sequence[Hypothesis | Failure]) -> None:
        if isinstance(results[0], Failure) or utterances[0].purpose != WORDS:
            return
        self._progress.count_batch(utterances, [self.num_frames(utterance) for utterance in utterances])

    def _take_finished(self) -> Iterator[Transcript | Failure]:
        """Yield the finished recordings, counted, each once."""
        for result in self._recordings.take_finished():
            self._executor.release(result.index)
            result = self._made(self._inputs.finish(result))
            self._progress.count(result)
            yield result

    def _made(self, result: Transcript | Failure) -> Transcript | Failure:
        """Return a result with its text changed as the options ask, and rendered for the run's style if there is one."""
        edits = self._rooms.edits
        change = None if edits is None or self._recordings.texts.is_finished else edits.apply
        with self._progress.stopwatch.time("assemble"):
            return edited(result, change, self._executor.style)

    def _max_window_s(self) -> float:
        """Return the seconds of audio that fill a window."""
        frames, rows = self._executor.budget.frames, self._executor.budget.max_rows
        most_s = self._rooms.max_held_s / 2  # of two windows
        if math.isfinite(frames):
            return min(most_s, _BATCHES_PER_WINDOW * frames * self._config.frame_s)
        longest_s = self._max_utterance_s or self._config.max_utterance_s
        return min(most_s, _BATCHES_PER_WINDOW * (rows if math.isfinite(rows) else 1) * longest_s)
