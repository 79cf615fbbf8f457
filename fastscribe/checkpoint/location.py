"""Where a model lies that a user names: a path, the model that comes with the package, or a name on the Hugging Face hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fastscribe.checkpoint import hub
from fastscribe.checkpoint.hub.name import PREFIX
from fastscribe.errors import CheckpointError, UsageError

PACKAGED = Path(__file__).parents[1] / "default_model"
DEFAULT = "default"  # its name where a model is asked for


def locate(
    model: str | None, say: Callable[[str], None], *, show_progress: bool = True, prefer_nemo: bool = False
) -> Path:
    """Find a model, and download it if need be.

    A path that exists is taken before a name on the hub. A name such as "run/best" whose first part is there is a mistyped
    path, and nothing is downloaded; "hf://run/best" is always the hub's.

    Args:
        model: a path, "default", "organisation/name" or "organisation/name@revision"; None for the packaged model.
        say: takes each line that people should see.
        show_progress: draw a download where stderr is a terminal.
        prefer_nemo: of a model that the hub has in both formats, take the .nemo file.

    Raises:
        UsageError: the installation has no packaged model.
        CheckpointError: the path is mistyped, or the hub's model cannot be had.
    """
    if model is None or (model == DEFAULT and not os.path.exists(model)):
        return _packaged(asked=model is not None, say=say)
    name = None if os.path.exists(model) else hub.HubName.parse(model)
    if name is None:
        if not (os.path.lexists(model) or "/" in model or model.endswith((".nemo", ".ckpt"))):
            problem = "no such file or folder; a model on the Hugging Face hub is named organisation/name"
            raise CheckpointError(model, problem)
        return Path(model)
    is_explicit = model.startswith(PREFIX)
    first = name.repo.partition("/")[0]
    if not is_explicit and os.path.lexists(first):
        problem = (
            f"no such path, though {first} exists: check the spelling; the Hugging Face hub's model is {PREFIX}{model}"
        )
        raise CheckpointError(model, problem)
    return hub.download(name, say, show_progress=show_progress, prefer_nemo=prefer_nemo, announce=not is_explicit)


def _packaged(asked: bool, say: Callable[[str], None]) -> Path:
    if not (PACKAGED / "config.json").is_file():
        raise UsageError("--model: give one; this installation comes without a model of its own")
    if not asked:
        say(
            "no --model: using the small English one that comes with fastscribe, which is no match for a large one "
            "(--model nvidia/parakeet-tdt-0.6b-v3 downloads one)"
        )
    return PACKAGED
