"""Members of an untrusted tar: regular files with safe names. Nothing is extracted to disk.

Stricter than the tarfile module, which only decodes single headers here. tarfile trusts extended headers (it reads as many
bytes as they claim, or seeks back in an endless loop) and follows links.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from fastscribe.errors import CheckpointError

_MAX_HEADERS = 2000  # a model has a dozen members
_MAX_EXTENSION_BYTES = 1 << 16  # of an extended header
_REPACK = "unpack it (of the two, tar keeps the later), then use the folder in its place or pack it anew"


class Member(NamedTuple):
    name: str
    start: int  # offset of the content
    num_bytes: int


def leaves_folder(name: str) -> bool:
    """Return True if a file of this name could be outside its folder, on any system."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or bool(PureWindowsPath(name).drive)


def members(file: IO[bytes] | BufferedIOBase, num_bytes: int, where: Path) -> Iterator[Member]:
    """Yield the regular files of a tar in their order; only reads and seeks forward.

    Args:
        file: the tar.
        num_bytes: its maximum size.
        where: the archive, for messages.

    Raises:
        CheckpointError: a link, device or sparse file; an unsafe or duplicate name; a size beyond the file; too many
            members; or a global header that sets names or sizes.
        tarfile.TarError: the file is not a tar.
    """
    names: set[str] = set()
    extension: dict[str, str] = {}
    for _ in range(_MAX_HEADERS):
        header = _header(file)
        if header is None:
            return
        is_extension = header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)
        start, size = file.tell(), header.size if is_extension else int(extension.get("size", header.size))
        size = 0 if header.type == tarfile.DIRTYPE else size
        name = extension.get("path", header.name)
        if not 0 <= size <= num_bytes - start:
            raise CheckpointError(
                where, f"refused: member {name[:100]!r} claims {size} bytes, or the file is cut short"
            )
        if is_extension:
            if size > _MAX_EXTENSION_BYTES:
                raise CheckpointError(where, f"refused: a header of {size} bytes")
            fields = _extension(header.type, file.read(size))
            if header.type == tarfile.XGLTYPE and fields:
                raise CheckpointError(where, f"refused: a header that sets {min(fields)} for all members")
            extension |= fields
        else:
            if _plain_file(header, name, bool(extension.get("sparse")), where):
                name = str(PurePosixPath(name))
                if name in names:
                    raise CheckpointError(where, f"refused: two members are called {name[:100]!r}: {_REPACK}")
                names.add(name)
                yield Member(name, start, size)
            extension = {}
        file.seek(start + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
    raise CheckpointError(where, f"refused: more than {_MAX_HEADERS} members")


def _header(file: IO[bytes] | BufferedIOBase) -> tarfile.TarInfo | None:
    """Read a header; None at the end, which is a block of zeros or the end of the file."""
    block = file.read(tarfile.BLOCKSIZE)
    return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape") if block.strip(b"\0") else None


def _plain_file(header: tarfile.TarInfo, name: str, is_sparse: bool, where: Path) -> bool:
    """Return True for a regular file and False for a folder. Raises CheckpointError for anything else."""
    if leaves_folder(name):
        raise CheckpointError(where, f"refused: member {name[:100]!r} leaves the folder")
    is_folder = header.type == tarfile.DIRTYPE
    if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or is_sparse:
        raise CheckpointError(where, f"refused: member {name[:100]!r} is a link, a device or a sparse file")
    return not is_folder


def _extension(kind: bytes, content: bytes) -> dict[str, str]:
    """Parse path, linkpath, size and sparse of an extended header (GNU or pax)."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    fields, position = {}, 0
    while position < len(content):  # "25 path=model_config.yaml\n"; 25 is the length of the record
        space = content.index(b" ", position, position + 8)
        end = position + int(content[position:space])
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not equals or content[end - 1 : end] != b"\n":
            raise tarfile.ReadError("bad pax header")
        if key in (b"path", b"linkpath", b"size"):
            fields[key.decode()] = value.decode("utf-8", "surrogateescape")
        elif key.startswith(b"GNU.sparse"):
            fields["sparse"] = "yes"
        position = end
    return fields
