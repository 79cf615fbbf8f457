"""Looks for files that no run wrote under the names that a run's outputs would have, before it does any work."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from fastscribe._system.safe_files import status_of
from fastscribe.audio.inputs import expand
from fastscribe.errors import UsageError
from fastscribe.output.names import OutputNames
from fastscribe.resume.entries import Paths, PreviousRun, in_the_way
from fastscribe.resume.ledger import Ledger
from fastscribe.resume.shards import Shard
from fastscribe.types import Failure, Source

RESERVED = {"json": "report"}  # report.json is the run's own, and so are its shards'
_MAX_INPUTS = 100_000  # about two seconds; a later input that has something in its way becomes a Failure


def check_inputs(
    directory: Path,
    formats: Sequence[str],
    inputs: Sequence[str],
    shard: Shard,
    previous: Sequence[PreviousRun] = (),
    ledger: Ledger | None = None,
) -> None:
    """Raise UsageError if a file that no journal lists has the name of an output: it names the first, and counts the others.

    Only the first 100,000 inputs are looked at, and not those on stdin, which can be read once.

    Args:
        formats: Of the outputs that are a file each.
        inputs: As the user gave them: files, folders, globs, manifests.
        earlier: What the journals list; the run may replace it.
        ledger: A new one, which says of an input whether the run leaves it alone.
    """
    formats = [format for format in formats if format != "jsonl"]
    if not formats or not _has_other_files(directory, shard):
        return
    named = dict(_names_and_sources(inputs, formats, shard, ledger))
    folders = {os.path.dirname(name) for name in named}  # one of them may have the name of another input's file
    taken = [
        os.path.join(directory, f"{name}.{format}")
        for name, source in named.items()
        for format in formats
        if f"{name}.{format}" not in folders
        and _is_taken(directory, name, format, previous)
        and (ledger is None or not ledger.is_done(source))
    ]
    if taken:
        raise in_the_way(taken)


def check_any_input(inputs: Sequence[str]) -> None:
    """Raise UsageError if none of the inputs is there: with a mistyped one, --overwrite would remove results for nothing.

    Inputs on stdin can be read once, so they are not looked at.
    """
    if inputs and "-" not in inputs and all(isinstance(found, Failure) for found in expand(inputs)):
        raise UsageError(f"{inputs[0]}: no input is there, so --overwrite removes nothing: check the spelling")


def _has_other_files(directory: Path, shard: Shard) -> bool:
    """Whether the folder holds more than a run makes at its start."""
    paths = Paths(directory, shard.suffix)
    own = {path.name for path in (paths.lock, paths.journal, paths.rows, paths.report)}
    try:
        with os.scandir(directory) as entries:
            return any(entry.name not in own for entry in entries)
    except FileNotFoundError:
        return False


def _names_and_sources(
    inputs: Sequence[str], formats: Sequence[str], shard: Shard, ledger: Ledger | None
) -> Iterator[tuple[str, Source]]:
    """This shard's inputs with the names that their outputs get, once all of them are known."""
    names = OutputNames(RESERVED[format] for format in formats if format in RESERVED)
    sources: dict[str, Source] = {}
    given = expand(one for one in inputs if one != "-")
    for index, found in enumerate(islice(given, _MAX_INPUTS)):
        source = replace(found, index=index)
        is_ours = shard.holds(source.id) if ledger is None else ledger.expect(source)
        name, renames = names.claim(source.id)
        for rename in renames:
            if rename.old in sources:
                sources[rename.new] = sources.pop(rename.old)
        if is_ours and not isinstance(source, Failure):
            sources[name] = source
    yield from sources.items()


def _is_taken(directory: Path, name: str, format: str, previous: Sequence[PreviousRun]) -> bool:
    status = status_of(os.path.join(directory, f"{name}.{format}"))
    if status is None:
        return False
    return not (stat.S_ISREG(status.st_mode) and any(format in one.sizes(one.find_by_name(name)) for one in previous))
