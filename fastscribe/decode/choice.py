"""Which decoder and beam a run has, by its options and its checkpoint."""

from __future__ import annotations

from fastscribe.config import DecoderName, Options
from fastscribe.decode.families import DECODERS
from fastscribe.errors import UsageError


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
