"""The decoder of an attention encoder-decoder: a Transformer that reads its own tokens and the encoder's frames.

As NeMo's EncDecMultiTaskModel has it (Canary: Puvvada et al. 2024, after Vaswani et al. 2017). Keys and values of tokens
read so far, and of the frames, are kept: a token costs one row of every matrix, whatever came before it.

Shapes: B batch, T frames, D their width, Q tokens read at once, N tokens that there is room for, L layers, H heads,
K width of a head, V classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from fastscribe.config import AedConfig, TransformerConfig
from fastscribe.model.dot_product_attention import align_bias, aligned_size, attend
from fastscribe.types import Frames

_MASKED = -1e9  # added to a score: more than any score is, whatever was left in the memory
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "gelu": F.gelu}


@dataclass(frozen=True)
class KeyValueCache:
    """What a decoder looks at: each layer's keys and values. `own` is filled as tokens are read."""

    frames_L2BHTK: tuple[torch.Tensor, ...]
    mask_B11T: torch.Tensor  # 0 for a row's frames, _MASKED beyond them
    own_L2BHNK: tuple[torch.Tensor, ...]

    @property
    def num_places(self) -> int:
        return self.own_L2BHNK[0].shape[3]

    def with_capacity(self, num_places: int) -> KeyValueCache:
        """With room for so many tokens, copied."""
        more = num_places - self.num_places
        return replace(self, own_L2BHNK=tuple(F.pad(part, (0, 0, 0, more)) for part in self.own_L2BHNK))

    def rows(self, kept_R: torch.Tensor) -> KeyValueCache:
        """Of some rows of the batch, copied."""
        frames = tuple(part.index_select(1, kept_R) for part in self.frames_L2BHTK)
        own = tuple(part.index_select(1, kept_R) for part in self.own_L2BHNK)
        return KeyValueCache(frames, align_bias(self.mask_B11T.index_select(0, kept_R)), own)

    def take_(self, other: KeyValueCache) -> None:
        """The rows of another memory with as many frames and places, as its first ones."""
        count = len(other.mask_B11T)
        for mine, its in ((self.frames_L2BHTK, other.frames_L2BHTK), (self.own_L2BHNK, other.own_L2BHNK)):
            for layer, its_layer in zip(mine, its, strict=True):
                layer[:, :count] = its_layer
        self.mask_B11T[:count] = other.mask_B11T


