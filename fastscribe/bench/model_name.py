"""What results call the model that was measured."""

from __future__ import annotations

from pathlib import Path

from fastscribe.model_location import PACKAGED


def model_name(asked: str | None, path: Path) -> str:
    """The hub's name, or the file's or folder's; where that is "model", as NeMo names most files, the folder's around it."""
    if path == PACKAGED:
        return "fastscribe-default"
    if asked is not None and not Path(asked).exists():
        return asked
    return path.resolve().parent.name if path.stem == "model" else path.resolve().name.removesuffix(".nemo")
