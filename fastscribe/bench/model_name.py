"""What results say of the model that was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe.checkpoint.location import PACKAGED

if TYPE_CHECKING:
    from fastscribe.transcriber import Transcriber


def model_name(requested: str | None, path: Path) -> str:
    """The hub's name, or the file's or folder's; where that is "model", as NeMo names most files, the folder's around it."""
    if path == PACKAGED:
        return "fastscribe-default"
    if requested is not None and not Path(requested).exists():
        return requested.removeprefix("hf://")
    return path.resolve().parent.name if path.stem == "model" else path.resolve().name.removesuffix(".nemo")


def about(transcriber: Transcriber) -> dict[str, Any]:
    """Beside its name."""
    beam = transcriber._recognizer.beam
    return {"random_weights": transcriber._has_random_weights, **({"beam": beam} if beam > 1 else {})}
