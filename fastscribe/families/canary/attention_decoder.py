"""The decoder of an attention encoder-decoder: a Transformer with self-attention and cross-attention to encoder frames.

The architecture is that of NeMo's EncDecMultiTaskModel (Canary: Puvvada et al. 2024, after Vaswani et al. 2017). Keys and
values of earlier tokens and of the frames are cached.

Shapes: B batch, T frames, D width, Q input tokens, N token positions in the cache, L layers, H heads, K head width, V classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import AedConfig, TransformerConfig
from fastscribe.families.blocks.dot_product_attention import align_bias, aligned_size, attend
from fastscribe.families.blocks.forms import Container, Optimised, joined
from fastscribe.types import Frames

_MASKED = -1e9  # added to masked scores; larger than any score, also of stale values in the cache
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "gelu": F.gelu}


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of each layer: of the encoder's frames (cross-attention), and of tokens (self-attention: own)."""

    frames_L2BHTK: tuple[torch.Tensor, ...]
    mask_B11T: torch.Tensor  # 0 for a row's frames, _MASKED beyond them
    own_L2BHNK: tuple[torch.Tensor, ...]

    @property
    def num_positions(self) -> int:
        return self.own_L2BHNK[0].shape[3]

    def with_capacity(self, num_positions: int) -> KeyValueCache:
        """Return a copy with more token positions."""
        more = num_positions - self.num_positions
        return replace(self, own_L2BHNK=tuple(F.pad(part, (0, 0, 0, more)) for part in self.own_L2BHNK))

    def rows(self, kept_R: torch.Tensor) -> KeyValueCache:
        """Return a copy of the selected rows."""
        frames = tuple(part.index_select(1, kept_R) for part in self.frames_L2BHTK)
        own = tuple(part.index_select(1, kept_R) for part in self.own_L2BHNK)
        return KeyValueCache(frames, align_bias(self.mask_B11T.index_select(0, kept_R)), own)

    def copy_from_(self, other: KeyValueCache) -> None:
        """Overwrite the first rows with those of a cache with the same frames and positions."""
        count = len(other.mask_B11T)
        for mine, its in ((self.frames_L2BHTK, other.frames_L2BHTK), (self.own_L2BHNK, other.own_L2BHNK)):
            for layer, its_layer in zip(mine, its, strict=True):
                layer[:, :count] = its_layer
        self.mask_B11T[:count] = other.mask_B11T


