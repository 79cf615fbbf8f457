"""Sortformer (Park et al. 2024): features to the probability that each speaker speaks, frame by frame.

The speakers are numbered in the order in which they begin to speak. A FastConformer and a Transformer without positions see the
whole recording; a streaming checkpoint sees a chunk at a time, behind its memory of the past (speaker_cache.py). Nemotron 3
Diarization is one with another encoder, whose outputs have the rate of mel frames: stacked mel frames through Transformer
layers with rotary positions (Su et al. 2021), and a layer that makes mel frames of their output again.

Shapes: B batch, M mels, T frames, D width, N speakers, H heads, K head width, R rotated channels of a head, G outputs of a
frame.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.families.blocks.dot_product_attention import aligned_size
from fastscribe.families.canary.attention_decoder import BridgeLayer
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.conformer.encoder import Encoder
from fastscribe.speakers.config import SpeakerModelConfig, StackingConfig
from fastscribe.speakers.speaker_cache import SpeakerMemory
from fastscribe.types import Features

_MASKED = -1e9


class StackedEncoder(nn.Module):
    """The two parts of an encoder, which run one after the other, with what a speaker cache adds between them."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__()
        self.subsampling = Stacking(config)
        self.layers = RotaryLayers(config)


class Stacking(nn.Module):
    """Some mel frames become one by a linear layer without bias: [B, T, M] to [B, T', D]. Zeros fill the last one."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__()
        self.factor = config.subsampling_factor
        self.out = nn.Linear(config.subsampling_factor * config.num_mels, config.d_model, bias=False)

    def forward(self, x_BTM: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded_BTM = F.pad(x_BTM, (0, 0, 0, -x_BTM.shape[1] % self.factor))
        frames_BTD: torch.Tensor = self.out(padded_BTM.unflatten(1, (-1, self.factor)).flatten(2))
        return frames_BTD, -(-lengths_B // self.factor)


class RotaryLayers(nn.Module):
    """The layers: [B, T, D] to [B, T, D]. All frames attend to those within their row's length."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__()
        self.config = config
        self.first_norm = nn.LayerNorm(config.d_model)
        self.layers = nn.ModuleList(RotaryLayer(config) for _ in range(config.layers.num_layers))
        self.final_norm = nn.LayerNorm(config.d_model)

    def forward(self, x_BTD: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
        num_frames = x_BTD.shape[1]
        frames_T = torch.arange(aligned_size(num_frames), device=x_BTD.device)
        mask_B11T = ((frames_T >= lengths_B[:, None]).to(x_BTD.dtype) * _MASKED)[:, None, None, :num_frames]
        x_BTD = self.first_norm(x_BTD)
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_B11T)
        out_BTD: torch.Tensor = self.final_norm(x_BTD)
        return out_BTD


class RotaryLayer(BridgeLayer):
    """A Transformer layer whose queries and keys are rotated by their frames' numbers."""

    def __init__(self, config: StackingConfig) -> None:
        super().__init__(config.layers)
        self._base, self._width = config.rotary_base, config.rotary_width

    def _self_attention(self, x_BTD: torch.Tensor, mask_B11T: torch.Tensor) -> torch.Tensor:
        query_BHTK, (key_BHTK, value_BHTK) = self.attention.queries_keys_and_values(x_BTD)
        angles_TR = angles(x_BTD.shape[1], self._width, self._base, x_BTD.device)
        cos_TR, sin_TR = angles_TR.cos().to(x_BTD.dtype), angles_TR.sin().to(x_BTD.dtype)
        rotated = [self._rotated(part_BHTK, cos_TR, sin_TR) for part_BHTK in (query_BHTK, key_BHTK)]
        out_BTD: torch.Tensor = self.attention(rotated[0], (rotated[1], value_BHTK), mask_B11T)
        return out_BTD

    def _rotated(self, x_BHTK: torch.Tensor, cos_TR: torch.Tensor, sin_TR: torch.Tensor) -> torch.Tensor:
        turned_BHTR = x_BHTK[..., : self._width]
        first, second = turned_BHTR.chunk(2, dim=-1)
        turned_BHTR = turned_BHTR * cos_TR + torch.cat([-second, first], -1) * sin_TR
        return torch.cat([turned_BHTR, x_BHTK[..., self._width :]], -1)


