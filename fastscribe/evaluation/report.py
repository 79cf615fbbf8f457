"""Format an Evaluation or a Comparison: a table, a JSON object, and utterances side by side. Pure except for colours.

Rates are percentages in the table and fractions (1 = all) in JSON, and differences percentage points and fractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fastscribe._system.text_layout import clean_text, count_of, num_columns
from fastscribe.evaluation.compare import MIN_RECORDINGS, RESAMPLES, Change, Comparison, Interval
from fastscribe.evaluation.scores import Aligned, Edits, Evaluation, Kind, Pair, Score, Span

_HEADER = ("", "utterances", "failed", "words", "WER %", "± SE", "sub", "ins", "del", "CER %", "SER %")
_CONTEXT_WORDS = 6  # of a long run of equal words that are shown beside an error
_GAP = "…"
_LABEL_COLUMNS = len("ref  ")
_STYLES: dict[Kind, str] = {"equal": "", "substitute": "yellow", "insert": "green", "delete": "red"}


class Cell(NamedTuple):
    """A reference word above the hypothesis word in its place; either may be empty."""

    kind: Kind
    reference: str
    hypothesis: str

    @property
    def columns(self) -> int:
        return max(num_columns(self.reference), num_columns(self.hypothesis))


def to_table(evaluation: Evaluation, group_by: tuple[str, ...]) -> str:
    """Format the scores as an aligned table: the total, then each group field with its values by name."""
    rows: list[tuple[str, ...]] = [_table_row("all", evaluation.total)]
    for field, scores in zip(group_by, evaluation.groups, strict=True):
        rows += [("",), (clean_text(field),)]
        rows += [_table_row("  " + value_name(value), scores[value]) for value in by_name(scores)]
    return _with_header(rows)


def _with_header(rows: Iterable[tuple[str, ...]]) -> str:
    """Format rows of cells below the header: names to the left, numbers to the right."""
    rows = [_HEADER, *rows]
    widths = [max(num_columns(row[column]) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    return "".join(_aligned(row, widths) + "\n" for row in rows)


def _table_row(name: str, score: Score) -> tuple[str, ...]:
    words = score.words
    counts = (f"{score.utterances:,}", f"{score.failed:,}", f"{words.units:,}")
    edits = (f"{words.substitutions:,}", f"{words.insertions:,}", f"{words.deletions:,}")
    rates = (percent(score.characters.rate), percent(score.sentence_error_rate))
    return (name, *counts, percent(words.rate), percent(score.standard_error), *edits, *rates)


def percent(share: float | None) -> str:
    """Format a share as a percentage without its sign; "-" for none."""
    return "-" if share is None else f"{100 * share:.2f}"


def value_name(value: str | None) -> str:
    """Return a group's value for people."""
    return "(none)" if value is None else clean_text(value) or '""'


def by_name(scores: Mapping[str | None, object]) -> list[str | None]:
    """Return groups' values in the order of their names, those without one last."""
    return sorted(scores, key=lambda value: (value is None, value or ""))


def _aligned(row: Sequence[str], widths: list[int]) -> str:
    name = row[0] + " " * (widths[0] - num_columns(row[0]))
    numbers = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=False))
    return "  ".join((name, *numbers)).rstrip()


def to_object(evaluation: Evaluation, group_by: tuple[str, ...], count_failed: bool) -> dict[str, Any]:
    """Return the counts of the total, `groups` by field and, if any are kept, the `worst` utterances, as JSON values."""
    result = {**counts(evaluation.total), "failed_count_as_deleted": count_failed}
    result["groups"] = {
        field: [{"value": value, **counts(scores[value])} for value in by_name(scores)]
        for field, scores in zip(group_by, evaluation.groups, strict=True)
    }
    if evaluation.worst:
        result["worst"] = [_utterance(aligned) for aligned in evaluation.worst]
    return result


def counts(score: Score) -> dict[str, Any]:
    return {
        "utterances": score.utterances,
        "failed": score.failed,
        "without_reference_words": score.without_reference_words,
        "with_errors": score.with_errors,
        "sentence_error_rate": share(score.sentence_error_rate),
        "wer": share(score.words.rate),
        "wer_standard_error": share(score.standard_error),
        "words": edits_object(score.words, "reference_words"),
        "cer": share(score.characters.rate),
        "characters": edits_object(score.characters, "reference_characters"),
    }


def edits_object(edits: Edits, unit: str) -> dict[str, int]:
    parts = {"substitutions": edits.substitutions, "insertions": edits.insertions, "deletions": edits.deletions}
    return {unit: edits.units, "errors": edits.errors, **parts}


def share(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 6)


def _utterance(aligned: Aligned) -> dict[str, Any]:
    pair = aligned.pair
    texts = {"reference": pair.reference, "hypothesis": pair.hypothesis}
    counts = {"wer": share(aligned.words.rate), "words": edits_object(aligned.words, "reference_words")}
    return {**recording_object(pair), "where": pair.where, **texts, **counts}


