"""`fastscribe merge`: combine the results of shards into one `transcripts.jsonl` and one `report.json`, in a folder or a store.

A shard's journal lists its results. A shard is complete once it has a report, which a run writes last. The files of an earlier
merge are replaced; a `transcripts.jsonl` or `report.json` that no merge wrote is an error. A folder without shards gets their
joined journal, too, so that a run without --shard can go on there; it makes files such as `.srt` of the rows. At a URL, each
shard is downloaded into a temporary folder, which is merged, and both files are written back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from fastscribe._system.file_kinds import safe_open, status_of
from fastscribe._system.safe_files import (
    discard_temp,
    open_temp,
    remove,
    rename_into_place,
    sync_folder,
    sync_path,
    temp_path_for,
)
from fastscribe.errors import UsageError
from fastscribe.fast_paths import first_reasons
from fastscribe.results.journal import (
    SYNCED,
    Journal,
    header_line,
    is_row,
    parse_entry,
    read_header,
    read_journal,
    run_line,
)
from fastscribe.results.objects import ObjectFolder
from fastscribe.results.parts import STATE, Parts, StoredRuns, check_listing, find_runs
from fastscribe.results.paths import Paths, in_the_way, journals_in, merged_files
from fastscribe.results.shards import UNSHARDED
from fastscribe.results.storage_object import MERGED, MERGED_FILES, publish
from fastscribe.types import RecordArray

_REQUIRED_KEYS = {"audio_s", "wall_s", "padded_frames", "real_frames", "gaps", "gap_s", "stage_s", "usd_per_hour"}
_REQUIRED_KEYS |= {"peak_bytes", "device", "dtype"}


@dataclass(frozen=True)
class ShardResult:
    paths: Paths
    entries: RecordArray  # the live ones
    report: Mapping[str, Any] | None  # None: the shard is not complete
    facts: Mapping[str, Any]  # that its runs stated


@dataclass(frozen=True)
class MergeResult:
    """The merged shards. `missing`, `incomplete` and `outdated` are numbers of shards, from 0."""

    count: int
    results: tuple[ShardResult, ...]

    @property
    def missing(self) -> list[int]:
        return sorted(set(range(self.count)) - {result.paths.shard.index for result in self.results})

    @property
    def incomplete(self) -> list[int]:
        return [result.paths.shard.index for result in self.results if result.report is None]

    @property
    def outdated(self) -> list[int]:
        """Shards whose runs were given fewer inputs than those of others, or as many others: recordings came in between."""
        reports = {one.paths.shard.index: one.report for one in self.results if one.report is not None}
        known = {index: one for index, one in reports.items() if isinstance(one.get("inputs"), int)}
        given = {index: (one["inputs"], one.get("inputs_digest")) for index, one in known.items()}
        most = max((number for number, _ in given.values()), default=0)
        # Reports of earlier versions have no digest.
        digests = {one for number, one in given.values() if number == most and isinstance(one, str)}
        are_alike = len(digests) <= 1
        return [index for index, (number, _) in given.items() if number < most or not are_alike]

    @property
    def failed(self) -> int:
        return sum(int(result.entries["failed"].sum()) for result in self.results)


def merge(folders: Sequence[Path], destination: Path, ordered: bool) -> MergeResult:
    """Write both files atomically.

    Args:
        folders: Folders with shards of one run.
        destination: Folder for the merged files; made if need be.
        ordered: Sort the rows by input; otherwise they are in the order of the shards.

    Returns:
        The shards that were found.

    Raises:
        UsageError: There are no shards, or shards of different runs, or a file that no merge wrote is in the way.
        OSError: A file cannot be read or written.
    """
    found = _find(folders)
    _check_same_run(found)
    own = Paths(destination, UNSHARDED.suffix)
    ours = merged_files(destination)
    if own.journal.exists() and own.journal not in ours:
        raise UsageError(f"{destination}: holds the results of a run of its own: name another folder with --output-dir")
    merged = MergeResult(found[0].paths.shard.count, tuple(found))
    destination.mkdir(parents=True, exist_ok=True)
    foreign = [str(path) for path in (own.rows, own.report) if status_of(path) is not None and path not in ours]
    if foreign:
        raise in_the_way(foreign[0])
    _write(merged, own, ordered)
    return merged


def _write(merged: MergeResult, own: Paths, ordered: bool) -> None:
    """Write the report, the rows and, in a folder without shards, the journal. They are renamed in this order."""
    has_shards = any(paths != own for paths in journals_in(own.directory))
    written = {own.rows: "rows_bytes"} if has_shards else {own.rows: "rows_bytes", own.journal: "journal_bytes"}
    try:
        _write_rows(merged, own, ordered, with_journal=not has_shards)
        sizes = {name: temp_path_for(path).stat().st_size for path, name in written.items()}
        with open_temp(own.report) as report:
            report.write((json.dumps(merged_report(merged) | sizes, indent=2) + "\n").encode())
        for path in (own.report, *written):
            sync_path(temp_path_for(path))
        remove(own.journal)  # of an earlier merge, whose rows go
        sync_folder(own.directory)
        for path in (own.report, *written):  # the report says that the others are ours
            rename_into_place(path)
            sync_folder(own.directory)
    except BaseException:
        for path in (own.report, *written):
            discard_temp(path)
        raise


def _find(folders: Sequence[Path]) -> list[ShardResult]:
    found: dict[int, ShardResult] = {}
    for paths in (one for folder in folders for one in journals_in(folder) if one.shard.count > 1):
        index = paths.shard.index
        if index in found:
            raise UsageError(f"shard {paths.shard} is in {found[index].paths.directory} and in {paths.directory}")
        found[index] = _read(paths)
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        problem = f"is a file: name its folder, {missing.parent}" if missing.exists() else "no such folder"
        raise UsageError(f"{missing}: {problem}")
    if not found:
        raise UsageError(
            f"{', '.join(map(str, folders))}: no shards here (transcribe --shard I/N -o FOLDER makes them)"
        )
    counts = {one.paths.shard.count for one in found.values()}
    if len(counts) > 1:
        raise UsageError(f"shards of {' and of '.join(map(str, sorted(counts)))}: of runs divided differently")
    return [found[index] for index in sorted(found)]


def _read(paths: Paths) -> ShardResult:
    """Read one shard. A shard that was stopped during compaction has no results until it has run again."""
    journal = read_journal(paths.journal)
    entries = journal.entries[np.flatnonzero(journal.is_live)]
    if paths.swap.exists():
        return ShardResult(paths, entries[:0], None, journal.facts)
    try:
        report = json.loads(paths.report.read_text(encoding="utf-8"))
        is_whole = report.keys() >= _REQUIRED_KEYS
    except (OSError, ValueError, AttributeError):
        is_whole = False
    return ShardResult(paths, entries, report if is_whole else None, journal.facts)


def _check_same_run(found: Sequence[ShardResult]) -> None:
    first, *others = [{**read_header(result.paths.journal), "shard": None} for result in found]
    for result, other in zip(found[1:], others, strict=True):
        different = [name for name in first.keys() | other.keys() if first.get(name) != other.get(name)]
        if different:
            raise UsageError(f"{result.paths.journal}: was run with another {', '.join(sorted(different))} than "
                             f"{found[0].paths.journal}")  # fmt: skip


def _write_rows(merged: MergeResult, own: Paths, ordered: bool, with_journal: bool) -> None:
    """Write the rows, and the journal of a run without shards, under their temporary names."""
    shards = np.repeat(np.arange(len(merged.results)), [len(result.entries) for result in merged.results])
    entries = np.concatenate([result.entries for result in merged.results])
    entry_indices = np.argsort(entries["order"], kind="stable") if ordered else np.arange(len(entries))
    with ExitStack() as opened:
        files = [
            opened.enter_context(result.paths.rows.open("rb")) if result.paths.rows.exists() else None
            for result in merged.results
        ]
        journals = [opened.enter_context(safe_open(result.paths.journal)) for result in merged.results]
        rows = opened.enter_context(open_temp(own.rows))
        journal = opened.enter_context(open_temp(own.journal)) if with_journal else None
        earlier = read_journal(own.journal) if journal is not None and own.journal.exists() else Journal()
        if journal is not None:
            journal.write(_begin_of_journal(merged.results))
        for entry_index in entry_indices.tolist():
            shard, (begin, end) = shards[entry_index], entries[["begin", "end"]][entry_index]
            if end > begin:
                at = rows.tell()
                rows.write(_row(files[shard], begin, end, merged.results[shard].paths.rows))
                if journal is not None:
                    journal.write(_line(journals[shard], int(entries["line"][entry_index]), at, earlier))
        if journal is not None and earlier.num_synced == len(earlier.entries):
            journal.write(SYNCED)


def _begin_of_journal(results: Sequence[ShardResult]) -> bytes:
    """Return the fingerprint of the shards' runs, and what they stated."""
    header = {**read_header(results[0].paths.journal), "shard": str(UNSHARDED)}
    return header_line(header) + run_line({name: fact for one in results for name, fact in one.facts.items()})


