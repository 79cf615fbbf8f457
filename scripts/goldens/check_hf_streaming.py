#!/usr/bin/env python3
"""Check that transformers makes of a streaming stand-in what NeMo made of it.

    python check_hf_streaming.py MODEL_DIR AUDIO_DIR    # in an environment with transformers, not fastscribe's own

MODEL_DIR holds a model.nemo that make_published_goldens.py wrote, and its golden.json. The stand-in is converted to a folder
as tests/helpers/streaming_folder.py does for the tests, and the tokens of `generate` (CPU, float32, greedy, one file at a
time) are compared with NeMo's, in the default context and language. Exit code 1 if they differ.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import json
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import soundfile as sf
import torch
import transformers
from transformers import Nemotron3_5AsrForRNNT, NemotronAsrStreamingFeatureExtractor

from tests.helpers.streaming_folder import write_folder


@torch.inference_mode()
def main() -> None:
    model_folder, audio = map(Path, sys.argv[1:])
    expected = json.loads((model_folder / "golden.json").read_text())["files"]
    with tempfile.TemporaryDirectory() as scratch:
        write_folder(model_folder / "model.nemo", Path(scratch))
        model, loading = Nemotron3_5AsrForRNNT.from_pretrained(scratch, output_loading_info=True)
        assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
        extractor = NemotronAsrStreamingFeatureExtractor.from_pretrained(scratch)
    blank = model.generation_config.decoder_start_token_id = model.config.blank_token_id
    num_wrong = 0
    for name, entry in expected.items():
        inputs = extractor(sf.read(audio / name, dtype="float32")[0], sampling_rate=16000, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=2000).sequences[0].tolist()
        found = [token for token in ids if token != blank]
        num_wrong += found != entry["tokens"]
        print(f"{name}: {len(found)} tokens, {'as NeMo' if found == entry['tokens'] else 'other than NeMo'}")
    print(f"transformers {transformers.__version__}")
    raise SystemExit(num_wrong > 0)


if __name__ == "__main__":
    main()
