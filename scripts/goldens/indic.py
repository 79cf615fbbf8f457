"""Writes what NeMo's modules make of a small IndicConformer with random weights, in each of its languages.

    python -m scripts.goldens indic OUT.json AUDIO...   # with nemo_toolkit[asr]

The model is that of tests/helpers/indic_folder.py. NeMo itself cannot read it: IndicConformer is of AI4Bharat's fork
(github.com/AI4Bharat/NeMo, branch nemo-v2). So NeMo builds the plain hybrid of the same sizes, which gets the weights that both
have. For each language, this then does what the fork does: the CTC head's logits are selected by a mask, which the tokenizer's
table of languages gives, before the softmax; the joint network's last layer is the language's; the blank is the last output.
Greedy decoding is NeMo's own, of one recording at a time (GreedyRNNTInfer), whose first step has zeros for the last token.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from nemo.collections.asr import models as nemo_models
from nemo.collections.asr.parts.submodules.rnnt_greedy_decoding import GreedyRNNTInfer
from omegaconf import OmegaConf

from scripts.goldens import common
from tests.helpers import indic_folder

_FORK = ("multisoftmax", "multilingual", "language_keys", "language_masks")
_FORK += ("token_id_offsets", "offset_token_ids_by_token_id")


def build(folder: Path) -> Any:
    """Return NeMo's plain hybrid with the weights that it shares with the fork's model."""
    config = indic_folder.config()
    for section in (config["decoder"], config["joint"], config["aux_ctc"]["decoder"]):
        for key in _FORK:
            section.pop(key, None)
    for language in indic_folder.LANGUAGES:
        (folder / language).mkdir()
        (folder / language / "tokenizer.model").write_bytes(indic_folder.sentencepiece_model(language))
        (folder / language / "vocab.txt").write_text("")
        config["tokenizer"]["langs"][language] = {"dir": str(folder / language), "type": "bpe"}
    config["tokenizer"]["type"] = "agg"
    config |= dict.fromkeys(("train_ds", "validation_ds", "test_ds"))
    model = getattr(nemo_models, config["target"].rpartition(".")[2])(cfg=OmegaConf.create(config))
    common.as_measured(model).freeze()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    kept = {name: shape for name, shape in shapes.items() if not name.startswith(("preprocessor.", "joint.joint_net"))}
    missing, unexpected = model.load_state_dict(indic_folder.weights(kept), strict=False)
    assert not unexpected and all(name.startswith(("preprocessor.", "joint.joint_net")) for name in missing)
    return model


def output_layer(language: str, inputs: int) -> torch.nn.Linear:
    """Return a language's output layer of the joint network."""
    layer = torch.nn.Linear(inputs, indic_folder.PIECES + 1)
    name = f"joint.joint_net.2.{language}."
    found = indic_folder.weights({name + "weight": tuple(layer.weight.shape), name + "bias": tuple(layer.bias.shape)})
    layer.load_state_dict({key.removeprefix(name): value for key, value in found.items()})
    return layer.eval().requires_grad_(False)


@torch.inference_mode()
def decoded(model: Any, language: str, encoded_BDT: torch.Tensor, lengths_B: torch.Tensor) -> dict[str, Any]:
    """Return the tokens of both heads in one language, counted from the language's first one, and their frames."""
    blank = indic_folder.PIECES
    of_token = model.tokenizer.langs_by_token_id
    mask = torch.tensor([of_token[token] == language for token in range(len(of_token))] + [True])
    logits_TV = model.ctc_decoder.decoder_layers(encoded_BDT).transpose(1, 2)[0, : int(lengths_B)]
    best = torch.log_softmax(logits_TV[:, mask], dim=-1).argmax(-1).tolist()
    model.joint.joint_net[-1] = output_layer(language, model.joint.joint_net[-1].in_features)
    greedy = GreedyRNNTInfer(model.decoder, model.joint, blank_index=blank, max_symbols_per_step=10)
    (found,) = greedy(encoder_output=encoded_BDT, encoded_lengths=lengths_B)[0]
    return {
        "ctc": list(common.collapse(best, blank)),
        "rnnt": [list(map(int, found.y_sequence)), list(map(int, found.timestamp))],
    }


def main(out: Path, *audio: Path) -> None:
    files: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = build(Path(scratch))
        for path in audio:
            _, _, encoded_BDT, lengths_B = common.encode(model, common.read(path))
            files[path.name] = {one: decoded(model, one, encoded_BDT, lengths_B) for one in indic_folder.LANGUAGES}
    common.write_json(out, {"made_with": common.versions(), "files": files})