def recording_object(pair: Pair) -> dict[str, Any]:
    offset = {"offset": pair.key.offset_s} if pair.key.offset_s else {}
    return {"audio_filepath": pair.audio_path, **offset}


Block: TypeAlias = tuple[
    str, Sequence[tuple[str, Aligned]]
]  # a title, and hypotheses of one reference with their labels


def worst_blocks(evaluation: Evaluation) -> Iterator[Block]:
    """Yield the utterances with the most errors, if any are kept."""
    for aligned in evaluation.worst:
        words, pair = aligned.words, aligned.pair
        parts = f"{words.substitutions} substituted, {words.insertions} inserted, {words.deletions} deleted"
        where = f"{pair.name} ({pair.where})" if pair.audio_path else pair.where
        errors = f"{count_of(words.errors, 'error')} in {count_of(words.units, 'word')}"
        yield clean_text(f"{where}: {errors}: {parts}"), [("", aligned)]


def block_lines(block: Block) -> Iterator[str]:
    """Yield the title, and the differences of each hypothesis on a line."""
    title, sides = block
    yield f"\n{title}"
    for label, aligned in sides:
        shown = marked_diff(aligned) if aligned.pair.hypothesis is not None else "(failed)"
        yield (f"  {label:8}" if label else "") + shown


def marked_diff(aligned: Aligned) -> str:
    """Format the differences on one line: [-deleted-], {+inserted+}, and a substitution as both."""
    shown = []
    for span in _shortened(aligned.spans):
        reference, hypothesis = (" ".join(map(_word, words)) for words in (span.reference, span.hypothesis))
        if span.kind == "equal":
            shown.append(reference)
        else:
            shown.append((f"[-{reference}-]" if reference else "") + (f"{{+{hypothesis}+}}" if hypothesis else ""))
    return " ".join(shown)


def side_by_side(aligned: Aligned, max_columns: int) -> Iterator[list[Cell]]:
    """Yield the cells of each pair of lines, reference above hypothesis, no wider than `max_columns` if possible."""
    line: list[Cell] = []
    columns = _LABEL_COLUMNS
    for cell in _cells(aligned.spans):
        if line and columns + 1 + cell.columns > max_columns:
            yield line
            line, columns = [], _LABEL_COLUMNS
        line.append(cell)
        columns += cell.columns + 1
    yield line


def _cells(spans: Iterable[Span]) -> Iterator[Cell]:
    for span in _shortened(spans):
        length = max(len(span.reference), len(span.hypothesis))
        missing = ("",) * length  # the empty side of an insertion or a deletion
        for reference, hypothesis in zip(span.reference or missing, span.hypothesis or missing, strict=True):
            yield Cell(span.kind, _word(reference), _word(hypothesis))


def _shortened(spans: Iterable[Span]) -> Iterator[Span]:
    """Shorten long runs of equal words, so that an hour's transcript shows only the surroundings of errors."""
    for span in spans:
        words = span.reference
        if span.kind == "equal" and len(words) > 2 * _CONTEXT_WORDS + 1:
            words = (*words[:_CONTEXT_WORDS], _GAP, *words[-_CONTEXT_WORDS:])
            yield Span("equal", words, words)
        else:
            yield span


def _word(text: str) -> str:
    """A word without terminal escape sequences; an empty one stays empty."""
    return text if text.isprintable() else clean_text(text) or "?"


