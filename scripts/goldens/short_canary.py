"""Write what NeMo's `transcribe()` makes of recordings below a second, which its loader pads, with small Canary models.

    python -m scripts.goldens short_canary OUT.json MODELS_DIR AUDIO    # with nemo_toolkit[asr]

The recordings are parts of AUDIO (16 kHz) from sample START on. CPU, float32, one file at a time, no dither, no pad_to.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import nemo
import soundfile as sf
from nemo.collections.asr.models import ASRModel

MODELS = ("canary", "canary2", "canary_unified", "canary_transf")
START, LENGTHS = 16000, (800, 4800, 11201, 15999)


def main(out: Path, models: Path, audio: Path) -> None:
    wave, rate = sf.read(audio, dtype="int16")
    found: dict[str, Any] = {"nemo_toolkit": nemo.__version__, "recording": audio.name, "start": START, "texts": {}}
    with tempfile.TemporaryDirectory() as scratch:
        paths = [Path(scratch) / f"{length}.wav" for length in LENGTHS]
        for path, length in zip(paths, LENGTHS, strict=True):
            sf.write(path, wave[START : START + length], rate)
        for name in MODELS:
            model: Any = ASRModel.restore_from(models / name / "model.nemo", map_location="cpu").eval()
            model.preprocessor.featurizer.dither, model.preprocessor.featurizer.pad_to = 0.0, 0
            given = [str(path) for path in paths]
            texts = [one.text for one in model.transcribe(given, batch_size=1, verbose=False)]
            found["texts"][name] = dict(zip(map(str, LENGTHS), texts, strict=True))
    out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
