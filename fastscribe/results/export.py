"""`fastscribe export`: files of other formats from the rows of an output folder, or of any `transcripts.jsonl`.

Nothing is decoded. In a folder, the journal of its run (or those of its shards) lists the new files too, with the same
promises as for a run: the lock, a commit that survives a kill, and nothing replaced that the journal does not list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fastscribe._system.file_kinds import status_of
from fastscribe.config import FILE_FORMATS, OutputStyle, SpeakerNames
from fastscribe.errors import ManifestError, UsageError
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.journal import Journal, LastRun, read_header, read_journal
from fastscribe.results.names import Names
from fastscribe.results.output import JournaledOutput, last_run, open_journaled, with_names
from fastscribe.results.paths import Paths, journals_in
from fastscribe.results.repair import edited_rows
from fastscribe.results.result_files import file_formats
from fastscribe.results.rows import ResultRow
from fastscribe.results.storage_folder import FolderStorage
from fastscribe.results.stored import NotAResult, to_result
from fastscribe.types import Failure, Samples, Source, Transcript


class Exported(NamedTuple):
    """Numbers of results, and of files.

    Attributes:
        results: All results.
        made: Those that got files.
        failed: Recordings that failed, of which only JSON is made.
        kept: Files that stay as they are, because someone has edited them.
    """

    results: int = 0
    made: int = 0
    failed: int = 0
    kept: int = 0

    def plus(self, is_made: bool, has_failed: bool) -> Exported:
        """Return the numbers with another result."""
        return Exported(self.results + 1, self.made + is_made, self.failed + has_failed, self.kept)


def export_in_place(directory: Path, style: OutputStyle, say: Callable[[str], object] = print) -> Exported:
    """Make the files that the results of a folder lack, or have in another layout, from their rows.

    Args:
        directory: An output folder with the journals of its runs.
        style: Formats and their options. Tokens are written if the rows have them.
        say: Shows one line to the user, about files that stay as they are.

    Raises:
        UsageError: A run is at work in the folder, or someone changed its rows.
        OSError: A file cannot be written; what was made is kept.
        OutputError: The disk is full.
    """
    exported = Exported()
    outputs: list[JournaledOutput] = []
    journals: list[Journal] = []
    say_once = cache(say)  # shards say the same
    names = Names(journals, file_formats(style.formats), lambda file: status_of(directory / file) is not None)
    with ExitStack() as opened:
        runs = journals_in(directory)
        for paths in runs:
            storage = FolderStorage(directory, paths.shard)
            run = OutputRun(style, None, paths.shard)
            outputs.append(opened.enter_context(JournaledOutput(storage, run, say_once, names)))
            journals.append(outputs[-1].journal)
        for output, paths in zip(outputs, runs, strict=True):
            try:
                for is_made, has_failed in output.make_files():
                    exported = exported.plus(is_made, has_failed)
            except NotAResult as error:
                raise edited_rows(paths.rows) from error
    for problem in (one for output in outputs for one in output.not_made):
        raise problem
    return exported._replace(kept=sum(output.num_kept for output in outputs))


def names_in(place: Path) -> SpeakerNames | None:
    """Return the names of speakers that were last given for a folder, or for rows in a folder; None: none were."""
    stated = filter(None, map(_stated, _runs_at(place)))
    return next(filter(None, (with_names(OutputStyle(), run.facts).speaker_names for run in stated)), None)


def formats_in(place: Path) -> list[str]:
    """Return the formats of the files that the runs of a folder wrote; none for another place."""
    runs = journals_in(place) if place.is_dir() else []
    found = {format for paths in runs for format in read_journal(paths.journal).formats}
    return [format for format in FILE_FORMATS if format in found]


def language_in(places: Iterable[Path]) -> str | None:
    """Return the language that the runs of all these folders, or of rows in folders, wrote; None: not known, or several."""
    found = set[str | None]()
    for place in places:
        runs = _runs_at(place)
        if not runs:
            found.add(None)
        for paths in runs:
            stated = _stated(paths)
            found.add(stated and (stated.facts.get("language") or stated.header.get("--language")))
    return found.pop() if len(found) == 1 else None


def _stated(paths: Paths) -> LastRun | None:
    with suppress(OSError, UsageError):  # a journal of another version: the rows are read without it
        return last_run(paths.directory, paths.shard)
    return None


def _runs_at(place: Path) -> list[Paths]:
    folder = place if place.is_dir() else place.parent
    return [paths for paths in journals_in(folder) if place in (folder, paths.rows)] if folder.is_dir() else []


def stored_results(
    rows: Iterable[ResultRow | ManifestError],
) -> Iterator[tuple[Transcript | Failure, ResultRow] | ManifestError]:
    """Yield the results of rows with the rows themselves, numbered in order; a row that is no result as a ManifestError."""
    index = 0
    for row in rows:
        if isinstance(row, ManifestError):
            yield row
            continue
        try:
            yield to_result(row.fields, index=index), row
            index += 1
        except NotAResult as error:
            yield row.problem(str(error))


def export_to_folder(
    results: Iterable[tuple[Transcript | Failure, ResultRow]],
    style: OutputStyle,
    directory: Path,
    say: Callable[[str], object] = print,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Exported:
    """Write stored results into a folder of its own: rows, a journal, and files. A later export goes on there.

    Args:
        results: From stored_results().
        style: Formats and their options. Tokens are written if the first transcript has them.
        directory: The folder, which is made if need be.
        say: Shows one line to the user.
        settings: What has changed the texts of the results, by option; those of an earlier export must be the same.

    Raises:
        UsageError: The folder is in use or holds other results, or a file that no run wrote is in the way.
        OSError: A file cannot be written.
        OutputError: The same, for files that were queued.
    """
    if any("export" not in read_header(paths.journal) for paths in journals_in(directory)):
        raise UsageError(
            f"{directory}: holds the results of a run: fastscribe export {quote(str(directory))} makes files of these"
        )
    pending = iter(results)
    head = []  # up to the first transcript
    for result, row in pending:
        head.append((result, row))
        if isinstance(result, Transcript):
            break
    if not head:
        return Exported()
    tokens = "tokens" in head[-1][1].fields
    style = replace(style, tokens=tokens)
    exported = Exported()
    run = OutputRun(style, {"export": True, "--tokens": tokens, **settings})
    with open_journaled(directory, run, say) as output:
        for result, row in (pair for pairs in (head, pending) for pair in pairs):
            source = _source(result, row)
            output.ledger.expect(source)
            is_done = output.ledger.skip(source)
            if not is_done:
                output.write(result)
            has_failed = isinstance(result, Failure)
            gets_files = not has_failed or "json" in style.formats or style.formats == ("jsonl",)
            exported = exported.plus(not is_done and gets_files, has_failed)
    for error in output.not_made:
        raise error
    return exported._replace(made=exported.made + output.files.num_made_again, kept=output.num_kept)


def _source(result: Transcript | Failure, row: ResultRow) -> Source:
    """Return the input that a stored result stands for, by the path as the row has it, whatever the present folder.

    The row tells whether it has changed. A row of a plain file states its own length, which is no part of a manifest.
    """
    item = result if isinstance(result, Failure) else result.audio
    is_manifest = "pred_text" in row.fields or isinstance(result, Failure)
    offset, duration = (row.fields.get(name) if is_manifest else None for name in ("offset", "duration"))
    numbers = [float(one) if isinstance(one, (int, float)) else None for one in (offset, duration)]
    stands_for = Samples(np.zeros(0, np.int16), 1, item.path)  # is not opened
    return Source(item.path, stands_for, item.id, row.fields, numbers[0], numbers[1], item.index)
