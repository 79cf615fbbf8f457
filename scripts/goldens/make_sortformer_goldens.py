#!/usr/bin/env python3
"""Give NeMo the small Sortformer checkpoints of tests/helpers/sortformer.py, and record its probabilities.

    PYTHONPATH=. python scripts/goldens/make_sortformer_goldens.py OUT_DIR     # in an environment with nemo_toolkit[asr]

Writes OUT_DIR/<name>.nemo, and OUT_DIR/sortformer.json, which belongs into tests/data/models: every _STEP-th probability of
each recording. Tests make the same checkpoints and recordings without NeMo.

Settings: CPU, float32, eval, one recording at a time, no dither, no pad_to.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import json
from pathlib import Path

import torch
from nemo.collections.asr.models import SortformerEncLabelModel
from omegaconf import OmegaConf

from tests.helpers import sortformer

_STEP = 13  # reaches all speakers, and frames of all chunks


def make(name: str, out: Path) -> list[list[float]]:
    """Write a checkpoint with NeMo. Return a part of NeMo's probabilities of each recording."""
    settings = sortformer.config(name)
    model = SortformerEncLabelModel(cfg=OmegaConf.create(settings)).eval()
    state, weights = model.state_dict(), sortformer.weights(settings)
    computed = {"preprocessor.featurizer.window", "preprocessor.featurizer.fb"}
    own = {key for key in state if key not in computed and not key.endswith("num_batches_tracked")}
    assert own == set(weights), own ^ set(weights)
    model.load_state_dict(state | weights)
    model.save_to(str(out / f"{name}.nemo"))
    model.preprocessor.featurizer.dither, model.preprocessor.featurizer.pad_to = 0.0, 0
    found = []
    for length_s in sortformer.LENGTHS_S:
        samples = torch.from_numpy(sortformer.recording(length_s) / 32768).float()[None]
        with torch.inference_mode():
            probabilities = model(audio_signal=samples, audio_signal_length=torch.tensor([samples.shape[1]]))
        print(name, length_s, (probabilities > 0.5).float().mean((0, 1)).tolist())
        found.append([round(value, 5) for value in probabilities[0].flatten().tolist()[::_STEP]])
    return found


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    goldens = {name: make(name, out) for name in sortformer.MODELS}
    (out / "sortformer.json").write_text(json.dumps(goldens, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
