"""How convolutional encoders are built."""

from __future__ import annotations

from fastscribe.families.encoder_family import EncoderFamily
from fastscribe.families.jasper.encoder import JasperEncoder

FAMILY = EncoderFamily(JasperEncoder)
