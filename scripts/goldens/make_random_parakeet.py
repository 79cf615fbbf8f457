#!/usr/bin/env python3
"""Make a .nemo file of a published model's shape with random weights, for benchmarks without the published ones.

    python make_random_parakeet.py parakeet-tdt-0.6b OUT.nemo AUDIO...     # in an environment with nemo_toolkit[asr]

The text means nothing, but the work is that of the published model: the same shapes, and labels and durations at the rate of
speech, tuned on the given recordings. The shapes are those of the public parakeet-tdt-0.6b-v2 and parakeet-rnnt-1.1b. It
takes minutes; fastscribe/bench/random_model.py makes such checkpoints without NeMo, in seconds on a GPU, in fastscribe's own
format.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and {"-h", "--help"} & {*sys.argv}:  # few environments have the packages below
    raise SystemExit(print(__doc__))

import argparse
import logging
import tempfile
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from make_nemo_goldens import Spec, build, encode, read, tune
from omegaconf import open_dict

LABELS_PER_S, FRAME_S = 3.5, 0.08
SHAPES = {
    "parakeet-tdt-0.6b": Spec(
        "parakeet-tdt-0.6b",
        vocabulary=1024,
        durations=(0, 1, 2, 3, 4),
        pred_hidden=640,
        pred_layers=2,
        joint_hidden=640,
        history=0.3,  # else all files begin with the same labels, and some never stop
        rate=LABELS_PER_S * FRAME_S,
        mels=128,
        d_model=1024,
        heads=8,
        layers=24,
        use_bias=False,
        channels=256,
    ),
    "parakeet-rnnt-1.1b": Spec(
        "parakeet-rnnt-1.1b",
        vocabulary=1024,
        pred_hidden=640,
        pred_layers=2,
        joint_hidden=640,
        history=0.3,
        rate=LABELS_PER_S * FRAME_S,
        mels=80,
        d_model=1024,
        heads=8,
        layers=42,
        use_bias=True,
        channels=256,
    ),
}


def make(spec: Spec, audio: list[Path], out: Path) -> Any:
    with tempfile.TemporaryDirectory() as scratch:
        text = "\n".join(topics.topics.values())  # Python's own manual: enough English for a thousand pieces
        model = build(spec, 1, Path(scratch), text)
        tune(model, spec, [encode(model, read(path))[2] for path in audio])
        with open_dict(model.cfg):
            model.cfg.random_weights = True  # so that what is measured with it says so
        part = out.with_name(out.name + ".part")
        model.save_to(str(part))
        part.rename(out)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("out", type=Path, metavar="OUT.nemo")
    parser.add_argument("audio", type=Path, nargs="+", metavar="AUDIO", help="a few recordings like those to come")
    arguments = parser.parse_args()
    logging.getLogger("nemo_logger").setLevel(logging.ERROR)
    model = make(SHAPES[arguments.shape], arguments.audio, arguments.out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for path in arguments.audio:
        _, _, encoded_BDT, length_B = encode(model, read(path))
        (found,) = model.decoding.rnnt_decoder_predictions_tensor(encoded_BDT, length_B, return_hypotheses=True)
        seconds = int(length_B) * FRAME_S
        print(f"{path.name}: {len(found.y_sequence) / seconds:.1f} labels a second, {found.text[:60]!r}")
    print(f"{arguments.out}: {parameters / 1e6:.1f} M parameters, torch {torch.__version__}")


if __name__ == "__main__":
    main()
