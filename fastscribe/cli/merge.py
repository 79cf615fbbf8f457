"""`fastscribe merge`: join the results of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastscribe._system.text_layout import count_of
from fastscribe._system.urls import is_url
from fastscribe.cli.app import app, option
from fastscribe.cli.run_options import AllowFailures, allowed_failures
from fastscribe.cli.terminal import say
from fastscribe.errors import UsageError
from fastscribe.results.merge import merge as merge_folders
from fastscribe.results.merge import merge_store


@app.command(short_help="Merge the results of the shards of a run.", epilog="Example: fastscribe merge out")
def merge(
    folders: Annotated[
        list[str], typer.Argument(help="Output folders of transcribe --shard, or one URL.", metavar="FOLDERS")
    ],
    output_dir: Annotated[
        str | None,
        option("--output-dir", "-o", help="Folder for the results, to go on in. Default: the only one of FOLDERS."),
    ] = None,
    ordered: Annotated[bool, option("--ordered", help="Write rows in the order of the inputs.")] = False,
    allow_failures: AllowFailures = None,
) -> None:
    """Merge the results of --shard runs into transcripts.jsonl and report.json, and replace those of an earlier merge.

    The exit code is 1 if shards are missing, incomplete or of different inputs, or if more files failed than
    --allow-failures allows.
    """
    allowed = allowed_failures(allow_failures)
    if output_dir is None and len(folders) > 1:
        raise typer.BadParameter("several folders need --output-dir")
    destination = output_dir or folders[0]
    urls = [name for name in (*folders, destination) if is_url(name)]
    if urls and (set(urls) != {destination} or len(urls) != len(folders) + 1):
        raise UsageError(f"{urls[0]}: shards at a URL are merged there: name this URL alone")
    try:
        if urls:
            merged = merge_store(destination, ordered)
        else:
            merged = merge_folders([Path(folder) for folder in folders], Path(destination), ordered)
    except OSError as error:
        raise UsageError(f"{error.filename or destination}: {error.strerror or error}") from error
    num_files = sum(len(result.entries) for result in merged.results)
    counted = f"{count_of(num_files, 'file')} ({merged.failed} failed)"
    say(f"{destination}: {counted}, from {len(merged.results)} of {merged.count} shards")
    for what, numbers in (
        ("missing", merged.missing),
        ("not complete, run them again", merged.incomplete),
        ("of fewer or other inputs than others, run them again with the same ones", merged.outdated),
    ):
        if numbers:
            say(f"{what}: {', '.join(f'{number}/{merged.count}' for number in numbers)}")
    has_failed = not allowed.allow(merged.failed, num_files)
    if has_failed:
        say("files failed: --retry-failed on each shard tries them again, and --allow-failures accepts them")
    if merged.missing or merged.incomplete or merged.outdated or has_failed:
        raise typer.Exit(1)
