"""The decoder families: how each is built, and the properties that other modules use.

To add a family, add a head in families/blocks/ (see families/model.py), a decoder in decode/ and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import DecoderName, Options
from fastscribe.context.fusion import tables_of
from fastscribe.cuda.aed_graphs import build_aed_decoder
from fastscribe.cuda.transducer_graphs import build_decoder
from fastscribe.decode import aed
from fastscribe.decode.batched_beam import BeamDecoder
from fastscribe.decode.ctc import CtcDecoder
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.label_looping import Network
from fastscribe.decode.prompt import can_write_times, make_prompt
from fastscribe.errors import CheckpointError, UsageError
from fastscribe.families.blocks.transducer import Transducer
from fastscribe.families.conformer.cpu_layers import has_loops
from fastscribe.families.model import Model
from fastscribe.pipeline.cost_model import DecoderMemory

Log = Callable[[str], None]


@dataclass(frozen=True)
class DecoderFamily:
    # The model is on its device in its dtype. Say receives warnings. Raises UsageError, and CheckpointError for damaged
    # weights.
    build: Callable[[Model, Checkpoint, torch.device, Options, Log], Decoder]
    recovers_gaps: bool  # default of Options.recover_gaps
    decoder_memory: Callable[[Model], DecoderMemory] = lambda model: DecoderMemory()  # negligible beside the encoder's
    has_prompt: bool = False  # follows Options.language, target_language, pnc and timestamps
    has_beam: bool = False  # supports Options.beam
    zero_duration_punctuation: bool = False


def _ctc(model: Model, checkpoint: Checkpoint, device: torch.device, options: Options, say: Log) -> Decoder:
    assert model.ctc is not None
    return CtcDecoder(model.ctc, model.config.blank_id)


def _transducer(model: Model, checkpoint: Checkpoint, device: torch.device, options: Options, say: Log) -> Decoder:
    assert model.transducer is not None
    if not _is_finite(model.transducer, model.config.encoder.d_model):
        raise CheckpointError(checkpoint.path, "its joint network makes numbers that are not finite: damaged weights")
    width = options.beam or 1
    if width > 1:
        if options.cuda_graphs not in ("auto", "off"):
            raise UsageError(
                f"--cuda-graphs {options.cuda_graphs}: a beam is searched without graphs: auto or off, or --beam 1"
            )
        tables = tables_of(checkpoint.fused_model)
        return BeamDecoder(Network.prepare(model.transducer), width, tables, has_nbest=options.nbest is not None)
    is_wide = has_loops(model.config.encoder)
    return build_decoder(model.transducer, device, options.cuda_graphs, say, is_wide=is_wide)


@torch.inference_mode()
def _is_finite(transducer: Transducer, width: int) -> bool:
    """Return True if a frame of zeros yields finite logits. An infinite blank would win every frame: an empty text."""
    like = transducer.predictor.embedding.weight
    output_BH, _ = transducer.predictor.step(
        like.new_tensor([transducer.blank_id]).long(), transducer.predictor.initial_state(1)
    )
    encoded_1J = transducer.joint.encoder(like.new_zeros(1, width))
    return bool(transducer.joint(encoded_1J, transducer.joint.predictor(output_BH)).isfinite().all())


def _aed(model: Model, checkpoint: Checkpoint, device: torch.device, options: Options, say: Log) -> Decoder:
    assert model.aed is not None
    has_aligner = checkpoint.aligner is not None
    prompt_options = replace(options, timestamps=False) if has_aligner else options  # times come from the aligner
    prompt = make_prompt(model.aed.config.prompt, checkpoint.tokenizer, prompt_options, model.aed.config.max_tokens)
    if not prompt.frames_by_id and not (has_aligner and (options.timestamps or options.align_with)):
        can = ""
        if has_aligner:
            can = "; --timestamps takes them from the aligner that the checkpoint has"
        elif can_write_times(model.aed.config.prompt, checkpoint.tokenizer.pieces):
            can = "; --timestamps has it write them"
        else:
            can = "; --align-with MODEL takes them from a CTC model"
        say(f"this model writes no times: its words are spread evenly over each stretch of speech{can}")
    return build_aed_decoder(model.aed, prompt, device, options.cuda_graphs, say)


def _aed_memory(model: Model) -> DecoderMemory:
    assert model.aed is not None
    return aed.decoder_memory(model.aed)


# recovers_gaps was measured with scripts/benchmarks/gap_recovery.py (docs/bench/gaps; docs/log.md, 2026-11-22):
# TDT: no gain beyond the confidence interval on unmodified recordings, short or joined. In noise WER improves by up to 1.3
# points, but three quarters of the added words are wrong, which WER does not count.
# RNN-T: not measured with a trained checkpoint; it decodes like TDT.
# CTC: no gaps in unmodified recordings; none of the 28 words added in degraded ones is right.
# Attention decoders: not measured with a trained checkpoint. They write fluent text for noise, so recovery may invent words.
DECODERS: dict[DecoderName, DecoderFamily] = {
    "ctc": DecoderFamily(_ctc, recovers_gaps=False),
    "rnnt": DecoderFamily(_transducer, recovers_gaps=False, has_beam=True),
    "tdt": DecoderFamily(_transducer, recovers_gaps=False, has_beam=True, zero_duration_punctuation=True),
    "aed": DecoderFamily(_aed, recovers_gaps=False, decoder_memory=_aed_memory, has_prompt=True),
}
