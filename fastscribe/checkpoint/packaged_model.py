"""What messages say about the packaged model: its name, and which recordings are beyond it.

The limit belongs to this model's weights, beam and language model; scripts/default_model/confidence_limit.py chooses it.
"""

from __future__ import annotations

import os
from pathlib import Path

from fastscribe.checkpoint.location import DEFAULT
from fastscribe.types import Failure, Transcript

CONFIDENCE_LIMIT = 0.78
LARGE_MODEL = "nvidia/parakeet-tdt-0.6b-v3"
NAME = "the small English model that comes with fastscribe"


def is_packaged(model: str | Path) -> bool:
    """Return True if a name, as locate() takes it, means the packaged model."""
    return model == DEFAULT and not os.path.exists(DEFAULT)


def why_beyond(result: Transcript | Failure) -> str | None:
    """Return why a recording is beyond the model: the mean confidence of its words, or speech and no words; else None."""
    if isinstance(result, Failure):
        return None
    confidences = [word.confidence for word in result.words]
    if not confidences:
        speech_s = sum(gap.end_s - gap.start_s for gap in result.gaps)
        return f"no words in {speech_s:.0f} s of what may be speech" if speech_s else None
    mean = sum(confidences) / len(confidences)
    return f"mean confidence {mean:.2f}" if mean < CONFIDENCE_LIMIT else None
