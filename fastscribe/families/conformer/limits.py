"""The values that a FastConformer encoder's settings may have."""

from __future__ import annotations

from typing import get_args

from fastscribe.checkpoint.validate import Limits
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.conformer.config import SUBSAMPLING_FACTORS, ConvNorm, EncoderConfig, Subsampling

_SIZES = {
    "encoder.num_layers": (1, 256),
    "encoder.d_model": (2, 1 << 14),
    "encoder.num_heads": (1, 256),
    "encoder.ff_hidden": (1, 1 << 17),
    "encoder.conv_kernel": (1, 1023),
    "encoder.subsampling_channels": (1, 1 << 14),
    "language_prompt.num_prompts": (1, 1 << 12),
    "language_prompt.hidden": (1, 1 << 15),
    "language_prompt.index": (0, 1 << 12),
}
_WORDS = {
    "encoder.use_bias": (True, False),
    "encoder.conv_norm": get_args(ConvNorm),
    "encoder.xscaling": (True, False),
    "encoder.subsampling": get_args(Subsampling),
    "encoder.subsampling_factor": SUBSAMPLING_FACTORS,
    "encoder.causal_subsampling": (True, False),
    "encoder.causal_conv": (True, False),
}


def _check(encoder: EncoderConfig, where: object) -> None:
    if encoder.d_model % encoder.num_heads or encoder.d_model % 2:
        supported = f"even multiples of {encoder.num_heads} heads"
        raise UnsupportedCheckpoint(where, "encoder width", encoder.d_model, supported)
    if encoder.conv_kernel % 2 == 0:
        raise UnsupportedCheckpoint(where, "encoder.conv_kernel", encoder.conv_kernel, "odd numbers")
    if encoder.contexts and encoder.attention != encoder.contexts[0]:
        supported = f"the first context, {encoder.contexts[0]}"
        raise UnsupportedCheckpoint(where, "encoder.attention", str(encoder.attention), supported)
    if (prompt := encoder.language_prompt) is not None:
        for index in (prompt.index, *prompt.languages.values()):
            if type(index) is not int or not 0 <= index < prompt.num_prompts:
                supported = f"0 to {prompt.num_prompts - 1}"
                raise UnsupportedCheckpoint(where, "language_prompt.languages", index, supported)


LIMITS = Limits(_SIZES, _WORDS, _check, {"language_prompt": lambda encoder: (encoder.language_prompt,)})
