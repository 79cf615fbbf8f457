#!/usr/bin/env python3
"""Check that NeMo's NGramGPULanguageModel gives tokens the probabilities that fastscribe reads from the same ARPA files.

    python check_language_models.py    # in an environment with nemo_toolkit[asr], on a CPU

The files are random, in NeMo's encoding, and lack some of the tokens. Prints the largest difference in natural-log units;
exit code 1 if it is above 0.0001.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import tempfile
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel  # noqa: E402

from fastscribe.context import backoff_model  # noqa: E402
from fastscribe.context.room import fused_model  # noqa: E402
from fastscribe.text.tokenizer import Tokenizer  # noqa: E402
from tests.context.arpa_files import random_arpa  # noqa: E402

NUM_TOKENS, NUM_KNOWN, OFFSET = 40, 37, 100


def main() -> None:
    tokenizer = Tokenizer(tuple(f"▁{token}" for token in range(NUM_TOKENS)), "subword")
    names = [chr(OFFSET + token) for token in range(NUM_KNOWN)]
    worst = 0.0
    for seed in range(6):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.arpa"
            path.write_text(random_arpa(seed, names, 4), encoding="utf-8")
            reference = NGramGPULanguageModel.from_file(path, vocab_size=NUM_TOKENS)
            tables = fused_model(backoff_model.read_language_model(str(path), tokenizer, 1.0))
        assert tables is not None
        labels_BL = torch.from_numpy(np.random.default_rng(seed).integers(0, NUM_TOKENS, (20, 12)))
        expected_BL = reference.score_sentences(labels_BL, bos=True).detach()
        state_B = torch.full((len(labels_BL),), tables.start)
        for place, label_B in enumerate(labels_BL.unbind(1)):
            found_B = tables.scores(state_B).gather(1, label_B[:, None])[:, 0] - backoff_model._TOKEN_BONUS
            worst = max(worst, float((found_B - expected_BL[:, place]).abs().max()))
            state_B = tables.after(state_B, label_B)
    print(f"largest difference: {worst:.1e}")
    sys.exit(worst > 1e-4)


if __name__ == "__main__":
    main()
