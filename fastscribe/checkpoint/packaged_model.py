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


def low_confidence(result: Transcript | Failure) -> float | None:
    """Return the mean confidence of a recording's words if it is below the limit; None otherwise."""
    confidences = [] if isinstance(result, Failure) else [word.confidence for word in result.words]
    if not confidences:
        return None
    mean = sum(confidences) / len(confidences)
    return mean if mean < CONFIDENCE_LIMIT else None
