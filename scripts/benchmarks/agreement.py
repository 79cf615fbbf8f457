"""Agreement of two runs over the same audio, by label and by text. Pure except for `hypotheses`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastscribe.bench.throughput_passes import batches_of
from fastscribe.transcriber import Transcriber
from fastscribe.types import Hypothesis, Int16Array


def hypotheses(transcriber: Transcriber, waves: Sequence[Int16Array]) -> list[Hypothesis]:
    """Return a hypothesis per wave, in order. Raise the first error of a batch."""
    found: dict[str, Hypothesis] = {}
    batches = batches_of(waves, transcriber, transcriber._recognizer.choose_budget())
    for batch, outcome in transcriber._engine.stream(batches):
        if isinstance(outcome, Exception):
            raise outcome
        found |= {utterance.audio.id: one for utterance, one in zip(batch.utterances, outcome, strict=True)}
    return [found[f"{number}"] for number in range(len(waves))]


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the insertions, deletions and substitutions that turn one sequence into the other (Levenshtein)."""
    row = np.arange(len(b) + 1)
    columns = np.asarray(b)
    for number, label in enumerate(a, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (columns != label))
        first = np.concatenate([[number], best])
        # An insertion costs one a step: the running minimum of what is left when the steps are taken off.
        row = np.minimum.accumulate(first - np.arange(len(first))) + np.arange(len(first))
    return int(row[-1])


def compare(found: Sequence[Hypothesis], wanted: Sequence[Hypothesis]) -> dict[str, Any]:
    """Return the label edits over the reference labels, and the share of equal sequences."""
    edits = sum(edit_distance(a.token_ids, b.token_ids) for a, b in zip(found, wanted, strict=True))
    same = sum(a.token_ids == b.token_ids for a, b in zip(found, wanted, strict=True))
    labels = sum(len(hypothesis.token_ids) for hypothesis in wanted)
    return {
        "label_difference_share": edits / max(1, labels),
        "equal_share": same / max(1, len(wanted)),
        "labels": labels,
        "recordings": len(wanted),
    }
