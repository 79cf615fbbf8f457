"""Results of a run in a folder or a store: rows, a journal, and files.

A result's row and its journal line are made durable together with those of others (committer.py); its files follow. The same
command goes on where the last run stopped: the ledger knows what is done, and files that are missing are made of the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from shlex import quote
from threading import Timer
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from fastscribe._system.file_kinds import InTheWay, safe_open
from fastscribe._system.text_layout import count_of, first_of
from fastscribe._system.urls import is_url
from fastscribe.audio.failures import relative_id
from fastscribe.audio.formats import MAGIC, STDIN, list_kind
from fastscribe.audio.inputs import expand
from fastscribe.config import OutputFormat, OutputStyle, SpeakerNames
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.committer import Committer, is_ours
from fastscribe.results.interfaces import Ledger, OutputRun
from fastscribe.results.journal import (
    NO_STATE,
    Entry,
    Journal,
    LastRun,
    PendingInput,
    check_same_settings,
    read_entries,
)
from fastscribe.results.journal import last_run as last_run_in
from fastscribe.results.journal_ledger import JournalLedger, key_of
from fastscribe.results.moved import FROM, MOVES, moved_line
from fastscribe.results.names import Names
from fastscribe.results.paths import Paths, in_the_way, journals_in
from fastscribe.results.result_files import ResultFiles, file_formats, forgotten, path_of
from fastscribe.results.shards import Shard
from fastscribe.results.storage import Finish, Item, NewFile, Storage
from fastscribe.results.stored import NotAResult
from fastscribe.types import BoolArray, Failure, Source, Transcript

_NAMES = "speaker_names"  # in what a journal's runs state
_MAX_NAMES = 3  # of results that a message names
_REMOVED_AT_ONCE = 1000
_SLOW_S = 10.0  # writing takes longer: a line comes
_REMOVE_TIMEOUT_S = 5.0  # until another shard of this run must have removed what both find


class Totals(NamedTuple):
    """Counts of all runs into a folder. `not_given` counts results in the folder whose inputs this run was not given."""

    files: int = 0
    failed: int = 0
    audio_s: float = 0.0
    not_given: int = 0


class JournaledOutput:
    """Writes results into a storage, and resumes where an earlier run with the same fingerprint stopped.

    Use it as a context manager, and give its `ledger` to Transcriber.results().

    Arguments and errors are those of open_journaled(), with a storage in place of its place. `names` gives names to
    several outputs in one place; None: to this one alone.
    """

    def __init__(
        self,
        storage: Storage,
        run: OutputRun,
        say: Callable[[str], object] = print,
        names: Names | None = None,
    ) -> None:
        self._storage, self._run, self._say = storage, run, say
        self._new = Totals()
        self._report: bytes | None = None
        self._earlier_report = b""
        self._is_closed = False
        with ExitStack() as closing_all:
            closing_all.callback(storage.close, None)
            try:
                self.journal = self._open(run)
                self._names = self._names_of_all(run) if names is None else names
            except InTheWay as error:
                raise in_the_way(str(error.filename)) from None
            closing_all.pop_all()
            self._committer = Committer(storage)
            self.files = ResultFiles(storage, self.journal, self._committer)
            closing_all.callback(self.close, finished=False)
            self._begin(run)
            self.files.recover()
            closing_all.pop_all()

    def _begin(self, run: OutputRun) -> None:
        style = with_names(run.style, self.journal.facts)
        if run.fingerprint is None and self.journal.header is not None:
            style = replace(style, tokens=self.journal.header.get("--tokens") is True)
        self.files.begin(style, self._names)
        self.ledger = JournalLedger(run, self.journal, self._storage, self.files)

    def go_on(self, run: OutputRun, say: Callable[[str], object]) -> None:
        """Begin a run after all, with a ledger that has not been asked yet. Only formats and settings matter of `run`.

        Raises:
            UsageError: The results are of a run with other settings.
        """
        check_same_settings(self._storage.where, self.journal.header or {}, run.header or {})
        self._committer.flush()
        if self.files.num_made_again or self.ledger.num_renewed:
            self._storage.sync([])  # a store lists them then
        self._run, self._say = run, say
        self.journal.is_in_this_run[:] = False
        self._names = self._names_of_all(run)
        self._begin(run)

    def _open(self, run: OutputRun) -> Journal:
        storage = self._storage
        self._shards = storage.lock(self._say)
        formats: tuple[OutputFormat, ...] = ()
        if run.overwrite:
            if not run.style.formats:  # else those of the removed results do not matter
                journals = (storage.load(shard, whatever_is_left=True) for shard in self._shards)
                formats = tuple(dict.fromkeys(chain.from_iterable(one.formats for one in journals)))
            self._shards = _overwrite(storage, run, self._shards, self._say)
        for other in (one for one in self._shards if one.count != run.shard.count):
            shard = f"shard {other}" if other.count > 1 else "a run without shards"
            raise UsageError(
                f"{storage.where}: holds results of {shard}, of a run divided otherwise than {run.shard}: use another folder, "
                "or --overwrite to start over"
            )
        with suppress(FileNotFoundError):
            self._earlier_report = storage.read(Paths(Path(), run.shard.suffix).report.name)  # which open() removes
        facts = {FROM: os.getcwd(), **run.facts}
        stated = None if (run.style.speaker_names or run.moved) is None else last_run(storage.where, run.shard)
        earlier = {} if stated is None else stated.facts
        names, moves = with_names(run.style, earlier).speaker_names, earlier.get(MOVES, [])
        if names is not None:
            facts[_NAMES] = {"in_order": list(names.in_order), "of_labels": list(map(list, names.of_labels))}
        if run.moved is not None and run.moved.old and list(run.moved) not in moves:
            facts[MOVES] = [*moves, list(run.moved)]
        journal = storage.open(run.header, facts, self._say)
        if run.overwrite:
            journal.formats = formats
        return journal

    def _names_of_all(self, run: OutputRun) -> Names:
        """Return what gives names, which knows those of all shards."""
        formats = file_formats(run.style.formats or self.journal.formats)
        others = [shard for shard in self._shards if shard != run.shard] if formats else []
        storage = self._storage
        return Names([self.journal, *map(storage.load, others)], formats, lambda file: storage.size(file) is not None)

    def __enter__(self) -> JournaledOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(finished=kind is None)

    def write(self, result: Transcript | Failure) -> None:
        """Queue all formats of one result. The row is durable soon afterwards, and after `flush`; its files follow.

        Raises:
            OutputError: An earlier result could not be committed. The run cannot go on.
        """
        item = result if isinstance(result, Failure) else result.audio
        pending = self.ledger[item.index]
        if isinstance(result, Transcript):
            self.ledger.take_outdated(pending)
        made = self.files.item(pending, result)
        replaced = pending.entry_index
        moved = [] if replaced is None or not pending.is_moved else [forgotten(self.journal.entry(replaced))]
        self._committer.add(made, *moved)
        with self.ledger.lock:
            self.ledger.forget(item.index)
        if replaced is not None:
            self.journal.is_replaced[replaced] = True
        assert made.entry is not None
        new, failed, audio_s = self._new, made.entry.failed, made.entry.audio_s
        self._new = Totals(new.files + 1, new.failed + failed, new.audio_s + audio_s)

    def moved_line(self, inputs: Iterable[object]) -> str:
        """Return what the run says, as moved.moved_line(). Raises UsageError, OSError."""
        return moved_line(self._storage, self._run, self.journal, inputs)

    def make_files(self) -> Iterator[tuple[bool, bool]]:
        """Make the files that earlier results lack, in the journal's order. Yield whether each got one, and whether it failed.

        Raises:
            NotAResult: A row is none.
            OSError: A file or a store cannot be read.
        """
        journal = self.journal
        for entry_index in np.flatnonzero(journal.is_live).tolist():
            key, order, failed = journal.entries[["key", "order", "failed"]][entry_index].item()
            before = self.files.num_made_again
            name = self.files.names.name_of(journal.entry(entry_index).id, key)
            if not self.files.complete(PendingInput(key, key, name, entry_index=entry_index), order):
                raise NotAResult(f"{self._storage.where}: a row was changed since its run")
            yield self.files.num_made_again > before, failed

    def flush(self) -> None:
        """Wait until all results are durable. Raises OutputError."""
        with self._told_if_slow():
            self._committer.flush()

    def close(self, finished: bool = True) -> None:
        """Wait until all results are durable; then sort and compact the rows if need be, and write the report.

        A run that did not finish keeps its rows as they are. Files that are not the run's are named at last.

        Raises:
            OutputError: A file cannot be written.
        """
        if self._is_closed:
            return
        self._is_closed, finish = True, None
        try:
            if finished and self._run.fingerprint is not None:
                self._drop_old_failures()
            with self._told_if_slow():
                self._committer.close()
            if finished:
                finish = Finish(self._run.ordered, self.journal.entries["order"], self._report)
        finally:
            try:
                self._storage.close(finish)
            except OSError as error:
                raise OutputError(str(error.filename or self._storage.where), error) from error
            for line in self._lines(finished):
                self._say(line)

    @contextmanager
    def _told_if_slow(self) -> Iterator[None]:
        """Say after a while that results are still being written: a disk may stand still, and a signal waits for it."""
        line = (
            f"{self._storage.where}: still writing results; Ctrl-C or SIGTERM twice ends it, and what is written stays"
        )
        timer = Timer(_SLOW_S, self._say, [line])
        timer.daemon = True
        with suppress(RuntimeError):  # no more threads: the line does without
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _lines(self, finished: bool) -> Iterator[str]:
        """Yield a line for each kind of file that is not as the run would make it."""
        kept = [file for file, is_changed in self._committer.kept.items() if is_changed or not self._run.quiet]
        if kept:
            is_one = len(kept) == 1
            stays, them = ("it stays as it is", "it") if is_one else ("they stay as they are", "them")
            yield (
                f"{self._path_of(kept[0])}{_others(kept)}: edited since the run: {stays}; for the machine's text, delete "
                f"{them} and repeat the command; fastscribe align --text makes other formats of a corrected text"
            )
        if foreign := list(self._names.foreign.items()):
            file, name = foreign[0]
            yield (
                f"{self._path_of(file)}{_others(foreign)}: no run of fastscribe wrote this file, so it stays, and the "
                f"recording's files are called {name}"
            )
        if finished and (formats := ",".join(self.files.with_other_names)):
            place = self._storage.where
            command = "the command" if is_url(place) else f"fastscribe export {quote(place)}"
            yield f"{place}: {formats}: files with other names of speakers: {command} -f {formats} makes them anew"

    def _path_of(self, file: str) -> str:
        return f"{self._storage.where.rstrip('/')}/{file}"

    @property
    def style(self) -> OutputStyle:
        """The run's, with the names of speakers that were last given for this place."""
        return self.files.style

    @property
    def num_kept(self) -> int:
        """How many files stay as they are, because someone has edited them."""
        return len(self._committer.kept)

    @property
    def num_dropped(self) -> int:
        """How many failures of inputs that were not given go, once all inputs were given."""
        return int(self._is_dropped.sum())

    @property
    def num_durable(self) -> int:
        """How many new results of this run are durable."""
        return self._committer.num_rows

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the run states, as the journal keeps it."""
        return self._run.facts

    @property
    def not_made(self) -> list[OSError]:
        """Why files of results could not be written; the next run makes them."""
        errors = [*self.files.not_made, *self._committer.not_written]
        return list({error.filename or number: error for number, error in enumerate(errors)}.values())  # each file once

    def totals(self) -> Totals:
        """Return what the place holds once this run has finished."""
        journal, is_counted = self.journal, self._is_counted
        before = journal.entries[is_counted]
        return Totals(
            files=self._new.files + len(before),
            failed=self._new.failed + int(before["failed"].sum()),
            audio_s=self._new.audio_s + float(before["audio_s"].sum()),
            not_given=int((is_counted & ~journal.is_in_this_run).sum()),
        )

    def not_given_line(self) -> str:
        """Return a line about the results that totals() counts as not given, before close(); "" without any."""
        entry_indices = np.flatnonzero(self._is_counted & ~self.journal.is_in_this_run)
        if not (number := len(entry_indices)):
            return ""
        names, edited = [], list[str]()
        for entry in map(self.journal.entry, entry_indices[:_MAX_NAMES].tolist()):
            files = [NewFile(f"{entry.name}.{format}", b"", crcs) for format, crcs in entry.left().items()]
            found = [file.name for file in files if is_ours(self._storage, file) is False]
            edited += found if found and self._is_gone(entry) else []
            path = path_of(self._storage, entry)
            has_slash = path.startswith("/") and entry.id.startswith(relative_id(path))  # which no id has
            names.append(f"/{entry.id}" if has_slash else entry.id)
        results = "1 result is of an input" if number == 1 else f"{number} results are of inputs"
        line = f"{self._storage.where}: {results} not given this time: {first_of(names, number, number)}"
        if num_failed := int(self.journal.entries["failed"][entry_indices].sum()):
            which = "it" if number == 1 else f"{num_failed} of them"
            line += f"; {which} failed: --retry-failed drops failures whose recording is gone"
        if edited:
            line += f"; {self._path_of(edited[0])}{_others(edited)}: edited, and the recording is gone"
            line += ": if that was renamed, --moved OLD=NEW gives it the text"
        return line

    @property
    def _is_counted(self) -> BoolArray:
        journal = self.journal
        is_counted: BoolArray = ~self._is_dropped & ~journal.is_replaced & journal.is_live
        return is_counted

    @cached_property
    def _is_dropped(self) -> BoolArray:
        """Which failures this run drops, of inputs that it was not given: a wrong path of a list, corrected.

        It is asked once all inputs were given, and reads rows.
        With --retry-failed also those whose recording is gone from the disk. One that is there may be given again.
        """
        journal = self.journal
        is_other = journal.is_live & ~journal.is_in_this_run & ~journal.is_replaced
        is_dropped: BoolArray = is_other & journal.entries["for_list"]
        if self._run.retry_failed:
            for entry_index in np.flatnonzero(is_other & journal.entries["failed"] & ~is_dropped).tolist():
                is_dropped[entry_index] = self._is_gone(journal.entry(entry_index))
        return is_dropped

    def _is_gone(self, entry: Entry) -> bool:
        """Return True if a result's recording was a file, and is no longer there. Paths of lists count from their lists."""
        path = path_of(self._storage, entry)
        is_known = os.path.isabs(path) or entry.key == key_of(Source(path, path, entry.id))
        return is_known and not os.path.lexists(path)

    def write_report(self, content: bytes) -> None:
        """Have `close` write the report last and durably: `merge` takes it as proof that the run is complete.

        Without a new result, an earlier report stays, with the numbers of the run that did the work, if it counts the results
        that are here.
        """
        self._report = content
        counts = _counts_in(self._earlier_report)
        if not self._new.files and counts is not None and counts == _counts_in(content):
            kept, report = json.loads(self._earlier_report), json.loads(content)
            # Of other shards there may be more or others.
            kept |= {name: report[name] for name in ("inputs", "inputs_digest") if name in report}
            self._report = (json.dumps(kept, indent=2) + "\n").encode()

    def put_report_back(self) -> None:
        """Write the earlier report again, which opening removed, if it counts the results that are here: nothing was done.

        Raises:
            OSError: It cannot be written.
        """
        is_live = self.journal.is_live
        num_failed = int(self.journal.entries["failed"][is_live].sum())
        if _counts_in(self._earlier_report) == [int(is_live.sum()), num_failed]:
            name = Paths(Path(), self._run.shard.suffix).report.name
            self._storage.write(name, self._earlier_report, replaces=True)

    def _drop_old_failures(self) -> None:
        for entry_index in np.flatnonzero(self._is_dropped).tolist():
            old = self.journal.entry(entry_index)
            former = old.left()
            files = [NewFile(f"{old.name}.{format}", None, crcs) for format, crcs in former.items()]
            entry = old._replace(state=NO_STATE, begin=0, end=0, files={}, former=former)
            self._committer.add(Item(entry, has_new_row=False, files=tuple(files)))


