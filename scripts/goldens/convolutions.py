"""Make small Jasper and QuartzNet checkpoints with NeMo and record NeMo's results.

    python -m scripts.goldens convolutions OUT_DIR MANIFEST AUDIO_DIR     # with nemo_toolkit[asr]

Writes OUT_DIR/<name>/model.nemo, golden.json (per file of AUDIO_DIR: lengths, tokens, the frames they begin at, each frame's
label, text) and tensors.safetensors (encoder output of two short files). `jasper` and `quartznet` are trained on MANIFEST's
sentences until they know them; the others have random weights and together cover every setting of a block that matters.

Settings as in common.py: CPU, float32, eval, one file at a time, no dither, no pad_to. `transcribe()` uses the
same, and its text must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nemo.collections.asr.models import EncDecCTCModel
from omegaconf import OmegaConf, open_dict
from safetensors.numpy import save_file

from scripts.goldens import common

BATCH = 8


@dataclass(frozen=True)
class Conv:
    """A model. `blocks` are NeMo's, without the common keys."""

    spec: common.Spec
    blocks: tuple[dict[str, Any], ...]
    activation: str = "relu"
    conv_mask: bool = True
    residual_mode: str = "add"
    steps: int = 0  # of training


def spec(name: str, labels: tuple[str, ...] = common.LETTERS, **settings: Any) -> common.Spec:
    plain = {"has_transducer": False, "has_ctc": True, "mels": 64, "window_size": 0.02, "factor": 2}
    return common.Spec(name, labels, **plain | settings)


def block(filters: int, kernel: int, repeat: int = 1, **settings: Any) -> dict[str, Any]:
    plain = {"stride": [1], "dilation": [1], "dropout": 0.0, "residual": False}
    return {"filters": filters, "repeat": repeat, "kernel": [kernel]} | plain | settings


def dense(filters: int, kernel: int) -> dict[str, Any]:
    return block(filters, kernel, 2, residual=True, residual_dense=True)


def separable(filters: int, kernel: int, repeat: int = 1, **settings: Any) -> dict[str, Any]:
    return block(filters, kernel, repeat, separable=True, **settings)


# fmt: off
MODELS = (
    Conv(spec("jasper"),
         (block(40, 9, stride=[2]), dense(32, 5), dense(32, 7), dense(40, 7), block(48, 7, dilation=[2]), block(64, 1)),
         steps=600),
    Conv(spec("quartznet"),
         (separable(64, 11, stride=[2]), separable(64, 13, 2, residual=True), separable(80, 15, 2, residual=True),
          separable(96, 17, dilation=[2]), block(128, 1)),
         steps=500),
    Conv(spec("conv_unmasked", common.PUNCTUATED, mels=40, window_size=0.025, window="hamming", factor=4),
         (block(24, 5, stride=[2]), block(24, 7, 2, residual=True, residual_mode="max"),
          separable(32, 9, stride=[2], residual=True, residual_mode="stride_add"),
          separable(32, 5, 2, dilation=[3]), block(40, 1)),
         "swish", conv_mask=False),
    Conv(spec("conv_grouped", mels=48, factor=3),
         (separable(32, 8, groups=4, heads=8),
          separable(32, 11, 3, stride=[3], stride_last=True, heads=16, residual=True, residual_mode="stride_add"),
          block(48, 10, 2, groups=2, kernel_size_factor=0.5, residual=True, residual_mode="add"),
          dense(24, 3), separable(24, 7, 2, residual=True, residual_dense=True, groups=2), block(32, 1)),
         activation="hardtanh"),
)
# fmt: on


def build(conv: Conv, seed: int) -> Any:
    torch.manual_seed(seed)
    encoder = {
        "_target_": "nemo.collections.asr.modules.ConvASREncoder",
        "feat_in": conv.spec.mels,
        "activation": conv.activation,
        "conv_mask": conv.conv_mask,
        "residual_mode": conv.residual_mode,
        "jasper": list(conv.blocks),
    }
    optim = {"name": "novograd", "lr": 0.01}
    config = common.ctc_config(conv.spec, encoder, conv.blocks[-1]["filters"], optim=optim)
    model = EncDecCTCModel(cfg=OmegaConf.create(config))
    with open_dict(model.cfg):
        model.cfg.preprocessor.pad_to = 16  # as published ones have it; transcribe() takes it off
    return common.as_measured(model)


