#!/usr/bin/env python3
"""Give NeMo the small voice models of tests/helpers/voices.py, and record its vectors.

    PYTHONPATH=. python scripts/goldens/make_voice_goldens.py OUT_DIR     # in an environment with nemo_toolkit[asr]

Writes OUT_DIR/<name>.nemo, and OUT_DIR/voices.json, which belongs into tests/data/models: a part of each vector that
infer_segment() of EncDecSpeakerLabelModel returns, one recording at a time, with the checkpoint's own padding. Tests make the
same checkpoints and recordings without NeMo. CPU, float32.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import json
from pathlib import Path

import numpy as np
from nemo.collections.asr.models import EncDecSpeakerLabelModel
from omegaconf import OmegaConf

from tests.helpers import voices

_STORED = 12  # numbers of each vector


def make(name: str, out: Path) -> list[list[float]]:
    """Write a checkpoint with NeMo. Return NeMo's vector of each recording."""
    settings = voices.config(name)
    model = EncDecSpeakerLabelModel(cfg=OmegaConf.create(settings)).eval()
    state, weights = model.state_dict(), voices.weights(settings)
    own = set(state) - {"preprocessor.featurizer.window", "preprocessor.featurizer.fb"}
    assert own == set(weights), own ^ set(weights)
    model.load_state_dict(state | weights)
    path = out / f"{name}.nemo"
    model.save_to(str(path))
    model = EncDecSpeakerLabelModel.restore_from(str(path), map_location="cpu").eval()
    found = []
    for length_s in voices.LENGTHS_S:
        vector, _ = model.infer_segment(voices.recording(length_s).astype(np.float64) / 32768)
        found.append([float(f"{value:.7g}") for value in vector[0].tolist()[:_STORED]])
    print(name, found[-1][:4])
    return found


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    goldens = {name: make(name, out) for name in voices.MODELS}
    (out / "voices.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
