"""`fastscribe.ray.transcribe`: the recordings that a dataset names, into a folder or store with journal and report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import pyarrow as pa

from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.audio.row_languages import OtherLanguages
from fastscribe.config import Options, OutputFormat, OutputStyle
from fastscribe.errors import UsageError
from fastscribe.journaled import run_fingerprint
from fastscribe.pipeline.stats import RunStats
from fastscribe.ray.library import ray_library
from fastscribe.ray.pool import Size, placement
from fastscribe.ray.rows import find_path_column, to_source
from fastscribe.ray.run import RayTranscriber
from fastscribe.results.output_run import OutputRun
from fastscribe.results.outputs import Output, open_output, write_result
from fastscribe.transcriber import run_stats
from fastscribe.types import Failure, Source

_DEFAULTS = Options()
_ROWS = 1024  # of the dataset at a time


def transcribe(
    dataset: Any,
    model: str = "default",
    output: str | Path = "",
    *,
    resume: bool = True,
    retry_failed: bool = False,
    formats: Sequence[OutputFormat] = ("jsonl",),
    tokens: bool = False,
    ordered: bool = False,
    path_column: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    options: Options = _DEFAULTS,
    address: str | None = None,
    workers: int | None = None,
    gpus: float | None = None,
    cpus: float | None = None,
    price_per_hour: float | None = None,
    say: Callable[[str], None] = log_to_stderr,
) -> RunStats:
    """Transcribe the recordings that a dataset of Ray Data names, into the files that `fastscribe transcribe` writes.

    Each row is what a row of a NeMo manifest is: its columns are in the result. The dataset is read a block at a time, and
    its recordings go to the workers by their lengths; audio never passes through Ray.

    Args:
        dataset: A ray.data.Dataset with paths or URLs, and optionally `offset` and `duration` in seconds.
        model: A path that all nodes have, "default" or a name on the Hugging Face hub, "organisation/name".
        output: Folder or URL of the results.
        resume: Go on where an earlier run into the output stopped. False: remove that run's results and start over.
        retry_failed: Transcribe recordings again that failed in an earlier run.
        formats: jsonl, json, srt, vtt, txt, tsv, ctm.
        tokens: Write every token too.
        ordered: Sort the rows by input at the end.
        path_column: Column with the paths; None: `audio_filepath`, else `path`.
        device: "auto", "cpu" or "cuda".
        dtype: As Transcriber.load().
        options: Options of the run.
        address: Of the cluster; None: the one this program is connected to, else as ray.init() finds it.
        workers: Number of workers; None: one for each GPU, or one for each node of a cluster without GPUs.
        gpus: GPUs of each worker; None: 1 if there are any.
        cpus: Processors of each worker; None: 1 with a GPU, else an equal share.
        price_per_hour: USD an hour for all workers together; None: the price list's entry for each device.
        say: Receives one line at a time.

    Returns:
        The run's report, as in report.json.

    Raises:
        FastscribeError: An option, the model, the dataset or the output is not usable.
    """
    if not str(output):
        raise UsageError("output: name a folder or URL for the results")
    names = list(dataset.schema().names)
    column = find_path_column(names, path_column)
    _check_columns(dataset.schema())
    style, size = OutputStyle(cast(Any, formats), tokens), Size(workers, gpus, cpus)
    dataset = _readable_beside(dataset, size)
    with ExitStack() as stack:
        transcriber = stack.enter_context(
            RayTranscriber.start(model, device, dtype, options, say, address=address, size=size, style=style)
        )
        fingerprint = run_fingerprint(transcriber, transcriber.model_digest, options, style)
        run = OutputRun(style, fingerprint, overwrite=not resume, retry_failed=retry_failed, ordered=ordered)
        target = stack.enter_context(_open(str(output), run, say))
        start, others = perf_counter(), OtherLanguages(transcriber._config.language)
        with closing(transcriber._results(cast(Any, _sources(dataset, column)), target.ledger)) as results:
            for result in results:
                others.count(result)
                with transcriber.progress.stopwatch.time("write"):
                    written = write_result(target, result, transcriber.progress.not_written, str(output))
                if isinstance(written, Failure):
                    say(f"{written.path}: {written.stage} failed: {written.message}")
            target.flush()
        for line in others.lines:
            say(line)
        stats = run_stats(transcriber, perf_counter() - start, price_per_hour)
        skipped = transcriber.progress.skipped
        stats = replace(stats, skipped=skipped, failed_before=target.ledger.failed_before)
        stats = replace(stats, totals=target.totals()._asdict())
        target.write_report((json.dumps(stats.to_json(), indent=2) + "\n").encode())
    return stats


def _open(output: str, run: OutputRun, say: Callable[[str], None]) -> Output:
    try:
        return open_output(output, run, say)
    except OSError as error:
        raise UsageError(f"{output}: cannot be used for results: {error.strerror or error}") from error


def _readable_beside(dataset: Any, size: Size) -> Any:
    """Return the dataset as it can be read while the workers run: before them, if they take all processors."""
    ray = ray_library()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    number, resources = placement(nodes, size)
    left = sum(node.get("CPU", 0) for node in nodes) - number * resources["num_cpus"]
    return dataset if left >= 1 else dataset.materialize()


def _check_columns(schema: Any) -> None:
    """Raise UsageError for a column that has no place in a row of JSON: audio must not pass through the driver."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        if isinstance(kind, pa.DataType) and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise UsageError(f"column {name} holds bytes: give paths or URLs alone (dataset.drop_columns(['{name}']))")


def _sources(dataset: Any, column: str) -> Iterator[Source | Failure]:
    """Yield the rows' recordings, a block of rows in memory at a time."""
    number = 0
    for table in dataset.iter_batches(batch_size=_ROWS, batch_format="pyarrow", prefetch_batches=1):
        for row in table.to_pylist():
            number += 1
            yield to_source(json.loads(json.dumps(row, default=str)), column, number)  # dates and decimals become text
