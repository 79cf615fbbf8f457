"""The inputs of a run, in windows that are sorted together: listed, probed and cut into utterances ahead of the model.

A manifest row that states its duration becomes an utterance unopened; the executor probes its file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from fastscribe.audio.failures import to_failure
from fastscribe.audio.given import all_of, sources
from fastscribe.audio.media import held_memory, is_held
from fastscribe.audio.probe import planned, probe
from fastscribe.audio.read import read
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.audio.sound_file_cache import close_held
from fastscribe.config import CHANNELS, ModelConfig, Options
from fastscribe.pipeline.dialogues import check_names
from fastscribe.pipeline.idle import IDLE, Idle
from fastscribe.pipeline.loader import REMOTE_THREADS
from fastscribe.pipeline.sort_buffer import SortBuffer
from fastscribe.pipeline.stats import Progress
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.segmentation.channels import distinct_channels
from fastscribe.segmentation.segment import split
from fastscribe.segmentation.silence import MIN_TRIMMED_S
from fastscribe.segmentation.speaker_turns import windows
from fastscribe.speaker_config import SpeakerModelConfig
from fastscribe.text.language_filter import LanguageFilter
from fastscribe.text.rttm import RttmTurns
from fastscribe.types import AudioInfo, Failure, File, HeldSamples, Samples, Source, Utterance

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs

AttachText = Callable[[Source | Failure], Source | Failure]
PreparedInput = tuple[Utterance, ...] | Failure  # a recording's utterances, channel by channel, or why there are none
Window = list[PreparedInput]

MAX_WINDOW_BYTES = 512 << 20  # the caller's data in a window, while the model works on another
_EXPECTED_S = 3600.0  # length of a recording that is held as a whole, while that of none is known
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


class InputWindows:
    """Reads the inputs of a run.

    Attributes:
        error: What the caller's iterator raised, if it did.
        languages: Has the language that each recording is kept to; None: of none.
        attach_text: Returns a source with its text, or the Failure of one without; None: the run needs no texts.

    Args:
        config: The model's config.
        options: The run's options, with the limit of utterances that it follows.
        by_phrase: The model learnt on short utterances: cut at every clear pause, and leave out long silence.
        preparers: Threads that probe and cut. The first URL makes them more, unless the options say how many.
        progress: Counts what is found, skipped and queued.
        speaker_model: Sees each recording too, which is then read as a whole, once; None: there is none.
        rttm: Has the turns of each recording's speakers; None: they come from elsewhere.
    """

    def __init__(
        self,
        config: ModelConfig,
        options: Options,
        by_phrase: bool,
        preparers: ReplacingThreadPool,
        progress: Progress,
        speaker_model: SpeakerModelConfig | None = None,
        rttm: RttmTurns | None = None,
    ) -> None:
        self.error: Exception | None = None
        self.attach_text: AttachText | None = None
        self.languages: LanguageFilter | None = None
        self._config, self._options, self._by_phrase = config, options, by_phrase
        self._speaker_model, self._rttm = speaker_model, rttm
        self._max_utterance_s = options.max_utterance_s or 0.0
        self._preparers, self._progress = preparers, progress
        self._buffer: SortBuffer[Source | Failure, PreparedInput] | None = None
        self._last_data = 0  # id of the memory that the last source holds

    def close(self) -> None:
        """Stop the thread that iterates over the sources."""
        if self._buffer is not None:
            self._buffer.close()

    def read(
        self, inputs: Inputs, ledger: Ledger | None, max_window_s: float, hold: bool = True
    ) -> Iterator[Window | Idle]:
        """Yield the inputs, probed and split into utterances, in windows that are sorted together. Callable once.

        Args:
            inputs: As Transcriber.transcribe().
            ledger: Decides which inputs belong to the run.
            max_window_s: Seconds of audio that fill a window.
            hold: With a speaker model, read each recording as a whole; False: only plan, as a dry run does.
        """
        options, progress = self._options, self._progress
        repeats = None if ledger is None else progress.repeats  # without a ledger each input gets a result
        found = self._with_threads(sources(self._until_error(inputs), progress.left_out, repeats))
        self._buffer = SortBuffer(
            expected_sources(found, ledger, options, self.attach_text),
            partial(self._prepare, ledger, hold and self._speaker_model is not None),
            duration_s,
            self._preparers,
            options.window,
            max_window_s,
            self._added_bytes,
            MAX_WINDOW_BYTES,
            expected_s=_EXPECTED_S if hold and self._speaker_model is not None else 0.0,
        )
        for window in self._buffer:
            if window is not IDLE:
                progress.planned_files += len(window)
                progress.planned_s += sum(map(duration_s, window))
            self.count_queued()
            yield window
        self.count_queued()

    def count_queued(self) -> None:
        """Count what is read and waits for the model."""
        if self._buffer is not None:
            self._progress.skipped = self._buffer.num_skipped
            self._progress.queued_files, self._progress.queued_s, self._progress.has_all = self._buffer.queued()

    def _with_threads(self, sources: Iterable[Source | Failure]) -> Iterator[Source | Failure]:
        """Pass the sources on; the first in a store starts the threads that wait for it."""
        for source in sources:
            if self._options.threads is None and isinstance(source, Source) and isinstance(source.file, RemoteFile):
                self._preparers.threads = max(self._preparers.threads, REMOTE_THREADS)
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
            self.error = error

    def _prepare(self, ledger: Ledger | None, hold: bool, source: Source | Failure) -> PreparedInput | None:
        """Probe and split one input. Return None if an earlier run has done it. Called from several threads."""
        if ledger is not None and ledger.is_done(source):
            return None
        if isinstance(source, Source) and self.languages is not None:
            kept = self.languages.apply(source)  # after the ledger, to which a row is the same with another language
            if isinstance(kept, Failure):
                release(source.file)
            source = kept
        if isinstance(source, Failure):
            return source
        stage = "probe"
        try:
            if self._trusts_manifest(source):
                audio = planned(source, self._config.features.sample_rate)
                return (Utterance(audio, 0, audio.num_samples),)
            audio = probe(source)
            if self._rttm is not None:
                self._rttm.of(audio)  # a recording without turns fails before the model sees it
            if hold:
                stage = "load"
                audio = read_whole(audio, self._config.features.sample_rate)
                release(source.file)
            stage = "split"  # reads samples only if the recording may be cut or trimmed, or its channels are told apart
            return self._split(audio)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            release(source.file)
            return to_failure(source, stage, error)

    def _split(self, audio: AudioInfo) -> tuple[Utterance, ...]:
        channels = [audio]
        if self._options.speakers == CHANNELS:
            check_names(audio, self._options.speaker_names)
            channels = [replace(audio, channel=channel) for channel in distinct_channels(audio)]
        limit_s, frame_s, vad = self._max_utterance_s, self._config.frame_s, self._options.vad
        words = itertools.chain.from_iterable(split(one, limit_s, frame_s, vad, self._by_phrase) for one in channels)
        return (*words, *(() if self._speaker_model is None else speaker_spans(audio, self._speaker_model)))

    def _trusts_manifest(self, source: Source) -> bool:
        """Return True if the manifest states a duration that makes the whole recording one utterance.

        Samples in memory have no header whose reading would cost anything.
        """
        if (
            source.duration_s is None
            or self._options.speakers is not None  # the file has the number of channels
            or self._rttm is not None  # and where the row's part begins
            or isinstance(source.file, Samples)
            or (self._by_phrase and source.duration_s >= MIN_TRIMMED_S)
        ):
            return False
        return source.duration_s <= (self._max_utterance_s or _MAX_TRUSTED_S)


def expected_sources(
    sources: Iterable[Source | Failure],
    ledger: Ledger | None,
    options: Options,
    attach_text: AttachText | None = None,
) -> Generator[Source | Failure, None, None]:
    """Number the sources by position, set the channel and the track that they do not name, and yield those of this run."""
    for index, source in enumerate(sources):
        numbered: Source | Failure = replace(source, index=index)
        if attach_text is not None:
            numbered = attach_text(numbered)
        if isinstance(numbered, Source):
            track = options.track if numbered.track is None else numbered.track
            numbered = replace(numbered, track=track, channel=options.channel)
        if ledger is None or ledger.expect(numbered):
            yield numbered


def read_whole(audio: AudioInfo, sample_rate: int) -> AudioInfo:
    """Read a recording. Return one of its samples in memory, mono at `sample_rate`. Raises AudioError."""
    samples_S = read(audio, 0, audio.num_samples, sample_rate=sample_rate)
    held = HeldSamples(samples_S[:, None], sample_rate, audio.id, audio)
    return replace(
        audio,
        sample_rate=sample_rate,
        channels=1,
        num_samples=len(samples_S),
        start=0,
        file=held,
        is_int16=held.is_int16,
        track=None,
        channel=None,
    )


def speaker_spans(audio: AudioInfo, config: SpeakerModelConfig) -> Iterator[Utterance]:
    """Yield what a speaker model sees of a recording: all, or overlapping windows as long as what it learnt from."""
    if config.cache is not None:
        yield Utterance(audio, 0, audio.num_samples, "turns")
        return
    frame_samples = round(config.frame_s * audio.sample_rate)
    num_frames = math.ceil(audio.num_samples / frame_samples)
    for begin, end in windows(num_frames, round(config.trained_s / config.frame_s)):
        start = begin * frame_samples
        num_samples = min(end * frame_samples, audio.num_samples) - start
        yield Utterance(audio, start, num_samples, "turns")


def release(file: File) -> None:
    """Free what reading a recording has left in memory."""
    if isinstance(file, RemoteFile):
        file.drop()  # the caller may keep the transcript
    elif is_held(file):
        close_held(file)


def duration_s(item: PreparedInput) -> float:
    """Return a recording's length in seconds; 0 of one that has failed."""
    return 0.0 if isinstance(item, Failure) else item[0].audio.duration_s


def num_channels(item: PreparedInput) -> int:
    """Return how many channels of a recording are transcribed by themselves; 1 if it is transcribed as a whole."""
    return 1 if isinstance(item, Failure) else len({utterance.audio.channel for utterance in item})


def work_s(item: PreparedInput) -> float:
    """Return the seconds of audio that the model gets of a recording: its length for each of these channels."""
    return duration_s(item) * num_channels(item)
