"""A run of `fastscribe transcribe` or `fastscribe align`: its job, and what rooms do in it.

A room's options make a RunHook. cli/run.py calls it: before the run, for each result, and after the run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fastscribe._system.urls import is_url
from fastscribe.checkpoint.hub_name import LARGE_MODEL
from fastscribe.checkpoint.location import CONFIDENCE_LIMIT, NO_MODEL, PACKAGED_NAME, why_beyond
from fastscribe.config import Options, OutputStyle
from fastscribe.errors import ManifestError
from fastscribe.results.interfaces import OutputRun
from fastscribe.types import Failure, Transcript

if TYPE_CHECKING:
    from fastscribe.pipeline.stats import RunStats
    from fastscribe.results.rows import ResultRow
    from fastscribe.transcriber import Transcriber


class RunHook:
    """A room's hook in a run. This one sets fields of Options and does nothing else.

    Attributes:
        fields: Of Options, which the room sets. A model in them may be named as on the hub.
        loads: The room loads the model itself: no helpers are beside it, and no run knows before whether all is done.
        is_elsewhere: The model is on other machines.
        needs_words: Results must come with their words.
    """

    loads = is_elsewhere = needs_words = False

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def styled(self, style: OutputStyle) -> OutputStyle:
        """Return the style with what the room adds to it."""
        return style

    def files(self, output: OutputRun) -> Mapping[str, Path]:
        """Return files that the room writes, by option. Raises UsageError if another file is there."""
        return {}

    def load(self, job: TranscribeJob, say: Callable[[str], None]) -> AbstractContextManager[Transcriber]:
        """Return a context manager that yields the model, if the room `loads` it."""
        raise NotImplementedError

    def digest(self, transcriber: Transcriber) -> str | None:
        """Return the digest of the model's content; None: it is that of the files here."""
        return None

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


@cache
def model_digest_of(path: str) -> str:
    """Return the digest of a model's files, which are read once."""
    from fastscribe.results.fingerprint import model_digest

    return model_digest(path)


@dataclass(frozen=True)
class AllowedFailures:
    """How many recordings may fail, in this run and earlier ones, before the exit code says so."""

    most: float = 0.0
    is_share: bool = False  # `most` is one of the inputs

    def allow(self, failed: int, num_inputs: int) -> bool:
        return failed <= self.most * (num_inputs if self.is_share else 1)


@dataclass(frozen=True)
class TranscribeJob:
    """One command: what to transcribe, with which model and options, and where the results go.

    Attributes:
        output: The inputs as the user gave them, and where the results go.
        devices: What --devices names, in place of `device`.
        helped_gpu: Number of the GPU that gets a process of its own and helpers; None: the run stays in this process, or
            `devices` names others.
        hooks: What rooms do in the run.
        quiet: Print no notices.
        show_progress: Show progress on stderr.
        show_report: Print the report.
        verbose: Print the whole report, and not its summary.
    """

    model: str
    device: str
    dtype: str
    options: Options
    output: OutputRun
    price_per_hour: float | None
    events: Path | None = None
    log_file: Path | None = None
    devices: str | None = None
    helped_gpu: int | None = None
    hooks: tuple[RunHook, ...] = ()
    allowed_failures: AllowedFailures = AllowedFailures()
    quiet: bool = False
    show_progress: bool = True
    show_report: bool = True
    verbose: bool = False

    def failure_code(self, failed: int, failed_before: int, num_inputs: int) -> int:
        """Return the exit code: 1 if a recording failed in this run, 3 if some of earlier runs did; 0 if that is allowed.

        Args:
            failed: Recordings that failed in this run.
            failed_before: Inputs of this run that failed in an earlier one.
            num_inputs: All inputs of this run.
        """
        if self.allowed_failures.allow(failed + failed_before, num_inputs):
            return 0
        return 1 if failed else 3

    @property
    def loading_hook(self) -> RunHook | None:
        """The room that loads the model; None: the command does."""
        return next((hook for hook in self.hooks if hook.loads), None)

    def digest(self, transcriber: Transcriber) -> str:
        """Return the digest of the model's content."""
        hook = self.loading_hook
        return (hook and hook.digest(transcriber)) or model_digest_of(self.model)


# What a room does in `fastscribe export`. A room's options make an ExportHook, and cli/export.py calls it.


Stored: TypeAlias = "tuple[Transcript | Failure, ResultRow]"


class ExportHook:
    """A room's hook in an export. This one does nothing.

    Attributes:
        changes: The option that makes other rows; "": the rows stay.
        settings: How rows are changed, for the folder that they go to.
    """

    changes = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    def styled(self, style: OutputStyle) -> OutputStyle:
        """Return the style with what this room adds to it."""
        return style

    def changed(self, results: Iterable[Stored | ManifestError]) -> Iterable[Stored | ManifestError]:
        """Return stored results as this room changes them. Called once for each thing that is made of them."""
        return results

    def made_in(self, folder: Path) -> None:
        """Take in that files of a folder's results were made beside them."""

    @property
    def lines(self) -> Sequence[str]:
        """Lines for the user at the end."""
        return ()


# A run's lines about the packaged model, as a hook of the run.


class PackagedModel(RunHook):
    """Says which model runs, and counts the recordings that are beyond it, for one line at the end.

    Args:
        says_name: When a line says which model runs; at the end it does if no recording is beyond it. None: never.
        is_usual: The model decodes as it does by itself; the limit holds for no other beam or decoder.
    """

    def __init__(self, says_name: Literal["first", "at the end"] | None, is_usual: bool) -> None:
        super().__init__()
        self._says_name, self.needs_words = says_name, is_usual
        self._num = self._num_done = self._num_beyond = 0
        self._first: tuple[int, str, str] | None = None  # index, path and reason

    @property
    def first_lines(self) -> Sequence[str]:
        return [NO_MODEL] if self._says_name == "first" else []

    def result(self, written: Transcript | Failure) -> None:
        self._num += 1
        if isinstance(written, Failure):
            return
        self._num_done += 1
        if self.needs_words and (why := why_beyond(written)) is not None:
            self._num_beyond += 1
            file = written.audio.file  # that of a list's row counts from here
            first = (written.index, file if file and isinstance(file, str) else written.audio.path, why)
            self._first = first if self._first is None else min(self._first, first)

    @property
    def lines(self) -> Sequence[str]:
        if self._first is None:
            name = f"{PACKAGED_NAME} ran; a large one is more accurate: --model {LARGE_MODEL}"
            return [name] if self._says_name == "at the end" and self._num_done else []
        _, path, why = self._first
        large, first = f"a large one is more accurate: --model {LARGE_MODEL}", f"the first is {path};"
        if os.path.isfile(path) or is_url(path):  # and no part of an archive or of a list in a store
            large = f"with a large one: fastscribe transcribe {shlex.quote(path)} --model {LARGE_MODEL}"
            first = "the first,"
        if self._num == 1:
            return [f"{path} is beyond {PACKAGED_NAME} ({why}); {large}"]
        many = "recordings are" if self._num_beyond > 1 else "recording is"
        limit = f"no words in speech, or a mean confidence below {CONFIDENCE_LIMIT:.2f}"
        return [f"{self._num_beyond:,} {many} beyond {PACKAGED_NAME} ({limit}); {first} {large}"]
