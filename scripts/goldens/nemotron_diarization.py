"""Give transformers the small folders of tests/helpers/nemotron_diarization.py, and record its probabilities.

    python -m scripts.goldens nemotron_diarization OUT.json    # with transformers 5.24

The file has every _STEP-th probability of each recording. Tests make the same
folders and recordings without transformers.

Settings: CPU, float32, one recording at a time. "streamed" is a session: each call has the next chunk's sound.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForAudioFrameClassification, AutoProcessor

from tests.helpers import nemotron_diarization, sortformer

_STEP = 211  # reaches all speakers, and frames of all chunks


def streamed(model: Any, processor: Any, samples: torch.Tensor) -> torch.Tensor:
    """Return the logits of a session in the mode "low_latency"."""
    parts, cache, mel_frame = [], None, 0
    size = processor.num_samples_first_audio_chunk
    start, is_first = 0, True
    while True:
        is_last = start + size >= len(samples)
        inputs = processor(
            samples[start : start + size].numpy(),
            sampling_rate=sortformer.RATE,
            is_streaming=True,
            is_first_audio_chunk=is_first,
            is_last_audio_chunk=is_last,
            return_tensors="pt",
        )
        out = model(**inputs, speaker_cache=cache, **({"num_lookahead_frames": 0} if is_first and is_last else {}))
        parts.append(out.logits)
        if is_last:
            return torch.cat(parts, 1)
        cache, is_first = out.speaker_cache, False
        mel_frame += processor.num_mel_frames_per_step
        start, size = processor.audio_chunk_start(mel_frame), processor.num_samples_per_audio_chunk


def make(name: str) -> list[list[float]]:
    """Return a part of transformers' probabilities of each recording."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        nemotron_diarization.write_folder(Path(folder), nemotron_diarization.config(name))
        model, loaded = AutoModelForAudioFrameClassification.from_pretrained(folder, output_loading_info=True)
        assert not any(loaded.values()), loaded
        processor = AutoProcessor.from_pretrained(folder)
        for length_s in nemotron_diarization.LENGTHS_S:
            samples = torch.from_numpy(sortformer.recording(length_s) / 32768).float()
            with torch.inference_mode():
                if name == "streamed":
                    logits = streamed(model.eval(), processor, samples)
                else:
                    inputs = processor(samples.numpy(), sampling_rate=sortformer.RATE, return_tensors="pt")
                    logits = model.eval()(**inputs).logits
            probabilities = logits[0, : len(samples) // 160].sigmoid()
            print(name, length_s, probabilities.shape, (probabilities > 0.5).float().mean(0).tolist())
            found.append([round(value, 5) for value in probabilities.flatten().tolist()[::_STEP]])
    return found


def main(out: Path) -> None:
    goldens = {name: make(name) for name in nemotron_diarization.MODELS}
    out.write_text(json.dumps(goldens, separators=(",", ":")) + "\n")
