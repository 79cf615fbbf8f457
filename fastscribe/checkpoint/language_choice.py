"""Which language a model is told. Nothing here needs the model itself."""

from __future__ import annotations

from fastscribe.checkpoint.value import Checkpoint


def has_aligner_of_a_language(checkpoint: Checkpoint) -> bool:
    """Return True if the option `language` chose the aligner's head."""
    return checkpoint.aligner is not None and checkpoint.aligner.config.language is not None
