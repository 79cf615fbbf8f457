"""Commands about checkpoints: `inspect` and `convert`."""

from __future__ import annotations

import json
import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe.cli.app import MODEL_HELP, app
from fastscribe.errors import UsageError
from fastscribe.terminal import say

if TYPE_CHECKING:
    from fastscribe.checkpoint import Checkpoint


class StoredDtype(str, Enum):
    bf16 = "bf16"
    fp32 = "fp32"


def _read_model(path: str) -> Checkpoint:
    from fastscribe.checkpoint import read_checkpoint
    from fastscribe.model.model import build_model
    from fastscribe.model_location import locate

    checkpoint = read_checkpoint(locate(path, say))
    build_model(checkpoint.config, checkpoint.weights, checkpoint.path)  # the names must match, or it is no model
    return checkpoint


@app.command(epilog="Example: fastscribe inspect model.nemo --json | jq .family")
def inspect(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint is: family, sizes, vocabulary, frame length, dtype, work a second of audio."""
    from fastscribe.describe import describe

    facts = describe(_read_model(model))
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for key, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(f"{key:<28} {shown:,}" if type(shown) is int else f"{key:<28} {shown}")


@app.command(epilog="Example: fastscribe convert model.nemo model-folder --dtype bf16")
def convert(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder to write: config.json, model.safetensors, the tokenizer, and the language model if any."
        ),
    ],
    dtype: Annotated[StoredDtype, typer.Option(help="What to store the weights as.")] = StoredDtype.bf16,
) -> None:
    """Write a checkpoint as fastscribe's own folder."""
    import torch

    from fastscribe.checkpoint import native
    from fastscribe.checkpoint.model_folder import new_model
    from fastscribe.safe_files import sync_folder

    folder = Path(os.path.realpath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: exists and is not an empty folder; name another")
    checkpoint = _read_model(model)
    try:
        with new_model(folder) as new:
            native.write(checkpoint, new, torch.bfloat16 if dtype is StoredDtype.bf16 else torch.float32)
        new.rename(folder)  # which may be an empty folder
        sync_folder(folder.parent)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    say(f"{folder}: {checkpoint.num_parameters:,} parameters as {dtype.value}")
