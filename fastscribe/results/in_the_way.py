"""Checks before a run: no file that an earlier run did not write may have the name of an output."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from fastscribe.audio.inputs import expand
from fastscribe.audio.repeats import Repeats
from fastscribe.errors import UsageError
from fastscribe.results.entries import PreviousRun
from fastscribe.results.file_names import FileNames, file_formats
from fastscribe.results.journal_ledger import JournalLedger
from fastscribe.results.ledger import Ledger
from fastscribe.results.paths import in_the_way
from fastscribe.results.shards import Shard
from fastscribe.results.storage import Storage
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
    storage: Storage,
    formats: Sequence[str],
    inputs: Sequence[str],
    ledger: Ledger,
    is_ours: Callable[[str], bool] = lambda file: False,
) -> None:
    """Raise UsageError if a file that no run wrote has the name of an output. It names the first and counts the others.

    Only the first 100,000 inputs are checked, and none from stdin, which can be read once.

    Args:
        storage: Where the run writes.
        formats: Formats of the outputs.
        inputs: As the user gave them: files, folders, globs, manifests.
        ledger: An unused ledger; inputs that it reports as done are left alone.
        is_ours: Returns True for the name of a file that a run wrote.
    """
    formats = file_formats(formats)
    if not formats or not storage.has_other_files():
        return
    sources = _sources_by_name(inputs, formats, ledger, storage.can_rename)
    folders = (
        {os.path.dirname(name) for name in sources} if storage.is_local else set()
    )  # these are made, not in the way
    taken: list[str] = []
    for name, source in sources.items():
        files = [f"{name}.{format}" for format in formats]
        files = [file for file in files if storage.is_taken(file) and not is_ours(file) and file not in folders]
        if files and not ledger.is_done(source):
            taken += [storage.path_of(file) for file in files]
    if taken:
        raise in_the_way(taken)


def check_any_input(inputs: Sequence[str]) -> None:
    """Raise UsageError if none of the inputs exists: with a mistyped path, --overwrite would remove results for nothing.

    Inputs from stdin are not checked, because stdin can be read once.
    """
    if inputs and "-" not in inputs and all(isinstance(found, Failure) for found in expand(inputs)):
        raise UsageError(f"{inputs[0]}: no input is there, so --overwrite removes nothing: check the spelling")


def _sources_by_name(
    inputs: Sequence[str], formats: Sequence[str], ledger: Ledger, can_rename: bool
) -> dict[str, Source]:
    """Return this shard's inputs by the names of their outputs, as they are once all inputs are known."""
    names = FileNames(formats, can_rename=can_rename)
    sources = []
    given = expand((one for one in inputs if one != "-"), repeats=Repeats())
    for index, found in enumerate(islice(given, MAX_INPUTS)):
        source = replace(found, index=index)
        is_ours = ledger.expect(source)
        names.reserve(source.id, index if is_ours else None)
        if is_ours and not isinstance(source, Failure):
            sources.append(source)
    return {names[source.index]: source for source in sources}