def _counts_in(report: bytes) -> list[Any] | None:
    """Return a report's numbers of all results, and of those that failed; None if it is none."""
    try:
        return [json.loads(report)["totals"][name] for name in ("files", "failed")]
    except (ValueError, KeyError, TypeError):
        return None


def _others(names: Sequence[object]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _overwrite(storage: Storage, run: OutputRun, shards: Sequence[Shard], say: Callable[[str], object]) -> list[Shard]:
    """Remove the results of the run's shard, and of runs that divided the inputs differently; return the shards that stay.

    Files go first, then rows, then the journal, so that a run that is killed meanwhile knows what is left. Edited files stay.

    Raises:
        UsageError: No input exists: with a mistyped path, --overwrite would remove results for nothing.
        OSError: The place cannot be read or written.
    """
    if run.inputs and "-" not in run.inputs and all(isinstance(found, Failure) for found in expand(run.inputs)):
        raise UsageError(f"{run.inputs[0]}: no input is there, so --overwrite removes nothing: check the spelling")
    edited: list[str] = []
    former = [one for one in shards if one.count != run.shard.count]
    for shard in former:
        with _locked(storage.where, shard, say) as other:
            _remove(other, shard, edited)
    _remove(storage, run.shard, edited)
    if edited:
        say(f"{storage.where}/{edited[0]}{_others(edited)}: edited since the run: not removed")
    return [shard for shard in shards if shard not in (*former, run.shard)]


@contextmanager
def _locked(where: str, shard: Shard, say: Callable[[str], object]) -> Iterator[Storage]:
    """Yield the storage of another shard.

    Other shards of this run may be removing it too, so a held lock is retried for a while.
    """
    deadline = monotonic() + _REMOVE_TIMEOUT_S
    with _closing(where, shard) as storage:
        while True:
            try:
                storage.lock(say)
                break
            except UsageError:
                if monotonic() > deadline:
                    raise
                sleep(0.05)
        yield storage


def _remove(storage: Storage, shard: Shard, edited: list[str]) -> None:
    """Remove what the runs of a shard wrote, and note the files that somebody edited, which stay."""
    journal = storage.load(shard, whatever_is_left=True)
    is_last = np.zeros(len(journal.entries), bool)
    is_last[journal.entry_indices] = True
    entries = compress(() if journal.path is None else read_entries(journal.path), is_last)

    files = (NewFile(f"{one.name}.{format}", None, left) for one in entries for format, left in one.left().items())
    while some := list(islice(files, _REMOVED_AT_ONCE)):
        checked = list(storage.map(lambda file: (file.name, is_ours(storage, file)), some))
        edited.extend(file for file, is_own in checked if is_own is False)
        storage.remove([file for file, is_own in checked if is_own])
    for own in storage.own_names(shard):
        storage.remove(own)


def storage_at(place: Path | str, shard: Shard) -> Storage:
    """Return the storage of a folder or URL. Only its own modules are imported.

    Raises:
        UsageError: The store needs a package that is not installed, or there is no such protocol or bucket.
    """
    if is_url(str(place)):
        from fastscribe.results.storage_object import ObjectStorage

        return ObjectStorage(str(place), shard)
    from fastscribe.results.storage_folder import FolderStorage

    return FolderStorage(Path(place), shard)


def open_journaled(place: Path | str, run: OutputRun, say: Callable[[str], object] = print) -> JournaledOutput:
    """Open a folder or a store. The run goes on where an earlier one with the same fingerprint stopped.

    Args:
        place: A folder, which is made if need be, or a URL.
        run: What the run writes.
        say: Shows one line to the user.

    Raises:
        UsageError: Another run writes there, or the place holds results of another kind that `run.overwrite` does not remove,
            or a file that no run wrote is in the way.
        OSError: The place cannot be read or written.
    """
    return JournaledOutput(storage_at(place, run.shard), run, say)


def last_run(place: Path | str, shard: Shard) -> LastRun | None:
    """Return what the journal of a shard says of its runs; None if there is none.

    Raises:
        UsageError: It is no journal of this version, or the store needs a package that is not installed.
        OSError: The place cannot be read.
    """
    if is_url(str(place)):
        from fastscribe.results.storage_object import last_stored_run

        return last_stored_run(str(place), shard)
    paths = Paths(Path(place), shard.suffix)
    if not paths.has_begun:
        return None
    with safe_open(paths.journal) as file:
        return last_run_in(file, paths.journal)


def with_names(style: OutputStyle, facts: Mapping[str, Any]) -> OutputStyle:
    """Return a style with the names of speakers that runs have stated, behind those that it has itself."""
    names, given = facts.get(_NAMES), style.speaker_names
    if names is None:
        return style
    of_labels = tuple((recording, label, name) for recording, label, name in names["of_labels"])
    earlier = SpeakerNames(tuple(names["in_order"]), of_labels)
    return replace(style, speaker_names=earlier if given is None else given.after(earlier))


def moved_line_of(run: OutputRun, inputs: Iterable[object]) -> str:
    """Return what a run says, as moved.moved_line(); nothing is written, and no lock is needed.

    Raises:
        UsageError: The run should decode nothing, or the place has no journal of this version.
        OSError: It cannot be read.
    """
    with _closing(run.where, run.shard) as storage:
        return moved_line(storage, run, storage.load(run.shard), inputs)


def check_overwrite(run: OutputRun, inputs: Iterable[Source | Failure], say: Callable[[str], object]) -> None:
    """Print how many results --overwrite removes, if these are more than the inputs.

    Raises:
        UsageError: Only single files are given, and there are results of other recordings.
        OSError: The place cannot be read.
    """
    shards, journals = [run.shard], list[Journal]()
    if run.directory is not None:  # --overwrite removes results of runs that were divided otherwise, too
        found = [paths.shard for paths in journals_in(run.directory)]
        shards = [shard for shard in found if shard == run.shard or shard.count != run.shard.count]
    for shard in shards:
        with _closing(run.where, shard) as storage:
            journals.append(storage.load(shard, whatever_is_left=True))
    has_result = [any(journal.has_result(key_of(one)) for journal in journals) for one in inputs]
    num_results = sum(int(journal.is_live.sum()) for journal in journals)
    num_others = num_results - sum(has_result)
    if num_others > 0 and all(map(_is_single, run.inputs)):
        raise UsageError(
            f"{run.where}: --overwrite would also remove {count_of(num_others, 'result')} of other recordings: to transcribe "
            "only the given ones again, touch their files and leave --overwrite out; to start over, name another folder, or "
            "remove this one"
        )
    if num_results > len(has_result):
        say(f"{run.where}: --overwrite removes {count_of(num_results, 'result')} of earlier runs")


def _is_single(path: str) -> bool:
    """Return True for the name of one recording, whether it is there or not."""
    is_several = path == STDIN or os.path.isdir(path) or MAGIC.search(path)
    return not list_kind(path) and (os.path.isfile(path) or not is_several)


@contextmanager
def read_ledger(place: Path | str, run: OutputRun) -> Iterator[Ledger]:
    """Yield the ledger that a run would have, and write nothing. It may read the place while the block lasts.

    Raises:
        UsageError: As for JournaledOutput.
        OSError: The place cannot be read.
    """
    with _closing(place, run.shard) as storage:
        journal = storage.load(run.shard)
        if journal.header is not None and run.header is not None:
            check_same_settings(storage.where, journal.header, run.header)
        yield JournalLedger(run, journal, storage)


@contextmanager
def _closing(place: Path | str, shard: Shard) -> Iterator[Storage]:
    """Yield the storage of a place, which is closed behind the block without a report."""
    storage = storage_at(place, shard)
    try:
        yield storage
    finally:
        storage.close(None)