def _line(journal: BinaryIO, offset: int, begin: int, earlier: Journal) -> bytes:
    """Return the line of an entry whose row begins elsewhere now. It has the files that were exported of an earlier merge."""
    journal.seek(offset)
    entry = parse_entry(journal.readline())
    assert entry is not None
    entry = entry._replace(begin=begin, end=begin + entry.end - entry.begin, files={}, former={})
    entry_index = earlier.find(entry.key)
    if entry_index is not None and earlier.entries["name"][entry_index]:
        old = earlier.entry(entry_index)
        is_same = old.row_crc is not None and old.row_crc == entry.row_crc
        files, former = (old.files, old.former) if is_same else ({}, old.left())
        entry = entry._replace(name=old.name, files=files, former=former)
    return entry.line()


def _row(file: BinaryIO | None, begin: int, end: int, path: Path) -> bytes:
    row = b""
    if file is not None:
        file.seek(begin)
        row = file.read(end - begin)
    if not is_row(row) or len(row) != end - begin:
        raise UsageError(f"{path}: is not as its run left it, so nothing was merged; run that shard again")
    return row


def merged_report(merged: MergeResult) -> dict[str, Any]:
    """Return the report of all shards.

    Files and hours come from the journals and cover all runs. Times, speed and cost cover each shard's last run: `wall_s` is
    the longest shard's, as if all ran in parallel, and `machine_s` is the sum.
    """
    reports = [result.report for result in merged.results if result.report is not None]
    transcribed_s, machine_s = _total(reports, "audio_s"), _total(reports, "wall_s")
    wall_s = max((float(report["wall_s"]) for report in reports), default=0.0)
    usd = _usd(reports)
    padded, real = _total(reports, "padded_frames"), _total(reports, "real_frames")
    return {
        "shards": merged.count,
        "shards_missing": merged.missing,
        "shards_incomplete": merged.incomplete,
        "files": sum(len(result.entries) for result in merged.results),
        "failed": merged.failed,
        "left_out": dict(reports[0].get("left_out", {})) if reports else {},  # every shard lists all inputs
        "audio_s": round(sum(float(result.entries["audio_s"].sum()) for result in merged.results), 3),
        "wall_s": wall_s,
        "machine_s": round(machine_s, 3),
        "rtfx": round(transcribed_s / wall_s, 2) if wall_s else 0.0,
        "stage_s": {
            name: round(sum(report["stage_s"].get(name, 0.0) for report in reports), 3)
            for name in dict.fromkeys(name for report in reports for name in report["stage_s"])
        },
        "gaps": int(_total(reports, "gaps")),
        "gap_s": round(_total(reports, "gap_s"), 3),
        "padding_share": round(1 - real / padded, 4) if padded else 0.0,
        "peak_bytes": max((report["peak_bytes"] for report in reports), default=0),
        "devices": sorted({report["device"] for report in reports}),
        "dtypes": sorted({report["dtype"] for report in reports}),
        "refused": first_reasons(reports),
        "usd": None if usd is None else round(usd, 4),
        "usd_per_1000_audio_hours": round(1000 * usd / (transcribed_s / 3600), 4) if usd and transcribed_s else None,
    }


