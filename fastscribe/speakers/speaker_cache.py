"""The memory of a streaming Sortformer (Medennikov et al. 2025).

It has a cache of the frames that tell the speakers of a recording, speaker by speaker, and a queue of the latest frames.

All rows of a batch have memories of the same lengths. What leaves the queue goes to the cache. A cache that is too long keeps
the frames with the highest scores. A frame scores for a speaker who speaks alone in it. Each speaker is granted a part of the
cache, and ends with frames of silence.

Shapes: B batch, T frames, D width, N speakers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from fastscribe.speakers.config import SpeakerCacheConfig


@dataclass(frozen=True)
class SpeakerMemory:
    """What the chunks before have left.

    Attributes:
        cache_BTD: Frames of the cache, before the encoder's layers.
        cache_probabilities_BTN: Their speakers; None: those of the next pass count.
        queue_BTD: The latest frames.
        silence_BD: Mean of all frames of silence that have left the queue, in float32 as probabilities are; or a learnt one.
        num_silent_B: Their number.
    """

    cache_BTD: torch.Tensor
    cache_probabilities_BTN: torch.Tensor | None
    queue_BTD: torch.Tensor
    silence_BD: torch.Tensor
    num_silent_B: torch.Tensor

    @classmethod
    def empty(
        cls,
        rows: int,
        num_speakers: int,
        config: SpeakerCacheConfig,
        like_BTD: torch.Tensor,
        silence_D: torch.Tensor | None = None,
    ) -> SpeakerMemory:
        """Return the memory of a recording's begin; `like_BTD` has its width, dtype and device. `silence_D` is learnt."""
        none_BTD, like = like_BTD.new_zeros(rows, 0, like_BTD.shape[2]), like_BTD
        known = torch.zeros(rows, 0, num_speakers, device=like.device) if config.keeps_first_probabilities else None
        zeros_B = torch.zeros(rows, dtype=torch.long, device=like.device)
        if silence_D is None:
            silence_D = torch.zeros(like.shape[2], device=like.device)
        return cls(none_BTD, known, none_BTD, silence_D.float().expand(rows, -1), zeros_B)

    @property
    def num_frames(self) -> int:
        """Frames of the cache and the queue, which go before a chunk."""
        return self.cache_BTD.shape[1] + self.queue_BTD.shape[1]

    def rows(self, kept_R: torch.Tensor) -> SpeakerMemory:
        """Return a copy of some rows."""
        known = self.cache_probabilities_BTN
        return SpeakerMemory(
            self.cache_BTD[kept_R],
            None if known is None else known[kept_R],
            self.queue_BTD[kept_R],
            self.silence_BD[kept_R],
            self.num_silent_B[kept_R],
        )

    def after(
        self, chunk_BTD: torch.Tensor, probabilities_BTN: torch.Tensor, first: int, config: SpeakerCacheConfig
    ) -> SpeakerMemory:
        """Return the memory after a chunk.

        Args:
            chunk_BTD: The chunk, without the frames that are seen before and after it.
            probabilities_BTN: Of the pass over cache, queue, frames before and chunk.
            first: Number of frames in that pass before the chunk.
            config: The settings.
        """
        num_cached, num_queued, num_new = self.cache_BTD.shape[1], self.queue_BTD.shape[1], chunk_BTD.shape[1]
        queue_BTD = torch.cat([self.queue_BTD, chunk_BTD], 1)
        if num_queued + num_new <= config.queue_frames:
            return replace(self, queue_BTD=queue_BTD)
        queued_BTN = probabilities_BTN[:, num_cached : num_cached + num_queued]
        queue_BTN = torch.cat([queued_BTN, probabilities_BTN[:, first : first + num_new]], 1)
        leaving = max(config.update_frames, num_new - config.queue_frames + num_queued)
        leaving = min(leaving, num_queued + num_new)
        left_BTD, left_BTN = queue_BTD[:, :leaving], queue_BTN[:, :leaving]
        silence_BD, num_silent_B = self._silence(left_BTD, left_BTN, config)
        cache_BTD = torch.cat([self.cache_BTD, left_BTD], 1)
        known = self.cache_probabilities_BTN
        if known is not None:
            known = torch.cat([known, left_BTN], 1)
        if cache_BTD.shape[1] > config.cache_frames:
            if known is None:
                known = torch.cat([probabilities_BTN[:, :num_cached], left_BTN], 1)
            cache_BTD, known = _compressed(cache_BTD, known, silence_BD, config)
        return SpeakerMemory(cache_BTD, known, queue_BTD[:, leaving:], silence_BD, num_silent_B)

    def _silence(
        self, frames_BTD: torch.Tensor, probabilities_BTN: torch.Tensor, config: SpeakerCacheConfig
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean of all silence, and the number of its frames, with the silence among these frames."""
        if config.silence_threshold is None:
            return self.silence_BD, self.num_silent_B
        is_silent_BT = probabilities_BTN.sum(2) < config.silence_threshold
        num_silent_B = self.num_silent_B + is_silent_BT.sum(1)
        sums_BD = self.silence_BD * self.num_silent_B[:, None] + (frames_BTD.float() * is_silent_BT[..., None]).sum(1)
        return sums_BD / num_silent_B.clamp(min=1)[:, None], num_silent_B


def _compressed(
    frames_BTD: torch.Tensor, probabilities_BTN: torch.Tensor, silence_BD: torch.Tensor, config: SpeakerCacheConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the frames that stay in the cache, speaker by speaker, and their probabilities."""
    num_frames, num_speakers = probabilities_BTN.shape[1:]
    scores_BTN = _scores(probabilities_BTN, config)
    scores_BTN[:, config.cache_frames :] += config.latest_boost
    share = config.share(num_speakers)
    _raise_best_(scores_BTN, math.floor(share * config.strong_rate), 2 * math.log(2))
    _raise_best_(scores_BTN, math.floor(share * config.weak_rate), math.log(2))
    # Silence outscores all: each speaker's frames end with it.
    padded_BTN = torch.nn.functional.pad(scores_BTN, (0, 0, 0, config.silent_frames), value=torch.inf)
    padded_frames = padded_BTN.shape[1]
    best = padded_BTN.transpose(1, 2).flatten(1).topk(config.cache_frames, dim=1, sorted=False)
    end = padded_frames * num_speakers
    places_BK = torch.where(best.values == -torch.inf, end, best.indices).sort(1).values
    frame_BK = places_BK % padded_frames
    is_silence_BK1 = ((places_BK == end) | (frame_BK >= num_frames))[..., None]
    frame_BK1 = frame_BK.clamp(max=num_frames - 1)[..., None]
    kept_BKD = frames_BTD.gather(1, frame_BK1.expand(-1, -1, frames_BTD.shape[2]))
    kept_BKN = probabilities_BTN.gather(1, frame_BK1.expand(-1, -1, num_speakers))
    return torch.where(is_silence_BK1, silence_BD[:, None].to(kept_BKD.dtype), kept_BKD), kept_BKN.masked_fill(
        is_silence_BK1, 0.0
    )


def _scores(probabilities_BTN: torch.Tensor, config: SpeakerCacheConfig) -> torch.Tensor:
    """Return how well each frame tells each speaker: the log of the odds that this one speaks, and no other one.

    It is -inf where the speaker is silent, and where another one speaks too if the speaker has enough frames alone.
    """
    least = config.min_probability
    speaks, is_silent = probabilities_BTN.clamp(min=least).log(), (1 - probabilities_BTN).clamp(min=least).log()
    scores_BTN = speaks - is_silent + is_silent.sum(2, keepdim=True) - math.log(0.5)
    is_speech_BTN, is_alone_BTN = probabilities_BTN > 0.5, scores_BTN > 0
    scores_BTN = scores_BTN.masked_fill(~is_speech_BTN, -torch.inf)
    enough = math.floor(config.share(probabilities_BTN.shape[2]) * config.min_positive_rate)
    has_enough_B1N = (is_speech_BTN & is_alone_BTN).sum(1, keepdim=True) >= enough
    return scores_BTN.masked_fill(is_speech_BTN & ~is_alone_BTN & has_enough_B1N, -torch.inf)


def _raise_best_(scores_BTN: torch.Tensor, count: int, by: float) -> None:
    """Raise the highest scores of each speaker."""
    best_BKN = scores_BTN.topk(count, dim=1, sorted=False).indices
    scores_BTN.scatter_add_(1, best_BKN, torch.full_like(best_BKN, by, dtype=scores_BTN.dtype))
