"""The files that a run makes in its folder beside the results' own, and the first line of its journal."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastscribe._system.file_kinds import InTheWay, check_regular, is_regular, starts_with, status_of
from fastscribe._system.safe_open import safe_open
from fastscribe.errors import UsageError
from fastscribe.results.shards import UNSHARDED, Shard

VERSION = 2
HEADER_KEY = "fastscribe_journal"
HEADER_START = f'{{"{HEADER_KEY}":'.encode()
BLOCK_START = b'{"fastscribe_block":'
SWAP = b"fastscribe: both temporary files are complete\n"
_JOURNAL_NAME = re.compile(r"journal(\.shard-\d+-of-\d+)?\.jsonl", re.ASCII)


@dataclass(frozen=True)
class Paths:
    """The files of one shard of an output folder."""

    directory: Path
    suffix: str  # shards.Shard.suffix

    @classmethod
    def from_journal(cls, path: Path) -> Paths | None:
        """Return the paths that belong to a journal; None if no run wrote it."""
        match = _JOURNAL_NAME.fullmatch(path.name)
        paths = cls(path.parent, match[1] or "") if match else None
        return paths if paths is not None and paths.is_ours else None

    @property
    def is_ours(self) -> bool:
        """True if the journal is a journal, or empty: an empty file has nothing to lose."""
        if not is_regular(self.journal):
            return False
        line = first_line(self.journal)
        return line.startswith(HEADER_START) or HEADER_START.startswith(line.rstrip(b"\0"))

    @property
    def has_begun(self) -> bool:
        """True if the journal's first line is whole; without it, the journal has no entries."""
        return self.is_ours and first_line(self.journal).endswith(b"\n")

    @property
    def shard(self) -> Shard:
        """The shard of these files, by their suffix."""
        index, _, count = self.suffix.removeprefix(".shard-").partition("-of-")
        return Shard(int(index), int(count)) if count else UNSHARDED

    @property
    def rows(self) -> Path:
        return self.directory / f"transcripts{self.suffix}.jsonl"

    @property
    def journal(self) -> Path:
        return self.directory / f"journal{self.suffix}.jsonl"

    @property
    def report(self) -> Path:
        return self.directory / f"report{self.suffix}.json"

    @property
    def lock(self) -> Path:
        return self.directory / f".lock{self.suffix}"

    @property
    def swap(self) -> Path:
        """The marker that both temporary files are complete."""
        return self.directory / f".swap{self.suffix}"

    @property
    def block(self) -> Path:
        """The recordings of the commit in progress."""
        return self.directory / f".block{self.suffix}"

    def check(self, besides: Collection[Path] = ()) -> None:
        """Raise UsageError if one of these names has a file that no run wrote, except `besides`. Changes nothing."""
        own = (self.journal, self.rows, self.report, self.swap, self.block)
        try:
            check_regular(*own)
            for path in own:
                status = status_of(path) if path not in besides else None
                if status is not None and status.st_size and not self._is_own(path):
                    raise InTheWay(path)
        except InTheWay as error:
            raise in_the_way([str(error.filename)]) from None

    def _is_own(self, path: Path) -> bool:
        if path == self.journal or not self.has_begun:
            return path == self.journal and self.is_ours
        if path == self.rows:
            return True
        if path == self.block:  # written in place: a power cut may truncate it
            return starts_with(path, re.compile(re.escape(BLOCK_START))) or BLOCK_START.startswith(first_line(path))
        return starts_with(path, re.compile(rb'\{\s*"files":' if path == self.report else re.escape(SWAP)))


def in_the_way(paths: Sequence[str]) -> UsageError:
    """Return the error for files that no run wrote, where this run would write. It names the first."""
    others = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return UsageError(
        f"{paths[0]}{others}: no journal says that fastscribe wrote this file: move it away, or name another output folder"
    )


def read_header(path: Path) -> Mapping[str, Any]:
    """Return the fingerprint. Raise UsageError if the file is no journal of this version."""
    return parse_header(first_line(path), path)


def header_line(fingerprint: Mapping[str, Any]) -> bytes:
    """Return a journal's first line."""
    return (json.dumps({HEADER_KEY: VERSION, "fingerprint": fingerprint}, ensure_ascii=False) + "\n").encode()


def parse_header(line: bytes, where: Path | str) -> Mapping[str, Any]:
    """Return the fingerprint in a journal's first line, as `read_header` does."""
    try:
        header = json.loads(line)
        version, fingerprint = header[HEADER_KEY], header["fingerprint"]
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{where}: is not a journal of fastscribe's: move it away, or use another folder") from None
    if version != VERSION or not isinstance(fingerprint, dict):
        raise UsageError(
            f"{where}: was written by another version of fastscribe (format {version}, this one has {VERSION}); "
            "use another folder, or --overwrite"
        )
    return fingerprint


def first_line(path: Path) -> bytes:
    with safe_open(path) as file:
        return file.readline()
