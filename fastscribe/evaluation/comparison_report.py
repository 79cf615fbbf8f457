"""Format a Comparison for people and as JSON. Pure except for colours.

Differences are percentage points in the table and fractions (1 = all) in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastscribe._system.text_layout import clean_text, count_of
from fastscribe.evaluation.compare import MIN_RECORDINGS, RESAMPLES, Change, Comparison, Interval
from fastscribe.evaluation.report import (
    Block,
    by_name,
    counts,
    edits_object,
    percent,
    recording_object,
    score_table,
    share,
    value_name,
)
from fastscribe.evaluation.scores import Aligned

Groups = Mapping[str | None, Comparison]


def to_table(comparison: Comparison, result_name: str, baseline_name: str) -> str:
    """Format both scores, the difference with its interval, and how many recordings changed."""
    scores = [(result_name, comparison.result), (f"against {baseline_name}", comparison.baseline)]
    return "\n".join((score_table(scores).rstrip("\n"), "", _difference_line(comparison), _changes_line(comparison)))


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
            {"value": value} | {key: one for key, one in to_object(found[value], 0).items() if key not in without}
            for value in by_name(found)
        ]
        for field, found in zip(fields, groups, strict=True)
    }


def _changes_line(comparison: Comparison) -> str:
    better, worse = len(comparison.better), len(comparison.worse)
    rest = f"{comparison.same_errors:,} with other words but as many errors, {comparison.same_words:,} equal"
    return f"recordings: {better:,} better, {worse:,} worse, {rest}"


def to_object(comparison: Comparison, max_changes: int | None) -> dict[str, Any]:
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
