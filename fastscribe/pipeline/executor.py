"""What a run needs of whatever decodes its batches.

LocalExecutor (local.py) is one device in this process; WorkerPool (workers/pool.py) is several, each in a process of its own.
A run hands over planned batches of utterances, not samples, and gets hypotheses and failures back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fastscribe.config import DecoderName, Options
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.idle import Idle
from fastscribe.pipeline.stats import DeviceShare, Stopwatch
from fastscribe.pipeline.time_limit import TimeLimit
from fastscribe.speaker_config import SpeakerModelConfig, VoiceModelConfig
from fastscribe.types import Failure, Hypothesis, Utterance

Plan: TypeAlias = Sequence[Utterance]
# Utterances of one batch, or a part of them, with a result each: all are hypotheses, or all are failures.
Outcome: TypeAlias = tuple[Sequence[Utterance], Sequence[Hypothesis | Failure]]


@dataclass(frozen=True)
class ModelFacts:
    """What runs and reports need to know of a loaded model.

    Attributes:
        device_name: Name of the GPU or the processor.
        dtype: The dtype in use.
        decoder_name: The decoder in use.
        beam: Its beam width; 1 is greedy.
        attention: Attention of the encoder, as ModelConfig.attention names it.
        token_frame_s: Length in seconds of a frame of Hypothesis.token_frames.
        zero_duration_punctuation: The decoder's timestamps give punctuation no time.
        recovers_gaps: Default of Options.recover_gaps.
        aligner_language: Tag of the one language whose outputs the aligner has (ModelConfig.language); None: it has the same
            for all, or there is no aligner.
        kept_language: Tag of the language that the run is kept to (text/language_filter.py); None: of none.
        speaker_model: Config of Options.speakers' model; None without one.
        voice_model: Config of Options.voices' model; None without one.
    """

    device_name: str
    dtype: str
    decoder_name: DecoderName
    beam: int
    attention: str
    token_frame_s: float
    zero_duration_punctuation: bool
    recovers_gaps: bool
    aligner_language: str | None = None
    kept_language: str | None = None
    speaker_model: SpeakerModelConfig | None = None
    voice_model: VoiceModelConfig | None = None


class Executor(Protocol):
    """Decodes planned batches. One thread uses it, for one run at a time."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def num_devices(self) -> int:
        """Devices that decode batches at the same time."""

    @property
    def budget(self) -> Budget:
        """The budget of the current run's batches. It shrinks after a batch that ran out of memory."""

    def choose_budget(self) -> Budget:
        """Return the budget that suits the device, or the smallest of several devices."""

    def begin(self, options: Options, budget: Budget, stopwatch: Stopwatch, limit: TimeLimit | None = None) -> None:
        """Begin a run.

        Args:
            options: Of the run.
            budget: Of its batches.
            stopwatch: Adds up the stages' seconds, of several devices together.
            limit: Asked before each batch; once it refuses one, execute() ends.

        Raises:
            DeviceFailed: No device is left.
            UsageError: The devices are closed.
        """

    def execute(self, plans: Iterable[Plan | Idle]) -> Generator[Outcome | Idle, None, None]:
        """Read and decode batches. Closing the generator drops what is in flight.

        Args:
            plans: The caller's thread advances it. IDLE among the plans: the next one may take long.

        Yields:
            Each utterance once, with its result, in order of completion; now and then IDLE, so that the caller can do other
            work. Utterances of unopened recordings (AudioInfo.unread) come with their real lengths.

        Raises:
            DeviceFailed: No device is left.
            UsageError: A graph mode that the user names is unavailable, or the devices are closed.
        """

    def release(self, index: int) -> None:
        """Free what reading a recording has left in memory: it has its result. `index` is its position in the run."""

    def end(self) -> None:
        """End the run and its threads. A read in progress ends in the background."""

    def close(self) -> None:
        """Give up the devices for good."""

    def peak_bytes(self) -> int:
        """Return the peak memory so far, of the device with the most."""

    def shares(self) -> list[DeviceShare]:
        """Return what each of several devices has done in the current run; empty for one device in this process."""
