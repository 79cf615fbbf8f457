"""Names of a convolutional encoder's weights in NeMo."""

from __future__ import annotations

from fastscribe.families.jasper.config import JasperConfig

NEMO: tuple[tuple[str, str], ...] = ()


def nemo_layers(config: JasperConfig) -> dict[str, str]:
    """Map NeMo's names of layers to ours. NeMo numbers all layers of a block's main path consecutively."""
    names, suffix = {}, ".conv" if config.masked else ""
    num_dense = 0
    for number, block in enumerate(config.blocks):
        theirs, ours, position = f"encoder.encoder.{number}", f"encoder.blocks.{number}", 0
        for repeat in range(block.repeat):
            parts = ["depthwise"] * block.separable + ["conv", "norm"]
            for offset, part in enumerate(parts):
                name = f"{theirs}.mconv.{position + offset}{suffix if part != 'norm' else ''}"
                names[name] = f"{ours}.convs.{repeat}.{part}"
            position += len(parts) + (block.groups > 1) + 2  # shuffle, activation and dropout
        if block.se_hidden is not None:  # in the place of the last activation
            for number_of, name in ((0, "squeeze"), (2, "excite")):
                names[f"{theirs}.mconv.{position - 2}.fc.{number_of}"] = f"{ours}.squeeze_excite.{name}"
        num_dense += block.dense
        for residual in range(0 if block.residual == "none" else num_dense if block.dense else 1):
            names[f"{theirs}.res.{residual}.0{suffix}"] = f"{ours}.residuals.{residual}.conv"
            names[f"{theirs}.res.{residual}.1"] = f"{ours}.residuals.{residual}.norm"
    return names
