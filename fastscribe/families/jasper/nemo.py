"""NeMo's ConvASREncoder (Jasper, QuartzNet, ContextNet, Citrinet): the encoder section of model_config.yaml, and
NeMo's names of the weights.

NeMo's squeeze-and-excite layers take the mean over all frames at inference, whatever `se_context_size` says; a limited context
is for training. Nothing in NeMo reads `se_interpolation_mode`.
"""

from __future__ import annotations

from typing import get_args

from fastscribe.checkpoint.value import Section
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.jasper.config import JasperActivation, JasperBlockConfig, JasperConfig, JasperResidual

_ACTIVATIONS = {name: name for name in get_args(JasperActivation)} | {"swish": "silu"}
_RESIDUALS = get_args(JasperResidual)
_MAX_BLOCKS = 1000
_SE_REDUCTION = 8  # NeMo's default


def encoder_config(section: Section) -> JasperConfig:
    """Convert the encoder section, whose `_target_` is checked already. Raises UnsupportedCheckpoint naming key and value."""
    section.choose("normalization_mode", "batch", ("batch",))
    section.choose("frame_splicing", 1, (1,))
    section.choose("quantize", False, (False, None))
    section.ignore("init_mode", "norm_groups")
    masked = section.choose("conv_mask", True, (True, False))
    residual = section.choose("residual_mode", "add", _RESIDUALS)
    rows = section.take("jasper", list)
    if not 0 < len(rows) <= _MAX_BLOCKS:
        raise UnsupportedCheckpoint(section.where, section.path("jasper"), rows, "a few blocks")
    blocks = []
    for number, row in enumerate(rows):
        part = Section(row, f"{section.path('jasper')}.{number}", section.where)
        residual = part.choose("residual_mode", residual, _RESIDUALS)  # also the default of the next blocks
        blocks.append(_block(part, residual, masked))
    config = JasperConfig(
        num_mels=section.positive("feat_in"),
        blocks=tuple(blocks),
        activation=_ACTIVATIONS[section.choose("activation", None, tuple(_ACTIVATIONS))],
        masked=masked,
    )
    section.finish()
    return config


def _block(part: Section, residual: JasperResidual, masked: bool) -> JasperBlockConfig:
    part.choose("future_context", -1, (-1,))
    part.ignore("dropout", "se_reduction_ratio", "se_context_size", "se_interpolation_mode")
    filters = part.positive("filters")
    separable, has_se = part.choose("separable", False, (True, False)), part.choose("se", False, (True, False, None))
    heads = None if part.get("heads", -1) == -1 else part.positive("heads")
    config = JasperBlockConfig(
        filters=filters,
        repeat=part.positive("repeat"),
        kernel=odd(_only(part, "kernel") * (part.number("kernel_size_factor", 1.0) or 0.0)),
        stride=_only(part, "stride"),
        stride_last=part.choose("stride_last", False, (True, False)),
        dilation=_only(part, "dilation"),
        separable=separable,
        groups=part.positive("groups", 1),
        heads=heads if separable and masked else None,  # NeMo uses them only there
        residual=residual if part.choose("residual", True, (True, False)) else "none",
        dense=part.choose("residual_dense", False, (True, False)),
        se_hidden=filters // part.positive("se_reduction_ratio", _SE_REDUCTION) if has_se else None,
    )
    part.finish()
    return config


def _only(part: Section, key: str) -> int:
    """Return a positive number that may be given as a list of one."""
    value = part.take(key, (int, list))
    values = value if isinstance(value, list) else [value]
    if len(values) != 1 or type(values[0]) is not int or values[0] <= 0:
        raise UnsupportedCheckpoint(part.where, part.path(key), value, "one positive number")
    return int(values[0])


def odd(kernel: float) -> int:
    """Return an odd kernel size: rounded as NeMo does, down, then up to an odd number."""
    whole = max(1, int(kernel))
    return whole + (whole % 2 == 0)


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
