"""What people see of an Evaluation: a table, one JSON object, and utterances side by side. Pure but for the colours.

Rates are per cent in the table and shares (1 = all) in JSON, as its keys have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fastscribe._system.text_layout import clean_text, num_columns
from fastscribe.evaluation.scores import Aligned, Edits, Evaluation, Kind, Score, Span

_HEADER = ("", "utterances", "failed", "words", "WER %", "sub", "ins", "del", "CER %", "SER %")
_CONTEXT_WORDS = 6  # shown of a long run of equal words, on either side of an error
_GAP = "…"
_LABEL_COLUMNS = len("ref  ")
_STYLES: dict[Kind, str] = {"equal": "", "substitute": "yellow", "insert": "green", "delete": "red"}


class Cell(NamedTuple):
    """A word over the word that was heard in its place; either may be empty."""

    kind: Kind
    reference: str
    hypothesis: str

    @property
    def columns(self) -> int:
        return max(num_columns(self.reference), num_columns(self.hypothesis))


def to_table(evaluation: Evaluation, group_by: tuple[str, ...]) -> str:
    """Aligned lines: the whole, then each group field with its values by name."""
    rows = [_HEADER, _table_row("all", evaluation.total)]
    for field, scores in zip(group_by, evaluation.groups, strict=True):
        rows += [("",), (clean_text(field),)]
        rows += [_table_row("  " + _name(value), scores[value]) for value in _by_name(scores)]
    widths = [max(num_columns(row[column]) for row in rows if column < len(row)) for column in range(len(_HEADER))]
    return "".join(_aligned(row, widths) + "\n" for row in rows)


def _table_row(name: str, score: Score) -> tuple[str, ...]:
    words = score.words
    counts = (f"{score.utterances:,}", f"{score.failed:,}", f"{words.units:,}")
    edits = (f"{words.substitutions:,}", f"{words.insertions:,}", f"{words.deletions:,}")
    rates = (_percent(score.characters.rate), _percent(score.sentence_error_rate))
    return (name, *counts, _percent(words.rate), *edits, *rates)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _name(value: str | None) -> str:
    return "(none)" if value is None else clean_text(value) or '""'


def _by_name(scores: dict[str | None, Score]) -> list[str | None]:
    return sorted(scores, key=lambda value: (value is None, value or ""))


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    name = row[0] + " " * (widths[0] - num_columns(row[0]))
    numbers = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=False))
    return "  ".join((name, *numbers)).rstrip()


def to_object(evaluation: Evaluation, group_by: tuple[str, ...], count_failed: bool) -> dict[str, Any]:
    """The counts of the whole, then `groups` by field and, where some are kept, the `worst` utterances."""
    found = {**_counts(evaluation.total), "failed_count_as_deleted": count_failed}
    found["groups"] = {
        field: [{"value": value, **_counts(scores[value])} for value in _by_name(scores)]
        for field, scores in zip(group_by, evaluation.groups, strict=True)
    }
    if evaluation.worst:
        found["worst"] = [_utterance(aligned) for aligned in evaluation.worst]
    return found


def _counts(score: Score) -> dict[str, Any]:
    return {
        "utterances": score.utterances,
        "failed": score.failed,
        "without_reference_words": score.without_reference_words,
        "with_errors": score.with_errors,
        "sentence_error_rate": _share(score.sentence_error_rate),
        "wer": _share(score.words.rate),
        "words": _edits(score.words, "reference_words"),
        "cer": _share(score.characters.rate),
        "characters": _edits(score.characters, "reference_characters"),
    }


def _edits(edits: Edits, unit: str) -> dict[str, int]:
    parts = {"substitutions": edits.substitutions, "insertions": edits.insertions, "deletions": edits.deletions}
    return {unit: edits.units, "errors": edits.errors, **parts}


def _share(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 6)


def _utterance(aligned: Aligned) -> dict[str, Any]:
    pair = aligned.pair
    texts = {"reference": pair.reference, "hypothesis": pair.hypothesis}
    counts = {"wer": _share(aligned.words.rate), "words": _edits(aligned.words, "reference_words")}
    return {"where": pair.where, "audio_filepath": pair.audio_path, **texts, **counts}


def diff_title(aligned: Aligned) -> str:
    words = aligned.words
    parts = f"{words.substitutions} substituted, {words.insertions} inserted, {words.deletions} deleted"
    where = f"{aligned.pair.audio_path} ({aligned.pair.where})" if aligned.pair.audio_path else aligned.pair.where
    return clean_text(f"{where}: {words.errors} errors in {words.units} words: {parts}")


def marked_diff(aligned: Aligned) -> str:
    """On one line: [-deleted-], {+inserted+}, and a substitution as both."""
    shown = []
    for span in _shortened(aligned.spans):
        reference, hypothesis = (" ".join(map(_word, words)) for words in (span.reference, span.hypothesis))
        if span.kind == "equal":
            shown.append(reference)
        else:
            shown.append((f"[-{reference}-]" if reference else "") + (f"{{+{hypothesis}+}}" if hypothesis else ""))
    return " ".join(shown)


def side_by_side(aligned: Aligned, max_columns: int) -> Iterator[list[Cell]]:
    """The cells of each pair of lines, reference above hypothesis; only a single cell may be wider."""
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
        missing = ("",) * length  # on the other side of an insertion or a deletion
        for reference, hypothesis in zip(span.reference or missing, span.hypothesis or missing, strict=True):
            yield Cell(span.kind, _word(reference), _word(hypothesis))


def _shortened(spans: Iterable[Span]) -> Iterator[Span]:
    """Leaves a gap where many words in a row are equal: of an hour's transcript, the neighbourhoods of the errors stay."""
    for span in spans:
        words = span.reference
        if span.kind == "equal" and len(words) > 2 * _CONTEXT_WORDS + 1:
            words = (*words[:_CONTEXT_WORDS], _GAP, *words[-_CONTEXT_WORDS:])
            yield Span("equal", words, words)
        else:
            yield span


def _word(text: str) -> str:
    """Without what could steer a terminal; empty stays empty."""
    return text if text.isprintable() else clean_text(text) or "?"


def print_in_colour(worst: Iterable[Aligned]) -> None:
    """To stdout, which is a terminal: substitutions yellow, insertions green, deletions red."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for aligned in worst:
        console.print(Text("\n" + diff_title(aligned), style="bold"), soft_wrap=True)
        for line in side_by_side(aligned, console.width):
            for label, side in (("ref  ", 1), ("hyp  ", 2)):
                text = Text().append(label, style="dim")
                for cell in line:
                    text.append(cell[side], style=_STYLES[cell.kind])
                    text.append(" " * (cell.columns - num_columns(cell[side]) + 1))
                console.print(text, soft_wrap=True)
