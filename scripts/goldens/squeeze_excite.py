"""Write what NeMo makes of small random models with squeeze-and-excite (Citrinet, ContextNet).

    python -m scripts.goldens squeeze_excite OUT.json AUDIO_DIR     # with nemo_toolkit[asr]

tests/helpers/se_checkpoint.py makes the models from a seed; NeMo must have exactly its weights. Each recording goes through the
model alone (CPU, float32, eval, no dither): tokens, the frames they begin at, text, and a few numbers of the encoder's output.
A batch of all recordings must give the same, except for an encoder without masks, whose results in NeMo depend on padding.
`transcribe()` must give the same text.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import nemo
import numpy as np
import torch
from nemo.collections.asr import models as nemo_models
from omegaconf import OmegaConf

from scripts.goldens import common
from tests.helpers import se_checkpoint

RECORDINGS = (
    "05_0_00148.flac",
    "e03_one_second_exact.flac",
    "e02_0p3s.flac",
    "e06_clipping_noise_2s.flac",
    "e01_50ms.flac",
)
SAMPLED = 5  # numbers of the encoder's output


def build(name: str, folder: Path) -> Any:
    whole = se_checkpoint.se_config(name) | dict.fromkeys(("train_ds", "validation_ds", "test_ds"))
    if "tokenizer" in whole:
        se_checkpoint.write_tokenizer(folder)
        whole["tokenizer"] = {"dir": str(folder), "type": "bpe"}
    whole["decoder" if "joint" not in whole else "joint"] |= {
        "vocabulary": [] if "tokenizer" in whole else whole["labels"]
    }
    model = getattr(nemo_models, whole["target"].rpartition(".")[2])(cfg=OmegaConf.create(whole))
    ours = se_checkpoint.random_weights(name)
    buffers = {key: value for key, value in model.state_dict().items() if key.startswith("preprocessor.")}
    model.load_state_dict(ours | buffers, strict=True)
    return common.as_measured(model)


@torch.inference_mode()
def decode(model: Any, encoded_BDT: torch.Tensor, lengths_B: torch.Tensor) -> list[dict[str, Any]]:
    """Return tokens, the frames they begin at and the text of each row."""
    if hasattr(model, "joint"):
        found = model.decoding.rnnt_decoder_predictions_tensor(encoded_BDT, lengths_B, return_hypotheses=True)
        return [
            {
                "tokens": torch.as_tensor(one.y_sequence).tolist(),
                "token_frames": torch.as_tensor(one.timestamp).tolist(),
                "text": one.text,
            }
            for one in found
        ]
    rows = []
    for row, length in enumerate(lengths_B.tolist()):
        found, hypothesis = common.ctc_golden(model.decoder, model.decoding, encoded_BDT[row : row + 1], length)
        rows.append({"tokens": found["tokens"], "token_frames": found["token_frames"], "text": hypothesis.text})
    return rows


@torch.inference_mode()
def run(model: Any, samples: np.ndarray) -> dict[str, Any]:
    _, _, encoded_BDT, length_B = common.encode(model, samples)
    length_B = length_B.clamp(max=encoded_BDT.shape[2])  # an encoder without masks leaves the length as it was
    frames_TD = encoded_BDT[0, :, : int(length_B)].T
    sampled = frames_TD.flatten()[torch.linspace(0, frames_TD.numel() - 1, SAMPLED).long()]
    numbers = {"num_frames": int(length_B), "mean": float(frames_TD.double().mean()), "sampled": sampled.tolist()}
    (found,) = decode(model, encoded_BDT, length_B)
    return found | {key: json.loads(json.dumps(value), parse_float=six_digits) for key, value in numbers.items()}


def six_digits(number: str) -> float:
    return float(f"{float(number):.6g}")


def check_batch(model: Any, waves: list[np.ndarray], alone: list[dict[str, Any]]) -> None:
    for found, expected in zip(decode(model, *common.encode_together(model, waves)), alone, strict=True):
        assert found == {key: expected[key] for key in found}, (found, expected)


def main(out: Path, audio: Path) -> None:
    waves = {name: common.read(audio / name) for name in RECORDINGS}
    found: dict[str, Any] = {"nemo_toolkit": nemo.__version__, "torch": torch.__version__, "models": {}}
    for name in se_checkpoint.NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            model = build(name, Path(scratch))
        files = {file: run(model, wave) for file, wave in waves.items()}
        if model.cfg.encoder.conv_mask:
            check_batch(model, list(waves.values()), list(files.values()))
        for file, wave in waves.items():
            common.check_transcribe(model, wave, files[file]["text"])
        found["models"][name] = files
    common.write_json(out, found)
