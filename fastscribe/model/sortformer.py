"""Sortformer (Park et al. 2024): features to the probability that each speaker speaks, frame by frame.

The speakers are numbered in the order in which they begin to speak. A FastConformer and a Transformer without positions see the
whole recording; a streaming checkpoint sees a chunk at a time, behind its memory of the past (speaker_cache.py).

Shapes: B batch, M mels, T frames, D width, N speakers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.model.aed import BridgeLayer
from fastscribe.model.dot_product_attention import aligned_size
from fastscribe.model.encoder import Encoder
from fastscribe.model.speaker_cache import SpeakerMemory
from fastscribe.speaker_config import SpeakerModelConfig
from fastscribe.types import Features

_MASKED = -1e9


class Sortformer(nn.Module):
    """Features to probabilities [B, T, N], zero beyond each row's length, and lengths [B]."""

    def __init__(self, config: SpeakerModelConfig) -> None:
        super().__init__()
        transformer = config.transformer
        self.config = config
        self.encoder = Encoder(config.encoder)
        width, hidden = config.encoder.d_model, transformer.hidden
        self.projection = nn.Linear(width, hidden) if width != hidden else None
        self.layers = nn.ModuleList(BridgeLayer(transformer) for _ in range(transformer.num_layers))
        self.final_norm = nn.LayerNorm(hidden) if transformer.pre_norm and transformer.final_norm else None
        self.hidden = nn.Linear(hidden, hidden)
        self.speakers = nn.Linear(hidden, config.num_speakers)

    def forward(self, features: Features) -> tuple[torch.Tensor, torch.Tensor]:
        if self.config.cache is not None:
            return self._in_chunks(features)
        frames_BTD, lengths_B = self._subsampled(features.mel_BMT, features.lengths_B)
        return self._probabilities(frames_BTD, lengths_B), lengths_B

    def _subsampled(self, mel_BMT: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = self.encoder.subsampling.out.weight.dtype
        frames_BTD, lengths_B = self.encoder.subsampling(mel_BMT.to(dtype).transpose(1, 2), lengths_B)
        return frames_BTD, lengths_B

    def _probabilities(self, frames_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        """Run all layers over subsampled frames."""
        if self.config.encoder.xscaling:
            frames_BTD = frames_BTD * math.sqrt(self.config.encoder.d_model)
        x_BTD: torch.Tensor = self.encoder.layers(frames_BTD, lengths_B)
        num_frames = x_BTD.shape[1]
        is_beyond_BT = torch.arange(aligned_size(num_frames), device=x_BTD.device) >= lengths_B[:, None]
        mask_B11T = (is_beyond_BT.to(x_BTD.dtype) * _MASKED)[:, None, None, :num_frames]
        if self.projection is not None:
            x_BTD = self.projection(x_BTD)
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_B11T)
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        logits_BTN: torch.Tensor = self.speakers(F.relu(self.hidden(F.relu(x_BTD))))
        return logits_BTN.float().sigmoid().masked_fill(is_beyond_BT[:, :num_frames, None], 0.0)

    def _in_chunks(self, features: Features) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the recordings side by side, chunk by chunk; a row that has ended is left out of the later ones."""
        cache, factor = self.config.cache, self.config.encoder.subsampling_factor
        assert cache is not None
        lengths = features.lengths_B.tolist()
        out_lengths = [self.encoder.num_frames(length) for length in lengths]
        device = features.mel_BMT.device
        out_BTN = torch.zeros(len(lengths), max(1, *out_lengths), self.config.num_speakers, device=device)
        rows = [row for row, length in enumerate(lengths) if length]
        memory: SpeakerMemory | None = None
        chunk, begin = cache.chunk_frames * factor, 0
        while rows:
            rows_R = torch.tensor(rows, device=device)
            first = max(0, begin - cache.left_frames * factor)
            ends = [min(begin + chunk + cache.right_frames * factor, lengths[row]) for row in rows]
            seen_B = torch.tensor([end - first for end in ends], device=device)
            frames_BTD, seen_B = self._subsampled(features.mel_BMT[rows_R, :, first : max(ends)], seen_B)
            if memory is None:
                width, count = frames_BTD.shape[2], self.config.num_speakers
                memory = SpeakerMemory.empty(len(rows), width, count, cache, frames_BTD)
            past_BTD = torch.cat([memory.cache_BTD, memory.queue_BTD], 1)
            before = past_BTD.shape[1] + (begin - first) // factor
            found_BTN = self._probabilities(torch.cat([past_BTD, frames_BTD], 1), seen_B + past_BTD.shape[1])
            new_BTN = found_BTN[:, before : before + cache.chunk_frames]
            at = begin // factor
            for number, row in enumerate(rows):
                num_new = min(cache.chunk_frames, out_lengths[row] - at)
                out_BTN[row, at : at + num_new] = new_BTN[number, :num_new]
            begin += chunk
            going = [number for number, row in enumerate(rows) if lengths[row] > begin]
            if not going:
                break
            going_R = torch.tensor(going, device=device)
            own = (begin - chunk - first) // factor
            chunk_BTD = frames_BTD[going_R, own : own + cache.chunk_frames]
            memory = memory.rows(going_R).after(chunk_BTD, found_BTN[going_R], before, cache)
            rows = [rows[number] for number in going]
        return out_BTN, torch.tensor(out_lengths, device=device)
