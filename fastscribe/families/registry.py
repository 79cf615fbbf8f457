"""The encoder families: how each is built, prepared for a GPU or a CPU, and quantised.

To add a family, add a config class (config.py), a folder here and a row. Every encoder maps Features to Frames, has
`num_frames` and `optimise_`, and is built from its config. .github/CONTRIBUTING.md lists the other modules that distinguish
families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastscribe.config import EncoderConfig, GraniteConfig, JasperConfig
from fastscribe.families.conformer.cpu_layers import conformer_for_cpu_
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.conformer.fused_layers import conformer_for_gpu_
from fastscribe.families.granite.encoder import GraniteEncoder
from fastscribe.families.granite.fused_layers import granite_for_gpu_
from fastscribe.families.jasper.encoder import JasperEncoder

AnyEncoder = Encoder | JasperEncoder | GraniteEncoder


@dataclass(frozen=True)
class EncoderFamily:
    build: Callable[[Any], AnyEncoder]
    # (optimised encoder, whether fp8 follows) -> a warning about unavailable optimisations, or None
    prepare_for_gpu_: Callable[[Any, bool], str | None]
    prepare_for_cpu_: Callable[[Any], None]  # of an optimised encoder whose parts are in a CPU's form
    has_matrices: bool  # has linear layers, which int8 and fp8 quantise


ENCODER_FAMILIES: dict[type, EncoderFamily] = {
    EncoderConfig: EncoderFamily(Encoder, conformer_for_gpu_, conformer_for_cpu_, has_matrices=True),
    JasperConfig: EncoderFamily(JasperEncoder, lambda encoder, is_fp8: None, lambda encoder: None, has_matrices=False),
    GraniteConfig: EncoderFamily(GraniteEncoder, granite_for_gpu_, lambda encoder: None, has_matrices=True),
}
