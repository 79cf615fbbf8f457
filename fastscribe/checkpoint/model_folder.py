"""Durable writing of a model folder under a temporary name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastscribe._system.file_kinds import InTheWay
from fastscribe._system.safe_files import remove, sync_folder, sync_path, temp_path_for
from fastscribe.checkpoint.native import ALIGNER_FOLDER


@contextmanager
def new_model(folder: Path) -> Iterator[Path]:
    """Create a temporary folder beside `folder` to write a model into. On exit it is synced; the caller renames it.

    Args:
        folder: the final path.

    Yields:
        The temporary folder, which an exception removes.

    Raises:
        OSError: the folder cannot be written.
    """
    new = temp_path_for(folder)
    remove_model(new)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new.mkdir()
    try:
        yield new
        for path in (*new.rglob("*"), new):
            sync_folder(path) if path.is_dir() else sync_path(path)
    except BaseException:
        remove_model(new)
        raise


def remove_model(folder: Path) -> None:
    """Remove a model's folder, if there is one. Raises OSError for a link, or for any subfolder but an aligner's."""
    if folder.is_symlink():
        raise InTheWay(folder)
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name == ALIGNER_FOLDER:
                remove_model(path)
            else:
                remove(path)
        folder.rmdir()
