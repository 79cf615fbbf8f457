"""Small NeMo checkpoints with squeeze-and-excite and random weights: Citrinet, ContextNet, and odd mixtures of their settings.

The weights come from NumPy's legacy generator, whose numbers never change. Used by tests, and by
scripts/goldens/squeeze_excite.py, which runs where NeMo is installed and fastscribe is not, so nothing here imports either
of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.helpers import quick_yaml
from tests.helpers.archives import members
from tests.helpers.published import CONFIGS, LETTERS, Yaml, config

Shapes = dict[str, tuple[int, ...]]

PIECES = 128  # of the tokenizer
_TOKENIZER_OF = Path(__file__).parents[1] / "data" / "models" / "ctc" / "model.nemo"


def _block(filters: int, kernel: int, repeat: int = 1, stride: int = 1, **settings: Any) -> Yaml:
    plain = {"dilation": [1], "dropout": 0.1, "residual": False, "separable": True, "se": True, "se_context_size": -1}
    return {"filters": filters, "repeat": repeat, "kernel": [kernel], "stride": [stride]} | plain | settings


def _strided(filters: int, kernel: int, repeat: int, stride: int = 2, **settings: Any) -> Yaml:
    residual = {"residual": True, "residual_mode": "stride_add", "stride_last": True}
    return _block(filters, kernel, repeat, stride, **residual, **settings)


_ADD = {"residual": True, "residual_mode": "add"}
_MAX = {"residual": True, "residual_mode": "max"}
_DENSE = {"residual": True, "residual_mode": "add", "residual_dense": True}
_LIMITED = {"se_context_size": 8, "se_interpolation_mode": "linear"}
# fmt: off
_BLOCKS: dict[str, list[Yaml]] = {
    "citrinet": [
        _block(32, 5), _strided(32, 11, 2, kernel_size_factor=0.5), _block(32, 13, 3, kernel_size_factor=0.25, **_ADD),
        _strided(32, 13, 2), _strided(40, 25, 2), _block(40, 27, 2, **_ADD), _block(48, 41),
    ],
    "contextnet": [
        _block(32, 5, **_LIMITED), _block(32, 5, 2, **_ADD, **_LIMITED), _strided(32, 5, 2, **_LIMITED),
        _strided(32, 5, 2, **_LIMITED | {"se_context_size": 0}),
        _strided(32, 5, 2, se_reduction_ratio=4, **_LIMITED | {"se_context_size": 10**6}), _block(48, 5),
    ],
    # Groups, shared filters, dense residuals, the greater of two, and blocks without a gate or without separation.
    "mixed": [
        _block(32, 9, stride=2, heads=8), _block(32, 7, 2, groups=4, se_reduction_ratio=2, **_DENSE),
        _block(32, 5, 2, **_DENSE),
        _block(40, 5, se=False), _block(40, 5, 2, separable=False, **_MAX), _block(48, 3, dilation=[2], se_reduction_ratio=5),
    ],
    # No convolution masks its input: the frame that the STFT adds is one of the recording's, except for the gates.
    "unmasked": [
        _block(32, 5), _block(32, 3, 2, **_ADD, **_LIMITED), _strided(32, 7, 2, stride=3), _block(40, 5, 2, **_MAX),
    ],
}
# fmt: on
NAMES = tuple(_BLOCKS)
_PUBLISHED = {"contextnet": "stt_en_contextnet_256"}  # the others: Citrinet's
_ACTIVATIONS = {"contextnet": "swish", "mixed": "hardtanh"}
_CHARACTERS = ("unmasked",)
_SEEDS = {"citrinet": 6, "contextnet": 2, "mixed": 2, "unmasked": 12}  # models that say many different labels
_BLANK_BIAS = {"citrinet": 4.0, "contextnet": 4.0, "mixed": 6.0, "unmasked": 2.0}


def se_config(name: str) -> Yaml:
    """Return the published configuration with the blocks of one of NAMES; every other key stays."""
    whole, blocks = config(_PUBLISHED.get(name, "stt_en_citrinet_512")), [dict(block) for block in _BLOCKS[name]]
    width, num_labels = blocks[-1]["filters"], len(LETTERS) if name in _CHARACTERS else PIECES
    whole["encoder"] |= {"jasper": blocks, "conv_mask": name != "unmasked"}
    whole["encoder"]["activation"] = _ACTIVATIONS.get(name, "relu")
    if "joint" in whole:
        whole["decoder"] |= {"prednet": whole["decoder"]["prednet"] | {"pred_hidden": 24}, "vocab_size": num_labels}
        sizes = {"joint_hidden": 40, "encoder_hidden": width, "pred_hidden": 24}
        whole["joint"] |= {"jointnet": whole["joint"]["jointnet"] | sizes, "num_classes": num_labels}
        whole["model_defaults"] |= {"enc_hidden": width, "pred_hidden": 24, "joint_hidden": 40}
    else:
        whole["decoder"] |= {"feat_in": width, "num_classes": num_labels}
    if name in _CHARACTERS:
        del whole["tokenizer"]
        whole |= {"labels": LETTERS, "target": CONFIGS["stt_en_quartznet15x5"]["target"]}
        whole["decoder"]["vocabulary"] = LETTERS
    return whole


def write_tokenizer(folder: Path) -> None:
    """Write the files of a SentencePiece tokenizer with PIECES pieces, under NeMo's names for them."""
    for stored, content in members(_TOKENIZER_OF).items():
        name = stored.rpartition("_")[2]
        if name in ("tokenizer.model", "tokenizer.vocab", "vocab.txt"):
            (folder / name).write_bytes(content)


