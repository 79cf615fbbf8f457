"""`fastscribe.ray.Transcriber`: a callable class for Ray Data's map_batches."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from fastscribe import rooms
from fastscribe._system.openmp import limit_openmp_spin
from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import Options
from fastscribe.ray.node_model import model_on_node, options_on_node
from fastscribe.ray.rows import CUT_COLUMNS, find_path_column, to_source
from fastscribe.results.formats.writers import to_object
from fastscribe.types import Failure, Source, Transcript

if TYPE_CHECKING:
    from fastscribe.transcriber import Transcriber as LoadedTranscriber

# The columns of every table, by Arrow's names of the types. Rooms name theirs in the same form.
_SPAN = {"start": "double", "end": "double"}
_TIMES = _SPAN | {"confidence": "double"}
COLUMNS: Mapping[str, Any] = {
    "text": "string",
    "words": [{"word": "string"} | _TIMES],
    "segments": [{"text": "string"} | _TIMES],
    "gaps": [_SPAN],
    "language": "string",
    "error": {"stage": "string", "type": "string", "message": "string"},
}
_DEFAULTS = Options()


class Transcriber:
    """Transcribes the recordings that the rows of a batch name. For Ray Data's map_batches, with a pool of actors.

    The model is loaded when an actor starts; the actors of a node download and unpack it once. A call sorts its rows by
    length into batches of its own, so `batch_size` of map_batches should be large: 2048. A row that cannot be transcribed has
    an `error`, and the others go on.

    The returned table has a row for each row, in the same order: all columns of the input, and `text` (`pred_text` if the
    input has a `text`, which stays), `words`, `segments`, `gaps`, `language` and `error`, always of the same Arrow types. Times
    are in seconds on the recording's clock. With Options.speakers or Options.rttm, words, segments and gaps have a `speaker`,
    and there are the columns `speakers` and `turns`; with Options.voices also `voices`.
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
        limit_openmp_spin()
        from fastscribe.transcriber import Transcriber as LoadedTranscriber

        lines: list[str] = []
        run_id = _run_id()
        found = model_on_node(model, run_id, lines.append)
        options, _ = options_on_node(options, run_id, lines.append)
        self._transcriber: LoadedTranscriber = LoadedTranscriber.load(found.path, device, dtype, options)
        self._path_column, self._root = path_column, root
        languages = read_checkpoint(found.path).languages
        self._columns = _columns(options)
        own = self._transcriber._config.language  # as the rows of a run have it
        self._language = own or options.language or (languages[0] if len(languages) == 1 else None)

    def __call__(self, batch: Any) -> pa.Table:
        """Transcribe a batch.

        Args:
            batch: A table of Arrow, a data frame of pandas or a dict of NumPy arrays, as map_batches gives it.

        Raises:
            UsageError: The batch has no column with paths.
        """
        table = _as_table(batch)
        inputs = _inputs(table, self._path_column, self._root)
        results: list[Transcript | Failure | None] = [None] * len(inputs)
        for result in self._transcriber._results(cast(Any, inputs)):
            results[result.index] = result
        done = [result for result in results if result is not None]
        assert len(done) == len(inputs)
        return _with_results(table, done, self._language, self._columns)


def _columns(options: Options) -> dict[str, pa.DataType]:
    """Return the types of the columns: the core's, and what the rooms of these options add to their entries and after them."""
    kinds = dict(COLUMNS)
    for arrow_columns in rooms.offered("arrow_columns", options):
        for name, kind in arrow_columns(options).items():
            kinds[name] = [kinds[name][0] | kind[0]] if name in kinds else kind
    return {name: _arrow(kind) for name, kind in kinds.items()}


def _arrow(kind: str | list[Any] | Mapping[str, Any]) -> pa.DataType:
    if isinstance(kind, str):
        return pa.type_for_alias(kind)
    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0]))
    return pa.struct([(name, _arrow(one)) for name, one in kind.items()])


def _run_id() -> str:
    """Return the id of Ray's job, which its actors share; alone, a new one."""
    import ray

    return str(ray.get_runtime_context().get_job_id()) if ray.is_initialized() else uuid.uuid4().hex


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


def _with_results(
    table: pa.Table, results: Sequence[Transcript | Failure], language: str | None, kinds: Mapping[str, pa.DataType]
) -> pa.Table:
    """Append the columns of the results to a table."""
    objects = [to_object(result) for result in results]
    columns: dict[str, list[Any]] = {
        "text": [found.get("text") for found in objects],
        "language": [None if "error" in found else language for found in objects],
        "error": [found.get("error") for found in objects],
        "segments": [list(found.get("segments", ())) for found in objects],
    }
    if "voices" in kinds:
        columns["voices"] = list(map(_voices, results, objects))
    columns |= {name: [found.get(name, []) for found in objects] for name in kinds if name not in columns}
    names = {name: "pred_text" if name == "text" and "text" in table.column_names else name for name in kinds}
    table = table.drop_columns([name for name in names.values() if name in table.column_names])
    for name, kind in kinds.items():
        table = table.append_column(names[name], pa.array(columns[name], kind))
    return table


def _voices(result: Transcript | Failure, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the voices of a result's object, with the numbers of their prints, which are Base64 there."""
    prints = [] if isinstance(result, Failure) else [voice.embedding_E for voice in result.voices]
    return [
        voice | {"embedding": None if embedding_E is None else embedding_E.tolist()}
        for voice, embedding_E in zip(found.get("voices", ()), prints, strict=True)
    ]
