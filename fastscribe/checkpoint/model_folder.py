"""A folder with a model, written under a temporary name until it is whole and on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastscribe.safe_files import part_of, remove, sync_folder, sync_path


@contextmanager
def new_model(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, to write a model into. On leaving, it is durable and waits to be renamed.

    Raises:
        OSError: It cannot be written; then it is removed.
    """
    new = part_of(folder)
    remove_model(new)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new.mkdir()
    try:
        yield new
        mode = (new / "config.json").stat().st_mode
        for path in new.iterdir():
            path.chmod(mode)  # safetensors keeps its file private, whatever the umask
            sync_path(path)
        sync_folder(new)
    except BaseException:
        remove_model(new)
        raise


def remove_model(folder: Path) -> None:
    """Remove a folder of files, if there is one. Raises OSError if it is a link, or holds a folder."""
    if folder.is_dir():
        for path in folder.iterdir():
            remove(path)
        folder.rmdir()
