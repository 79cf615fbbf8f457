"""The check of the paths of a `fastscribe transcribe`, and what its inputs are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastscribe._system.file_kinds import is_device
from fastscribe._system.urls import is_url
from fastscribe.audio.formats import STDIN, list_kind
from fastscribe.audio.input_names import is_file_url
from fastscribe.cli.run_hooks import TranscribeJob
from fastscribe.cli.terminal import filter_mpg123_messages
from fastscribe.config import OUTPUT_FORMATS
from fastscribe.errors import UsageError
from fastscribe.types import Failure, Source

if TYPE_CHECKING:
    from fastscribe.results.paths import Paths

SHORT_S = 300.0
_MAX_SHORT_BYTES = 200_000_000  # five minutes at the highest rates in use


def is_one_short_file(inputs: Sequence[str]) -> bool:
    """Return True for a single recording of a few minutes, whose transcript speaks for itself: no table, no notices.

    It is opened only if its size allows a few minutes. One that cannot be read counts: its line says all that there is.
    """
    if len(inputs) != 1 or list_kind(inputs[0]):
        return False
    if not os.path.isfile(inputs[0]) or os.path.getsize(inputs[0]) > _MAX_SHORT_BYTES:
        return False
    from fastscribe.audio.probe import probe  # here, because NumPy would slow down --help

    try:
        with filter_mpg123_messages():
            return probe(Source(inputs[0], inputs[0], inputs[0])).duration_s <= SHORT_S
    except (OSError, ValueError):  # the run says what is wrong with it
        return True


def is_stream(inputs: Sequence[str]) -> bool:
    """Return True for stdin alone or one URL: their length is unknown until the end."""
    return len(inputs) == 1 and (inputs[0] == STDIN or is_url(inputs[0]))


def check_paths(job: TranscribeJob) -> None:
    """Check a command's paths before the model is loaded. The output folder is not changed.

    Raises:
        UsageError: A URL needs an extra or settings that are missing, an input is a file that the run writes, two outputs are
            the same file, or a file that no run wrote is in the way, as far as this is known now.
    """
    own: dict[str, str] = {}  # files that this run writes, and the option or name of each
    written = [named for hook in job.hooks for named in hook.files(job.output).items()]
    for option, path in (*written, ("--events", job.events), ("--log-file", job.log_file)):
        if path is not None and not is_device(path):
            real_path = os.path.realpath(path)
            if real_path in own:
                raise UsageError(f"{option} {path}: is the file of {own[real_path]} too: name another place")
            own[real_path] = option
    folder, url, paths = job.output.directory, job.output.url, None
    urls: list[str] = []  # of what it writes at a URL
    if job.output.place is not None:
        from fastscribe.results.paths import Paths  # here, as a run to stdout needs none of it

        paths = Paths(folder or Path(), job.output.shard.suffix)
    if folder is not None and paths is not None:
        _add_folder_files(own, paths)
    if url is not None and paths is not None:
        urls = [f"{url.rstrip('/')}/{path.name}" for path in (paths.rows, paths.report)]
    for given in job.output.inputs:
        if is_url(given):
            _check_store(given)
        if os.path.realpath(given) in own or given in urls:
            raise UsageError(f"{given}: is what this run would write: name another place for the output")
    if url is not None:
        if url.partition(":")[0].lower() in ("http", "https"):
            raise UsageError(f"{url}: a web server takes no results: name a folder, or s3://, gs:// or az://")
        _check_store(url)
    if folder is not None and paths is not None:
        with using_folder(folder):
            paths.check_new(job.output.overwrite)


def check_number(job: TranscribeJob, found: Iterable[Source | Failure]) -> None:
    """Raise UsageError if several recordings would go to stdout in a format that holds one. `found` are the inputs'."""
    if job.output.is_stdout:
        from fastscribe.results import stream  # here, because NumPy would slow down --help

        stream.check_inputs(job.output.style.formats[0], job.output.inputs, found)


def check_output_dir(name: object) -> None:
    """Raise UsageError for --output-dir that names a file: one that is there, or one of an output format."""
    path = Path(str(name))
    if str(name) == "-":
        raise UsageError("--output-dir -: leave it out for stdout; a folder of this name is ./-")
    if is_file_url(str(name)):
        raise UsageError(f"--output-dir {name}: write the path of the folder, without file://")
    if is_url(str(name)) or path.is_dir():
        return
    if path.exists() and not is_device(path):
        raise UsageError(f"--output-dir {name}: is a file: name a folder")
    if path.suffix[1:].lower() in OUTPUT_FORMATS:
        raise UsageError(
            f"--output-dir {name}: is the name of a file, but a folder is meant; for one file: -f FORMAT > {name}"
        )


def _check_store(url: str) -> None:
    from fastscribe._system.remote import store_for

    try:
        store_for(url)
    except UsageError as error:
        raise UsageError(f"{url}: {error}") from error


@contextmanager
def using_folder(folder: Path | str) -> Iterator[None]:
    """Raise UsageError in place of the OSError of a block that uses an output folder. It names the folder, or a file in it."""
    try:
        yield
    except OSError as error:
        file = str(error.filename or folder)
        where = f"{file}: " if file.startswith(str(folder)) and file != str(folder) else ""
        problem = f"cannot be used as output folder: {where}{error.strerror or error}"
        raise UsageError(f"{folder}: {problem}") from error


def _add_folder_files(own: dict[str, str], paths: Paths) -> None:
    for path in (paths.rows, paths.journal, paths.report, paths.lock):
        real_path = os.path.realpath(path)
        if real_path in own:
            raise UsageError(f"{own[real_path]} {path}: is another file of this run: name another place")
        own[real_path] = str(path)
