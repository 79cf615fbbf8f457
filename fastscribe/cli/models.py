"""Commands about checkpoints: `inspect` and `convert`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastscribe._system.safe_files import sync_folder
from fastscribe._system.text_layout import escaped
from fastscribe.checkpoint import hf_export, native_writer, nemo_export
from fastscribe.checkpoint.exchange import left_out
from fastscribe.checkpoint.lazy_weights import check_shapes, sources_of
from fastscribe.checkpoint.location import locate
from fastscribe.checkpoint.native import LANGUAGE_MODEL_FILE
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.cli.app import MODEL_HELP, app, check_stdout, complete_models
from fastscribe.cli.describe import describe
from fastscribe.cli.terminal import say
from fastscribe.config import ExportFormat, FloatDtypeName, Options
from fastscribe.errors import SideModelGiven, UsageError
from fastscribe.families.indic import of_language
from fastscribe.families.parameter_shapes import parameter_shapes

if TYPE_CHECKING:
    from fastscribe.checkpoint.value import Checkpoint


_OTHER_FORMATS = (".bin", ".ckpt", ".gguf", ".onnx", ".pt", ".pth", ".safetensors")


def _read_model(path: str) -> Checkpoint:
    """Read a checkpoint and check the names and shapes of its weights, not their values."""
    found = locate(path, say)
    checkpoint = read_checkpoint(found, say)
    for part in filter(None, (checkpoint, checkpoint.aligner)):
        check_shapes(parameter_shapes(part.config), part.weights, part.path)  # a file with other names is no model
    return checkpoint


@app.command(
    short_help="Describe a checkpoint: family, sizes, vocabulary, dtype, work.",
    epilog="Example: fastscribe inspect model.nemo --json | jq .family",
)
def inspect(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=complete_models)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Also read every weight, and fail if one is not finite.")
    ] = False,
) -> None:
    """Describe a checkpoint: family, sizes, vocabulary, frame length, dtype, work per second of audio.

    Reads the config, the tokenizer, and the names and shapes of the weights. --check reads their values too.
    """
    check_stdout()
    parts: list[Any]
    try:
        checkpoint = _read_model(model)
        facts = describe(checkpoint)
        parts = [part for part in (checkpoint, checkpoint.aligner) if part is not None]
    except SideModelGiven as given:
        from fastscribe.speakers import description

        side = description.read(locate(model, say, side_model=True), given.option)
        facts, parts = description.describe(side), [side]
    if check:
        for part in parts:
            for source in sources_of(part.weights).values():
                source.read()
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for key, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(escaped(f"{key:<28} {shown:,}" if type(shown) is int else f"{key:<28} {shown}"))


@app.command(
    short_help="Convert to fastscribe's own format, or to NeMo's or Hugging Face's.",
    epilog="Examples: fastscribe convert model.nemo model-folder --dtype bf16; "
    "fastscribe convert my-run/best my-model.nemo --to nemo",
)
def convert(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=complete_models)],
    out: Annotated[
        Path,
        typer.Argument(
            help="Folder to write: config.json, model.safetensors, the tokenizer, and the language model and the"
            " timestamps aligner if any. A name that ends in .nemo: the file to write for NeMo, as with --to nemo."
        ),
    ],
    dtype: Annotated[
        FloatDtypeName | None,
        typer.Option(
            help="Dtype of the stored weights. Default: bf16; with --to, that of the model.", show_default=False
        ),
    ] = None,
    language: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="IndicConformer: language of the new model (hi, Tamil ..).")
    ] = None,
    to: Annotated[
        ExportFormat | None,
        typer.Option(
            help="Write a FastConformer model for another library: nemo, a .nemo file for NeMo 3.0; hf, a folder for"
            " Hugging Face transformers 5.23."
        ),
    ] = None,
) -> None:
    """Convert a checkpoint to fastscribe's own format, a folder, or with --to to NeMo's or Hugging Face's."""
    out = Path(os.path.realpath(out))
    if to is None and out.suffix == ".nemo":
        to = "nemo"
    _check_new(out, to)
    chosen = Options(language=language).language
    checkpoint = _read_model(model)
    if chosen is not None and not checkpoint.config.language_heads:
        own = checkpoint.config.language
        reason = f"is already the model of {own} alone" if own else "has the same outputs for every language"
        raise UsageError(f"--language {chosen}: {model} {reason}")
    checkpoint = of_language(checkpoint, chosen)
    if dtype is None:
        dtype = "bf16" if to is None or "float32" not in checkpoint.dtypes else "fp32"
    try:
        _write(checkpoint, out, dtype, to)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}") from error
    aligner = f", and an aligner of {checkpoint.aligner.num_parameters:,}" if checkpoint.aligner and to is None else ""
    say(f"{out}: {read_checkpoint(out).num_parameters:,} parameters as {dtype}{aligner}")
    if to is not None and (parts := left_out(checkpoint, to)):
        say(f"{out}: that format does not hold {', '.join(parts)}")
    if to is not None and checkpoint.language_model is not None:
        say(
            f"without its language model it makes more errors; in fastscribe, --lm takes the {LANGUAGE_MODEL_FILE} of {model}"
        )


def _check_new(out: Path, to: ExportFormat | None) -> None:
    """Raise UsageError if the output exists, or is not named as its format needs."""
    if to == "nemo" and out.suffix != ".nemo":
        raise UsageError(f"{out}: --to nemo writes one file; give it a name that ends in .nemo")
    if to == "hf" and out.suffix == ".nemo":
        raise UsageError(f"{out}: --to hf writes a folder; give it a name that does not end in .nemo, or --to nemo")
    if to is None and out.suffix in _OTHER_FORMATS:
        raise UsageError(f"{out}: {out.suffix} is not written; name a new folder, or a file that ends in .nemo")
    if to == "nemo" and os.path.lexists(out):
        raise UsageError(f"{out}: exists; name another file")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; name another")


def _write(checkpoint: Checkpoint, out: Path, dtype: FloatDtypeName, to: ExportFormat | None) -> None:
    import torch

    torch_dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
    if to == "nemo":
        nemo_export.write(checkpoint, out, torch_dtype)
    elif to == "hf":
        files = hf_export.files_of(checkpoint, dtype)
        _write_folder(out, lambda new: hf_export.write(checkpoint, files, new, torch_dtype))
    else:
        _write_folder(out, lambda new: native_writer.write(checkpoint, new, torch_dtype))


def _write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, and give it its name when it is whole and durable."""
    with native_writer.new_model(folder) as new:
        write(new)
    if os.name == "nt" and folder.exists():
        folder.rmdir()  # elsewhere the rename replaces an empty folder
    new.rename(folder)
    sync_folder(folder.parent)
