"""Checks before a run: no file that an earlier run did not write may have the name of an output."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from fastscribe._system.safe_files import status_of
from fastscribe.audio.inputs import expand
from fastscribe.audio.repeats import Repeats
from fastscribe.errors import UsageError
from fastscribe.results.entries import Paths, PreviousRun, in_the_way
from fastscribe.results.file_names import FileNames, file_formats
from fastscribe.results.journal_ledger import JournalLedger
from fastscribe.results.ledger import Ledger
from fastscribe.results.shards import Shard
from fastscribe.types import Failure, Source

MAX_INPUTS = 100_000  # takes about two seconds; a later input with a file in its way becomes a Failure


class FilesLedger(JournalLedger):
    """Ledger to which a result is done only if it lists a file of every format: the others are still to be written."""

    def __init__(self, shard: Shard, previous: PreviousRun, retry_failed: bool, formats: Sequence[str]) -> None:
        super().__init__(shard, previous, retry_failed)
        self._formats = set(file_formats(formats))

    def _adopt_earlier_result(self, source: Source | Failure, entry_index: int) -> bool:
        has_failed = bool(self._previous.entries["failed"][entry_index])
        return has_failed or self._formats <= self._previous.sizes(entry_index).keys()


def check_inputs(
    directory: Path,
    formats: Sequence[str],
    inputs: Sequence[str],
    shard: Shard,
    previous: Sequence[PreviousRun] = (),
    ledger: Ledger | None = None,
) -> None:
    """Raise UsageError if a file that no journal lists has the name of an output. It names the first and counts the others.

    Only the first 100,000 inputs are checked, and none from stdin, which can be read once.

    Args:
        directory: The output folder.
        formats: Formats of the outputs.
        inputs: As the user gave them: files, folders, globs, manifests.
        shard: The part of the inputs that this run transcribes.
        previous: Results of earlier runs, which this run may replace.
        ledger: An unused ledger; inputs that it reports as done are left alone.
    """
    formats = file_formats(formats)
    if not formats or not _has_other_files(directory, shard):
        return
    sources = _sources_by_name(inputs, formats, shard, ledger)
    folders = {os.path.dirname(name) for name in sources}  # one of them may have the name of another input's file
    taken: list[str] = []
    for name, source in sources.items():
        files = [f"{name}.{format}" for format in formats if _is_taken(directory, name, format, previous)]
        files = [file for file in files if file not in folders]
        if files and (ledger is None or not ledger.is_done(source)):
            taken += [os.path.join(directory, file) for file in files]
    if taken:
        raise in_the_way(taken)


def check_any_input(inputs: Sequence[str]) -> None:
    """Raise UsageError if none of the inputs exists: with a mistyped path, --overwrite would remove results for nothing.

    Inputs from stdin are not checked, because stdin can be read once.
    """
    if inputs and "-" not in inputs and all(isinstance(found, Failure) for found in expand(inputs)):
        raise UsageError(f"{inputs[0]}: no input is there, so --overwrite removes nothing: check the spelling")


def _has_other_files(directory: Path, shard: Shard) -> bool:
    """Return True if the folder holds more than a run makes at its start."""
    paths = Paths(directory, shard.suffix)
    own = {path.name for path in (paths.lock, paths.journal, paths.rows, paths.report)}
    try:
        with os.scandir(directory) as entries:
            return any(entry.name not in own for entry in entries)
    except FileNotFoundError:
        return False


def _sources_by_name(
    inputs: Sequence[str], formats: Sequence[str], shard: Shard, ledger: Ledger | None
) -> dict[str, Source]:
    """Return this shard's inputs by the names of their outputs, as they are once all inputs are known."""
    names = FileNames(formats)
    sources = []
    given = expand((one for one in inputs if one != "-"), repeats=Repeats())
    for index, found in enumerate(islice(given, MAX_INPUTS)):
        source = replace(found, index=index)
        is_ours = shard.holds(source.id) if ledger is None else ledger.expect(source)
        names.reserve(source.id, index if is_ours else None)
        if is_ours and not isinstance(source, Failure):
            sources.append(source)
    return {names[source.index]: source for source in sources}


def _is_taken(directory: Path, name: str, format: str, previous: Sequence[PreviousRun]) -> bool:
    """Return True if an output's path exists and is no regular file that the journals list."""
    status = status_of(os.path.join(directory, f"{name}.{format}"))
    if status is None:
        return False
    return not (stat.S_ISREG(status.st_mode) and any(format in one.sizes(one.find_by_name(name)) for one in previous))
