"""Canary archives with an aligner, packed from stored ones, for scripts/goldens/aligner.py too, which gives NeMo the same.

Nothing of fastscribe or NeMo is imported.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.archives import members

MODELS = Path(__file__).parents[1] / "data" / "models"
CONFIG, WEIGHTS = "timestamps_asr_model_config.yaml", "timestamps_asr_model_weights.ckpt"


def aligner_members(archive: Path) -> dict[str, bytes]:
    """Return the files of a CTC model under the names that they have beside a Canary model's."""
    renamed = {"model_config.yaml": CONFIG, "model_weights.ckpt": WEIGHTS}
    return {renamed.get(name, name): content for name, content in members(archive).items()}


def contents(name: str) -> dict[str, bytes]:
    found = json.loads((MODELS / name / "golden.json").read_text(encoding="utf-8"))
    aligner = MODELS / found["aligner"] / "model.nemo" if found["aligner"] else MODELS / name / "aligner.nemo"
    return members(MODELS / found["canary"] / "model.nemo") | aligner_members(aligner)
