"""Recordings in tar archives, read where they lie.

An archive is indexed once: where each member begins, and its size. So a recording is read alone, in any order, which batches of
similar lengths and exact resumption need; nothing is unpacked. Compressed archives have no such places.
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

from fastscribe.audio.failures import system_problem
from fastscribe.audio.json_lines import NotAList
from fastscribe.audio.media import FilePart

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # as gzip, bzip2, xz, zstd begin
_NUMBER = re.compile(r"(\d+)(?=\D*$)")
_CUT_OFF = "cut off: it ends in the middle of a member"
_DAMAGED = "damaged: what stands behind the last recording that is read is no member, so those behind it are not found"
_NO_END = "what may follow in a .tar (which has no end mark, so it may be cut off)"
_KEPT_ARCHIVES = 4  # indexes of those that paths point into


def number_of(path: str) -> int | None:
    """Return the last number in a file's name, which counts the shards."""
    found = _NUMBER.search(os.path.basename(path).partition(".tar")[0].partition(".json")[0])
    return None if found is None else int(found[1])


def iter_members(path: str, left_out: Counter[str] | None = None) -> Iterator[tuple[str, FilePart]]:
    """Yield the names and places of an archive's files in order. Raises NotAList where it cannot be read any further.

    Args:
        path: The archive.
        left_out: Counts an archive without the blocks at its end, which some programs do not write.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.issparse():
                    raise NotAList(f"its member {member.name!r} is sparse: write the tar without sparse files")
                if member.isfile():
                    yield member.name.removeprefix("./"), FilePart(path, member.offset_data, member.size)
                archive.members = []  # type: ignore[attr-defined]  # it would grow
            if not _has_end(path, archive.offset) and left_out is not None:
                left_out[_NO_END] += 1
    except tarfile.TarError as error:
        raise NotAList(_tar_problem(path, error)) from error
    except OSError as error:
        raise NotAList(system_problem(error)) from error


def _has_end(path: str, offset: int) -> bool:
    """Return True if an archive's end is where its members end. Raises NotAList for anything else, which tarfile lets pass."""
    with open(path, "rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if any(block):
        raise NotAList(_DAMAGED if len(block) == tarfile.BLOCKSIZE else _CUT_OFF)
    return len(block) == tarfile.BLOCKSIZE


def _tar_problem(path: str, error: tarfile.TarError) -> str:
    with open(path, "rb") as file:
        is_compressed = file.read(6).startswith(_COMPRESSED)
    if is_compressed:
        return "compressed: only a tar without compression can be read in any order: unpack that, and give the tar"
    is_cut_off = str(error) in ("unexpected end of data", "truncated header", "empty header")
    return _CUT_OFF if is_cut_off else f"no tar archive: {error}"


def _indexed(path: str) -> tuple[dict[str, FilePart], str | None]:
    """Return the files of an archive, of one that is damaged those before the damage, and why not all of it can be read."""
    known: dict[str, FilePart] = {}
    try:
        known.update(iter_members(path))
    except NotAList as error:
        return known, str(error)
    return known, None


class TarIndex:
    """Finds members of archives by name. Each archive is indexed when it is first asked for."""

    def __init__(self) -> None:
        self._archive = lru_cache(None)(_indexed)

    def problem(self, path: str) -> str | None:
        """Return why not all of an archive can be read; None: it can."""
        return self._archive(path)[1]

    def find(self, path: str, name: str) -> FilePart:
        """Return the member `name` of the archive at `path`. Raises KeyError with the problem."""
        known, problem = self._archive(path)
        name = name.removeprefix("./")
        # NeMo adds -sub1 to the name in rows of further segments of a recording.
        part = known.get(name) or known.get(re.sub(r"-sub\d+(?=(\.\w+)?$)", "", name))
        if part is None:
            raise KeyError(f"{path}: {problem}" if problem else f"no such recording in {path}: {name!r}")
        if not part.size:
            raise KeyError(f"{name!r} in {path} is empty (0 bytes)")
        return part


class TarsBeside:
    """The archives beside a NeMo manifest, or beside its folder `sharded_manifests`, by the number in their names."""

    def __init__(self, manifest: str) -> None:
        folder = os.path.dirname(manifest)
        is_inside = os.path.basename(folder) == "sharded_manifests"
        folders = [folder, os.path.dirname(folder)] if is_inside else [folder]
        paths = [path for one in folders for path in glob.glob(os.path.join(glob.escape(one), "*.tar"))]
        self._by_number: dict[int | None, list[str]] = {}
        for path in sorted(paths):
            self._by_number.setdefault(number_of(path), []).append(path)
        self._index = TarIndex()

    def find(self, name: str, shard: int) -> FilePart | None:
        """Return the member that a row with a shard_id names; None: there are no archives. Raises KeyError."""
        if not self._by_number:
            return None
        paths = self._by_number.get(shard, [])
        if len(paths) != 1:
            raise KeyError(
                f"shard_id {shard}: {'no' if not paths else 'more than one'} tar of this number beside the list"
            )
        return self._index.find(paths[0], name)


class Shar:
    """The recordings beside a manifest of a Shar folder, by the id of their cut."""

    def __init__(self, manifest: str) -> None:
        """Raises NotAList."""
        number = number_of(manifest)
        tars = glob.glob(os.path.join(glob.escape(os.path.dirname(manifest)), "recording.*.tar"))
        found = [path for path in tars if number_of(path) == number]
        if len(found) != 1:
            raise NotAList("no recording.*.tar beside it with the same number")
        self._path = found[0]
        known, self._problem = _indexed(self._path)
        kept = (name for name in known if not name.endswith((".json", ".nodata")))
        self._parts = {os.path.splitext(name)[0]: known[name] for name in kept}

    def find(self, cut_id: str) -> FilePart:
        """Return a cut's recording. Raises KeyError with the problem."""
        part = self._parts.get(cut_id)
        if part is None:
            problem = f"{self._path}: {self._problem}" if self._problem else "in the tar beside it"
            raise KeyError(f"no recording of cut {cut_id!r} {problem}")
        if not part.size:
            raise KeyError(f"the recording of cut {cut_id!r} in {self._path} is empty (0 bytes)")
        return part


def part_at(path: str) -> FilePart | None:
    """Return the member that `shard.tar/a.flac` names; None if there is no such archive or member."""
    archive, _, name = path.partition(".tar/")
    archive += ".tar"
    try:
        status = os.stat(archive)
        return _members_of(archive, status.st_size, status.st_mtime_ns).get(name)
    except (OSError, NotAList):
        return None


@lru_cache(maxsize=_KEPT_ARCHIVES)
def _members_of(path: str, num_bytes: int, mtime_ns: int) -> Mapping[str, FilePart]:
    return dict(iter_members(path))
