#!/usr/bin/env python3
"""Check that folders which transformers saves are read as what they are.

    python check_hf_saved.py MODELS_DIR AUDIO    # in an environment with transformers and fastscribe

For each class that fastscribe reads, a small folder (of MODELS_DIR, or made from a seed) is loaded by transformers, put into a
new model, and saved with its processor: in shards, and with `model.` in front of its weights' names taken away or added.
fastscribe's encoder must give what transformers' gives (CPU, float32, the recording AUDIO), and its text must be the same from
every folder. Exit code 1 if not.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import soundfile as sf
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor

from fastscribe.checkpoint.reader import read_checkpoint
from fastscribe.config import Options
from fastscribe.families.model import build_model
from fastscribe.transcriber import Transcriber
from fastscribe.types import Features
from tests.helpers import cohere_folder, granite_folder, streaming_folder

MAX_DIFFERENCE = 2e-3  # of the frames


def folders(models: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    yield from ((name, models / name) for name in ("hf_ctc", "hf_rnnt", "hf_tdt_demo", "hf_canary"))
    cohere_folder.write_folder(scratch / "cohere")
    granite_folder.write_folder(scratch / "granite")
    for name, is_prompted in (("nemotron3_5_asr", True), ("nemotron_asr_streaming", False)):
        nemo = models / "published" / "nemotron-3.5-asr-streaming-0.6b" / "model.nemo"
        streaming_folder.write_folder(nemo, scratch / name, is_prompted)
    yield from ((path.name, path) for path in sorted(scratch.iterdir()))


def toggle_prefix(folder: Path, out: Path) -> None:
    """Write the folder in one file, with names without `model.` in place of those with it, and the other way round."""
    out.mkdir()
    weights: dict[str, torch.Tensor] = {}
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            weights |= load_file(path)
        elif path.name != "model.safetensors.index.json":
            (out / path.name).write_bytes(path.read_bytes())
    has_prefix = any(name.startswith("model.") for name in weights)
    toggled = {name.removeprefix("model.") if has_prefix else f"model.{name}": w for name, w in weights.items()}
    save_file(toggled, out / "model.safetensors")


def save_again(folder: Path, out: Path) -> tuple[Any, Any]:
    """Save what transformers reads as a new model. Return it, and the feature extractor if its packages are installed."""
    model_class: Any = getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    loaded = model_class.from_pretrained(folder, dtype=torch.float32)
    new = model_class(loaded.config).eval()  # a loaded model would keep the names of its file
    new.load_state_dict(loaded.state_dict())
    new.save_pretrained(out, max_shard_size="30KB")
    assert (out / "model.safetensors.index.json").is_file()
    try:
        processor = AutoProcessor.from_pretrained(folder)
        processor.save_pretrained(out)
    except (ImportError, OSError, ValueError) as error:
        print(f"{folder.name}: its processor is copied: {' '.join(str(error).split())[:90]}")
        for path in (*folder.glob("*processor_config.json"), *folder.glob("tokenizer*")):
            (out / path.name).write_bytes(path.read_bytes())
        return new, None
    return new, processor.feature_extractor


@torch.inference_mode()
def largest_difference(model: Any, extractor: Any, saved: Path, audio: Path) -> float:
    """Return by how much the encoder's frames differ."""
    wave, rate = sf.read(audio, dtype="float32")
    given = extractor(wave, sampling_rate=rate, return_tensors="pt")
    features, mask = given["input_features"], given["attention_mask"]
    encoder = model.model.encoder if hasattr(model, "model") else model.encoder
    theirs_TD = encoder(features, attention_mask=mask)[0][0]
    checkpoint = read_checkpoint(saved)
    ours = build_model(checkpoint.config, checkpoint.weights, saved)
    frames = ours.encoder(Features(features.transpose(1, 2), mask.sum(1)))
    count = int(frames.lengths_B[0])
    return float((frames.frames_BTD[0, :count] - theirs_TD[:count]).abs().max())


def main() -> None:
    models, audio = map(Path, sys.argv[1:])
    num_wrong = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for kind, folder in folders(models, scratch / "made"):
            saved, toggled = scratch / kind / "saved", scratch / kind / "toggled"
            model, extractor = save_again(folder, saved)
            toggle_prefix(saved, toggled)
            texts = set()
            for path in (folder, saved, toggled):
                transcriber = Transcriber.load(path, "cpu", "fp32", Options(), lambda line: None)
                texts |= {result.text for result in transcriber.transcribe([str(audio)])}
            # Frames with a language prompt are not the encoder's own.
            is_compared = extractor is not None and not hasattr(model, "prompt_projector")
            difference = largest_difference(model, extractor, saved, audio) if is_compared else 0.0
            num_wrong += not (difference < MAX_DIFFERENCE and len(texts) == 1)
            frames = f"frames differ by {difference:.1e}" if is_compared else "frames not compared"
            print(f"{kind}: {frames}, {len(texts)} text(s): {min(texts)[:60]!r}")
    print(f"transformers {transformers.__version__}")
    raise SystemExit(num_wrong > 0)


if __name__ == "__main__":
    main()
