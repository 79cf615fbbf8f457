"""How far two runs over the same audio agree, label by label and text by text. Pure but for `hypotheses`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastscribe.bench.throughput import batches_of
from fastscribe.transcriber import Transcriber
from fastscribe.types import Hypothesis, Int16Array


def hypotheses(transcriber: Transcriber, waves: Sequence[Int16Array]) -> list[Hypothesis]:
    """One a wave, in the order given. Raises the first error of a batch."""
    found: dict[str, Hypothesis] = {}
    batches = batches_of(waves, transcriber, transcriber.recognizer.choose_budget())
    for batch, outcome in transcriber.engine.stream(batches):
        if isinstance(outcome, Exception):
            raise outcome
        found |= {utterance.audio.id: one for utterance, one in zip(batch.utterances, outcome, strict=True)}
    return [found[f"{number}"] for number in range(len(waves))]


def compare(found: Sequence[Hypothesis], wanted: Sequence[Hypothesis]) -> dict[str, Any]:
    """Edits between the label sequences over the labels wanted, and the share of sequences that are the same."""
    edits = sum(edit_distance(a.token_ids, b.token_ids) for a, b in zip(found, wanted, strict=True))
    same = sum(a.token_ids == b.token_ids for a, b in zip(found, wanted, strict=True))
    labels = sum(len(hypothesis.token_ids) for hypothesis in wanted)
    return {
        "label_difference_share": edits / max(1, labels),
        "equal_share": same / max(1, len(wanted)),
        "labels": labels,
        "recordings": len(wanted),
    }


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Levenshtein: insertions, deletions and substitutions."""
    row = np.arange(len(b) + 1)
    columns = np.asarray(b)
    for number, label in enumerate(a, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (columns != label))
        first = np.concatenate([[number], best])
        # An insertion costs one a step: the running minimum of what is left when the steps are taken off.
        row = np.minimum.accumulate(first - np.arange(len(first))) + np.arange(len(first))
    return int(row[-1])
