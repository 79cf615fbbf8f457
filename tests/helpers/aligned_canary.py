"""Canary archives with an aligner, packed from stored ones, for scripts/goldens/aligner.py too, which gives NeMo the same.

Nothing of fastscribe or NeMo is imported.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

MODELS = Path(__file__).parents[1] / "data" / "models"
CONFIG, WEIGHTS = "timestamps_asr_model_config.yaml", "timestamps_asr_model_weights.ckpt"
RENAMED = {"model_config.yaml": CONFIG, "model_weights.ckpt": WEIGHTS}


def members(archive: Path, renamed: dict[str, str]) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        files = [member for member in tar.getmembers() if member.isfile()]
        contents = {member.name.removeprefix("./"): tar.extractfile(member).read() for member in files}  # type: ignore[union-attr]
    return {renamed.get(name, name): content for name, content in contents.items()}


def contents(name: str) -> dict[str, bytes]:
    found = json.loads((MODELS / name / "golden.json").read_text(encoding="utf-8"))
    aligner = MODELS / found["aligner"] / "model.nemo" if found["aligner"] else MODELS / name / "aligner.nemo"
    return members(MODELS / found["canary"] / "model.nemo", {}) | members(aligner, RENAMED)


def packed(files: dict[str, bytes], path: Path, mode: str = "w:") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path
