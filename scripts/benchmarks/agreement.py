"""Agreement of two runs over the same audio, by label and by text. Pure except for `hypotheses`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kaldialign

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


def compare(found: Sequence[Hypothesis], wanted: Sequence[Hypothesis]) -> dict[str, Any]:
    """Return the label edits over the reference labels, and the share of equal sequences."""
    pairs = zip(found, wanted, strict=True)
    edits = sum(kaldialign.edit_distance(b.token_ids, a.token_ids)["total"] for a, b in pairs)
    same = sum(a.token_ids == b.token_ids for a, b in zip(found, wanted, strict=True))
    labels = sum(len(hypothesis.token_ids) for hypothesis in wanted)
    return {
        "label_difference_share": edits / max(1, labels),
        "equal_share": same / max(1, len(wanted)),
        "labels": labels,
        "recordings": len(wanted),
    }
