"""The families of decoders: what builds the one that a checkpoint has, or the user names, and what the rest should know of it.

A family is a head in model/ (model.py has them all), a file of decode/ that searches with it, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastscribe.config import DecoderName, Options
from fastscribe.cost_model import Held
from fastscribe.decode import aed
from fastscribe.decode.aed_graphs import build_aed_decoder
from fastscribe.decode.ctc import CtcDecoder
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.graphs import build_decoder
from fastscribe.decode.prompt import can_write_times, make_prompt
from fastscribe.model.model import Model
from fastscribe.tokenizer import Tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class DecoderFamily:
    # For a model that is on its device in its dtype; Say gets a line for what cannot be had. Raises UsageError.
    build: Callable[[Model, Tokenizer, torch.device, Options, Say], Decoder]
    held: Callable[[Model], Held] = lambda model: Held()  # little, beside the encoder's
    has_prompt: bool = False  # is told what to write (Options.language and the others)
    punctuation_takes_no_time: bool = False


def _ctc(model: Model, tokenizer: Tokenizer, device: torch.device, options: Options, say: Say) -> Decoder:
    assert model.ctc is not None
    return CtcDecoder(model.ctc, model.config.blank_id)


def _transducer(model: Model, tokenizer: Tokenizer, device: torch.device, options: Options, say: Say) -> Decoder:
    assert model.transducer is not None
    return build_decoder(model.transducer, device, options.cuda_graphs, say)


def _aed(model: Model, tokenizer: Tokenizer, device: torch.device, options: Options, say: Say) -> Decoder:
    assert model.aed is not None
    prompt = make_prompt(model.aed.config.prompt, tokenizer, options, model.aed.config.max_tokens)
    if not prompt.frames_by_id:
        can = "; --timestamps has it write them" if can_write_times(model.aed.config.prompt, tokenizer.pieces) else ""
        say(f"this model writes no times: its words are spread evenly over each stretch of speech{can}")
    return build_aed_decoder(model.aed, prompt, device, options.cuda_graphs, say)


def _aed_held(model: Model) -> Held:
    assert model.aed is not None
    return aed.held(model.aed)


DECODERS: dict[DecoderName, DecoderFamily] = {
    "ctc": DecoderFamily(_ctc),
    "rnnt": DecoderFamily(_transducer),
    "tdt": DecoderFamily(_transducer, punctuation_takes_no_time=True),
    "aed": DecoderFamily(_aed, _aed_held, has_prompt=True),
}
