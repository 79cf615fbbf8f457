"""How Granite Speech encoders are built and prepared for a GPU."""

from __future__ import annotations

from fastscribe.families.encoder_family import EncoderFamily
from fastscribe.families.granite.encoder import GraniteEncoder


def _for_gpu_(encoder: GraniteEncoder, is_fp8: bool) -> str | None:
    from fastscribe.families.granite.fused_layers import granite_for_gpu_

    return granite_for_gpu_(encoder, is_fp8)


FAMILY = EncoderFamily(GraniteEncoder, _for_gpu_)
