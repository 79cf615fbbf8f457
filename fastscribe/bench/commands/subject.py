"""The model that a benchmark runs: the user's, the packaged one, or a random one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from fastscribe.cli.app import MODEL_HELP, find_model
from fastscribe.cli.terminal import say
from fastscribe.errors import UsageError
from fastscribe.fast_paths import RefusedPaths

if TYPE_CHECKING:
    from fastscribe.bench.speed import Subject
    from fastscribe.config import ModelConfig
    from fastscribe.transcriber import Transcriber

MODEL_OPTION_HELP = f"{MODEL_HELP} Default: the small English model in the package."
BEAM_HELP = "Beam width of an RNN-T or TDT model, as for transcribe."
RANDOM_HELP = "Name of a published model: use its shape with random weights, in place of --model."


def subject(
    model: str | None, random: str | None, device: str, dtypes: Sequence[str], beam: int | None = None
) -> Subject:
    """Check model, device and dtypes before anything is made, and raise their errors."""
    from fastscribe.bench.model_cache import cached_model
    from fastscribe.bench.model_name import model_name
    from fastscribe.bench.speed import Subject
    from fastscribe.config import Options
    from fastscribe.pipeline.dtype_choice import check_dtype
    from fastscribe.pipeline.model_building import choose_device

    _check(model, random)
    at = choose_device(device)
    for dtype in dtypes:
        check_dtype(dtype, at)
    options, heard = Options(beam=beam), RefusedPaths(say)
    if random is not None:
        return Subject(random, cached_model(random, str(at), say), at, heard, options, heard.reasons)
    path = find_model(model or "default")
    return Subject(model_name(model, path), path, at, heard, options, heard.reasons)


def shape(model: str | None, random: str | None) -> tuple[str, ModelConfig]:
    """Name and configuration of the model; nothing is made. Raises as subject does."""
    from fastscribe.bench.model_name import model_name
    from fastscribe.bench.shapes import SHAPES
    from fastscribe.checkpoint.reader import read_checkpoint
    from fastscribe.families.indic.language_heads import of_language

    _check(model, random)
    if random is not None:
        return random, SHAPES[random]
    path = find_model(model or "default")
    return model_name(model, path), of_language(read_checkpoint(path, say), None).config


def _check(model: str | None, random: str | None) -> None:
    from fastscribe.bench.shapes import SHAPES

    if model is not None and random is not None:
        raise typer.BadParameter("--model and --random: one of them")
    if random is not None and random not in SHAPES:
        raise typer.BadParameter(f"--random {random}: not one of {', '.join(SHAPES)}")


def load(chosen: Subject, dtype: str) -> Transcriber:
    """Raise UsageError if the model does not fit in memory."""
    from fastscribe.cuda.device import is_out_of_memory

    try:
        return chosen.load(dtype)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UsageError(f"{chosen.name} in {dtype} does not fit in the memory of {chosen.device}") from error
