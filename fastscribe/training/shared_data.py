"""One rank reads the data of a run; the others map what it has read into memory.

So ten million rows are read once, and lie in a machine's memory once. The columns are a file in the run's folder, which all
ranks see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.errors import FastscribeError, OutputError, UsageError
from fastscribe.training.changed_model import change_model
from fastscribe.training.corpus import Corpus, Examples
from fastscribe.training.data import TrainingData
from fastscribe.training.distributed import DistributedContext
from fastscribe.training.model_recipe import ModelChanges
from fastscribe.training.recipe import Recipe

T = TypeVar("T")


def on_first_rank(distributed: DistributedContext, device: torch.device, work: Callable[[], T]) -> T | None:
    """Do work on the first rank while the others wait. Returns None on these.

    Raises:
        FastscribeError: the work failed: its error on the first rank, and UsageError with the same message on the others.
    """
    result, problem = None, None
    if distributed.rank == 0:
        try:
            result = work()
        except FastscribeError as error:
            problem = error
    message = _from_first_rank(None if problem is None else str(problem), distributed, device)
    if problem is not None:
        raise problem
    if message is not None:
        raise UsageError(message)
    return result


def share_training_data(
    data: TrainingData | None,
    init: Checkpoint | None,
    recipe: Recipe,
    path: Path,
    distributed: DistributedContext,
    device: torch.device,
) -> TrainingData:
    """Give all ranks the data of the first.

    Args:
        data: the first rank's; None on the others.
        init: the checkpoint that the run starts from, which every rank has read.
        recipe: the run's settings.
        path: of the file for the columns.

    Raises:
        FastscribeError: the file cannot be written, as `on_first_rank`.
    """
    if distributed.world_size == 1:
        assert data is not None
        return data

    def save() -> None:
        assert data is not None
        try:
            data.corpus.examples.save(path, digest=data.digest)
        except OSError as error:
            raise OutputError(str(path), error) from error

    on_first_rank(distributed, device, save)
    rest = None
    if data is not None:
        config, tokenizer = data.checkpoint.config, data.checkpoint.tokenizer
        others = {one.name: getattr(data, one.name) for one in fields(data) if one.name not in ("corpus", "checkpoint")}
        rest = (dict(data.corpus.left_out), config, tokenizer, others)
    left_out, config, tokenizer, others = _from_first_rank(rest, distributed, device)
    examples, notes = Examples.load(path)
    if data is not None:
        checkpoint = data.checkpoint
    else:
        begun = init if init is not None else Checkpoint(Path("new"), "fastscribe", config, tokenizer, {})
        if init is not None and isinstance(recipe.model, ModelChanges):
            vocabulary = tokenizer if recipe.model.has_new_vocabulary else None
            begun = change_model(init, recipe.model, vocabulary, recipe.run.seed, "the recipe").checkpoint
        checkpoint = replace(begun, config=config, tokenizer=tokenizer)
    shared = TrainingData(Corpus(examples, left_out), checkpoint=checkpoint, **others)
    shared.__dict__["digest"] = notes["digest"]  # computed once
    return shared


def _from_first_rank(value: Any, distributed: DistributedContext, device: torch.device) -> Any:
    if distributed.world_size == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, device=device)
    return values[0]
