"""`fastscribe speakers`: the persons of all recordings, by the voice prints of stored results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe._system.text_layout import count_of
from fastscribe._system.urls import is_url
from fastscribe.cli.app import app, option
from fastscribe.cli.problems import Problems
from fastscribe.cli.terminal import say
from fastscribe.errors import OutputError, UsageError
from fastscribe.results.rows import ResultRow, read_rows

if TYPE_CHECKING:
    from fastscribe.speakers.persons import Persons

FILE_NAME = "speakers.json"
MAX_UNASKED = 50_000  # voices that are clustered at the end of a run; more take minutes


@app.command(
    short_help="Find one person in many recordings, by voice.",
    epilog="Example: fastscribe speakers out, then give names in out/speakers.json, then "
    "fastscribe export out --speaker-map out/speakers.json -f txt -o named",
)
def speakers(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Output folders of transcribe --voices, files like transcripts.jsonl, or -.", metavar="RESULTS"
        ),
    ],
    output: Annotated[
        Path | None,
        option("--output", "-o", metavar="FILE", help="File to write. Default: speakers.json in the only folder."),
    ] = None,
    threshold: Annotated[
        float | None,
        option(
            "--threshold",
            min=-1,
            max=1,
            help="Least similarity of the voices of one person.\fThe mean cosine of voice prints: more makes more persons. "
            "Default: that of the file, or 0.4.",
        ),
    ] = None,
) -> None:
    """Find which speakers of the recordings are one person, and write speakers.json. Nothing is decoded.

    Give persons a name there, one name to several to make them one, or move lines. When the command runs again, named persons
    stay.
    """
    for given in results:
        if given != "-" and not is_url(given) and not Path(given).exists():
            raise UsageError(f"{given}: no such file or folder")
    if output is None:
        folders = [given for given in results if given != "-" and not is_url(given) and Path(given).is_dir()]
        if len(results) > 1 or not folders:
            raise typer.BadParameter("several results, files and URLs need --output")
        output = Path(folders[0]) / FILE_NAME
    problems = Problems()
    try:
        found = update_persons(results, output, threshold, problems)
    except OSError as error:
        raise OutputError(str(error.filename or output), error) from error
    problems.report()
    if found is None:
        raise UsageError("no voice prints at all: transcribe --voices MODEL makes them")
    say(persons_line(output, found))
    if problems.num:
        raise typer.Exit(1)


def update_persons(
    results: list[str], path: Path, threshold: float | None, problems: Problems, most: int | None = None
) -> Persons | None:
    """Cluster the voices of stored results and write a speakers.json, with the names that it has.

    Args:
        results: What fastscribe speakers takes.
        path: The file.
        threshold: Least similarity; None: the file's, or the default.
        problems: Counts damaged rows.
        most: Greatest number of speakers to cluster.

    Returns:
        The persons; None if there are no voices, or more than `most`.

    Raises:
        UsageError: The file is none of its kind, or someone's change has made it wrong.
        OSError: It cannot be written.
    """
    from fastscribe.speakers.persons import find_persons, read_if_any, speakers_of, write_persons

    def rows() -> Iterator[ResultRow]:
        kept = ("audio_filepath", "audio_track", "offset", "pred_text", "voices", "pred_voices")  # not the words
        for row in problems.without_problems(read_rows(results)):
            yield row._replace(fields={key: row.fields[key] for key in kept if key in row.fields})

    read_if_any(path)  # so that a wrong change is named before all rows are read
    voices, bad = speakers_of(rows(), most)
    problems.add(bad)
    if not voices or (most is not None and len(voices) > most):
        return None
    while True:
        earlier = read_if_any(path)
        persons = find_persons(voices, earlier, earlier.threshold if threshold is None else threshold)
        if read_if_any(path) == earlier:  # else someone has changed the file in the meantime
            write_persons(path, persons)
            return persons


def after_run(folder: Path, quiet: bool) -> bool:
    """Write the speakers.json of a finished run, and say what was found. Return False if it could not be written."""
    path, problems = folder / FILE_NAME, Problems()
    try:
        found = update_persons([str(folder)], path, None, problems, MAX_UNASKED)
    except (UsageError, OSError) as error:
        say(f"no persons were found: {error}")
        return False
    if not quiet:
        say(f"{path}: not made; fastscribe speakers {folder} makes it" if found is None else persons_line(path, found))
    return True


def persons_line(path: Path, persons: Persons) -> str:
    """Return what was found, in a line."""
    recordings = {one.recording for person in persons.persons for one in person.speakers}
    recordings |= {one.recording for one in persons.unknown}
    named = sum(person.name is not None for person in persons.persons)
    parts = [
        f"{path}: {count_of(len(persons.persons), 'person')} ({named} named) of {count_of(persons.num_speakers, 'speaker')} in "
        f"{count_of(len(recordings), 'recording')}"
    ]
    if persons.unknown:
        parts.append(f"{count_of(len(persons.unknown), 'speaker')} with too little speech to tell")
    return "; ".join(parts)
