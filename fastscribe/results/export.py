"""`fastscribe export`: files of other formats from the rows of an output folder, or of any `transcripts.jsonl`.

Nothing is decoded. In a folder, the journal of its run (or those of its shards) lists the new files too, with the same
promises as for a run: the lock, a commit that survives a kill, and nothing replaced that the journal does not list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fastscribe.config import OutputStyle
from fastscribe.errors import ManifestError, UsageError
from fastscribe.results.commit import Committer
from fastscribe.results.compact import compact
from fastscribe.results.entries import NO_STATE
from fastscribe.results.file_names import FileNames, file_formats
from fastscribe.results.output import open_journaled
from fastscribe.results.output_run import OutputRun
from fastscribe.results.paths import Paths, in_the_way, read_header
from fastscribe.results.repair import rows_changed
from fastscribe.results.result_files import ResultFiles
from fastscribe.results.rows import ResultRow
from fastscribe.results.storage_folder import FolderStorage, journals_in
from fastscribe.results.stored import NotAResult, has_tokens, to_result
from fastscribe.types import BoolArray, Failure, Int64Array, Samples, Source, Transcript


class Exported(NamedTuple):
    """Numbers of results. `made`: of those that got files; `failed`: recordings that failed, of which only JSON is made."""

    results: int = 0
    made: int = 0
    failed: int = 0

    def plus(self, is_made: bool, has_failed: bool) -> Exported:
        """Return the numbers with another result."""
        return Exported(self.results + 1, self.made + is_made, self.failed + has_failed)


class _OpenRun:
    """The open journal of a run whose lock is held, and all that makes files of its rows.

    Raises:
        UsageError: The journal has no rows, or someone changed them.
        OSError: The folder cannot be written.
    """

    def __init__(self, storage: FolderStorage, style: OutputStyle, opened: ExitStack) -> None:
        self.storage, self.paths = storage, storage.paths
        opened.callback(storage.end_writing)
        self.journal = storage.open_unedited()
        self.committer = Committer(storage)
        opened.callback(self.committer.close)
        tokens = self.journal.fingerprint.get("--tokens") is True
        style = OutputStyle(style.formats, tokens, style.subtitles)
        self.files = ResultFiles(storage, style, self.journal, self.committer)

    @property
    def live(self) -> Int64Array:
        """Indices of the live entries, in order; without those that have lost their row, which wait for another run."""
        entries, live = self.journal.previous.entries, np.sort(self.journal.previous.entry_indices)
        has_row: BoolArray = entries["state"][live] != NO_STATE
        return live[has_row]

    def owned_name(self, entry_index: int) -> str | None:
        """Return the name of a result's files; None if it has none."""
        if not self.journal.previous.entries["name"][entry_index]:
            return None
        name = self.journal.entry(entry_index).name
        return name if self.journal.previous.find_by_name(name) == entry_index else None


def runs_of(directory: Path) -> list[Paths]:
    """Return the paths of the runs whose journals are in a folder: one, or one for each shard."""
    return [paths for paths in journals_in(directory) if paths.has_begun]


def export_in_place(directory: Path, style: OutputStyle, say: Callable[[str], object] = print) -> Exported:
    """Make the files that the results of a folder lack, or have in another style, from their rows.

    Args:
        directory: An output folder with the journals of its runs.
        style: Formats and their options. Tokens are written if the rows have them.
        say: Shows one line to the user, about files that someone edited.

    Raises:
        UsageError: A run is at work in the folder, someone changed its rows, or a file that no run wrote is in the way.
            Nothing was changed.
        OSError: A file cannot be written; what was made is kept.
        OutputError: The same, for files that were queued.
    """
    exported = Exported()
    storages = [FolderStorage(directory, paths.shard) for paths in runs_of(directory)]
    with ExitStack() as locks:
        for storage in storages:
            locks.callback(storage.close, False, False)
            storage.lock(say)
        with ExitStack() as opened:
            runs = [_OpenRun(storage, style, opened) for storage in storages]
            names = _new_names(runs, style.formats)
            _check(runs, names)
            for run, own in zip(runs, names, strict=True):
                for entry_index, name, outdated in _to_do(run, own):
                    has_failed = _make(run, entry_index, name, outdated)
                    exported = exported.plus(bool(outdated), has_failed)
        for line in chain.from_iterable(run.storage.edits.lines() for run in runs):
            say(line)
        for run in runs:  # without the lines that are replaced
            entries = run.journal.previous.entries
            if run.journal.previous.is_made_again.any():
                compact(run.paths, False, entries["order"], np.zeros(len(entries), bool), keeps_places=True)
    return exported


