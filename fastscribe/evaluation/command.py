"""`fastscribe evaluate`: score results against their references."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from fastscribe._system.text_layout import count_of
from fastscribe.cli.app import StdoutClosed, app, option
from fastscribe.cli.problems import Problems
from fastscribe.cli.terminal import say
from fastscribe.errors import UsageError
from fastscribe.evaluation import report
from fastscribe.evaluation import scores as scoring
from fastscribe.evaluation.compare import compare, compare_groups, match
from fastscribe.evaluation.results import Fields, References, read_run
from fastscribe.evaluation.scores import NORMALIZERS, NormalizerName, packages_of
from fastscribe.results.rows import missing_shards
from fastscribe.version import __version__

if TYPE_CHECKING:
    from fastscribe.evaluation.report import Block
    from fastscribe.evaluation.scores import Pair

_NAMES_SHOWN = 5  # recordings that only one run has
_CHANGES_SHOWN = 10  # recordings that got better, and worse


@app.command(epilog="Example: fastscribe evaluate out/transcripts.jsonl --group-by language --diff 10")
def evaluate(
    results: Annotated[
        list[str],
        typer.Argument(
            help="JSONL files that transcribe wrote, its output folders, URLs of either, or - for stdin.",
            metavar="RESULTS",
        ),
    ],
    reference_field: Annotated[str, option("--reference-field", help="Field with the reference.")] = "text",
    hypothesis_field: Annotated[
        str | None,
        option("--hypothesis-field", help="Field with the hypothesis. Default: pred_text; with --manifest, else text."),
    ] = None,
    manifest: Annotated[
        str | None,
        option("--manifest", help="Take references from this manifest, by audio_filepath and offset."),
    ] = None,
    group_by: Annotated[
        list[str] | None,
        option("--group-by", help="Also score or compare each value of this field (a.b: b in a); may be repeated."),
    ] = None,
    normalizer: Annotated[
        NormalizerName,
        option(
            "--normalizer",
            help="; ".join(f"{name}: {one.help}" for name, one in NORMALIZERS.items()) + ".",
        ),
    ] = "whisper-en",
    skip_failed: Annotated[
        bool,
        option(
            "--skip-failed", help="Ignore failed rows, and lines that hold none. Default: their words count as deleted."
        ),
    ] = False,
    diff: Annotated[
        int | None,
        option(
            "--diff",
            min=0,
            help="Show the N worst utterances, word by word. With --against: N that got better and N that got worse, by "
            "default 10.",
            metavar="N",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "--against",
            metavar="RESULTS",
            help="Compare with this other run over the same recordings: the difference with an interval, and what changed.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="Print the scores, failures and warnings only.")] = False,
) -> None:
    """Compute word and character error rates, in total and by group. Scores go to stdout, bad rows to stderr."""
    fields = Fields(reference_field, hypothesis_field, tuple(dict.fromkeys(group_by or ())))
    scoring.check_installed(normalizer)
    normalize = scoring.normalizer(normalizer)
    problems = Problems()
    _say_incomplete([*results, *([against] if against else ())])
    references = References(manifest, fields) if manifest else None
    if against == "-" and "-" in results:
        raise UsageError("- on both sides: stdin holds one run; name a file for the other")
    runs = [
        read_run(inputs, fields, normalize, references, skip_failed=skip_failed, is_compared=against is not None)
        for inputs in (results, *([[against]] if against is not None else []))
    ]
    lists = [(run.broken, run.problems) for run in runs]
    if references:
        lists.insert(0, (references.broken, references.problems))
    for broken, others in lists:
        problems.add([*broken, *others])
    problems.report()
    num_older = sum(run.num_older for run in runs)
    if not quiet:
        _say_notes(references, num_older, is_pooled=len(results) > 1)
    counts = {"normalizer": normalizer, "unusable_rows": problems.num, "older_results": num_older}
    asked = _Asked(normalizer, fields.group_by, skip_failed, diff, as_json, quiet)
    if against is None:
        is_whole = _score(runs[0].pairs, references, counts, asked)
    else:
        is_whole = _compare((" ".join(results), against), (runs[0].pairs, runs[1].pairs), counts, asked)
    num_excused = sum(len(broken) for broken, _ in lists) if skip_failed else 0
    if not is_whole or problems.num > num_excused:
        raise typer.Exit(1)


class _Asked(NamedTuple):
    """What is printed of the rates, and how."""

    normalizer: NormalizerName
    group_by: tuple[str, ...]
    skip_failed: bool
    diff: int | None
    as_json: bool
    quiet: bool


def _say_notes(references: References | None, num_older: int, *, is_pooled: bool) -> None:
    if references and references.by_end:
        ours, theirs = references.by_end
        say(
            f"{count_of(references.num_by_end, 'result')} found by the end of the path alone, such as {ours} for {theirs}: the "
            "recordings lie elsewhere now"
        )
    if references and references.num_repeated:
        say(f"{references.manifest}: {count_of(references.num_repeated, 'row')} again with the same text, counted once")
    if num_older:
        hint = "; to compare two runs use --against" if is_pooled else ""
        say(f"{count_of(num_older, 'row')} left out of recordings that come again: the last one counts{hint}")


def _score(pairs: list[Pair], references: References | None, counts: Mapping[str, object], asked: _Asked) -> bool:
    """Print the rates of a run. Return False if rows of the manifest have no result.

    Raises:
        UsageError: No row can be scored, or none has a field of --group-by.
    """
    evaluation = scoring.evaluate(pairs, len(asked.group_by), asked.diff or 0, not asked.skip_failed)
    if not evaluation.total.utterances:
        left_out = f", {count_of(evaluation.total.failed, 'failed row')} left out" if evaluation.total.failed else ""
        raise UsageError(f"nothing to score: no row with both reference and hypothesis{left_out}")
    _check_groups(asked.group_by, evaluation.groups)
    unused = references.num_unused if references else 0
    if references and unused:
        has_none = "has no result; it is" if unused == 1 else "have no result; they are"
        say(f"{references.manifest}: {count_of(unused, 'row')} {has_none} not counted")
    if asked.as_json:
        rates = report.to_object(evaluation, asked.group_by, not asked.skip_failed)
        found = {**counts, "references_without_result": unused, **rates, "versions": _versions(asked.normalizer)}
        _print_parts([json.dumps(found, ensure_ascii=False)])
    else:
        if not asked.quiet:
            are_left_out = "left out" if asked.skip_failed else "counted as deleted words"
            failed = f"; failed rows: {evaluation.total.failed:,}, {are_left_out}" if evaluation.total.failed else ""
            _print_parts([f"normalizer {asked.normalizer}{failed}\n"])
        _print_parts([report.to_table(evaluation, asked.group_by).rstrip("\n")])
        _show(report.worst_blocks(evaluation))
    return not unused


def _compare(
    names: tuple[str, str], runs: tuple[list[Pair], list[Pair]], counts: Mapping[str, object], asked: _Asked
) -> bool:
    """Print the comparison of two runs, of which the second is the baseline. Return False if only one has some recordings.

    Raises:
        UsageError: The runs have no recording in common, or different references.
    """
    matched = match(runs[0], runs[1], count_failed=not asked.skip_failed)
    only = (matched.only_result, matched.only_baseline)
    if not matched.result:
        _refuse_unpaired(names, only, matched.num_skipped)
    for name, pairs in zip(names, only, strict=True):
        _say_unpaired(name, pairs)
    if matched.num_skipped and not asked.quiet:
        say(f"{count_of(matched.num_skipped, 'recording')} failed in one of the runs; left out of both")
    comparison, groups = compare(matched), compare_groups(matched, len(asked.group_by))
    _check_groups(asked.group_by, groups)
    if asked.as_json:
        unpaired = {
            f"only_in_{side}": [pair.name for pair in pairs]
            for side, pairs in zip(("result", "baseline"), only, strict=True)
        }
        grouped = {"groups": report.groups_object(asked.group_by, groups)} if asked.group_by else {}
        found = {
            **counts,
            "failed_left_out": matched.num_skipped,
            **unpaired,
            **report.comparison_object(comparison, asked.diff),
            **grouped,
            "versions": _versions(asked.normalizer),
        }
        _print_parts([json.dumps(found, ensure_ascii=False)])
    else:
        max_changes = _CHANGES_SHOWN if asked.diff is None else asked.diff
        _print_parts(
            [
                *([] if asked.quiet else [f"normalizer {asked.normalizer}\n"]),
                report.comparison_table(comparison, *names),
            ]
        )
        _print_parts(report.group_lines(asked.group_by, groups))
        _show(report.change_blocks(comparison, max_changes))
    return not any(only)


def _say_incomplete(results: Iterable[str]) -> None:

    for given in results:
        if shards := missing_shards(given):
            numbers = ", ".join(map(str, shards[:_NAMES_SHOWN])) + (" .." if len(shards) > _NAMES_SHOWN else "")
            say(f"{given}: merged without all results; missing or incomplete shards: {numbers}")


def _refuse_unpaired(names: tuple[str, str], only: tuple[list[Pair], list[Pair]], num_skipped: int) -> NoReturn:
    if num_skipped:
        raise UsageError(f"nothing to compare: one of the runs failed on each of {count_of(num_skipped, 'recording')}")
    if not all(only):
        raise UsageError("nothing to compare: no row with both reference and hypothesis in one of the runs")
    examples = " and ".join(f"{name} has {_shown(pairs[0])}" for name, pairs in zip(names, only, strict=True))
    raise UsageError(f"nothing to compare: no recording is in both runs; {examples}")


def _say_unpaired(name: str, only: Sequence[Pair]) -> None:
    if only:
        names = ", ".join(_shown(pair) for pair in only[:_NAMES_SHOWN]) + (" .." if len(only) > _NAMES_SHOWN else "")
        is_in = "is in" if len(only) == 1 else "are in"
        say(f"{count_of(len(only), 'recording')} {is_in} {name} only, and not compared: {names}")


def _shown(pair: Pair) -> str:
    return pair.name + (f" (id {pair.key.id})" if pair.key.id else "")


def _check_groups(group_by: tuple[str, ...], groups: Sequence[Mapping[str | None, object]]) -> None:
    for field, found in zip(group_by, groups, strict=True):
        if found.keys() == {None}:
            several = "; for several fields, repeat --group-by" if "," in field else ""
            raise UsageError(f"--group-by {field}: no row has this field{several}")


def _show(blocks: Iterable[Block]) -> None:
    """Print utterances with their differences. Raises StdoutClosed."""
    has_colours = sys.stdout is not None and sys.stdout.isatty()
    has_colours = has_colours and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for block in blocks:
        if has_colours:
            report.print_in_colour(block)
        else:
            _print_parts(report.block_lines(block))


def _print_parts(parts: Iterable[str]) -> None:
    """Print texts to stdout. Raises StdoutClosed."""
    if sys.stdout is None:
        raise StdoutClosed
    try:
        for part in parts:
            print(part)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise StdoutClosed from error


def _versions(normalizer: NormalizerName) -> dict[str, str]:
    """Return the versions of this package, of jiwer, and of the normaliser if it has one."""
    return {"fastscribe": __version__} | {package: version(package) for package in packages_of(normalizer)}
