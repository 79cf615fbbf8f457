"""Commands about checkpoints: `inspect` and `convert`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe._system.text_layout import escaped
from fastscribe.cli import completion
from fastscribe.cli.app import MODEL_HELP, app, check_stdout, find_model
from fastscribe.cli.terminal import say
from fastscribe.config import FloatDtypeName, Options
from fastscribe.errors import UsageError

if TYPE_CHECKING:
    from fastscribe.checkpoint.reader import Checkpoint


def _read_model(path: str) -> Checkpoint:
    """Read a checkpoint and check the names and shapes of its weights, not their values."""
    found = find_model(path)
    from fastscribe.checkpoint.lazy_weights import check_shapes
    from fastscribe.checkpoint.parameter_shapes import parameter_shapes
    from fastscribe.checkpoint.reader import read_checkpoint

    checkpoint = read_checkpoint(found, say)
    for part in filter(None, (checkpoint, checkpoint.aligner)):
        check_shapes(parameter_shapes(part.config), part.weights, part.path)  # a file with other names is no model
    return checkpoint


@app.command(
    short_help="Describe a checkpoint: family, sizes, vocabulary, dtype, work.",
    epilog="Example: fastscribe inspect model.nemo --json | jq .family",
)
def inspect(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=completion.models)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Also read every weight, and fail if one is not finite.")
    ] = False,
) -> None:
    """Describe a checkpoint: family, sizes, vocabulary, frame length, dtype, work per second of audio.

    Reads the config, the tokenizer, and the names and shapes of the weights. --check reads their values too.
    """
    check_stdout()
    from fastscribe.checkpoint.lazy_weights import sources_of
    from fastscribe.cli.describe import describe

    checkpoint = _read_model(model)
    if check:
        for part in filter(None, (checkpoint, checkpoint.aligner)):
            for source in sources_of(part.weights).values():
                source.read()
    facts = describe(checkpoint)
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for key, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(escaped(f"{key:<28} {shown:,}" if type(shown) is int else f"{key:<28} {shown}"))


@app.command(epilog="Example: fastscribe convert model.nemo model-folder --dtype bf16")
def convert(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=completion.models)],
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder to write: config.json, model.safetensors, the tokenizer, and the language model and the"
            " timestamps aligner if any."
        ),
    ],
    dtype: Annotated[FloatDtypeName, typer.Option(help="Dtype of the stored weights.")] = "bf16",
    language: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="IndicConformer: language of the new model (hi, Tamil ..).")
    ] = None,
) -> None:
    """Convert a checkpoint to fastscribe's own format, a folder."""
    from fastscribe._system.safe_files import sync_folder
    from fastscribe.checkpoint import native
    from fastscribe.checkpoint.language_heads import of_language
    from fastscribe.checkpoint.model_folder import new_model

    folder = Path(os.path.realpath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: exists and is not an empty folder; name another")
    chosen = Options(language=language).language
    checkpoint = _read_model(model)
    if chosen is not None and not checkpoint.config.language_heads:
        own = checkpoint.config.language
        reason = f"is already the model of {own} alone" if own else "has the same outputs for every language"
        raise UsageError(f"--language {chosen}: {model} {reason}")
    checkpoint = of_language(checkpoint, chosen)
    import torch

    try:
        with new_model(folder) as new:
            native.write(checkpoint, new, torch.bfloat16 if dtype == "bf16" else torch.float32)
        if os.name == "nt" and folder.exists():
            folder.rmdir()  # elsewhere the rename replaces an empty folder
        new.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    aligner = f", and an aligner of {checkpoint.aligner.num_parameters:,}" if checkpoint.aligner else ""
    say(f"{folder}: {checkpoint.num_parameters:,} parameters as {dtype}{aligner}")