class Attention(Optimised):
    """Multi-head attention; `optimise_` joins matrices that have the same input."""

    def __init__(self, config: TransformerConfig, is_self_attention: bool) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.is_self_attention = is_self_attention
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)
        self.joined: nn.Linear | None = None
        self.attend: Callable[..., torch.Tensor] = attend

    def optimise_(self) -> None:
        queries = [self.query] if self.is_self_attention else []
        self.joined = joined(*queries, self.key, self.value)
        del self.key, self.value
        if self.is_self_attention:
            del self.query

    def queries(self, x_BQD: torch.Tensor) -> torch.Tensor:
        """Return queries [B, H, Q, K] of cross-attention."""
        return self._heads(self.query(x_BQD))

    def keys_and_values(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return keys and values [2, B, H, T, K] of cross-attention."""
        if self.joined is None:
            return torch.stack([self._heads(self.key(x_BTD)), self._heads(self.value(x_BTD))])
        return self._parts(x_BTD, 2)

    def queries_keys_and_values(self, x_BQD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries [B, H, Q, K], and keys and values [2, B, H, Q, K], of self-attention."""
        if self.joined is None:
            return self.queries(x_BQD), self.keys_and_values(x_BQD)
        parts_3BHQK = self._parts(x_BQD, 3)
        return parts_3BHQK[0], parts_3BHQK[1:]

    def forward(
        self,
        query_BHQK: torch.Tensor,
        key_value_2BHNK: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Attend. `mask` is added to the scores; it broadcasts to [B, H, Q, N] and is aligned, because layers share it."""
        key_BHNK, value_BHNK = key_value_2BHNK
        mixed_BHQK = self.attend(query_BHQK, key_BHNK, value_BHNK, mask)
        out_BQD: torch.Tensor = self.out(mixed_BHQK.transpose(1, 2).flatten(2))
        return out_BQD

    def _heads(self, x_BTD: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(x_BTD, 2, (self.num_heads, -1)).transpose(1, 2)

    def _parts(self, x_BTD: torch.Tensor, count: int) -> torch.Tensor:
        assert self.joined is not None
        return torch.unflatten(self.joined(x_BTD), 2, (count, self.num_heads, -1)).permute(2, 0, 3, 1, 4)


class FeedForward(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden, config.ff_hidden)
        self.outer = nn.Linear(config.ff_hidden, config.hidden)
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        out_BTD: torch.Tensor = self.outer(self.activation(self.inner(x_BTD)))
        return out_BTD


class BridgeLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.norm_attention = nn.LayerNorm(config.hidden)
        self.attention = Attention(config, is_self_attention=True)
        self.norm_feed_forward = nn.LayerNorm(config.hidden)
        self.feed_forward = FeedForward(config)

    def forward(self, x_BTD: torch.Tensor, mask_B11T: torch.Tensor) -> torch.Tensor:
        if self.pre_norm:
            x_BTD = x_BTD + self._self_attention(self.norm_attention(x_BTD), mask_B11T)
            return torch.add(x_BTD, self.feed_forward(self.norm_feed_forward(x_BTD)))
        attended_BTD = self._self_attention(x_BTD, mask_B11T)
        x_BTD = self.norm_attention(x_BTD + attended_BTD)
        out_BTD: torch.Tensor = self.norm_feed_forward(x_BTD + self.feed_forward(x_BTD))
        return out_BTD

    def _self_attention(self, x_BTD: torch.Tensor, mask_B11T: torch.Tensor) -> torch.Tensor:
        out_BTD: torch.Tensor = self.attention(*self.attention.queries_keys_and_values(x_BTD), mask_B11T)
        return out_BTD


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.norm_own = nn.LayerNorm(config.hidden)
        self.own = Attention(config, is_self_attention=True)
        self.norm_frames = nn.LayerNorm(config.hidden)
        self.frames = Attention(config, is_self_attention=False)
        self.norm_feed_forward = nn.LayerNorm(config.hidden)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x_BQD: torch.Tensor,
        positions_Q: torch.Tensor,
        own_2BHNK: torch.Tensor | None,
        causal_mask_QN: torch.Tensor,
        frames_2BHTK: torch.Tensor,
        mask_B11T: torch.Tensor,
    ) -> torch.Tensor:
        """Run the layer and store the tokens' keys and values in `own`; `causal_mask_QN` covers its first N positions.

        None for `own` if there are no earlier tokens and no later calls.
        """
        normed_BQD = self.norm_own(x_BQD) if self.pre_norm else x_BQD
        query_BHQK, new_2BHQK = self.own.queries_keys_and_values(normed_BQD)
        if own_2BHNK is None:
            own_2BHNK = new_2BHQK
        else:
            own_2BHNK.index_copy_(3, positions_Q, new_2BHQK)
        x_BQD = x_BQD + self.own(query_BHQK, own_2BHNK[..., : causal_mask_QN.shape[1], :], causal_mask_QN)
        if self.pre_norm:
            x_BQD = x_BQD + self.frames(self.frames.queries(self.norm_frames(x_BQD)), frames_2BHTK, mask_B11T)
            return torch.add(x_BQD, self.feed_forward(self.norm_feed_forward(x_BQD)))
        x_BQD = self.norm_own(x_BQD)
        x_BQD = self.norm_frames(x_BQD + self.frames(self.frames.queries(x_BQD), frames_2BHTK, mask_B11T))
        out_BQD: torch.Tensor = self.norm_feed_forward(x_BQD + self.feed_forward(x_BQD))
        return out_BQD


class AttentionDecoder(Container):
    def __init__(self, config: AedConfig, d_model: int, num_labels: int, subsampling_factor: int) -> None:
        super().__init__()
        self.config = config
        self.subsampling_factor = subsampling_factor  # of the encoder; needed for limits in frames
        self.num_labels = num_labels
        hidden = config.decoder.hidden
        self.projection = nn.Linear(d_model, hidden) if d_model != hidden else None
        bridge = config.bridge
        self.bridge = nn.ModuleList([BridgeLayer(bridge) for _ in range(bridge.num_layers)] if bridge else [])
        self.bridge_norm = _final_norm(bridge) if bridge else None
        self.embedding = nn.Embedding(config.num_classes, hidden)
        self.positions = nn.Embedding(config.max_tokens, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(DecoderLayer(config.decoder) for _ in range(config.decoder.num_layers))
        self.final_norm = _final_norm(config.decoder)
        self.head = nn.Linear(hidden, config.num_classes)

    def new_cache(
        self, rows: int, num_frames: int, num_positions: int, zeros: Callable[..., torch.Tensor] | None = None
    ) -> KeyValueCache:
        """Allocate an empty cache.

        Args:
            rows: batch size.
            num_frames: frames of the longest row.
            num_positions: token positions.
            zeros: allocates keys and values of a shape in the model's dtype on its device; None: new tensors.

        Returns:
            The cache.
        """
        config, layers = self.config.decoder, range(len(self.layers))
        zeros = zeros or self.embedding.weight.new_zeros
        heads, width = config.num_heads, config.hidden // config.num_heads
        return KeyValueCache(
            tuple(zeros(2, rows, heads, num_frames, width) for _ in layers),
            self.embedding.weight.new_zeros(rows, 1, 1, aligned_size(num_frames))[..., :num_frames],
            tuple(zeros(2, rows, heads, num_positions, width) for _ in layers),
        )

    def cache_elements(self, rows: int, num_frames: int, num_positions: int) -> int:
        """Return the number of keys' and values' elements in a cache of this size."""
        return 2 * len(self.layers) * rows * self.config.decoder.hidden * (num_frames + num_positions)

    def load_frames_(self, cache: KeyValueCache, frames: Frames) -> None:
        """Write keys and values of the frames to the first rows and frames of a cache that may be larger."""
        # A NaN must not stay where later batches have padding.
        safe = replace(frames, frames_BTD=frames.frames_BTD.nan_to_num(0.0, 0.0, 0.0))
        frames_L2BHTK, mask_B11T = self._frame_keys_and_values(safe)
        batch, num_frames = len(mask_B11T), mask_B11T.shape[3]
        cache.mask_B11T.fill_(_MASKED)
        cache.mask_B11T[:batch, :, :, :num_frames] = mask_B11T
        for key_value_2BHTK, cached_2BHTK in zip(frames_L2BHTK, cache.frames_L2BHTK, strict=True):
            cached_2BHTK[:, :batch, :, :num_frames] = key_value_2BHTK

    def _frame_keys_and_values(self, frames: Frames) -> tuple[Iterator[torch.Tensor], torch.Tensor]:
        """Return each layer's keys and values [2, B, H, T, K] of the frames, one at a time, and the mask [B, 1, 1, T]."""
        states_BTD = frames.frames_BTD
        num_frames = states_BTD.shape[1]
        frames_T = torch.arange(aligned_size(num_frames), device=states_BTD.device)
        is_beyond_BT = frames_T >= frames.lengths_B[:, None]
        mask_B11T = (is_beyond_BT.to(states_BTD.dtype) * _MASKED)[:, None, None, :num_frames]
        if self.projection is not None:
            states_BTD = self.projection(states_BTD)
        for bridge in self.bridge:
            states_BTD = bridge(states_BTD, mask_B11T)
        if self.bridge_norm is not None:
            states_BTD = self.bridge_norm(states_BTD)
        return (layer.frames.keys_and_values(states_BTD) for layer in self.layers), mask_B11T  # type: ignore[operator, union-attr]

    def forward(
        self, tokens_BQ: torch.Tensor, positions_Q: torch.Tensor, cache: KeyValueCache, num_keys: int
    ) -> torch.Tensor:
        """Compute the next token's logits.

        Args:
            tokens_BQ: input tokens.
            positions_Q: their positions.
            cache: keys and values; those of the input tokens are added.
            num_keys: self-attention reads this many positions, at least the last of `positions_Q` plus one.

        Returns:
            Logits [B, V] of the token after the last input token.
        """
        frames, mask_B11T = cache.frames_L2BHTK, cache.mask_B11T
        x_BQD = self._states(tokens_BQ, positions_Q, cache.own_L2BHNK, num_keys, frames, mask_B11T)
        return self._logits(x_BQD[:, -1])[:, : self.num_labels]

    def logits_after_each(self, tokens_BQ: torch.Tensor, frames: Frames) -> torch.Tensor:
        """Compute the logits of the token after every token of whole sequences, differentiable.

        Args:
            tokens_BQ: tokens from the first position on; a row's padding changes nothing before it.
            frames: the encoder's output.

        Returns:
            Logits [B, Q, C] of all classes, those beyond the vocabulary too.
        """
        num_tokens = tokens_BQ.shape[1]
        positions_Q = torch.arange(num_tokens, device=tokens_BQ.device)
        frames_L2BHTK, mask_B11T = self._frame_keys_and_values(frames)
        own = [None] * len(self.layers)
        return self._logits(self._states(tokens_BQ, positions_Q, own, num_tokens, frames_L2BHTK, mask_B11T))

    def _states(
        self,
        tokens_BQ: torch.Tensor,
        positions_Q: torch.Tensor,
        own_L2BHNK: Sequence[torch.Tensor | None],
        num_keys: int,
        frames_L2BHTK: Iterable[torch.Tensor],
        mask_B11T: torch.Tensor,
    ) -> torch.Tensor:
        """Run the layers: [B, Q] to [B, Q, D]."""
        x_BQD: torch.Tensor = self.norm(self.embedding(tokens_BQ) + self.positions(positions_Q))
        is_later_QN = torch.arange(aligned_size(num_keys), device=positions_Q.device) > positions_Q[:, None]
        causal_mask_QN = (is_later_QN.to(x_BQD.dtype) * _MASKED)[:, :num_keys]
        for layer, own, frames in zip(self.layers, own_L2BHNK, frames_L2BHTK, strict=True):
            x_BQD = layer(x_BQD, positions_Q, own, causal_mask_QN, frames, mask_B11T)
        return x_BQD

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """Map [.., D] to [.., C]."""
        logits: torch.Tensor = self.head(x if self.final_norm is None else self.final_norm(x))
        return logits


def _final_norm(config: TransformerConfig) -> nn.LayerNorm | None:
    return nn.LayerNorm(config.hidden) if config.pre_norm and config.final_norm else None
