"""The table of decoders: what other modules ask of each, and the module that builds it.

A module is imported for the decoder that a checkpoint or an option chooses. To add a decoder, add a head in families/blocks/
(see families/model.py), a module in decode/ with `build`, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastscribe.config import DecoderName
from fastscribe.decode.decoder import Decoder, DecoderMemory, Parts

if TYPE_CHECKING:
    from fastscribe.families.model import Model


@dataclass(frozen=True)
class DecoderFamily:
    """A decoder of some models.

    Attributes:
        build: Builds it. Raises UsageError, and CheckpointError for damaged weights.
        decoder_memory: Returns the memory that it needs; by default it is negligible beside the encoder's.
        has_prompt: It follows Options.language, target_language, pnc and timestamps.
        has_beam: It supports Options.beam.
        zero_duration_punctuation: Its timestamps give punctuation no time.
    """

    build: Callable[[Parts], Decoder]
    decoder_memory: Callable[[Model], DecoderMemory] = lambda model: DecoderMemory()
    has_prompt: bool = False
    has_beam: bool = False
    zero_duration_punctuation: bool = False


def _ctc(parts: Parts) -> Decoder:
    from fastscribe.decode import ctc

    return ctc.build(parts)


def _transducer(parts: Parts) -> Decoder:
    from fastscribe.decode import transducer

    return transducer.build(parts)


def _aed(parts: Parts) -> Decoder:
    from fastscribe.decode import prompted

    return prompted.build(parts)


def _aed_memory(model: Model) -> DecoderMemory:
    from fastscribe.decode import aed

    assert model.aed is not None
    return aed.decoder_memory(model.aed)


DECODERS: dict[DecoderName, DecoderFamily] = {
    "ctc": DecoderFamily(_ctc),
    "rnnt": DecoderFamily(_transducer, has_beam=True),
    "tdt": DecoderFamily(_transducer, has_beam=True, zero_duration_punctuation=True),
    "aed": DecoderFamily(_aed, decoder_memory=_aed_memory, has_prompt=True),
}