def _make(run: _OpenRun, entry_index: int, name: str, formats: Sequence[str]) -> bool:
    """Make a result's files. Return True if the recording has failed."""
    entry = run.journal.previous.entries[entry_index]
    if formats:
        stored = run.files.stored(entry_index, int(entry["order"]))
        if stored is None:
            raise rows_changed(run.paths.rows)
        run.files.make_again(entry_index, name, stored, formats)
    return bool(entry["failed"])


def _new_names(runs: Sequence[_OpenRun], formats: Sequence[str]) -> list[dict[int, str]]:
    """Choose names for the results without files, in the order of the inputs, as a run would. By entry index."""
    names = FileNames(file_formats(formats))
    nameless: list[tuple[int, int, int]] = []  # position of the input, number of the run, entry index
    for number, run in enumerate(runs):
        entries, live = run.journal.previous.entries, run.live
        names.take(entries["name"][run.journal.previous.entry_indices].tolist())
        nameless += [(int(entries["order"][at]), number, at) for at in live.tolist() if run.owned_name(at) is None]
    nameless.sort()
    for index, (_, number, entry_index) in enumerate(nameless):
        names.reserve(runs[number].journal.entry(entry_index).id, index)
    found: list[dict[int, str]] = [{} for _ in runs]
    for index, (_, number, entry_index) in enumerate(nameless):
        found[number][entry_index] = names[index]
    return found


def _to_do(run: _OpenRun, new_names: Mapping[int, str]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield each result's entry index, its files' name and the formats to make."""
    for entry_index in run.live.tolist():
        owned = run.owned_name(entry_index)
        yield entry_index, owned or new_names[entry_index], run.files.outdated(entry_index, owned)


def _check(runs: Iterable[_OpenRun], names: Iterable[Mapping[int, str]]) -> None:
    """Raise UsageError if a row is no result, or a file that no journal lists has the name of one to make."""
    taken = []
    for run, own in zip(runs, names, strict=True):
        for entry_index, name, outdated in _to_do(run, own):
            if outdated and run.files.stored(entry_index) is None:
                raise rows_changed(run.paths.rows)
            listed = run.journal.previous.sizes(entry_index) if entry_index not in own else {}
            files = [f"{name}.{format}" for format in outdated if format not in listed]
            taken += [run.storage.path_of(file) for file in files if run.storage.is_taken(file)]
    if taken:
        raise in_the_way(taken)


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
    if any("export" not in read_header(paths.journal) for paths in runs_of(directory)):
        raise UsageError(f"{directory}: holds the results of a run: fastscribe export {directory} makes files of these")
    pending = iter(results)
    head = []  # up to the first transcript
    for result, row in pending:
        head.append((result, row))
        if isinstance(result, Transcript):
            break
    if not head:
        return Exported()
    tokens = has_tokens(head[-1][1].fields)
    style = OutputStyle(style.formats, tokens, style.subtitles)
    exported = Exported()
    run = OutputRun(style, {"export": True, "--tokens": tokens, **settings})
    with open_journaled(directory, run, say) as output:
        for result, row in (pair for pairs in (head, pending) for pair in pairs):
            source = _source(result, row)
            output.ledger.expect(source)
            is_done = output.ledger.is_done(source)
            if not is_done:
                output.write(result)
            has_failed = isinstance(result, Failure)
            gets_files = not has_failed or "json" in style.formats or style.formats == ("jsonl",)
            exported = exported.plus(not is_done and gets_files, has_failed)
        if output.ledger.not_made:
            raise output.ledger.not_made[0]
        exported = exported._replace(made=exported.made + output.ledger.num_made_again)
    return exported


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
