"""`fastscribe merge`: the results of shards as one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastscribe.cli.app import app, option
from fastscribe.cli.terminal import say
from fastscribe.errors import UsageError


@app.command(epilog="Example: fastscribe merge out")
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Output folders of transcribe --shard.", metavar="FOLDERS...")],
    output_dir: Annotated[
        Path | None, option("--output-dir", "-o", help="Where to write. Default: the folder, if it is one.")
    ] = None,
    ordered: Annotated[bool, option("--ordered", help="Rows in the order of the inputs.")] = False,
) -> None:
    """Join the shards of a run into transcripts.jsonl and report.json, which replace those of an earlier merge.

    Exits with 1 where shards are missing or not complete, or files failed.
    """
    from fastscribe.resume.merge import merge as join

    if output_dir is None and len(folders) > 1:
        raise typer.BadParameter("several folders need --output-dir")
    destination = output_dir or folders[0]
    try:
        merged = join(folders, destination, ordered)
    except OSError as error:
        raise UsageError(f"{error.filename or destination}: {error.strerror or error}") from error
    files = sum(len(result.entries) for result in merged.results)
    say(f"{destination}: {files} files ({merged.failed} failed) of {len(merged.results)} shards")
    for what, numbers in (("missing", merged.missing), ("not complete, run them again", merged.incomplete)):
        if numbers:
            say(f"{what}: {', '.join(f'{number}/{merged.count}' for number in numbers)}")
    if merged.missing or merged.incomplete or merged.failed:
        raise typer.Exit(1)
