"""Write what transformers makes of a small random Cohere Transcribe model.

    python -m scripts.goldens cohere OUT.json AUDIO_DIR    # with transformers

tests/helpers/cohere_folder.py makes the model from a seed. Each recording goes through CohereAsrProcessor and
CohereAsrForConditionalGeneration alone (CPU, float32, greedy), in several languages and without punctuation. `saved_names` are
the names that save_pretrained gives the weights of a new model.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import soundfile as sf
import torch
import transformers
from safetensors import safe_open
from transformers import AutoProcessor, CohereAsrForConditionalGeneration

from tests.helpers.cohere_folder import write_folder

PROMPTS = {"en": ("en", True), "de": ("de", True), "en without punctuation": ("en", False)}
RECORDINGS = ("01_0_00010.flac", "05_0_00148.flac", "16_1_00308.flac", "e03_one_second_exact.flac", "e02_0p3s.flac")
RECORDINGS += ("e04_odd_len_20479.flac", "e06_clipping_noise_2s.flac", "e05_silence_2s.flac")


@torch.inference_mode()
def run(model: Any, processor: Any, path: Path, language: str, punctuation: bool) -> dict[str, Any]:
    wave, rate = sf.read(path, dtype="float32")
    given = processor(audio=wave, language=language, punctuation=punctuation, sampling_rate=rate, return_tensors="pt")
    index, prompt = given.pop("audio_chunk_index"), given["decoder_input_ids"][0].tolist()
    model.generation_config.decoder_start_token_id = prompt[0]  # else generate() puts another token before the prompt
    most = model.config.max_position_embeddings - len(prompt)
    ids = model.generate(**given, max_new_tokens=most, do_sample=False, num_beams=1)[0].tolist()[len(prompt) :]
    end = model.config.eos_token_id
    text = processor.decode([ids], audio_chunk_index=index, language=language, skip_special_tokens=True)[0]
    return {"prompt": prompt, "ids": ids[: ids.index(end)] if end in ids else ids, "text": text}


def saved_names(model: Any) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        type(model)(model.config).save_pretrained(scratch)  # a loaded model would keep the names of its file
        with safe_open(Path(scratch) / "model.safetensors", "pt") as file:
            return sorted(file.keys())


def main(out: Path, audio: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        write_folder(Path(scratch))
        model, loading = CohereAsrForConditionalGeneration.from_pretrained(
            scratch, dtype=torch.float32, output_loading_info=True
        )
        assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
        processor = AutoProcessor.from_pretrained(scratch)
    found: dict[str, Any] = {"transformers": transformers.__version__, "torch": torch.__version__, "prompts": {}}
    found["saved_names"] = saved_names(model)
    for name, prompt in PROMPTS.items():
        found["prompts"][name] = {file: run(model.eval(), processor, audio / file, *prompt) for file in RECORDINGS}
    out.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
