"""`fastscribe.ray.Transcriber`: a callable class for pipelines of Ray Data that go on with the texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.config import Options, OutputStyle
from fastscribe.ray.rows import CUT_COLUMNS, find_path_column, to_source
from fastscribe.ray.worker import Setup, load, on_this_node
from fastscribe.results.formats.writers import render
from fastscribe.types import Failure, Source, Transcript

_DEFAULTS = Options()


class Transcriber:
    """Transcribes the recordings that the rows of a batch name. For Ray Data's map_batches, with a pool of actors.

    A call sorts its rows by length into batches of its own, so `batch_size` of map_batches should be large: 2048. The model
    is in a process beside the actor: a recording that ends it each time has an `error`, as any that cannot be transcribed,
    and the others go on.

    The returned table has a row for each row, in the same order: all columns of the input, and these strings:

    - `text` (`pred_text` if the input has a `text`, which stays): null if the recording failed
    - `transcript`: the JSON object that a run writes to transcripts.jsonl, with words, segments and gaps, but without the
      other columns
    - `error`: null, or what failed and why
    """

    def __init__(
        self,
        model: str = "default",
        *,
        path_column: str | None = None,
        root: str = "",
        device: str = "auto",
        dtype: str = "auto",
        options: Options = _DEFAULTS,
    ) -> None:
        """Load the model.

        Args:
            model: A .nemo file or folder that all nodes have, "default" (the packaged model), or a name on the Hugging Face
                hub.
            path_column: Column with paths or URLs; None: `audio_filepath`, as in NeMo's manifests, else `path`. Columns
                `offset` and `duration`, in seconds, cut a part out of a recording.
            root: Folder or URL from which relative paths count; "": the actor's current folder.
            device: "auto" (a GPU if Ray gives the actor one), "cpu" or "cuda".
            dtype: As Transcriber.load().
            options: Options of the model and of long recordings.

        Raises:
            CheckpointError: The model is missing, unsupported or damaged, or its download failed.
            UsageError: A device, a dtype or an option is not possible here.
        """
        setup = on_this_node(Setup(model, device, dtype, options), log_to_stderr)
        self._transcriber = load(setup, log_to_stderr)
        self._path_column, self._root = path_column, root

    def __call__(self, batch: Any) -> pa.Table:
        """Transcribe a batch.

        Args:
            batch: A table of Arrow, a data frame of pandas or a dict of NumPy arrays, as map_batches gives it.

        Raises:
            UsageError: The batch has no column with paths.
        """
        table = _as_table(batch)
        inputs = _inputs(table, self._path_column, self._root)
        found: list[Transcript | Failure | None] = [None] * len(inputs)
        for result in self._transcriber.results(cast(Any, inputs), style=OutputStyle(("jsonl",))):
            found[result.index] = result
        results = [result for result in found if result is not None]
        assert len(results) == len(inputs)
        text = "pred_text" if "text" in table.column_names else "text"
        added = {
            text: [None if isinstance(result, Failure) else result.text for result in results],
            "transcript": [render(result, "jsonl").rstrip("\n") for result in results],
            "error": [
                f"{result.stage} failed: {result.message}" if isinstance(result, Failure) else None
                for result in results
            ],
        }
        table = table.drop_columns([name for name in added if name in table.column_names])
        for name, values in added.items():
            table = table.append_column(name, pa.array(values, pa.string()))
        return table


def _as_table(batch: Any) -> pa.Table:
    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, Mapping):
        from ray.data.block import BlockAccessor

        return BlockAccessor.batch_to_arrow_block(dict(batch))
    return pa.Table.from_pandas(batch, preserve_index=False)


def _inputs(table: pa.Table, path_column: str | None, root: str) -> list[Source | Failure]:
    """Return a Source for each row, or the Failure of a row that names no recording."""
    column = find_path_column(table.column_names, path_column)
    cut = [name for name in CUT_COLUMNS if name in table.column_names]
    rows = table.select([column, *cut]).to_pylist()
    where = os.path.join(root, "rows") if root else ""
    return [replace(to_source(row, column, number, where), row=None) for number, row in enumerate(rows)]
