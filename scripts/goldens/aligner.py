"""Pack Canary checkpoints with a CTC aligner, like canary-1b-v2, and record the words and times of NeMo.

    python -m scripts.goldens aligner OUT_DIR MODELS_DIR AUDIO_DIR     # with nemo_toolkit[asr]

MODELS_DIR is tests/data/models. A pair is a Canary of that folder and an aligner: a CTC model of that folder, or one with
random weights that is written to OUT_DIR/<pair>/aligner.nemo. NeMo's `save_to` omits the aligner from an archive, so
tests/helpers/aligned_canary.py packs its members under the names that NeMo's `restore_from` expects; only golden.json and
aligner.nemo are stored.

OUT_DIR/<pair>/golden.json has, per file of AUDIO_DIR, the text, words and segments of `transcribe(timestamps=True)`: CPU,
float32, one file at a time (in a batch, NeMo bounds a text by the longest file). It omits files below a second, because
NeMo pads them, and files of another rate, because NeMo resamples differently.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile as sf
import torch
from nemo.collections.asr.models import EncDecCTCModel, EncDecMultiTaskModel
from omegaconf import OmegaConf

from scripts.goldens import common
from tests.helpers import aligned_canary, archives

MIN_S, MAX_S = 1.0, 30.0  # NeMo pads shorter files and may cut longer ones into chunks


@dataclass(frozen=True)
class Pair:
    name: str
    canary: str
    aligner: str | common.Spec  # a folder of MODELS_DIR, or what to make


PAIRS = (
    Pair("canary_aligned", "canary2", "ctc"),
    Pair(
        "canary_aligned_letters",
        "canary_unified",
        common.Spec("letters", common.PUNCTUATED, has_transducer=False, has_ctc=True, mels=64, d_model=32, layers=1,
                    ff_factor=1, kernel=5, factor=4, channels=8, window_size=0.02),
    ),
)  # fmt: skip


def make_aligner(spec: common.Spec, audio: list[Path], path: Path) -> None:
    torch.manual_seed(7)
    settings = {"decoding": {"strategy": "greedy_batch"}, "ctc_reduction": "mean_batch"}
    settings["optim"] = {"name": "adamw", "lr": 0.001}
    config = common.ctc_config(spec, common.encoder_config(spec), spec.d_model, **settings)
    model = EncDecCTCModel(cfg=OmegaConf.create(config))
    common.as_measured(model).freeze()
    common.randomise(model, spec)
    common.tune(model, spec, [common.encode(model, common.read(file))[2] for file in audio])
    common.save_compressed(model, path)


def plain(rows: list[dict[str, Any]], kind: str) -> list[list[Any]]:
    return [[row[kind], round(float(row["start"]), 3), round(float(row["end"]), 3)] for row in rows]


def make(pair: Pair, models: Path, audio: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    aligner = folder / "aligner.nemo"
    if isinstance(pair.aligner, str):
        aligner = models / pair.aligner / "model.nemo"
    else:
        make_aligner(pair.aligner, audio, aligner)
    with tempfile.TemporaryDirectory() as scratch:
        members = archives.members(models / pair.canary / "model.nemo") | aligned_canary.aligner_members(aligner)
        archive = archives.packed(members, Path(scratch) / "model.nemo")
        model = EncDecMultiTaskModel.restore_from(str(archive), map_location="cpu").eval()
    assert model.timestamps_asr_model is not None
    prompt_slots = {"source_lang": "en", "target_lang": "en", "pnc": "yes"}
    paths = [str(path) for path in audio]
    found = model.transcribe(paths, batch_size=1, timestamps=True, verbose=False, **prompt_slots)
    files = {
        path.name: {
            "text": hypothesis.text,
            "words": plain(hypothesis.timestamp["word"], "word"),
            "segments": plain(hypothesis.timestamp["segment"], "segment"),
        }
        for path, hypothesis in zip(audio, found, strict=True)
    }
    parts = {"canary": pair.canary, "aligner": pair.aligner if isinstance(pair.aligner, str) else None}
    document = {"name": pair.name, "made_with": common.versions(), **parts, "files": files}
    common.write_json(folder / "golden.json", document)


def main(out: Path, models: Path, audio_dir: Path) -> None:
    headers = {path: sf.info(path) for path in sorted(audio_dir.iterdir())}
    audio = [
        path
        for path, header in headers.items()
        if (header.samplerate, header.channels) == (16000, 1) and MIN_S <= header.duration <= MAX_S
    ]
    for pair in PAIRS:
        make(pair, models, audio, out / pair.name)
