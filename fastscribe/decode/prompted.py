"""Builds the decoder of models with a prompt, Canary and Cohere, on a GPU or a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fastscribe.config import GraphMode
from fastscribe.decode.aed import AedDecoder
from fastscribe.decode.decoder import Decoder, Parts, check_graph_mode
from fastscribe.decode.prompt import Prompt, can_write_times, make_prompt
from fastscribe.families.canary.attention_decoder import AttentionDecoder


def build(parts: Parts) -> Decoder:
    """Build the decoder. It says where the times of words come from, if the model writes none.

    Raises:
        UsageError: The vocabulary lacks what the prompt needs, or the graph mode is unavailable.
    """
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
    return AedDecoder(model, prompt)