class Attention(nn.Module):
    """`optimise_` joins the matrices that are always applied to the same input."""

    def __init__(self, config: TransformerConfig, sees_itself: bool) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.sees_itself = sees_itself
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)
        self.joined: nn.Linear | None = None

    def optimise_(self) -> None:
        parts = [self.query, self.key, self.value] if self.sees_itself else [self.key, self.value]
        width = self.query.in_features
        self.joined = nn.Linear(width, len(parts) * width, device="meta")
        for name in ("weight", "bias"):
            joined = torch.cat([getattr(part, name) for part in parts])
            setattr(self.joined, name, nn.Parameter(joined, requires_grad=False))
        del self.key, self.value
        if self.sees_itself:
            del self.query

    def queries(self, x_BQD: torch.Tensor) -> torch.Tensor:
        """[B, H, Q, K], of what does not see itself."""
        return self._heads(self.query(x_BQD))

    def keys_and_values(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """[2, B, H, T, K], of what does not see itself."""
        if self.joined is None:
            return torch.stack([self._heads(self.key(x_BTD)), self._heads(self.value(x_BTD))])
        return self._parts(x_BTD, 2)

    def queries_keys_and_values(self, x_BQD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, H, Q, K] and [2, B, H, Q, K], of what sees itself."""
        if self.joined is None:
            return self.queries(x_BQD), self.keys_and_values(x_BQD)
        parts_3BHQK = self._parts(x_BQD, 3)
        return parts_3BHQK[0], parts_3BHQK[1:]

    def forward(self, query_BHQK: torch.Tensor, seen_2BHNK: torch.Tensor, unseen: torch.Tensor) -> torch.Tensor:
        """`unseen` is added to the scores: broadcast to [B, H, Q, N], and aligned, since every layer adds it."""
        key_BHNK, value_BHNK = seen_2BHNK
        mixed_BHQK = attend(query_BHQK, key_BHNK, value_BHNK, unseen)
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
        self.attention = Attention(config, sees_itself=True)
        self.norm_feed_forward = nn.LayerNorm(config.hidden)
        self.feed_forward = FeedForward(config)

    def forward(self, x_BTD: torch.Tensor, mask_B11T: torch.Tensor) -> torch.Tensor:
        if self.pre_norm:
            x_BTD = x_BTD + self._attended(self.norm_attention(x_BTD), mask_B11T)
            return torch.add(x_BTD, self.feed_forward(self.norm_feed_forward(x_BTD)))
        attended_BTD = self._attended(x_BTD, mask_B11T)
        x_BTD = self.norm_attention(x_BTD + attended_BTD)
        out_BTD: torch.Tensor = self.norm_feed_forward(x_BTD + self.feed_forward(x_BTD))
        return out_BTD

    def _attended(self, x_BTD: torch.Tensor, mask_B11T: torch.Tensor) -> torch.Tensor:
        out_BTD: torch.Tensor = self.attention(*self.attention.queries_keys_and_values(x_BTD), mask_B11T)
        return out_BTD


class DecoderLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.norm_own = nn.LayerNorm(config.hidden)
        self.own = Attention(config, sees_itself=True)
        self.norm_frames = nn.LayerNorm(config.hidden)
        self.frames = Attention(config, sees_itself=False)
        self.norm_feed_forward = nn.LayerNorm(config.hidden)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x_BQD: torch.Tensor,
        at_Q: torch.Tensor,
        own_2BHNK: torch.Tensor,
        causal_mask_QN: torch.Tensor,
        frames_2BHTK: torch.Tensor,
        mask_B11T: torch.Tensor,
    ) -> torch.Tensor:
        """Leaves these tokens' keys and values in `own`, whose first N `causal_mask_QN` is for."""
        normed_BQD = self.norm_own(x_BQD) if self.pre_norm else x_BQD
        query_BHQK, read_2BHQK = self.own.queries_keys_and_values(normed_BQD)
        own_2BHNK.index_copy_(3, at_Q, read_2BHQK)
        x_BQD = x_BQD + self.own(query_BHQK, own_2BHNK[..., : causal_mask_QN.shape[1], :], causal_mask_QN)
        if self.pre_norm:
            x_BQD = x_BQD + self.frames(self.frames.queries(self.norm_frames(x_BQD)), frames_2BHTK, mask_B11T)
            return torch.add(x_BQD, self.feed_forward(self.norm_feed_forward(x_BQD)))
        x_BQD = self.norm_own(x_BQD)
        x_BQD = self.norm_frames(x_BQD + self.frames(self.frames.queries(x_BQD), frames_2BHTK, mask_B11T))
        out_BQD: torch.Tensor = self.norm_feed_forward(x_BQD + self.feed_forward(x_BQD))
        return out_BQD


class AttentionDecoder(nn.Module):
    def __init__(self, config: AedConfig, d_model: int, num_labels: int, subsampling_factor: int) -> None:
        super().__init__()
        self.config = config
        self.subsampling_factor = subsampling_factor  # of the encoder, by which limits count frames
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

    def optimise_(self) -> None:
        """The inference form: the same function, in fewer products, of weights that have other names."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.optimise_()

    def new_cache(
        self, rows: int, num_frames: int, num_places: int, zeros: Callable[..., torch.Tensor] | None = None
    ) -> KeyValueCache:
        """Without anything in it. `zeros` makes keys and values of a shape, in the model's dtype and on its device."""
        config, layers = self.config.decoder, range(len(self.layers))
        zeros = zeros or self.embedding.weight.new_zeros
        heads, width = config.num_heads, config.hidden // config.num_heads
        return KeyValueCache(
            tuple(zeros(2, rows, heads, num_frames, width) for _ in layers),
            self.embedding.weight.new_zeros(rows, 1, 1, aligned_size(num_frames))[..., :num_frames],
            tuple(zeros(2, rows, heads, num_places, width) for _ in layers),
        )

    def cache_elements(self, rows: int, num_frames: int, num_places: int) -> int:
        """Of keys and values, in a memory of such sizes."""
        return 2 * len(self.layers) * rows * self.config.decoder.hidden * (num_frames + num_places)

    def load_frames_(self, cache: KeyValueCache, frames: Frames) -> None:
        """Fills in what the decoder sees of the frames, in the first rows and places of a memory that may be larger."""
        # Nothing that is no number may stay where later batches have their padding.
        states_BTD = frames.frames_BTD.nan_to_num(0.0, 0.0, 0.0)
        batch, num_frames, _ = states_BTD.shape
        places = torch.arange(aligned_size(num_frames), device=states_BTD.device)
        is_beyond_BT = places >= frames.lengths_B[:, None]
        mask_B11T = (is_beyond_BT.to(states_BTD.dtype) * _MASKED)[:, None, None, :num_frames]
        if self.projection is not None:
            states_BTD = self.projection(states_BTD)
        for bridge in self.bridge:
            states_BTD = bridge(states_BTD, mask_B11T)
        if self.bridge_norm is not None:
            states_BTD = self.bridge_norm(states_BTD)
        cache.mask_B11T.fill_(_MASKED)
        cache.mask_B11T[:batch, :, :, :num_frames] = mask_B11T
        for layer, seen_2BHTK in zip(self.layers, cache.frames_L2BHTK, strict=True):
            seen_2BHTK[:, :batch, :, :num_frames] = layer.frames.keys_and_values(states_BTD)  # type: ignore[operator, union-attr]

    def forward(self, tokens_BQ: torch.Tensor, at_Q: torch.Tensor, cache: KeyValueCache, num_keys: int) -> torch.Tensor:
        """Tokens at these places -> logits [B, V] of the one after them.

        `num_keys`: places that may hold tokens; at least the last of `at_Q` and one.
        """
        x_BQD = self.norm(self.embedding(tokens_BQ) + self.positions(at_Q))
        is_later_QN = torch.arange(aligned_size(num_keys), device=at_Q.device) > at_Q[:, None]
        causal_mask_QN = (is_later_QN.to(x_BQD.dtype) * _MASKED)[:, :num_keys]
        for layer, own, frames in zip(self.layers, cache.own_L2BHNK, cache.frames_L2BHTK, strict=True):
            x_BQD = layer(x_BQD, at_Q, own, causal_mask_QN, frames, cache.mask_B11T)
        last_BD = x_BQD[:, -1]
        logits_BC: torch.Tensor = self.head(last_BD if self.final_norm is None else self.final_norm(last_BD))
        return logits_BC[:, : self.num_labels]


def _final_norm(config: TransformerConfig) -> nn.LayerNorm | None:
    return nn.LayerNorm(config.hidden) if config.pre_norm and config.final_norm else None
