"""Reading of checkpoints in any of three formats: a config, a tokenizer and named float tensors.

Reading runs no code of a checkpoint and writes nothing. Headers of weight files are checked first, and tensors are read one
at a time on demand. YAML goes through a safe loader, a tar is read member by member, and only regular files are opened.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastscribe.checkpoint.hub_name import PACKAGED
from fastscribe.checkpoint.value import (
    CONFIG_NAME,
    FORMAT,
    NEMO_CONFIG_NAME,
    Checkpoint,
    one_line,
    read_json,
    with_aligner,
)
from fastscribe.config import Options
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.families.conformer.config import language_prompt_of
from fastscribe.families.registry import MODEL_TYPES
from fastscribe.languages import language_tag

__all__ = ["Checkpoint", "check_config", "find_nemo_file", "read_checkpoint", "read_for_run"]
_ENGLISH = frozenset(
    (
        *("parakeet-tdt-0.6b-v2", "parakeet-tdt-1.1b", "parakeet-tdt_ctc-110m", "parakeet-tdt_ctc-1.1b"),
        *("parakeet-rnnt-0.6b", "parakeet-rnnt-1.1b", "parakeet-unified-en-0.6b"),
        *("parakeet-ctc-0.6b", "parakeet-ctc-1.1b", "parakeet_realtime_eou_120m-v1"),
        "nemotron-speech-streaming-en-0.6b",
        *("granite-speech-5.0-470m-turboctc", "granite-speech-5.0-470m-turboctc-nc"),
    )
)
# The model card of parakeet-tdt-0.6b-v3.
_EUROPEAN = "bg hr cs da nl en et fi fr de el hu it lv lt mt pl pt ro ru sk sl es sv uk"
_NEMO_NAME = re.compile(r"stt_((?:[a-z]{2}){1,3}(?:_[a-z]{2})*)_.+")  # stt_de_..., stt_enes_..., stt_kk_ru_...
_HUB_FOLDER = re.compile(r"models--.+--(.+)")  # in the cache of huggingface_hub


def read_checkpoint(path: str | Path, say: Callable[[str], None] = lambda line: None) -> Checkpoint:
    """Read a .nemo file (tar, or gzip tar), an unpacked one, a Hugging Face folder or a fastscribe folder.

    If a folder has no config.json of a supported model but one .nemo file, that file is read and `say` reports it.

    Args:
        path: file or folder.
        say: receives each line for the user.

    Returns:
        The checkpoint, with lazy weights.

    Raises:
        SideModelGiven: it is a model that a room runs beside such a one.
        CheckpointError: the checkpoint is damaged, unsafe or not supported.
    """
    path = Path(path)
    try:
        checkpoint = _read(path, say)
    except MemoryError as error:
        raise CheckpointError(path, "needs more memory than there is") from error
    except PermissionError as error:
        raise CheckpointError(path, "permission denied") from error
    prompt = language_prompt_of(checkpoint.config)
    if prompt is not None:
        from fastscribe.families.nemotron import known_languages

        return replace(checkpoint, languages=known_languages(prompt))
    if checkpoint.languages or checkpoint.config.aed is not None:
        return checkpoint
    return replace(checkpoint, languages=languages_by_name(checkpoint.path))


def read_for_run(path: str | Path, options: Options, say: Callable[[str], None] = lambda line: None) -> Checkpoint:
    """Read a checkpoint as a run uses it: of one language, with the other models that the options name.

    Args:
        path: File or folder.
        options: `language`, `lm_weight`, the paths `lm` and `align_with`, and what rooms read models for.
        say: Receives each line for the user.

    Raises:
        CheckpointError: A checkpoint is damaged, unsafe or not supported, or the aligner does not fit.
        UsageError: The language is missing, or a checkpoint does not have it, or the language model or a setting of a room's
            model cannot be used.
    """
    checkpoint = _of_language(read_checkpoint(path, say), options)
    checkpoint = _with_language_model(checkpoint, options, say)
    if options.has_speakers:
        from fastscribe.speakers.readers import read_models

        checkpoint = replace(checkpoint, others=read_models(options, checkpoint.config))
    if options.align_with is None:
        return checkpoint
    return with_aligner(checkpoint, _of_language(read_checkpoint(options.align_with, say), options))


def _with_language_model(checkpoint: Checkpoint, options: Options, say: Callable[[str], None]) -> Checkpoint:
    if options.lm is not None:
        from fastscribe.context.backoff_model import read_language_model

        other = read_language_model(options.lm, checkpoint.tokenizer, options.lm_weight, say)
        return replace(checkpoint, other_language_model=other)
    if options.lm_weight is None:
        return checkpoint
    if checkpoint.language_model is None:
        raise UsageError(f"--lm-weight {options.lm_weight:g}: this model has no language model; --lm names one")
    return replace(checkpoint, language_model=checkpoint.language_model.weighted(options.lm_weight))


def check_config(folder: Path, where: object) -> None:
    """Check the configuration of a folder, whose weights may be missing.

    Args:
        folder: a Hugging Face or fastscribe folder.
        where: its name in messages.

    Raises:
        CheckpointError: a setting is missing or not supported.
    """
    try:
        config = read_config_json(folder)
    except FileNotFoundError:
        raise CheckpointError(where, f"holds no {CONFIG_NAME}") from None
    if config.get("format") == FORMAT:
        from fastscribe.checkpoint import native

        native.read_config(config, where)
        return
    from fastscribe.checkpoint import huggingface

    huggingface.read_config(folder, config, where)


def _read(path: Path, say: Callable[[str], None]) -> Checkpoint:
    mode = _mode(path)
    if stat.S_ISREG(mode):
        return _read_nemo(path)
    if not stat.S_ISDIR(mode):
        raise CheckpointError(path, "neither a file nor a folder")
    if (path / NEMO_CONFIG_NAME).is_file():
        return _read_nemo(path)
    try:
        config = read_config_json(path)
    except FileNotFoundError:
        config = {}
    if config.get("format") == FORMAT:
        from fastscribe.checkpoint import native

        return native.read(path, config)
    if config.get("model_type") in MODEL_TYPES:
        return _read_huggingface(path, config)
    from fastscribe.rooms import refuse_side_model

    refuse_side_model(config, path)
    nemo_file = find_nemo_file(path)
    if nemo_file is not None:
        reason = f"its {CONFIG_NAME} is not of a supported model" if config else f"it has no {CONFIG_NAME}"
        say(f"{path}: using {nemo_file.name}; {reason}")
        return _read_nemo(nemo_file)
    if not config or "nemo_model_name" in config or "nemo_model_type" in config:
        from fastscribe.checkpoint.other_files import no_model

        raise CheckpointError(path, no_model(path, config))
    return _read_huggingface(path, config)


def _read_nemo(path: Path) -> Checkpoint:
    from fastscribe.checkpoint import nemo

    return nemo.read(path)


def _read_huggingface(folder: Path, config: dict[str, Any]) -> Checkpoint:
    from fastscribe.checkpoint import huggingface

    return huggingface.read(folder, config)


def _of_language(checkpoint: Checkpoint, options: Options) -> Checkpoint:
    """Return the model of one language, if the checkpoint has outputs for each."""
    if not checkpoint.config.language_heads:
        return checkpoint
    from fastscribe.families.indic import of_language

    return of_language(checkpoint, options.language)


def find_nemo_file(folder: Path) -> Path | None:
    """Return the folder's .nemo file, or None. Raises CheckpointError for several."""
    found = sorted(folder.glob("*.nemo"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise CheckpointError(folder, f"holds {len(found)} .nemo files ({names}); give one of them")
    return found[0] if found else None


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        problem = (
            "no such file or folder; give a .nemo file, a model's folder, or a name on the Hugging Face hub"
            " (organisation/name)"
        )
        raise CheckpointError(path, problem) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(path, f"cannot be opened: {one_line(error)}") from error


def read_config_json(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json. Raises FileNotFoundError, and CheckpointError for one that is no JSON object."""
    config = read_json(folder / CONFIG_NAME)
    if not isinstance(config, dict):
        raise CheckpointError(folder / CONFIG_NAME, "not a JSON object")
    return config


def languages_by_name(path: Path) -> tuple[str, ...]:
    """Return the tags of the languages of a published model; empty if the path has no such name in it.

    Names are those of a .nemo file, of a model's folder, and of a repository in the hub's cache.
    """
    if path.absolute() == PACKAGED:
        return ("en",)
    hub_names = [match[1] for part in path.parts if (match := _HUB_FOLDER.fullmatch(part))]
    folder = [path.parent.name] if path.suffix == ".nemo" else []
    for name in (path.name.removesuffix(".nemo"), *folder, *hub_names):
        if name in _ENGLISH:
            return ("en",)
        if name == "parakeet-tdt-0.6b-v3":
            return tuple(sorted(_EUROPEAN.split()))
        if match := _NEMO_NAME.fullmatch(name):
            codes = re.findall("[a-z]{2}", match[1])
            return tuple(code for code in codes if language_tag(code))
    return ()
