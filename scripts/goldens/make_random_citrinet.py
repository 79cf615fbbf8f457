#!/usr/bin/env python3
"""Make a .nemo file of a published Citrinet or ContextNet shape with random weights, for benchmarks without the published ones.

    python make_random_citrinet.py stt_en_citrinet_512 OUT.nemo AUDIO...     # in an environment with nemo_toolkit[asr]

The configuration is that of tests/helpers/published.py. The text means nothing, but the work is that of the published model:
the same shape, and labels at the rate of speech, tuned on the given recordings. Batch norms take their statistics from them
too; otherwise a deep stack of random convolutions makes all frames alike.
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

sys.path.insert(0, str(Path(__file__).parents[2]))

import make_nemo_goldens as common
import numpy as np
import torch
from nemo.collections.asr import models as nemo_models
from omegaconf import OmegaConf, open_dict

from tests.helpers import published

NAMES = tuple(name for name in published.CONFIGS if name.startswith(("stt_en_citrinet", "stt_en_contextnet")))
LABELS_PER_S, FRAME_S, PIECES = 3.5, 0.08, 1024


def build(name: str, folder: Path) -> tuple[Any, common.Spec]:
    torch.manual_seed(1)
    whole = published.config(name) | dict.fromkeys(("train_ds", "validation_ds", "test_ds"))
    is_ctc = "joint" not in whole
    spec = common.Spec(
        name, PIECES, has_transducer=not is_ctc, has_ctc=is_ctc, factor=8, history=0.3, rate=LABELS_PER_S * FRAME_S
    )
    text = "\n".join(topics.topics.values())  # Python's own manual: enough English for a thousand pieces
    whole["tokenizer"] = {"dir": common.write_tokenizer(spec, folder, text), "type": "bpe"}
    model = getattr(nemo_models, whole["target"].rpartition(".")[2])(cfg=OmegaConf.create(whole))
    with open_dict(model.cfg):
        model.cfg.validation_ds = {"use_start_end_token": False}
        model.cfg.random_weights = True  # so that what is measured with it says so
    model.preprocessor.featurizer.dither, model.preprocessor.featurizer.pad_to = 0.0, 0
    model.eval().freeze()
    return model, spec


@torch.no_grad()
def settle_norms(model: Any, waves: list[np.ndarray]) -> None:
    """Set each batch norm's statistics to those of these recordings."""
    norms = [module for module in model.encoder.modules() if isinstance(module, torch.nn.BatchNorm1d)]
    lengths_B = torch.tensor([len(wave) for wave in waves])
    samples_BS = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(wave) for wave in waves], batch_first=True)
    mel_BMT, mel_lengths_B = model.preprocessor(input_signal=samples_BS, length=lengths_B)
    for norm in norms:
        norm.weight.normal_(1.0, 0.2)
        norm.bias.normal_(0.0, 0.1)
        norm.momentum = 1.0
        norm.train()
    model.encoder(audio_signal=mel_BMT, length=mel_lengths_B)
    for norm in norms:
        norm.momentum = 0.1
        norm.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("out", type=Path, metavar="OUT.nemo")
    parser.add_argument("audio", type=Path, nargs="+", metavar="AUDIO", help="a few recordings like those to come")
    arguments = parser.parse_args()
    logging.getLogger("nemo_logger").setLevel(logging.ERROR)
    waves = [common.read(path) for path in arguments.audio]
    with tempfile.TemporaryDirectory() as scratch:
        model, spec = build(arguments.name, Path(scratch))
        settle_norms(model, waves)
        common.tune(model, spec, [common.encode(model, wave)[2] for wave in waves])
        model.save_to(str(arguments.out))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.out}: {parameters / 1e6:.1f} M parameters, torch {torch.__version__}")


if __name__ == "__main__":
    main()
