"""How FastConformer encoders are built and prepared for a GPU or a CPU."""

from __future__ import annotations

from fastscribe.families.conformer.encoder import Encoder
from fastscribe.families.encoder_family import EncoderFamily


def _for_gpu_(encoder: Encoder, is_fp8: bool) -> str | None:
    from fastscribe.families.conformer.fused_layers import conformer_for_gpu_

    return conformer_for_gpu_(encoder, is_fp8)


def _for_cpu_(encoder: Encoder) -> None:
    if encoder.config.has_loops:
        from fastscribe.families.conformer.cpu_layers import conformer_for_cpu_

        conformer_for_cpu_(encoder)


FAMILY = EncoderFamily(Encoder, _for_gpu_, _for_cpu_)