def print_in_colour(block: Block) -> None:
    """Print the title, and the hypotheses word below word, to stdout, a terminal.

    Substitutions are yellow, insertions green, deletions red.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    title, sides = block
    console.print(Text("\n" + title, style="bold"), soft_wrap=True)
    for name, aligned in sides:
        if name:
            failed = " (failed)" if aligned.pair.hypothesis is None else ""
            console.print(Text(name + failed, style="dim"), soft_wrap=True)
        for line in side_by_side(aligned, console.width):
            for label, side in (("ref  ", 1), ("hyp  ", 2)):
                text = Text().append(label, style="dim")
                for cell in line:
                    text.append(cell[side], style=_STYLES[cell.kind])
                    text.append(" " * (cell.columns - num_columns(cell[side]) + 1))
                console.print(text, soft_wrap=True)


Groups = Mapping[str | None, Comparison]


def comparison_table(comparison: Comparison, result_name: str, baseline_name: str) -> str:
    """Format both scores, the difference with its interval, and how many recordings changed."""
    scores = [(result_name, comparison.result), (f"against {baseline_name}", comparison.baseline)]
    table = _with_header(_table_row(clean_text(name), score) for name, score in scores)
    better, worse = len(comparison.better), len(comparison.worse)
    rest = f"{comparison.same_errors:,} with other words but as many errors, {comparison.same_words:,} equal"
    return f"{table}\n{_difference_line(comparison)}\nrecordings: {better:,} better, {worse:,} worse, {rest}"


def _difference_line(comparison: Comparison) -> str:
    if comparison.difference is None:
        return "WER difference: unknown, because no reference has words"
    if comparison.same_words == comparison.result.utterances:
        return "WER difference: none, the texts are equal"
    difference = f"WER difference: {100 * comparison.difference:+.2f} points"
    recordings = count_of(comparison.result.utterances, "recording")
    if comparison.interval is None:
        is_few = "is" if comparison.result.utterances == 1 else "are"
        return f"{difference}; no interval: {recordings} {is_few} too few, it takes {MIN_RECORDINGS}"
    low, high = comparison.interval
    bounds = f"95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
    return f"{difference}; {bounds} ({_verdict(comparison, comparison.interval)}; {recordings})"


def _verdict(comparison: Comparison, interval: Interval) -> str:
    if interval.low <= 0 <= interval.high:
        return "0 is inside: this may be chance"
    if comparison.is_real:
        return "0 is outside"
    num_changed = len(comparison.better) + len(comparison.worse)
    has_other = "has" if num_changed == 1 else "have"
    changed = f"only {count_of(num_changed, 'recording')} {has_other} more or fewer errors"
    return f"no verdict: {changed}, which may be chance (sign-flip test, p = {comparison.sign_flip_p:.2f})"


def group_lines(fields: Sequence[str], groups: Sequence[Groups]) -> Iterator[str]:
    """Yield a line for each value of each field: recordings, both rates, and the difference."""
    for field, comparisons in zip(fields, groups, strict=True):
        yield f"\n{clean_text(field)}"
        for value in by_name(comparisons):
            found = comparisons[value]
            result, baseline = (percent(score.words.rate) for score in (found.result, found.baseline))
            rates = f"WER {result} % against {baseline} % of {count_of(found.result.words.units, 'word')}"
            yield f"  {value_name(value)}: {rates}\n    {_difference_line(found)}"


def groups_object(fields: Sequence[str], groups: Sequence[Groups]) -> dict[str, Any]:
    """Return the comparisons of all groups, without their recordings, as JSON values."""
    without = ("better", "worse", "interval_method")
    return {
        field: [
            {"value": value}
            | {key: one for key, one in comparison_object(found[value], 0).items() if key not in without}
            for value in by_name(found)
        ]
        for field, found in zip(fields, groups, strict=True)
    }


def comparison_object(comparison: Comparison, max_changes: int | None) -> dict[str, Any]:
    """Return the comparison as JSON values.

    Args:
        comparison: the comparison.
        max_changes: maximum length of each of the lists `better` and `worse`; None: all.
    """
    interval = comparison.interval
    return {
        "result": counts(comparison.result),
        "baseline": counts(comparison.baseline),
        "wer_difference": share(comparison.difference),
        "wer_difference_interval_95": None if interval is None else [share(interval.low), share(interval.high)],
        "sign_flip_p": round(comparison.sign_flip_p, 4),
        "difference_is_real": None if interval is None else comparison.is_real,
        "interval_method": f"paired bootstrap over recordings, {RESAMPLES} resamples, from {MIN_RECORDINGS} recordings",
        "recordings_better": len(comparison.better),
        "recordings_worse": len(comparison.worse),
        "recordings_with_as_many_errors": comparison.same_errors,
        "recordings_equal": comparison.same_words,
        "better": [_change(change) for change in comparison.better[:max_changes]],
        "worse": [_change(change) for change in comparison.worse[:max_changes]],
    }


def _change(change: Change) -> dict[str, Any]:
    pair = change.result.pair
    return {
        **recording_object(pair),
        "more_errors": change.more_errors,
        "reference": pair.reference,
        "result": _side(change.result),
        "baseline": _side(change.baseline),
    }


def _side(aligned: Aligned) -> dict[str, Any]:
    return {"text": aligned.pair.hypothesis, "words": edits_object(aligned.words, "reference_words")}


def change_blocks(comparison: Comparison, max_changes: int) -> Iterator[Block]:
    """Yield the recordings that changed most, worse ones first, with the words of both runs against the reference."""
    for heading, changes in (("WORSE", comparison.worse), ("BETTER", comparison.better)):
        if changes and max_changes:
            is_cut = len(changes) > max_changes
            yield heading + (f" ({max_changes} of {len(changes):,}; --diff N shows N)" if is_cut else ""), []
        for change in changes[:max_changes]:
            before, now = change.baseline.words, change.result.words
            title = f"{change.result.pair.name}: {before.errors} -> {now.errors} errors in {now.units} words"
            yield clean_text(title), [("against", change.baseline), ("now", change.result)]