def angles(num_frames: int, width: int, base: float, device: torch.device) -> torch.Tensor:
    """Return the angles [T, R] by which channels are rotated; channel i and channel i + R/2 are one pair."""
    frequency_R = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32, device=device) / width)
    frames_T = torch.arange(num_frames, dtype=torch.float32, device=device)
    return (frames_T[:, None] * frequency_R).repeat(1, 2)


class Upsampling(nn.Module):
    """A convolution over three frames whose outputs are G frames of the same width: [B, T, D] to [B, TG, D]."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(width, width * factor, 3, padding=1)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Upsample; frames beyond a row's end must be zero."""
        frames_BTE = torch.transpose(self.conv(x_BTD.transpose(1, 2)), 1, 2)
        return torch.unflatten(frames_BTE, 2, (self.factor, -1)).flatten(1, 2)


class LearntSilence(nn.Module):
    """The frame that fills a speaker cache where nobody speaks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frame_D = nn.Parameter(torch.zeros(width))


class Sortformer(nn.Module):
    """Features to probabilities [B, TG, N], zero beyond each row's length, and lengths [B]."""

    def __init__(self, config: SpeakerModelConfig) -> None:
        super().__init__()
        transformer, hidden, self.config = config.transformer, config.head_hidden, config
        self.layers_dtype = torch.float32  # of the layers' inputs; between the subsampling and them all is in float32
        is_conformer = isinstance(config.encoder, EncoderConfig)
        self.encoder = Encoder(config.encoder) if is_conformer else StackedEncoder(config.encoder)  # type: ignore[arg-type]
        width, factor = config.encoder.d_model, config.outputs_per_frame
        self.projection = nn.Linear(width, hidden) if width != hidden or not is_conformer else None
        self.layers = nn.ModuleList(
            [] if transformer is None else [BridgeLayer(transformer) for _ in range(transformer.num_layers)]
        )
        has_norm = transformer is not None and transformer.pre_norm and transformer.final_norm
        self.final_norm = nn.LayerNorm(hidden) if has_norm else None
        self.upsampling = Upsampling(hidden, factor) if factor > 1 else None
        self.hidden = nn.Linear(hidden, hidden)
        self.speakers = nn.Linear(hidden, config.num_speakers)
        has_learnt = config.cache is not None and config.cache.silence_threshold is None
        self.silence = LearntSilence(width) if has_learnt else None

    def forward(self, features: Features) -> tuple[torch.Tensor, torch.Tensor]:
        if self.config.cache is not None:
            return self._in_chunks(features)
        frames_BTD, lengths_B = self._subsampled(features.mel_BMT, features.lengths_B)
        return self._probabilities(frames_BTD, lengths_B, lengths_B), lengths_B

    def _subsampled(self, mel_BMT: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = self.encoder.subsampling.out.weight.dtype
        frames_BTD, lengths_B = self.encoder.subsampling(mel_BMT.to(dtype).transpose(1, 2), lengths_B)
        return frames_BTD.float(), lengths_B

    def _probabilities(
        self, frames_BTD: torch.Tensor, lengths_B: torch.Tensor, present_B: torch.Tensor
    ) -> torch.Tensor:
        """Run all layers over subsampled frames.

        Args:
            frames_BTD: The frames.
            lengths_B: Those that a row's frames attend to.
            present_B: Those that the upsampling sees.
        """
        if isinstance(self.config.encoder, EncoderConfig) and self.config.encoder.xscaling:
            frames_BTD = frames_BTD * math.sqrt(self.config.encoder.d_model)
        x_BTD: torch.Tensor = self.encoder.layers(frames_BTD.to(self.layers_dtype), lengths_B).to(frames_BTD.dtype)
        num_frames = x_BTD.shape[1]
        frames_T = torch.arange(aligned_size(num_frames), device=x_BTD.device)
        is_beyond_BT = frames_T >= lengths_B[:, None]
        mask_B11T = (is_beyond_BT.to(self.layers_dtype) * _MASKED)[:, None, None, :num_frames]
        if self.projection is not None:
            x_BTD = self.projection(x_BTD)
        x_BTD = x_BTD.to(self.layers_dtype)
        for layer in self.layers:
            x_BTD = layer(x_BTD, mask_B11T)
        x_BTD = x_BTD.to(frames_BTD.dtype)
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        is_beyond_BT = is_beyond_BT[:, :num_frames]
        if self.upsampling is not None:
            is_absent_BT = frames_T[:num_frames] >= present_B[:, None]
            x_BTD = self.upsampling(x_BTD.masked_fill(is_absent_BT[..., None], 0.0))
            is_beyond_BT = is_beyond_BT.repeat_interleave(self.upsampling.factor, 1)
        logits_BTN: torch.Tensor = self.speakers(F.relu(self.hidden(F.relu(x_BTD))))
        return logits_BTN.float().sigmoid().masked_fill(is_beyond_BT[..., None], 0.0)

    def _in_chunks(self, features: Features) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the recordings side by side, chunk by chunk; a row that has ended is left out of the later ones."""
        config, cache, factor = self.config, self.config.cache, self.config.encoder.subsampling_factor
        assert cache is not None
        outputs, device = config.outputs_per_frame, features.mel_BMT.device
        lengths = features.lengths_B.tolist()
        out_lengths = [config.num_outputs(length) for length in lengths]
        extents = [self._extent(length) for length in lengths]
        out_BTN = torch.zeros(len(lengths), max(1, *out_lengths), config.num_speakers, device=device)
        rows = [row for row, length in enumerate(lengths) if length]
        memory: SpeakerMemory | None = None
        chunk, begin = cache.chunk_frames * factor, 0
        while rows:
            rows_R = torch.tensor(rows, device=device)
            first = max(0, begin - cache.left_frames * factor)
            ends = [min(begin + chunk + cache.right_frames * factor, extents[row]) for row in rows]
            seen_B = torch.tensor(
                [min(end, lengths[row]) - first for row, end in zip(rows, ends, strict=True)], device=device
            )
            mel_BMT = features.mel_BMT[rows_R, :, first : max(ends)]
            mel_BMT = F.pad(mel_BMT, (0, max(ends) - first - mel_BMT.shape[2]))
            frames_BTD, seen_B = self._subsampled(mel_BMT, seen_B)
            if memory is None:
                silence_D = None if self.silence is None else self.silence.frame_D
                memory = SpeakerMemory.empty(len(rows), config.num_speakers, cache, frames_BTD, silence_D)
            num_past = memory.num_frames
            past_BTD = torch.cat([memory.cache_BTD, memory.queue_BTD], 1)
            before = num_past + (begin - first) // factor
            present = [num_past + config.encoder.num_frames(end - first) for end in ends]
            present_B = torch.tensor(present, device=device)
            found_BTN = self._probabilities(torch.cat([past_BTD, frames_BTD], 1), seen_B + num_past, present_B)
            new_BTN = found_BTN[:, before * outputs : (before + cache.chunk_frames) * outputs]
            at = begin // factor * outputs
            for number, row in enumerate(rows):
                num_new = min(cache.chunk_frames * outputs, out_lengths[row] - at)
                out_BTN[row, at : at + num_new] = new_BTN[number, :num_new]
            begin += chunk
            going = [number for number, row in enumerate(rows) if lengths[row] > begin]
            if not going:
                break
            going_R = torch.tensor(going, device=device)
            own = (begin - chunk - first) // factor
            chunk_BTD = frames_BTD[going_R, own : own + cache.chunk_frames]
            frame_BTN = F.avg_pool1d(found_BTN[going_R].transpose(1, 2), outputs, outputs).transpose(1, 2)
            memory = memory.rows(going_R).after(chunk_BTD, frame_BTN, before, cache)
            rows = [rows[number] for number in going]
        return out_BTN, torch.tensor(out_lengths, device=device)

    def _extent(self, num_frames: int) -> int:
        """Return the mel frames of a recording that chunks are cut from.

        transformers gives Nemotron 3 Diarization one mel frame of zeros beyond the recording. Nobody attends to an encoder
        frame that has this one alone, but the upsampling sees it.
        """
        factor = self.config.encoder.subsampling_factor
        return num_frames if self.upsampling is None else (num_frames // factor + 1) * factor
