"""`transcripts.jsonl` at an output URL: every run and merge replaces it, and what someone edited is kept beside.

A note below `.fastscribe/` tells the sizes in bytes that the object had by our doing, because no journal lists it.
"""

from __future__ import annotations

import json
from pathlib import Path

from fastscribe._system.file_kinds import InTheWay
from fastscribe.results.objects import ObjectFolder


def publish(folder: ObjectFolder, rows: str, note: str, path: Path) -> None:
    """Write the rows, and replace earlier ones.

    Args:
        folder: The output URL's objects.
        rows: Name of the rows.
        note: Name of the note about them.
        path: The rows' file.

    Raises:
        OSError: The store cannot be read or written.
    """
    keep_rows_if_edited(folder, rows, note)
    sizes = [size for size in (folder.size(rows), path.stat().st_size) if size is not None]
    folder.put(note, (json.dumps({"bytes": sizes}) + "\n").encode())  # a kill may leave either
    folder.upload(rows, path)


def keep_rows_if_edited(folder: ObjectFolder, rows: str, note: str) -> None:
    """Copy rows that someone edited to a name beside. Without a note they are as a run left them. Raises OSError."""
    try:
        sizes = list(json.loads(folder.read_if_there(note))["bytes"])
    except (ValueError, TypeError, KeyError):
        return
    if folder.size(rows) not in (None, *sizes):
        _keep_edited(folder, rows)


def _keep_edited(folder: ObjectFolder, name: str) -> None:
    """Copy rows that someone edited to `transcripts.previous.jsonl` or the next free name. Raises OSError."""
    stem, _, extension = name.rpartition(".")
    content, number = folder.read_if_there(name), 1
    while content:
        try:
            copy = f"{stem}.previous{f'.{number}' if number > 1 else ''}.{extension}"
            folder.create(copy, content)
            return
        except InTheWay:
            number += 1
