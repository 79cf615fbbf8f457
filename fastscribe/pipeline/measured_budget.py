"""The batch budget of a GPU: measured with a few encoder passes over noise. cost_model.py makes a budget of them."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch

from fastscribe.config import ModelConfig
from fastscribe.cuda.device import free_bytes, is_out_of_memory
from fastscribe.decode.decoder import DecoderMemory
from fastscribe.families.model import Model
from fastscribe.pipeline import cost_model
from fastscribe.pipeline.batching import Budget
from fastscribe.types import Features


def measured_budget(models: Sequence[Model], decoder_memory: DecoderMemory, device: torch.device) -> Budget:
    """Return the budget for batches that all these models encode.

    Args:
        models: The recogniser's first; the frames are those of its encoder.
        decoder_memory: What its decoder needs.
        device: The GPU that they are on.
    """
    passes: list[cost_model.Pass] = []
    try:
        for rows, frames in cost_model.SHAPES:
            passes.append(_measure(models, rows, frames, device))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # the measurement used none of the shared streams
    if len(passes) < len(cost_model.SHAPES):
        return cost_model.budget_after_out_of_memory(passes, decoder_memory)
    return cost_model.budget(cost_model.fit(passes), free_bytes(device), decoder_memory)


def _measure(models: Sequence[Model], rows: int, num_frames: int, device: torch.device) -> cost_model.Pass:
    """Measure an encoder pass over noise: the second of two, so that one-time work is not counted."""
    frame_s = models[0].config.frame_s
    work = [(model.encoder, _noise(model.config, rows, num_frames * frame_s, device)) for model in models]
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.synchronize(device)
        start = perf_counter()
        with torch.inference_mode():
            _ = [encoder(features) for encoder, features in work]  # all outputs are kept until a batch is decoded
        torch.cuda.synchronize(device)
        seconds = perf_counter() - start
    return cost_model.Pass(rows, num_frames, seconds, torch.cuda.max_memory_allocated(device) - before)


def _noise(config: ModelConfig, rows: int, seconds: float, device: torch.device) -> Features:
    """Return random features of as much audio."""
    mel_frames = round(seconds * config.features.sample_rate)
    mel_frames //= config.features.hop_length
    mel_BMT = torch.randn(rows, config.features.num_mels, mel_frames, device=device)
    return Features(mel_BMT, torch.full((rows,), mel_frames, device=device))
