"""The model that a benchmark runs, the user's or the packaged one, and what results say of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.cli.app import MODEL_HELP, find_model
from fastscribe.cli.terminal import say
from fastscribe.config import Options
from fastscribe.errors import UsageError
from fastscribe.fast_paths import RefusedPaths

if TYPE_CHECKING:
    from fastscribe.bench.speed import Subject
    from fastscribe.transcriber import Transcriber

MODEL_OPTION_HELP = f"{MODEL_HELP} Default: the small English model in the package."
BEAM_HELP = "Beam width of an RNN-T or TDT model, as for transcribe."


def subject(model: str | None, device: str, dtypes: Sequence[str], beam: int | None = None) -> Subject:
    """Check model, device and dtypes before anything is made, and raise their errors."""
    from fastscribe.bench.speed import Subject
    from fastscribe.pipeline.dtype_choice import check_dtype
    from fastscribe.pipeline.model_building import choose_device

    at = choose_device(device)
    for dtype in dtypes:
        check_dtype(dtype, at)
    path, heard = find_model(model or "default"), RefusedPaths(say)
    return Subject(model_name(model, path), path, at, heard, Options(beam=beam), heard.reasons)


def load(chosen: Subject, dtype: str) -> Transcriber:
    """Raise UsageError if the model does not fit in memory."""
    from fastscribe.cuda.device import is_out_of_memory

    try:
        return chosen.load(dtype)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UsageError(f"{chosen.name} in {dtype} does not fit in the memory of {chosen.device}") from error


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
    return {"random_weights": transcriber._model.has_random_weights, **({"beam": beam} if beam > 1 else {})}
