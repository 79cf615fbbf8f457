"""Selection of a repository's files: a folder of safetensors if it is supported, else a .nemo file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastscribe.checkpoint.hub_name import HubName
from fastscribe.checkpoint.huggingface import shard_names
from fastscribe.checkpoint.reader import check_config
from fastscribe.checkpoint.value import read_json
from fastscribe.errors import CheckpointError
from fastscribe.rooms import option_for, refuse_side_model
from fastscribe.text.tokenizer import LANGUAGE_MODEL

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.model", "tokenizer.json", "characters.json", "pieces.json")
# Files that the folder readers open besides the weights.
_SMALL_FILES = (
    CONFIG,
    "processor_config.json",
    "preprocessor_config.json",
    *_TOKENIZERS,
    "language_model.safetensors.gz",
    "tokenizer_config.json",  # this and the next one are only for transformers
    "generation_config.json",
)
_ALIGNER = "aligner"  # subfolder of a fastscribe folder
_MAX_LISTED = 10  # names in a message


@dataclass(frozen=True)
class Choice:
    """The files of a model; with `is_nemo` the first file is the model, otherwise the folder is."""

    files: list[str]
    is_nemo: bool

    def path(self, folder: Path) -> Path:
        return folder / self.files[0] if self.is_nemo else folder


def choose(
    name: HubName,
    files: Collection[str],
    fetch: Callable[[list[str]], Path],
    say: Callable[[str], None],
    side_model: bool = False,
) -> Choice:
    """Choose the files to load.

    Args:
        name: the model, for messages.
        files: every path in the repository.
        fetch: downloads small files and returns their folder.
        say: receives a line for each choice that the user did not make.
        side_model: as checkpoint.location.locate().

    Returns:
        The files.

    Raises:
        SideModelGiven: the folder is of a side model, and none is wanted.
        CheckpointError: no supported model, or several .nemo files of which none has the repository's name.
    """
    nemo = [file for file in files if file.endswith(".nemo")]
    has = [bool(set(one_of) & set(files)) for one_of in ((CONFIG,), (WEIGHTS, INDEX), _TOKENIZERS)]
    is_folder = all(has)
    if has == [True, True, False] and option_for(config := _config(fetch([CONFIG]))) is not None:
        if not side_model:
            refuse_side_model(config, name)
        return Choice(_small(files) + _weights(name, files, fetch), is_nemo=False)
    if nemo and (side_model or not is_folder):
        return _nemo(name, nemo, say)
    if not is_folder:
        problem = f"holds neither a .nemo file nor {CONFIG}, {WEIGHTS} and a tokenizer: no model that fastscribe reads"
        raise CheckpointError(name, problem)
    small = _small(files)
    small += sorted(filter(LANGUAGE_MODEL.fullmatch, files))
    small += [f"{_ALIGNER}/{file}" for file in _SMALL_FILES if f"{_ALIGNER}/{file}" in files]
    folder = fetch(small)
    unsupported = _unsupported(folder, name)
    if unsupported is None and not (nemo and _config(folder).get("model_type") == "canary"):
        aligner = [f"{_ALIGNER}/{WEIGHTS}"] if f"{_ALIGNER}/{WEIGHTS}" in files else []
        return Choice(small + _weights(name, files, fetch) + aligner, is_nemo=False)
    if unsupported is not None and not nemo:
        raise unsupported
    choice = _nemo(name, nemo, say)
    if unsupported is None:
        say(f"{name}: using {choice.files[0]}, which may hold an aligner for timestamps; {WEIGHTS} does not")
        return choice
    say(f"{unsupported}; using {choice.files[0]}, which is there too")
    return choice


def _small(files: Collection[str]) -> list[str]:
    return [file for file in (*_SMALL_FILES, INDEX) if file in files]


def _nemo(name: HubName, nemo: list[str], say: Callable[[str], None]) -> Choice:
    own = [file for file in nemo if file.lower() == f"{name.repo.partition('/')[2].lower()}.nemo"]
    at_root = own or [file for file in nemo if "/" not in file]
    candidates = at_root or nemo
    if len(candidates) > 1:
        shown = ", ".join(sorted(candidates)[:_MAX_LISTED])
        problem = f"holds several .nemo files ({shown}); get one with hf download {name.repo} FILE, and give its path"
        raise CheckpointError(name, problem)
    if len(nemo) > 1:
        say(f"{name}: using {candidates[0]}; the repository holds {len(nemo) - 1} other .nemo files")
    return Choice(candidates, is_nemo=True)


def _unsupported(folder: Path, name: HubName) -> CheckpointError | None:
    """Check the folder's configuration before gigabytes are downloaded."""
    try:
        check_config(folder, name)
    except CheckpointError as problem:
        return problem
    return None


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    return config if isinstance(config, dict) else {}


def _weights(name: HubName, files: Collection[str], fetch: Callable[[list[str]], Path]) -> list[str]:
    if INDEX not in files:
        return [WEIGHTS]
    shards = shard_names(fetch([INDEX]) / INDEX)
    lost = sorted(set(shards) - set(files))
    if lost:
        raise CheckpointError(name, f"{INDEX} lists {lost[0][:80]}, which the repository does not hold")
    return list(shards)
