"""What a run needs of whatever decodes its batches.

LocalExecutor (local.py) is one device in this process; WorkerPool (workers/pool.py) is one or several,
each in a process of its own, with helper processes that read and make texts.
A run hands over planned batches of utterances, not samples, and gets hypotheses and failures back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from fastscribe.config import Options, OutputStyle
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.interfaces import Idle, ModelFacts
from fastscribe.pipeline.stats import DeviceShare, Stopwatch
from fastscribe.types import Failure, Hypothesis, Source, Utterance

if TYPE_CHECKING:
    from fastscribe.pipeline.interfaces import Additions, MakeTexts
    from fastscribe.pipeline.preparation import Preparation, PreparedInput
    from fastscribe.pipeline.text_stage import TextStage
    from fastscribe.pipeline.window_buffer import Preparers

Plan: TypeAlias = Sequence[Utterance]
# Utterances of one batch, or a part of them, with a result each: all are hypotheses, or all are failures.
Outcome: TypeAlias = tuple[Sequence[Utterance], Sequence[Hypothesis | Failure]]


class HostWork(NamedTuple):
    """What is done for a run beside decoding.

    Attributes:
        make_texts: Returns what makes the texts.
        helpers: Other processes that prepare inputs; None: threads of this process do.
        wake: Wakes the thread that drives the run, which waits for other processes; None: the executor waits for plans alone.
    """

    make_texts: MakeTexts
    helpers: Preparers[Source | Failure, PreparedInput] | None = None
    wake: Callable[[], None] | None = None


class Executor(Protocol):
    """Decodes planned batches. One thread uses it, for one run at a time.

    Attributes:
        opens_files: It takes utterances of unopened recordings (AudioInfo.unread), and opens them.
        style: Results may come rendered for it (types.RenderedTranscript); None: whole.
    """

    opens_files: bool
    style: OutputStyle | None

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

    def begin(self, options: Options, budget: Budget, stopwatch: Stopwatch) -> None:
        """Begin a run.

        Args:
            options: Of the run.
            budget: Of its batches.
            stopwatch: Adds up the stages' seconds, of several devices together.

        Raises:
            DeviceFailed: No device is left.
            UsageError: It is closed.
        """

    def host_work(self, preparation: Preparation, stage: TextStage, rooms: Additions) -> HostWork:
        """Return who prepares the inputs of the run and makes its texts. begin() comes first.

        Args:
            preparation: Prepares an input.
            stage: Makes the text of a recording.
            rooms: What rooms add to the run; they may need this process.
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
            UsageError: A graph mode that the user names is unavailable, or it is closed.
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
