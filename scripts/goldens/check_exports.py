#!/usr/bin/env python3
"""Check that NeMo or transformers makes of an exported model the texts that fastscribe made of the model before the export.

    python check_exports.py EXPORTED TRANSCRIPTS.jsonl    # in an environment with nemo_toolkit[asr] or with transformers

EXPORTED is what `fastscribe convert --to nemo` or `--to hf` wrote. TRANSCRIPTS.jsonl is what `fastscribe transcribe` wrote
with the model before and --dtype fp32 --max-utterance-s 0 --beam 1. Recordings go through the reference one at a time (CPU,
float32, greedy); those that are not mono at 16 kHz are left out, because the reference would resample in another way.
Spaces before punctuation do not count: transformers keeps them, NeMo removes them, and fastscribe does as the model says.
Prints each text that differs; exit code 1 if one does, or if no recording is left.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
import torch


def nemo_texts(path: Path) -> Callable[[np.ndarray], str]:
    import nemo
    from nemo.collections.asr.models import ASRModel

    model = ASRModel.restore_from(str(path), map_location="cpu").eval().float()
    print(f"NeMo {nemo.__version__}: {type(model).__name__}")
    model.preprocessor.featurizer.dither = 0.0

    def text(wave: np.ndarray) -> str:
        encoded, lengths = model(
            input_signal=torch.from_numpy(wave)[None], input_signal_length=torch.tensor([len(wave)])
        )[:2]
        decode = getattr(model.decoding, "rnnt_decoder_predictions_tensor", None)
        found = decode(encoded, lengths) if decode else model.decoding.ctc_decoder_predictions_tensor(encoded, lengths)
        return str(found[0].text)

    return text


def transformers_texts(path: Path) -> Callable[[np.ndarray], str]:
    import transformers
    from transformers import AutoProcessor

    kind: Any = getattr(transformers, json.loads((path / "config.json").read_text())["architectures"][0])
    model, loading = kind.from_pretrained(path, dtype=torch.float32, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
    print(f"transformers {transformers.__version__}: {kind.__name__}")
    processor = AutoProcessor.from_pretrained(path)

    def text(wave: np.ndarray) -> str:
        inputs = processor(wave, sampling_rate=16000, return_tensors="pt")
        found = model.eval().generate(**inputs)
        ids = getattr(found, "sequences", found)
        group = {"group_tokens": False} if kind.__name__ != "ParakeetForCTC" else {}
        written = processor.batch_decode(ids, skip_special_tokens=True, **group)[0]
        return str(written)

    return text


def attached(text: str) -> str:
    return re.sub(r"\s([,.;:?!])", r"\1", text).strip()


@torch.inference_mode()
def main() -> None:
    exported, transcripts = map(Path, sys.argv[1:])
    text_of = nemo_texts(exported) if exported.is_file() else transformers_texts(exported)
    rows = [json.loads(line) for line in transcripts.read_text(encoding="utf-8").splitlines()]
    num_compared = num_words = num_different = 0
    for row in rows:
        wave, rate = sf.read(row["audio_filepath"], dtype="float32")
        if rate != 16000 or wave.ndim > 1:
            print(f"{row['audio_filepath']}: left out")
            continue
        found = text_of(wave)
        num_compared += 1
        num_words += len(row["text"].split())
        if attached(found) != attached(row["text"]):
            num_different += 1
            print(f"{row['audio_filepath']}\n  fastscribe: {row['text']}\n  reference:  {found}")
    print(f"{exported}: {num_compared} recordings, {num_words} words, {num_different} texts differ")
    raise SystemExit(num_different > 0 or num_compared == 0)


if __name__ == "__main__":
    main()
