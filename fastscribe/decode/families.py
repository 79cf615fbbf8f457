"""The table of decoders: what other modules ask of each, and the module that builds it.

A module is imported for the decoder that a checkpoint or an option chooses. To add a decoder, add a head in families/blocks/
(see families/model.py), a module in decode/ with `build`, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastscribe.config import DecoderName, Options
from fastscribe.decode.decoder import Decoder, DecoderMemory, Parts
from fastscribe.errors import UsageError

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


def choose_decoder(options: Options, available: tuple[DecoderName, ...]) -> DecoderName:
    """Return the decoder; by default the checkpoint's first.

    Raises UsageError if the checkpoint lacks it or it does not support the prompt or beam options.
    """
    name = options.decoder or available[0]
    if name not in available:
        raise UsageError(f"--decoder {name}: this checkpoint has {' and '.join(available)}")
    prompt_option = _option_for_prompt(options)
    if prompt_option is not None and not DECODERS[name].has_prompt:
        rest = f"{name} models always write times" if prompt_option == "--timestamps" else f"this is a {name} model"
        raise UsageError(f"{prompt_option} is for Canary models; {rest}")
    if (options.beam or 1) > 1 and not DECODERS[name].has_beam:
        raise UsageError(f"--beam {options.beam}: only RNN-T and TDT models search with a beam, not {name} ones")
    return name


def choose_beam(options: Options, decoder: DecoderName, models_beam: int | None) -> int:
    """Return the beam size: the option, else `models_beam`, which is the language model's, else 1.

    Raises UsageError if the options are about a language model and the search uses none.
    """
    named = "--lm" if options.lm is not None else None if options.lm_weight is None else "--lm-weight"
    if named and not DECODERS[decoder].has_beam:
        raise UsageError(f"{named}: only RNN-T and TDT models search with a beam, not {decoder} ones")
    if named and options.beam == 1:
        raise UsageError(f"{named}: greedy decoding uses no language model: give --beam 2 or more, or leave --beam out")
    if options.beam is not None:
        return options.beam
    return models_beam if models_beam is not None and DECODERS[decoder].has_beam else 1


def check_nbest(nbest: int | None, beam: int, decoder: DecoderName) -> None:
    """Raise UsageError if a search with this beam cannot return `nbest` hypotheses."""
    if nbest is None:
        return
    if not DECODERS[decoder].has_beam:
        raise UsageError(f"--nbest {nbest}: only RNN-T and TDT models search with a beam, not {decoder} ones")
    if beam < max(nbest, 2):
        has = "greedy decoding finds one hypothesis" if beam == 1 else f"a beam of {beam} has {beam} hypotheses"
        raise UsageError(f"--nbest {nbest}: {has}; give --beam {max(nbest, 2)} or more")


def _option_for_prompt(options: Options) -> str | None:
    """Return the first option, as on the command line, that only a model with a prompt supports. All check languages."""
    given_options = {
        "--pnc": True if options.pnc else None,
        "--no-pnc": None if options.pnc is None or options.pnc else True,
        "--timestamps": options.timestamps or None,
    }
    return next((name for name, value in given_options.items() if value is not None), None)