def train(model: Any, steps: int, spoken: list[tuple[np.ndarray, str]]) -> None:
    letters = {letter: index for index, letter in enumerate(model.decoder.vocabulary)}
    texts = [torch.tensor([letters[c] for c in text.lower() if c in letters]) for _, text in spoken]

    def loss_of_batch() -> torch.Tensor:
        rows = torch.randperm(len(spoken))[:BATCH].tolist()
        lengths_B = torch.tensor([len(spoken[row][0]) for row in rows])
        samples_BS = torch.zeros(len(rows), int(lengths_B.max()))
        for index, row in enumerate(rows):
            samples_BS[index, : lengths_B[index]] = torch.from_numpy(spoken[row][0])
        with torch.no_grad():
            mel_BMT, mel_lengths_B = model.preprocessor(input_signal=samples_BS, length=lengths_B)
        encoded_BDT, encoded_lengths_B = model.encoder(audio_signal=mel_BMT, length=mel_lengths_B)
        log_probs_TBV = model.decoder(encoder_output=encoded_BDT).transpose(0, 1)
        targets, target_lengths = (
            torch.cat([texts[row] for row in rows]),
            torch.tensor([len(texts[row]) for row in rows]),
        )
        blank = log_probs_TBV.shape[2] - 1
        return torch.nn.functional.ctc_loss(log_probs_TBV, targets, encoded_lengths_B, target_lengths, blank)

    model.train()
    common.learn(list(model.parameters()), steps, 5e-3, 0.3, loss_of_batch)
    model.eval()


def make(conv: Conv, seed: int, spoken: list[tuple[np.ndarray, str]], audio: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model = build(conv, seed)
    samples = {path.name: common.read(path) for path in audio}
    if conv.steps:
        train(model, conv.steps, spoken)
        model.save_to(str(folder / "model.nemo"))
    else:
        with torch.no_grad():
            common.randomise(model, conv.spec)
        common.tune(model, conv.spec, [common.encode(model, each)[2] for each in samples.values()])
        common.save_compressed(model, folder / "model.nemo")
    files, tensors = {}, {}
    for name, each in samples.items():
        _, mel_length_B, encoded_BDT, length_B = common.encode(model, each)
        length = min(int(length_B), encoded_BDT.shape[2])  # an encoder without masks leaves the length as it was
        files[name] = {"num_samples": len(each), "feat_len": int(mel_length_B), "enc_len": length}
        files[name] |= golden(model, encoded_BDT, length)
        if name in common.TENSORS_OF:
            tensors[f"encoder/{name}"] = np.ascontiguousarray(encoded_BDT[0, :, :length].T)
        common.check_transcribe(model, each, files[name]["text"])
    save_file(tensors, folder / "tensors.safetensors")
    common.write_golden(folder, conv.spec.name, model, files, frame_seconds=0.01 * conv.spec.factor)


@torch.inference_mode()
def golden(model: Any, encoded_BDT: torch.Tensor, length: int) -> dict[str, Any]:
    def decode(encoded_BDT: torch.Tensor) -> dict[str, Any]:
        found, hypothesis = common.ctc_golden(model.decoder, model.decoding, encoded_BDT, length)
        return found | {"text": hypothesis.text}

    found = decode(encoded_BDT)
    noise = 1 + 1e-5 * torch.randn(encoded_BDT.shape, generator=torch.Generator().manual_seed(0))
    return found | {"fragile": decode(encoded_BDT * noise)["tokens"] != found["tokens"]}


def main(out: Path, manifest: Path, audio_dir: Path, only: Sequence[str] = ()) -> None:
    audio = sorted(audio_dir.iterdir())
    spoken = common.spoken([path for path in audio if path.name[:1] != "e"], manifest)
    for seed, conv in enumerate(MODELS):
        if not only or conv.spec.name in only:
            make(conv, 2000 + seed, spoken, audio, out / conv.spec.name)
