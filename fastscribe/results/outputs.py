"""Where the results of a run go: one call opens a stream, a folder or an object store. Each loads only its own modules."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from fastscribe.audio.failures import to_failure
from fastscribe.errors import OutputError
from fastscribe.results.ledger import Ledger
from fastscribe.results.output_run import OutputRun
from fastscribe.results.shards import Shard
from fastscribe.types import Failure, Transcript

Place = TextIO | Path | str  # a stream, a folder, or a folder's name or URL
# These errors stop a run; any other error of an output file makes a Failure of its input.
_DISK_PROBLEMS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


class Output(Protocol):
    """An open output. It is a context manager; its end makes all results durable."""

    @property
    def ledger(self) -> Ledger:
        """Which inputs are to do. Give it to Transcriber._results()."""

    def __enter__(self) -> Output: ...

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None: ...

    def write(self, result: Transcript | Failure) -> None:
        """Write or queue one result. Raises OSError, OutputError."""

    def flush(self) -> None:
        """Wait until all results are durable. Raises OutputError."""

    def totals(self) -> Any:
        """Return what all runs have written there, as results.output.Totals; None for a stream."""

    def write_report(self, content: bytes) -> None:
        """Write the run's report last: it says that the run is complete. Raises OutputError."""


def open_output(place: Place, run: OutputRun, say: Callable[[str], object] = print) -> Output:
    """Open an output. In a folder or a store, the run goes on where an earlier one with the same fingerprint stopped.

    Args:
        place: A stream, a folder or a URL. A folder is made if need be.
        run: What it writes.
        say: Shows one line to the user.

    Raises:
        UsageError: Another run writes there, or the place holds results of another kind that `run.overwrite` does not remove,
            or a file that no run wrote is in the way.
        OSError: The place cannot be read or written.
    """
    if not isinstance(place, Path | str):
        from fastscribe.results.stream import StreamOutput

        return StreamOutput(place, run)
    from fastscribe.results.output import open_journaled

    return open_journaled(place, run, say)


def check_new_folder(directory: Path, formats: Sequence[str], inputs: Sequence[str], shard: Shard) -> None:
    """Check a folder without a journal, before a model is loaded; with one, `open_output` checks it, which knows its settings.

    Args:
        directory: The folder, which may not exist and is not changed.
        formats: Formats of the outputs.
        inputs: As the user gave them: files, folders, globs, manifests.
        shard: The part of the inputs that this run transcribes.

    Raises:
        UsageError: A file that no run wrote has the name of an output.
        OSError: The folder cannot be read.
    """
    from fastscribe.results.in_the_way import check_inputs
    from fastscribe.results.storage_folder import FolderStorage

    storage = FolderStorage(directory, shard)
    if not storage.paths.has_begun:
        storage.check_own_names()
        check_inputs(storage, formats, inputs, Ledger(shard))


def write_result(
    output: Output, result: Transcript | Failure, not_written: Callable[[Transcript], object], where: str
) -> Transcript | Failure:
    """Write a result. Return it, or the Failure that is written in its place if it cannot be written.

    Args:
        output: Where it goes.
        result: The result.
        not_written: Called with a transcript that becomes a Failure.
        where: Name of the output, for messages.

    Raises:
        OutputError: The disk is full or cannot be written.
        BrokenPipeError: The reader of a stream is gone.
    """
    try:
        output.write(result)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in _DISK_PROBLEMS or isinstance(result, Failure):
            raise OutputError(str(error.filename or where), error) from error
        not_written(result)
        return write_result(output, to_failure(result.audio, "write", error), not_written, where)
    return result
