#!/usr/bin/env python3
"""Pack Canary checkpoints with a CTC aligner, like canary-1b-v2, and record the words and times of NeMo.

    python make_aligner_goldens.py OUT_DIR MODELS_DIR AUDIO_DIR     # in an environment with nemo_toolkit[asr]

MODELS_DIR is tests/data/models. A pair is a Canary of that folder and an aligner: a CTC model of that folder, or one with
random weights that is written to OUT_DIR/<pair>/aligner.nemo. NeMo's `save_to` omits the aligner from an archive, so `pack`
adds its members under the names that NeMo's `restore_from` expects. tests/families/canary/test_aligner.py packs the same
archives in the same way; only golden.json and aligner.nemo are stored.

OUT_DIR/<pair>/golden.json has, per file of AUDIO_DIR, the text, words and segments of `transcribe(timestamps=True)`: CPU,
float32, one file at a time (in a batch, NeMo bounds a text by the longest file). It omits files below a second, because
NeMo pads them, and files of another rate, because NeMo resamples differently.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import argparse
import io
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import soundfile as sf
from nemo.collections.asr.models import EncDecMultiTaskModel

ALIGNER_NAMES = {
    "model_config.yaml": "timestamps_asr_model_config.yaml",
    "model_weights.ckpt": "timestamps_asr_model_weights.ckpt",
}
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


def pack(canary: Path, aligner: Path, archive: Path) -> None:
    """Write a tar with the members of both archives, with the aligner's config and weights renamed."""
    with tarfile.open(archive, "w:") as packed:
        for source, names in ((canary, {}), (aligner, ALIGNER_NAMES)):
            with tarfile.open(source) as members:
                for member in members.getmembers():
                    content = members.extractfile(member)
                    if content is None:
                        continue
                    name = member.name.removeprefix("./")
                    entry = tarfile.TarInfo(f"./{names.get(name, name)}")
                    entry.size = member.size
                    packed.addfile(entry, io.BytesIO(content.read()))


def make_aligner(spec: common.Spec, audio: list[Path], path: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        model = common.build(spec, 7, Path(scratch))
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
        archive = Path(scratch) / "model.nemo"
        pack(models / pair.canary / "model.nemo", aligner, archive)
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
    print(
        f"{pair.name}: {sum(len(found['words']) for found in files.values())} words in {len(files)} files", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("models", type=Path, metavar="MODELS_DIR")
    parser.add_argument("audio", type=Path, metavar="AUDIO_DIR")
    arguments = parser.parse_args()
    common.be_quiet()
    headers = {path: sf.info(path) for path in sorted(arguments.audio.iterdir())}
    audio = [
        path
        for path, header in headers.items()
        if (header.samplerate, header.channels) == (16000, 1) and MIN_S <= header.duration <= MAX_S
    ]
    for pair in PAIRS:
        make(pair, arguments.models, audio, arguments.out / pair.name)


if __name__ == "__main__":
    main()
