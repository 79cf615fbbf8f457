"""A run of `fastscribe transcribe` or `fastscribe align`: its job, what rooms do in it, and where its model is.

A room's options make a RunPart. cli/run.py calls it: before the run, for each result, and after the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe._system.quick_start import quick_start
from fastscribe.config import Options, OutputStyle
from fastscribe.results.shards import Shard
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.transcriber import Transcriber


class RunPart:
    """A room's part in a run. This one sets fields of Options and does nothing else.

    Attributes:
        fields: Of Options, which the room sets. A model in them may be named as on the hub.
        engine: Has the run's model; None: the room leaves that to others.
        needs_words: Results must come with their words.
    """

    engine: Engine | None = None
    needs_words = False

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def styled(self, style: OutputStyle) -> OutputStyle:
        """Return the style with what the room adds to it."""
        return style

    def files(self, target: OutputTarget) -> Mapping[str, Path]:
        """Return files that the room writes, by option. Raises UsageError if another file is there."""
        return {}

    def during(self, job: TranscribeJob, transcriber: Transcriber) -> AbstractContextManager[object]:
        """Return a context manager around the run, which sees the error that ends one."""
        return nullcontext()

    def result(self, written: Transcript | Failure) -> None:
        """Take in a result that is written."""

    @property
    def first_lines(self) -> Sequence[str]:
        """Lines for the user before the model is loaded."""
        return ()

    @property
    def lines(self) -> Sequence[str]:
        """Lines for the user about the results, after the last one."""
        return ()

    def finished(self, job: TranscribeJob, stats: RunStats, quiet: bool) -> int:
        """Do what comes after the report. Return 1 if that failed, which the room has said; else 0."""
        return 0


class Engine:
    """Where the model of a run is. This one has it on this machine; rooms have others.

    Attributes:
        option: The option that chose it, for messages; "": none did.
        is_here: It is in this process, or on devices of this machine.
        takes_helpers: Processes beside it may read and write for it.
    """

    option, is_here, takes_helpers = "", True, True

    @contextmanager
    def load(self, job: TranscribeJob, say: Callable[[str], None]) -> Iterator[Transcriber]:
        """Yield a transcriber with the model, in this process or in one for each of several devices; the block ends these."""
        with quick_start():
            from fastscribe.transcriber import Transcriber

            if job.helped_gpu is None:
                device = job.device if job.devices is None else "auto"
                loaded = Transcriber.load(Path(job.model), device, job.dtype, job.options, say, devices=job.devices)
            else:
                from fastscribe.cli.helped_gpu import load_beside_helpers

                given = Path(job.model), job.device, job.dtype, job.options
                loaded = load_beside_helpers(*given, job.helped_gpu, say)
        with loaded as transcriber:
            yield transcriber

    def digest(self, job: TranscribeJob, transcriber: Transcriber) -> str:
        """Return the digest of the model's content."""
        return model_digest_of(job.model)


LOCAL = Engine()


@cache
def model_digest_of(path: str) -> str:
    """Return the digest of a model's files, which are read once."""
    from fastscribe.results.fingerprint import model_digest

    return model_digest(path)


@dataclass(frozen=True)
class OutputTarget:
    """Output folder or URL (neither: stdout), shard and resume options."""

    directory: Path | None
    url: str | None
    shard: Shard
    overwrite: bool
    retry_failed: bool
    ordered: bool

    @property
    def is_stdout(self) -> bool:
        return self.directory is None and self.url is None

    @property
    def where(self) -> str:
        return str(self.url or self.directory or "stdout")


@dataclass(frozen=True)
class TranscribeJob:
    """One command: what to transcribe, with which model and options, and where the results go.

    Attributes:
        devices: What --devices names, in place of `device`.
        helped_gpu: Number of the GPU that gets a process of its own and helpers; None: the run stays in this process, or
            `devices` names others.
        engine: Where the model is.
        parts: What rooms do in the run.
    """

    inputs: list[str]
    model: str
    device: str
    dtype: str
    options: Options
    style: OutputStyle
    target: OutputTarget
    price_per_hour: float | None
    events: Path | None = None
    log_file: Path | None = None
    devices: str | None = None
    helped_gpu: int | None = None
    engine: Engine = LOCAL
    parts: tuple[RunPart, ...] = ()
