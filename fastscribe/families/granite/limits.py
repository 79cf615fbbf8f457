"""The values that a Granite Speech encoder's settings may have."""

from __future__ import annotations

from fastscribe.checkpoint.validate import MAX_STRIDE, Limits
from fastscribe.errors import UnsupportedCheckpoint
from fastscribe.families.granite.config import GraniteConfig
from fastscribe.text.tokenizer import MAX_PIECES

_SIZES = {
    "encoder.num_layers": (1, 256),
    "encoder.d_model": (2, 1 << 14),
    "encoder.num_heads": (1, 256),
    "encoder.ff_hidden": (1, 1 << 17),
    "encoder.conv_kernel": (1, 1023),
    "encoder.conv_width": (1, 1 << 16),
    "encoder.block": (1, 1 << 12),
    "encoder.max_distance": (1, 1 << 14),
    "encoder.num_tokens": (2, MAX_PIECES + 1),
}
_WORDS = {
    "encoder.use_bias": (True, False),
}


def _check(encoder: GraniteConfig, where: object) -> None:
    strided, layers = encoder.strided_layers, range(encoder.num_layers)
    for fits, name, value, supported in (
        (encoder.d_model % encoder.num_heads == 0, "width", encoder.d_model, f"multiples of {encoder.num_heads} heads"),
        (encoder.conv_kernel % 2 == 1, "conv_kernel", encoder.conv_kernel, "odd numbers"),
        (encoder.block <= encoder.max_distance, "block", encoder.block, f"up to {encoder.max_distance}, the positions"),
        (encoder.subsampling_factor <= MAX_STRIDE, "stride", encoder.subsampling_factor, f"up to {MAX_STRIDE}"),
        (
            *(strided == tuple(sorted(set(strided))) and all(type(n) is int and n in layers for n in strided),),
            *("strided_layers", list(strided), "numbers of layers, in order"),
        ),
    ):
        if not fits:
            raise UnsupportedCheckpoint(where, f"encoder.{name}", value, supported)


LIMITS = Limits(_SIZES, _WORDS, _check)