def _total(reports: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(report[name]) for report in reports)


def _usd(reports: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the total cost in USD; None if a machine's price is unknown."""
    if not reports or any(report["usd_per_hour"] is None for report in reports):
        return None
    return sum(float(report["usd_per_hour"] * report["wall_s"]) / 3600 for report in reports)


def merge_store(url: str, ordered: bool) -> MergeResult:
    """Merge the shards of a run. Readers see the old files or the new ones; the report comes last.

    Args:
        url: Where the shards wrote, and where the merged files go.
        ordered: Sort the rows by input; otherwise they are in the order of the shards.

    Returns:
        The shards that were found.

    Raises:
        UsageError: There are no shards, or shards of different runs, or an object that no merge wrote is in the way.
        OSError: The store cannot be read or written, or the temporary folder is full.
    """
    with closing(ObjectFolder(url)) as folder, TemporaryDirectory(prefix="fastscribe-") as temp:
        shards = [runs for runs in find_runs(folder.list(STATE)) if runs.runs]
        if any(runs.shard.count == 1 for runs in shards):
            raise UsageError(f"{url}: holds the results of a run that was not divided into shards: nothing to merge")
        if not shards:
            raise UsageError(f"{url}: no shards here (transcribe --shard I/N -o {url} makes them)")
        foreign = [] if folder.exists(MERGED) else [name for name in MERGED_FILES if folder.exists(name)]
        if foreign:
            raise in_the_way(folder.url_of(foreign[0]))
        for runs in shards:
            _download(folder, runs, Path(temp))
        report, rows = MERGED_FILES
        merged = merge([Path(temp)], Path(temp), ordered)
        folder.delete([report])  # until the new one is there, the rows may be newer
        publish(folder, rows, MERGED, Path(temp) / rows)
        folder.upload(report, Path(temp) / report)
        return merged


def _download(folder: ObjectFolder, runs: StoredRuns, directory: Path) -> None:
    """Write a shard's files as a run into a folder would have written them."""
    paths = Paths(directory, runs.shard.suffix)
    with closing(Parts(folder, runs)) as parts:
        copyfile(parts.join_rows(ordered=False), paths.rows)
        copyfile(parts.paths.journal, paths.journal)
    report = folder.read_if_there(paths.report.name)
    if report:
        check_listing(folder, runs)
        paths.report.write_bytes(report)
