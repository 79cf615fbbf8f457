"""Give NeMo the small speaker models of tests/helpers, and record its probabilities and vectors.

    python -m scripts.goldens speakers tests/data/models     # with nemo_toolkit[asr]

sortformer.json has every _STEP-th probability of each recording for the models of tests/helpers/sortformer.py; voices.json a
part of each vector that infer_segment() of EncDecSpeakerLabelModel returns for those of tests/helpers/voices.py. Tests make the
same checkpoints and recordings without NeMo.

Settings: CPU, float32, eval, one recording at a time, no dither; Sortformer without pad_to, voices with the checkpoint's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nemo.collections.asr.models import EncDecSpeakerLabelModel, SortformerEncLabelModel
from omegaconf import OmegaConf

from scripts.goldens import common
from tests.helpers import sortformer, voices

_STEP = 13  # reaches all speakers, and frames of all chunks
_STORED = 12  # numbers of each vector


def built(kind: Callable[..., Any], settings: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Any:
    """Return NeMo's model, with exactly these weights beside what it computes."""
    model = kind(cfg=OmegaConf.create(settings)).eval()
    state = model.state_dict()
    computed = {"preprocessor.featurizer.window", "preprocessor.featurizer.fb"}
    own = {key for key in state if key not in computed and not key.endswith("num_batches_tracked")}
    given = {key for key in weights if not key.endswith("num_batches_tracked")}
    assert own == given, own ^ given
    model.load_state_dict(state | weights)
    model.preprocessor.featurizer.dither = 0.0
    return model


def probabilities(name: str) -> list[list[float]]:
    """Return a part of Sortformer's probabilities of each recording."""
    settings = sortformer.config(name)
    model, found = built(SortformerEncLabelModel, settings, sortformer.weights(settings)), []
    model.preprocessor.featurizer.pad_to = 0
    for length_s in sortformer.LENGTHS_S:
        samples = torch.from_numpy(sortformer.recording(length_s) / 32768).float()[None]
        with torch.inference_mode():
            numbers = model(audio_signal=samples, audio_signal_length=torch.tensor([samples.shape[1]]))
        print(name, length_s, (numbers > 0.5).float().mean((0, 1)).tolist())
        found.append([round(value, 5) for value in numbers[0].flatten().tolist()[::_STEP]])
    return found


def vectors(name: str) -> list[list[float]]:
    """Return a part of a voice model's vector of each recording."""
    settings = voices.config(name)
    model, found = built(EncDecSpeakerLabelModel, settings, voices.weights(settings)), []
    for length_s in voices.LENGTHS_S:
        vector, _ = model.infer_segment(voices.recording(length_s).astype(np.float64) / 32768)
        found.append([float(f"{value:.7g}") for value in vector[0].tolist()[:_STORED]])
    print(name, found[-1][:4])
    return found


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    common.write_json(out / "sortformer.json", {name: probabilities(name) for name in sortformer.MODELS})
    common.write_json(out / "voices.json", {name: vectors(name) for name in voices.MODELS})