def write_checkpoint(name: str, folder: Path) -> Path:
    """Write an unpacked .nemo file of one of NAMES."""
    whole = se_config(name)
    if "tokenizer" in whole:
        write_tokenizer(folder)
        files = {"model_path": "tokenizer.model", "vocab_path": "vocab.txt", "spe_tokenizer_vocab": "tokenizer.vocab"}
        whole["tokenizer"] |= {key: f"nemo:{file}" for key, file in files.items()}
    (folder / "model_config.yaml").write_text(quick_yaml.dump(whole, sort_keys=False), encoding="utf-8")
    torch.save(random_weights(name), folder / "model_weights.ckpt")
    return folder


def linear(name: str, inputs: int, outputs: int, bias: bool = True, *kernel: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, *kernel)} | ({f"{name}.bias": (outputs,)} if bias else {})


def batch_norm(name: str, width: int) -> Shapes:
    names = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{each}": (width,) for each in names} | {f"{name}.num_batches_tracked": ()}


def encoder_shapes(encoder: Yaml) -> Shapes:
    """Return NeMo's names of a ConvASREncoder's weights, with their shapes."""
    shapes: Shapes = {}
    channels, suffix, dense = encoder["feat_in"], ".conv" if encoder["conv_mask"] else "", []
    for number, block in enumerate(encoder["jasper"]):
        name, filters, groups = f"encoder.encoder.{number}", block["filters"], block.get("groups", 1)
        kernel = int(block["kernel"][0] * block.get("kernel_size_factor", 1)) // 2 * 2 + 1
        dense += [channels] if block.get("residual_dense") else []
        residuals = (dense if block.get("residual_dense") else [channels]) if block["residual"] else []
        for index, inputs in enumerate(residuals):
            shapes |= linear(f"{name}.res.{index}.0{suffix}", inputs, filters, False, 1)
            shapes |= batch_norm(f"{name}.res.{index}.1", filters)
        layer = 0
        for repeat in range(block["repeat"]):
            layer += 2 * (repeat > 0)  # activation and dropout
            if block.get("separable"):
                heads = block.get("heads", -1)
                shapes |= linear(f"{name}.mconv.{layer}{suffix}", 1, channels if heads < 0 else heads, False, kernel)
                layer += 1
            over_time = 1 if block.get("separable") else kernel
            shapes |= linear(f"{name}.mconv.{layer}{suffix}", channels // groups, filters, False, over_time)
            shapes |= batch_norm(f"{name}.mconv.{layer + 1}", filters)
            layer += 2 + (groups > 1)  # the last shuffles
            channels = filters
        if block.get("se"):
            hidden = filters // block.get("se_reduction_ratio", 8)
            shapes |= linear(f"{name}.mconv.{layer}.fc.0", filters, hidden, False)
            shapes |= linear(f"{name}.mconv.{layer}.fc.2", hidden, filters, False)
    return shapes


def transducer_shapes(small: Yaml, num_labels: int) -> Shapes:
    """Return NeMo's names of a predictor's and a joint's weights, with their shapes."""
    sizes, hidden = small["joint"]["jointnet"], small["decoder"]["prednet"]["pred_hidden"]
    outputs = num_labels + 1 + small["joint"].get("num_extra_outputs", 0)
    shapes: Shapes = {"decoder.prediction.embed.weight": (num_labels + 1, hidden)}
    for layer in range(small["decoder"]["prednet"]["pred_rnn_layers"]):
        lstm = "decoder.prediction.dec_rnn.lstm."
        shapes |= {f"{lstm}weight_{kind}_l{layer}": (4 * hidden, hidden) for kind in ("ih", "hh")}
        shapes |= {f"{lstm}bias_{kind}_l{layer}": (4 * hidden,) for kind in ("ih", "hh")}
    shapes |= linear("joint.enc", sizes["encoder_hidden"], sizes["joint_hidden"])
    shapes |= linear("joint.pred", hidden, sizes["joint_hidden"])
    if not small["joint"].get("multilingual"):
        return shapes | linear("joint.joint_net.2", sizes["joint_hidden"], outputs)
    for language in (keys := small["joint"]["language_keys"]):  # IndicConformer
        shapes |= linear(f"joint.joint_net.2.{language}", sizes["joint_hidden"], num_labels // len(keys) + 1)
    return shapes


def _shapes(small: Yaml) -> Shapes:
    shapes = encoder_shapes(small["encoder"])
    if "joint" in small:
        return shapes | transducer_shapes(small, small["joint"]["num_classes"])
    head = small["decoder"]
    return shapes | linear("decoder.decoder_layers.0", head["feat_in"], head["num_classes"] + 1, True, 1)


def random_weights(name: str) -> dict[str, torch.Tensor]:
    """Return float32 weights: layers that keep the size of their inputs, gates that differ, and a blank that often wins."""
    random, shapes, weights = np.random.RandomState(_SEEDS[name]), _shapes(se_config(name)), {}
    for key, shape in sorted(shapes.items()):
        if not shape:
            weights[key] = torch.zeros((), dtype=torch.int64)
            continue
        values = random.standard_normal(shape)
        is_norm = key.removesuffix("weight") + "running_var" in shapes
        if key.endswith("running_var") or is_norm:
            values = 1.0 + 0.5 * np.tanh(values)
        elif len(shape) == 1:
            values *= 0.2
        elif "embed" not in key:
            values *= (1.5 if len(shape) == 3 else 1.0) * np.prod(shape[1:]) ** -0.5
        values *= next((scale for part, scale in _SCALES.items() if part in key), 1.0)
        if key in ("decoder.decoder_layers.0.bias", "joint.joint_net.2.bias"):
            values[-1] += _BLANK_BIAS[name]
        weights[key] = torch.from_numpy(values.astype(np.float32))
    return weights


# Gates and heads that differ; a joint that hears the audio and the history.
_SCALES = {
    ".fc.": 3.0,
    "decoder_layers.0.weight": 3.0,
    "joint_net.2.weight": 3.0,
    "joint.enc.weight": 0.1,
    "joint.pred.weight": 8.0,
}
