"""`fastscribe.ray.transcribe`: recordings into a folder or store with journal and report, on all GPUs of a cluster."""

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
from fastscribe.pipeline.stats import RunStats
from fastscribe.ray.library import ray_library
from fastscribe.ray.rows import find_path_column, to_source
from fastscribe.ray.run import RayTranscriber
from fastscribe.ray.worker import Setup
from fastscribe.results.interfaces import OutputRun
from fastscribe.results.output import open_journaled
from fastscribe.transcriber import run_fingerprint, run_stats
from fastscribe.types import Failure, Source

_DEFAULTS = Options()
_ROWS = 1024  # of the dataset at a time


def transcribe(
    inputs: Any,
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
    price_per_hour: float | None = None,
    say: Callable[[str], None] = log_to_stderr,
) -> RunStats:
    """Transcribe recordings on a Ray cluster, into the files that `fastscribe transcribe` writes.

    Inputs are listed and results written here, and recordings go to the actors by their lengths; audio never passes through
    Ray.

    Args:
        inputs: Paths, URLs, folders, globs and manifests, as Transcriber.transcribe() takes them; or a ray.data.Dataset, of
            which each row is what a row of a NeMo manifest is: a path or URL, optionally `offset` and `duration` in seconds,
            and other columns, which are in the result.
        model: A path that all nodes have, "default" or a name on the Hugging Face hub, "organisation/name".
        output: Folder or URL of the results.
        resume: Go on where an earlier run into the output stopped. False: remove that run's results and start over.
        retry_failed: Transcribe recordings again that failed in an earlier run.
        formats: Of config.OUTPUT_FORMATS; none: those that the results there have.
        tokens: Write every token too.
        ordered: Sort the rows by input at the end.
        path_column: Of a dataset: its column with the paths; None: `audio_filepath`, else `path`.
        device: "auto", "cpu" or "cuda".
        dtype: As Transcriber.load().
        options: Options of the run.
        address: Of the cluster; None: the one this program is connected to, else as ray.init() finds it.
        workers: Number of actors; None: one for each GPU, or one for each node of a cluster without GPUs.
        price_per_hour: USD an hour for the whole cluster; None: the price list's entry for each device.
        say: Receives one line at a time.

    Returns:
        The run's report, as in report.json.

    Raises:
        FastscribeError: An option, the model, the dataset or the output is not usable.
    """
    if not str(output):
        raise UsageError("output: name a folder or URL for the results")
    if isinstance(inputs, ray_library().data.Dataset):
        inputs = _sources(inputs, path_column)
    style = OutputStyle(cast(Any, formats), tokens)
    with ExitStack() as stack:
        setup = Setup(model, device, dtype, options)
        transcriber = stack.enter_context(RayTranscriber.start(setup, say, address=address, workers=workers))
        fingerprint = run_fingerprint(transcriber, transcriber.model_digest, options, style)
        run = OutputRun(style, fingerprint, overwrite=not resume, retry_failed=retry_failed, ordered=ordered)
        try:
            target = stack.enter_context(open_journaled(str(output), run, say))
        except OSError as error:
            raise UsageError(f"{output}: cannot be used for results: {error.strerror or error}") from error
        start, others = perf_counter(), OtherLanguages(transcriber.language)
        with closing(transcriber.results(inputs, style=target.style, ledger=target.ledger)) as results:
            for result in results:
                others.count(result)
                with transcriber.progress.stopwatch.time("write"):
                    target.write(result)
                if isinstance(result, Failure):
                    say(f"{result.path}: {result.stage} failed: {result.message}")
            target.flush()
        for line in others.lines:
            say(line)
        stats = run_stats(transcriber, perf_counter() - start, price_per_hour)
        skipped, totals = transcriber.progress.skipped, target.totals()._asdict()
        stats = replace(stats, skipped=skipped, failed_before=target.ledger.failed_before, totals=totals)
        content = (json.dumps(stats.to_json(), indent=2) + "\n").encode()
        target.write_report(content)
    for problem in target.not_made:
        say(f"{problem.filename}: not written: {problem.strerror}; the row is there, and the next run tries again")
    return stats


def _sources(dataset: Any, path_column: str | None) -> Iterator[Source | Failure]:
    """Return the rows' recordings, a block of rows in memory at a time. Raises UsageError for columns that do not fit."""
    schema = dataset.schema()
    for name, kind in zip(schema.names, schema.types, strict=True):  # audio must not pass through the driver
        if isinstance(kind, pa.DataType) and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise UsageError(f"column {name} holds bytes: give paths or URLs alone (dataset.drop_columns(['{name}']))")
    column = find_path_column(list(schema.names), path_column)
    tables = dataset.iter_batches(batch_size=_ROWS, batch_format="pyarrow", prefetch_batches=1)
    # Dates and decimals become text.
    rows = (json.loads(json.dumps(row, default=str)) for table in tables for row in table.to_pylist())
    return (to_source(row, column, number) for number, row in enumerate(rows, start=1))
