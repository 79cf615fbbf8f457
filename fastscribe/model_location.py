"""Where a model that somebody names lies: a path, the model that comes with the package, or a name on the Hugging Face hub.

Nothing is read here but what lies where; a download goes to huggingface_hub's own cache, and is not repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fastscribe.errors import CheckpointError, UsageError, first_line

PACKAGED = Path(__file__).parent / "default_model"
DEFAULT = "default"  # its name where a model is asked for
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What a folder of transformers' or our own needs; not its other copies of the weights.
_FOLDER_FILES = ("*.json", "model*.safetensors", "tokenizer*", "vocab*", "language_model*")


def locate(model: str | None, say: Callable[[str], None]) -> Path:
    """The path of a model; `say` gets a line for what takes long or was not asked for.

    None and "default" are the package's own. What is no path but looks like "organisation/name" is downloaded. Raises
    UsageError or CheckpointError where that cannot be done.
    """
    if model is None or (model == DEFAULT and not os.path.exists(model)):
        return _packaged(asked=model is not None, say=say)
    if os.path.exists(model) or not _HUB_NAME.fullmatch(model) or model.endswith((".nemo", ".ckpt")):
        return Path(model)
    return _downloaded(model, say)


def _packaged(asked: bool, say: Callable[[str], None]) -> Path:
    if not (PACKAGED / "config.json").is_file():
        raise UsageError("--model: give one; this installation comes without a model of its own")
    if not asked:
        say(
            "no --model: using the small English one that comes with fastscribe, which is no match for a large one "
            "(--model nvidia/parakeet-tdt-0.6b-v3 downloads one)"
        )
    return PACKAGED


def _downloaded(name: str, say: Callable[[str], None]) -> Path:
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        problem = f"no such path; to download {name} from the Hugging Face hub: pip install 'fastscribe[hub]'"
        raise CheckpointError(name, problem) from None
    try:
        try:
            files = list(HfApi().list_repo_files(name))
        except Exception:  # no network: what was downloaded before will do
            cached = Path(snapshot_download(name, local_files_only=True))
            return _model_in(cached, [path.name for path in cached.iterdir()], name)
        wanted = _wanted(files, name)
        say(f"{name}: from the Hugging Face hub, downloaded once")
        return _model_in(Path(snapshot_download(name, allow_patterns=list(wanted))), files, name)
    except CheckpointError:
        raise
    except Exception as error:  # the hub's, the network's and the disk's, of many kinds
        raise CheckpointError(name, f"no such path, and no such model to be had: {first_line(error)}") from error


def _wanted(files: Sequence[str], name: str) -> Sequence[str]:
    nemo = [file for file in files if file.endswith(".nemo")]
    if nemo:
        return nemo[:1]
    if "config.json" in files:
        return _FOLDER_FILES
    raise CheckpointError(name, "holds neither a .nemo file nor a config.json")


def _model_in(folder: Path, files: Sequence[str], name: str) -> Path:
    wanted = _wanted(files, name)
    return folder / wanted[0] if wanted[0].endswith(".nemo") else folder
