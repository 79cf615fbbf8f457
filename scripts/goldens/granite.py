"""Write what transformers makes of small random Granite Speech 5.0 TurboCTC models.

    python -m scripts.goldens granite OUT.json AUDIO_DIR    # with transformers and torchaudio

tests/helpers/granite_folder.py makes the models from a seed. Each recording goes through GraniteSpeech5Processor and
GraniteSpeech5ForCTC alone (CPU, float32): its features (a few sums), best labels of the frames, and text. Lengths around the
borders of a block come from cut recordings.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
import torch
import transformers
from transformers import AutoProcessor, GraniteSpeech5ForCTC

from tests.helpers.granite_folder import TOKENIZERS, write_folder

RECORDINGS = ("e10_concat_45s.flac", "e03_one_second_exact.flac", "e05_silence_2s.flac", "e06_clipping_noise_2s.flac")
FRAME = 1280  # samples of an output frame


def cuts(longest: np.ndarray) -> dict[str, np.ndarray]:
    """Return the beginnings of a recording with lengths around the borders of blocks, of frames and of pairs."""
    frames = (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
    lengths = {f"{count} frames": count * FRAME for count in frames}
    lengths |= {"1 frame less a sample": FRAME - 1, "128 frames less a sample": 128 * FRAME - 1, "odd mels": 333 * 160}
    return {name: longest[:length] for name, length in lengths.items()}


@torch.inference_mode()
def run(model: Any, processor: Any, wave: np.ndarray) -> dict[str, Any]:
    inputs = processor(wave, sampling_rate=16000, return_tensors="pt")
    ids = model.generate(**inputs)
    return {"argmax": ids[0].tolist(), "text": processor.batch_decode(ids)[0]}


def main(out: Path, audio: Path) -> None:
    found: dict[str, Any] = {"transformers": transformers.__version__, "torch": torch.__version__, "models": {}}
    for kind in TOKENIZERS:
        with tempfile.TemporaryDirectory() as scratch:
            write_folder(Path(scratch), kind)
            model, loading = GraniteSpeech5ForCTC.from_pretrained(
                scratch, dtype=torch.float32, output_loading_info=True
            )
            assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
            processor = AutoProcessor.from_pretrained(scratch)
            longest, rate = sf.read(audio / "e10_concat_45s.flac", dtype="float32")
            assert rate == 16000
            waves = cuts(longest) if kind == "turboctc" else {}
            waves |= {name: sf.read(audio / name, dtype="float32")[0] for name in RECORDINGS}
            found["models"][kind] = {name: run(model.eval(), processor, wave) for name, wave in waves.items()}
    out.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
