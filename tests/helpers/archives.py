"""Reading, packing and unpacking of .nemo files, which are tar files.

Nothing of fastscribe is imported: scripts/goldens/ runs where it is not installed.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

NEMO = Path(__file__).parents[1] / "data" / "models" / "hybrid" / "model.nemo"


def members(archive: Path) -> dict[str, bytes]:
    """Return the contents of the files in a tar file by their names."""
    with tarfile.open(archive) as tar:
        return {one.name.removeprefix("./"): tar.extractfile(one).read() for one in tar if one.isfile()}  # type: ignore[union-attr]


def packed(files: Mapping[str, bytes], path: Path, mode: str = "w:") -> Path:
    """Write a tar file, and return its path."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def unpacked(folder: Path, source: Path = NEMO) -> Path:
    """Unpack a tar file into a folder, and return the folder.

    Python 3.12 warns where no filter is named; Debian 12's Python 3.11.2 does not know the argument.
    """
    with tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder
