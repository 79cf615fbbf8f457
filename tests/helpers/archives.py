"""Unpacking of .nemo files, which are tar files."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.conftest import MODELS


def unpacked(folder: Path, source: Path = MODELS / "hybrid" / "model.nemo") -> Path:
    """Unpack a tar file into a folder, and return the folder.

    Python 3.12 warns where no filter is named; Debian 12's Python 3.11.2 does not know the argument.
    """
    with tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder
