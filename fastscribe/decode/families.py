"""The table of decoders: what other modules ask of each, and the module that builds it.

A decoder's module is imported when a checkpoint or an option chooses it. To add a decoder, add a head in families/blocks/
(see families/model.py), a module in decode/, a function here that builds it, and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fastscribe.config import DecoderName, GraphMode, Options
from fastscribe.decode.decoder import Decoder, DecoderMemory, Parts, check_graph_mode
from fastscribe.decode.label_looping import LabelLooping, Network
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.families.blocks.heads import Transducer

if TYPE_CHECKING:
    from fastscribe.decode.prompt import Prompt
    from fastscribe.families.canary.attention_decoder import AttentionDecoder
    from fastscribe.families.model import Model


def build_prompted(parts: Parts) -> Decoder:
    """Build the decoder. It says where the times of words come from, if the model writes none.

    Raises:
        UsageError: The vocabulary lacks what the prompt needs, or the graph mode is unavailable.
    """
    from fastscribe.decode.prompt import can_write_times, make_prompt

    model, checkpoint, options = parts.model.aed, parts.checkpoint, parts.options
    assert model is not None
    has_aligner = checkpoint.aligner is not None
    prompt_options = replace(options, timestamps=False) if has_aligner else options  # times come from the aligner
    prompt = make_prompt(model.config.prompt, checkpoint.tokenizer, prompt_options, model.config.max_tokens)
    if not prompt.frames_by_id and not (has_aligner and (options.timestamps or options.align_with)):
        if has_aligner:
            can = "; --timestamps takes them from the aligner that the checkpoint has"
        elif can_write_times(model.config.prompt, checkpoint.tokenizer.pieces):
            can = "; --timestamps has it write them"
        else:
            can = "; --align-with MODEL takes them from a CTC model"
        parts.say(f"this model writes no times: its words are spread evenly over each stretch of speech{can}")
    return build_aed(model, prompt, parts.device, options.cuda_graphs, parts.say)


def build_aed(
    model: AttentionDecoder, prompt: Prompt, device: torch.device, mode: GraphMode, say: Callable[[str], None]
) -> Decoder:
    """Build the decoder of a model, which must stay on its device in its dtype. As transducer.build_greedy()."""
    check_graph_mode(mode, device)
    if device.type == "cuda":
        from fastscribe.decode import aed_graphs

        return aed_graphs.build_on_gpu(model, prompt, device, mode, say)
    from fastscribe.decode.aed import AedDecoder

    return AedDecoder(model, prompt)


def build_transducer(parts: Parts) -> Decoder:
    """Build the decoder.

    Raises:
        CheckpointError: The joint network makes numbers that are not finite.
        UsageError: The graph mode is unavailable.
    """
    model, options = parts.model, parts.options
    assert model.transducer is not None
    if not _is_finite(model.transducer, model.config.encoder.d_model):
        path = parts.checkpoint.path
        raise CheckpointError(path, "its joint network makes numbers that are not finite: damaged weights")
    if (options.beam or 1) > 1:
        return _build_beam(parts, model.transducer)
    is_wide = model.config.encoder.has_loops
    return build_greedy(model.transducer, parts.device, options.cuda_graphs, parts.say, is_wide=is_wide)


def _build_beam(parts: Parts, transducer: Transducer) -> Decoder:
    from fastscribe.decode.batched_beam import BeamDecoder

    options = parts.options
    if options.cuda_graphs not in ("auto", "off"):
        raise UsageError(
            f"--cuda-graphs {options.cuda_graphs}: a beam is searched without graphs: auto or off, or --beam 1"
        )
    return BeamDecoder(Network.prepare(transducer), options.beam or 1, parts.fused, has_nbest=options.nbest is not None)


def build_greedy(
    transducer: Transducer, device: torch.device, mode: GraphMode, say: Callable[[str], None], *, is_wide: bool = False
) -> Decoder:
    """Build the greedy decoder of a model, which must stay on its device in its dtype.

    Args:
        transducer: The model.
        device: The model's device; every mode but `auto` and `off` needs a CUDA device.
        mode: The `--cuda-graphs` option.
        say: With `auto`, gets one line for each better mode that is unavailable, here or at the first batch.
        is_wide: On a CPU, decode with loops that numba compiles.

    Raises:
        UsageError: The mode is unavailable. On a GPU the decoder may also raise it at the first batch.
    """
    check_graph_mode(mode, device)
    if device.type == "cuda":
        from fastscribe.decode import transducer_graphs

        return transducer_graphs.build_on_gpu(transducer, device, mode, say)

    if is_wide and device.type == "cpu":
        from fastscribe.decode.cpu_looping import CpuLooping

        return CpuLooping(Network.prepare(transducer))
    return LabelLooping(Network.prepare(transducer))


@torch.inference_mode()
def _is_finite(transducer: Transducer, width: int) -> bool:
    """Return True if a frame of zeros yields finite logits. An infinite blank would win every frame: an empty text."""
    like = transducer.predictor.embedding.weight
    output_BH, _ = transducer.predictor.step(
        like.new_tensor([transducer.blank_id]).long(), transducer.predictor.initial_state(1)
    )
    encoded_1J = transducer.joint.encoder(like.new_zeros(1, width))
    return bool(transducer.joint(encoded_1J, transducer.joint.predictor(output_BH)).isfinite().all())


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
    from fastscribe.decode.ctc import CtcDecoder

    assert parts.model.ctc is not None
    return CtcDecoder(parts.model.ctc, parts.model.config.blank_id)


def _aed_memory(model: Model) -> DecoderMemory:
    from fastscribe.decode import aed

    assert model.aed is not None
    return aed.decoder_memory(model.aed)


DECODERS: dict[DecoderName, DecoderFamily] = {
    "ctc": DecoderFamily(_ctc),
    "rnnt": DecoderFamily(build_transducer, has_beam=True),
    "tdt": DecoderFamily(build_transducer, has_beam=True, zero_duration_punctuation=True),
    "aed": DecoderFamily(build_prompted, decoder_memory=_aed_memory, has_prompt=True),
}


def choose_decoder(options: Options, available: tuple[DecoderName, ...]) -> DecoderName:
    """Return the decoder; by default the checkpoint's first.

    Raises UsageError if the checkpoint lacks it or it does not support the prompt or beam options.
    """
    name = options.decoder or available[0]
    if name not in available:
        raise UsageError(f"--decoder {name}: this checkpoint has {' and '.join(available)}")
    given = {"--pnc": options.pnc is True, "--no-pnc": options.pnc is False, "--timestamps": options.timestamps}
    prompt_option = next((option for option, is_given in given.items() if is_given), None)  # all check languages
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
