"""The families of encoders: what builds the one that a config describes, and what a GPU or 8 bits can do for it.

A family is a config class (config.py), a file of model/ that builds it, and a row here. All encoders are Features -> Frames,
have `num_frames` and `optimise_`, and take their config; nothing else asks which one it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastscribe.config import EncoderConfig, JasperConfig
from fastscribe.cuda.fused_layers import conformer_for_gpu_
from fastscribe.model.encoder import Encoder
from fastscribe.model.jasper import JasperEncoder

AnyEncoder = Encoder | JasperEncoder


@dataclass(frozen=True)
class EncoderFamily:
    build: Callable[[Any], AnyEncoder]  # of its config
    # (an optimised encoder, whether fp8 follows) -> a line on what it must do without, if anything
    prepare_for_gpu_: Callable[[Any, bool], str | None]
    has_matrices: bool  # linear layers, which is what there is an 8-bit form of


ENCODER_FAMILIES: dict[type, EncoderFamily] = {
    EncoderConfig: EncoderFamily(Encoder, conformer_for_gpu_, has_matrices=True),
    JasperConfig: EncoderFamily(JasperEncoder, lambda encoder, is_fp8: None, has_matrices=False),
}
