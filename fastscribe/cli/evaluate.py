"""`fastscribe evaluate`: results against their references."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastscribe.cli.app import StdoutClosed, app, option
from fastscribe.cli.terminal import say
from fastscribe.errors import ManifestError, UsageError
from fastscribe.evaluation.scores import NormalizerName
from fastscribe.version import __version__

if TYPE_CHECKING:
    from fastscribe.evaluation.scores import Evaluation, Pair

_MAX_SHOWN = 20  # problems told of one by one


@app.command(epilog="Example: fastscribe evaluate out/transcripts.jsonl --group-by speaker --diff 10")
def evaluate(
    results: Annotated[
        list[str],
        typer.Argument(
            help="JSONL files that transcribe wrote, its output folders, or - for stdin.", metavar="RESULTS..."
        ),
    ],
    reference_field: Annotated[str, option("--reference-field", help="Field with the reference.")] = "text",
    hypothesis_field: Annotated[
        str | None,
        option("--hypothesis-field", help="Field with the hypothesis. Default: pred_text; with --manifest, else text."),
    ] = None,
    manifest: Annotated[
        Path | None,
        option("--manifest", help="Take references from this manifest, by audio_filepath and offset."),
    ] = None,
    group_by: Annotated[
        list[str] | None, option("--group-by", help="A field whose values are scored apart too; may be repeated.")
    ] = None,
    normalizer: Annotated[
        NormalizerName,
        option("--normalizer", help="whisper-en: Whisper's English normaliser; none: case and punctuation count."),
    ] = "whisper-en",
    skip_failed: Annotated[
        bool, option("--skip-failed", help="Leave failed rows out; without it all their words count as deleted.")
    ] = False,
    diff: Annotated[int, option("--diff", min=0, help="Show the N worst utterances, word by word.", metavar="N")] = 0,
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Word and character error rates of results, whole and by group. The scores go to stdout, bad rows to stderr."""
    from fastscribe.evaluation import report
    from fastscribe.evaluation import scores as scoring
    from fastscribe.evaluation.results import Fields, References, read_pairs

    fields = Fields(reference_field, hypothesis_field, tuple(dict.fromkeys(group_by or ())))
    scoring.check_installed(normalizer)
    normalize = scoring.normalizer(normalizer)
    problems = Problems()
    references = References(str(manifest), fields) if manifest else None
    pairs = problems.without_problems(read_pairs(results, fields, normalize, references))
    if references:
        problems.add(references.problems)
    found = scoring.evaluate(pairs, len(fields.group_by), diff, not skip_failed)
    problems.report_rest()
    unused = references.num_unused if references else 0
    _check(found, fields.group_by)
    if unused:
        say(f"{manifest}: {unused:,} rows have no result; they are not counted")
    if as_json:
        settings = {"normalizer": normalizer, "unusable_rows": problems.num, "references_without_result": unused}
        rates = report.to_object(found, fields.group_by, not skip_failed)
        _print([json.dumps({**settings, **rates, "versions": _versions(normalizer)}, ensure_ascii=False)])
    else:
        _print([_preamble(normalizer, found, skip_failed), report.to_table(found, fields.group_by).rstrip("\n")])
        _show_worst(found)
    if problems.num or unused:
        raise typer.Exit(1)


class Problems:
    """Rows that could not be used: a line each on stderr, up to a point."""

    def __init__(self) -> None:
        self.num = 0

    def add(self, problems: Iterable[ManifestError]) -> None:
        for problem in problems:
            self.num += 1
            if self.num <= _MAX_SHOWN:
                say(str(problem))

    def without_problems(self, pairs: Iterable[Pair | ManifestError]) -> Iterator[Pair]:
        for pair in pairs:
            if isinstance(pair, ManifestError):
                self.add([pair])
            else:
                yield pair

    def report_rest(self) -> None:
        if self.num > _MAX_SHOWN:
            say(f"and {self.num - _MAX_SHOWN:,} more rows that cannot be used")


def _check(found: Evaluation, group_by: tuple[str, ...]) -> None:
    if not found.total.utterances:
        left_out = f", {found.total.failed:,} failed rows left out" if found.total.failed else ""
        raise UsageError(f"nothing to score: no row with both reference and hypothesis{left_out}")
    for field, scores in zip(group_by, found.groups, strict=True):
        if scores.keys() == {None}:
            raise UsageError(f"--group-by {field}: no row has this field")


def _preamble(normalizer: str, found: Evaluation, skip_failed: bool) -> str:
    failed = f"; failed rows: {found.total.failed:,}, " + ("left out" if skip_failed else "counted as deleted words")
    return f"normalizer {normalizer}" + (failed if found.total.failed else "") + "\n"


def _show_worst(found: Evaluation) -> None:
    from fastscribe.evaluation.report import diff_title, marked_diff, print_in_colour

    if found.worst and _has_colours():
        print_in_colour(found.worst)
    else:
        _print(f"\n{diff_title(aligned)}\n{marked_diff(aligned)}" for aligned in found.worst)


def _has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print(parts: Iterable[str]) -> None:
    if sys.stdout is None:
        raise StdoutClosed
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper
    try:
        for part in parts:
            print(part)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise StdoutClosed from error


def _versions(normalizer: NormalizerName) -> dict[str, str]:
    from importlib.metadata import version

    packages = ("jiwer",) if normalizer == "none" else ("jiwer", "whisper-normalizer")
    return {"fastscribe": __version__} | {package: version(package) for package in packages}
