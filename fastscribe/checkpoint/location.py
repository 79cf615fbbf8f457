"""Find a model by its name (--model, Transcriber.load): a path, the packaged model, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from fastscribe._system.urls import is_url
from fastscribe.checkpoint.hub_name import DEFAULT, PACKAGED, PREFIX, HubName
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.types import Failure, Transcript

NO_MODEL = (
    "no --model: using the small English one that comes with fastscribe, which is less accurate than a large one "
    "(--model nvidia/parakeet-tdt-0.6b-v3 downloads one)"
)
_WHISPER_SIZE = re.compile(r"(distil-)?(tiny|base|small|medium|turbo|large(-v[123])?(-turbo)?)(\.en)?")
_NVIDIA = re.compile(r"(parakeet|canary|stt_[a-z]{2})[-_]")
_LARGE_MODELS = "--model nvidia/parakeet-tdt-0.6b-v3 (25 languages) or nvidia/canary-1b-v2 (also translates)"
# What messages say about the packaged model. The limit belongs to its weights, beam and language model;
# docs/packaged-model.md says how it was chosen.
CONFIDENCE_LIMIT = 0.78
PACKAGED_NAME = "the small English model that comes with fastscribe"


def locate(
    model: str | None,
    say: Callable[[str], None],
    *,
    show_progress: bool = True,
    side_model: bool = False,
) -> Path:
    """Find a model, and download it if need be.

    An existing path takes precedence over a name on the hub. If only the first part of a name such as "run/best" exists, it
    is a mistyped path and nothing is downloaded; "hf://run/best" always means the hub.

    Args:
        model: a path, "default", "organisation/name" or "organisation/name@revision"; None for the packaged model.
        say: receives each line for the user.
        show_progress: show download progress if stderr is a terminal.
        side_model: it is a model that a room runs beside the run's own.

    Returns:
        A file or folder.

    Raises:
        UsageError: the installation has no packaged model.
        CheckpointError: there is no such path or name, or the download failed.
    """
    if model is None or is_packaged(model):
        if not (PACKAGED / "config.json").is_file():
            raise UsageError("--model: give one; this installation comes without a model of its own")
        if model is None:
            say(NO_MODEL)
        return PACKAGED
    if not model:
        raise CheckpointError('""', "names no model; a model on the Hugging Face hub is named organisation/name")
    if os.path.exists(model) and not is_url(model):
        return Path(model)
    if is_url(model) and not model.startswith(PREFIX):
        problem = "models are not read from URLs: download it, e.g. with `aws s3 cp` or `curl -O`, and name the file or folder"
        raise CheckpointError(model, problem)
    if not os.path.lexists(model) and (hint := other_family(model)):
        raise CheckpointError(model, hint)
    name = HubName.parse(model)
    if name is None:
        if model.startswith(PREFIX) and not os.path.lexists(model):
            raise CheckpointError(model, f"no name on the Hugging Face hub; names there are {PREFIX}organisation/name")
        if not (os.path.lexists(model) or "/" in model or model.endswith((".nemo", ".ckpt"))):
            from fastscribe.checkpoint.known_models import nearest

            close = None if side_model else nearest(model)
            meant = f"did you mean {close}?" if close else "a model on the Hugging Face hub is named organisation/name"
            raise CheckpointError(model, f"no such file or folder; {meant}")
        return Path(model)
    is_explicit = model.startswith(PREFIX)
    first = name.repo.partition("/")[0]
    if not is_explicit and os.path.lexists(first):
        problem = (
            f"no such path, though {first} exists: check the spelling; the Hugging Face hub's model is {PREFIX}{model}"
        )
        raise CheckpointError(model, problem)
    from fastscribe.checkpoint.known_models import download

    return download(name, say, show_progress=show_progress, side_model=side_model, announce=not is_explicit)


def other_family(model: str) -> str | None:
    """Return what to use instead of a name that other tools know; None for all other names."""
    last = model.lower().rpartition("/")[2]
    if "whisper" in last or _WHISPER_SIZE.fullmatch(last):
        return f"a Whisper model; fastscribe runs Parakeet, Canary and their relatives: {_LARGE_MODELS}"
    if _NVIDIA.match(last) and model.startswith("mlx-community/"):
        return f"weights for MLX, which fastscribe does not read: --model nvidia/{last} has the same"
    return None


def is_packaged(model: str | Path) -> bool:
    """Return True if a name, as locate() takes it, means the packaged model."""
    return model == DEFAULT and not os.path.exists(DEFAULT)


def why_beyond(result: Transcript | Failure) -> str | None:
    """Return why a recording is beyond the model: the mean confidence of its words, or speech and no words; else None."""
    if isinstance(result, Failure):
        return None
    confidences = [word.confidence for word in result.words]
    if not confidences:
        speech_s = sum(gap.end_s - gap.start_s for gap in result.gaps)
        return f"no words in {speech_s:.0f} s of what may be speech" if speech_s else None
    mean = sum(confidences) / len(confidences)
    return f"mean confidence {mean:.2f}" if mean < CONFIDENCE_LIMIT else None
