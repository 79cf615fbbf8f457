"""Greedy decoding of an attention encoder-decoder: the most probable next token, until the end token.

The rules are NeMo's: all rows share a prompt; each step adds one token. A row ends at the model's maximum length or at a
limit that grows with its frames. NeMo decodes published models with a beam of one, which ignores an end token at the
first step; a second end token usually follows. With phrases to boost (context/boosting.py), a token without text, such as
the end, stays what it is; the boost decides between the others. AedDecoder decodes batches and drops finished rows from
them; aed_graphs.py replays the steps from CUDA graphs. tests/helpers/greedy_aed.py decodes one utterance by the same rules.

Shapes: B batch, T frames, R unfinished rows, N token positions, the first P of which hold the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from fastscribe.cuda.device import small_to_device
from fastscribe.decode.decoder import NOT_FINITE, Decoder, DecoderMemory, is_finite_sum
from fastscribe.decode.prompt import Prompt, hypothesis
from fastscribe.families.canary.attention_decoder import AttentionDecoder, KeyValueCache
from fastscribe.types import Frames, Hypothesis, Int32Array

if TYPE_CHECKING:
    from fastscribe.context.boosting import BoostTables

_SHRINK_BELOW = 0.75  # drop finished rows when fewer than this share are unfinished
_POSITIONS_PER_GROWTH = 64  # positions that the cache grows by
# Captured sizes round rows up by a factor of at most 2, frames and positions by at most 1.5. Moving the unfinished rows to a
# smaller state takes another half of that for a moment.
_ROUNDED_UP = 4.5
_STEPS_PER_CHECK_ON_GPU = 8  # reading is_done_B from a GPU makes the host wait


def row_limit(model: AttentionDecoder, prompt: Prompt, num_frames: int) -> int:
    """Return the maximum number of tokens, with the prompt, in a row of `num_frames`."""
    return int(_row_limits(model, prompt, torch.tensor([num_frames]))[0])


def _row_limits(model: AttentionDecoder, prompt: Prompt, lengths_B: torch.Tensor) -> torch.Tensor:
    config = model.config
    limits_B = torch.full_like(lengths_B, config.max_tokens)
    if config.max_extra_tokens is not None:
        limits_B = (lengths_B * config.tokens_per_frame).long() + config.max_extra_tokens
    return limits_B.clamp(min=len(prompt.ids), max=max(config.max_tokens, len(prompt.ids))) + config.beam


def positions_needed(model: AttentionDecoder, prompt: Prompt, num_frames: int) -> int:
    """Return the token positions needed by a batch of `num_frames`, plus one frame as NeMo counts."""
    return row_limit(model, prompt, num_frames + 1) + 1


def decoder_memory(model: AttentionDecoder) -> DecoderMemory:
    """Return the memory of keys and values of all frames and of the maximum number of tokens."""
    config = model.config
    position_bytes = _ROUNDED_UP * model.cache_elements(1, 1, 0) * model.embedding.weight.element_size()
    if config.max_extra_tokens is None:
        return DecoderMemory(position_bytes, position_bytes * config.max_tokens)
    return DecoderMemory(position_bytes * (1 + config.tokens_per_frame), position_bytes * config.max_extra_tokens)


def ending_ids(model: AttentionDecoder, prompt: Prompt) -> tuple[int, ...]:
    """Return the tokens that end a text."""
    return (prompt.end_id, prompt.pad_id) if model.config.beam and prompt.pad_id is not None else (prompt.end_id,)


def finish(
    model: AttentionDecoder, prompt: Prompt, ids: Sequence[int], logprobs: Sequence[float], num_frames: int
) -> Hypothesis:
    """Make a Hypothesis of the tokens before the end; end and padding tokens right before it are dropped too."""
    ends = ending_ids(model, prompt)
    first = 1 if model.config.beam else 0
    count = next((place for place in range(first, len(ids)) if ids[place] in ends), len(ids))
    if num_frames and not is_finite_sum(logprobs[: count + 1]):
        return NOT_FINITE
    while count and ids[count - 1] in (prompt.pad_id, prompt.end_id):
        count -= 1
    return hypothesis(ids[:count], logprobs[:count], num_frames, prompt)


@dataclass(frozen=True)
class AedState:
    """Tensors that `load_batch_` and `step` write. The last position is spare: it takes writes after the end."""

    cache: KeyValueCache
    prompt_BP: torch.Tensor
    position_1: torch.Tensor  # position of the last token written, the next step's input
    token_B1: torch.Tensor  # token at that position
    limit_B: torch.Tensor  # maximum number of tokens, with the prompt
    is_done_B: torch.Tensor
    written_BN: torch.Tensor
    logprobs_BN: torch.Tensor
    active: torch.Tensor  # scalar bool: True if some row is not done
    boost_BK: torch.Tensor  # states in the lists of phrases
    is_text_V: torch.Tensor  # tokens that may be boosted

    @classmethod
    @torch.inference_mode()
    def allocate(
        cls, model: AttentionDecoder, prompt: Prompt, cache: KeyValueCache, num_positions: int, num_lists: int = 0
    ) -> AedState:
        """Allocate a state with one row per row of the cache, all done. The cache may have fewer positions."""
        device, rows = model.embedding.weight.device, len(cache.mask_B11T)
        return cls(
            cache=cache,
            prompt_BP=small_to_device(np.array(prompt.ids), device).expand(rows, -1),
            position_1=torch.zeros(1, dtype=torch.long, device=device),
            token_B1=torch.full((rows, 1), prompt.end_id, device=device),
            limit_B=torch.zeros(rows, dtype=torch.long, device=device),
            is_done_B=torch.ones(rows, dtype=torch.bool, device=device),
            written_BN=torch.full((rows, num_positions), prompt.end_id, device=device),
            logprobs_BN=torch.zeros(rows, num_positions, device=device),
            active=torch.zeros((), dtype=torch.bool, device=device),
            boost_BK=torch.zeros(rows, num_lists, dtype=torch.long, device=device),
            is_text_V=small_to_device(np.isin(np.arange(model.num_labels), list(prompt.text_ids)), device),
        )

    def rows(self, kept_R: torch.Tensor) -> AedState:
        """Copy the selected rows; position and `active` stay shared."""
        token, limit, is_done, written, logprobs, boost = (tensor.index_select(0, kept_R) for tensor in self._per_row())
        prompt, cache = self.prompt_BP[: len(kept_R)], self.cache.rows(kept_R)
        shared = (self.active, boost, self.is_text_V)
        return AedState(cache, prompt, self.position_1, token, limit, is_done, written, logprobs, *shared)

    def copy_from_(self, other: AedState) -> None:
        """Overwrite the first rows with those of a state that is no larger, and mark the rest done."""
        count = len(other.limit_B)
        self.cache.copy_from_(other.cache)
        for mine, its in zip(self._per_row(), other._per_row(), strict=True):
            mine[:count] = its
        self.is_done_B[count:] = True
        self.boost_BK[count:] = 0  # states of an earlier batch may be beyond this one's tables
        self.position_1.copy_(other.position_1)

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the current values, except keys and values, which steps write again."""
        changed = (self.position_1, self.active, *self._per_row())
        before = [tensor.clone() for tensor in changed]

        def restore() -> None:
            for tensor, old in zip(changed, before, strict=True):
                tensor.copy_(old)

        return restore

    def _per_row(self) -> tuple[torch.Tensor, ...]:
        return self.token_B1, self.limit_B, self.is_done_B, self.written_BN, self.logprobs_BN, self.boost_BK


@torch.inference_mode()
def load_batch_(
    model: AttentionDecoder, prompt: Prompt, state: AedState, frames: Frames, boost: BoostTables | None = None
) -> None:
    """Load a batch into the first rows of the state, run the prompt and write the first token.

    `boost` are the tables of `frames.boost`.
    """
    batch, num_prompt = len(frames.lengths_B), len(prompt.ids)
    model.load_frames_(state.cache, frames)
    state.limit_B.zero_()
    lengths_B = frames.lengths_B
    if frames.mel_lengths_B is not None:  # by which NeMo computes limits: its features have one frame more
        lengths_B = frames.mel_lengths_B // model.subsampling_factor + 1
    state.limit_B[:batch] = _row_limits(model, prompt, lengths_B)
    state.limit_B[:batch] *= frames.lengths_B > 0  # empty rows get no tokens
    torch.le(state.limit_B, num_prompt, out=state.is_done_B)
    state.written_BN.fill_(prompt.end_id)
    state.position_1.fill_(num_prompt - 1)
    positions_P = torch.arange(num_prompt, device=state.position_1.device)
    end_ids = () if model.config.beam else ending_ids(model, prompt)
    if frames.boost is not None:
        state.boost_BK[:batch] = frames.boost.starts()
        state.boost_BK[batch:] = 0
    _write_(state, model(state.prompt_BP, positions_P, state.cache, num_prompt), prompt, end_ids, boost)


@torch.inference_mode()
def step(
    model: AttentionDecoder, prompt: Prompt, state: AedState, num_keys: int, boost: BoostTables | None = None
) -> None:
    """Run each row's last token through the model and write the next one.

    Args:
        model: the attention decoder.
        prompt: holds the end tokens.
        state: updated in place.
        num_keys: self-attention reads this many positions, at least those written plus one.
        boost: phrases to boost; the state has a list of them.
    """
    input_position_1 = state.position_1.clamp(max=model.config.max_tokens - 1)  # may exceed it once all rows are done
    logits_BV = model(state.token_B1, input_position_1, state.cache, num_keys)
    _write_(state, logits_BV, prompt, ending_ids(model, prompt), boost)


def _write_(
    state: AedState,
    logits_BV: torch.Tensor,
    prompt: Prompt,
    end_ids: tuple[int, ...],
    boost: BoostTables | None,
) -> None:
    state.position_1.add_(1).clamp_(max=state.written_BN.shape[1] - 1)
    logprobs_BV = torch.log_softmax(logits_BV.float(), 1)
    logprobs_B, ids_B = logprobs_BV.max(1)
    if boost is not None:
        ids_B = _choose_token(state, boost, logprobs_BV, ids_B)
        logprobs_B = logprobs_BV.gather(1, ids_B[:, None])[:, 0]
    ids_B = torch.where(state.is_done_B, prompt.end_id, ids_B)
    state.token_B1.copy_(ids_B[:, None])
    state.written_BN.index_copy_(1, state.position_1, ids_B[:, None])
    state.logprobs_BN.index_copy_(1, state.position_1, logprobs_B[:, None])
    state.is_done_B.logical_or_(state.limit_B <= state.position_1 + 1)
    for end_id in end_ids:
        state.is_done_B.logical_or_(ids_B == end_id)
    torch.logical_not(state.is_done_B.all(), out=state.active)


def _choose_token(state: AedState, boost: BoostTables, logprobs_BV: torch.Tensor, ids_B: torch.Tensor) -> torch.Tensor:
    """Return each row's token with the boost, and go to the states after it."""
    next_BKV = boost.following(state.boost_BK)
    num_others = logprobs_BV.shape[1] - next_BKV.shape[2]
    scores_BV = F.pad(boost.scores(state.boost_BK, next_BKV), (0, num_others))
    chosen_B = (logprobs_BV + scores_BV).masked_fill(~state.is_text_V, -torch.inf).argmax(1)
    is_text_B = state.is_text_V[ids_B]
    after_BK = boost.advance(next_BKV, chosen_B.clamp(max=next_BKV.shape[2] - 1))
    torch.where(is_text_B[:, None], after_BK, state.boost_BK, out=state.boost_BK)
    return torch.where(is_text_B, chosen_B, ids_B)


@torch.inference_mode()
def pack(state: AedState, frames: Frames, num_prompt: int) -> torch.Tensor:
    """Return int32: [B] frames, then [B, N - P] tokens and the bits of their float32 log-probabilities."""
    batch = len(frames.lengths_B)
    written_BN, logprobs_BN = (part[:batch, num_prompt:] for part in (state.written_BN, state.logprobs_BN))
    parts = (frames.lengths_B, written_BN.flatten(), logprobs_BN.flatten().view(torch.int32))
    return torch.cat([part.int() for part in parts])


class AedDecoder(Decoder):
    """The decoder that launches the steps one by one."""

    def __init__(self, model: AttentionDecoder, prompt: Prompt) -> None:
        self.model, self.prompt = model, prompt
        is_cpu = model.embedding.weight.device.type == "cpu"
        self._steps_per_check = 1 if is_cpu else _STEPS_PER_CHECK_ON_GPU

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        batch, num_frames, _ = frames.frames_BTD.shape
        num_positions = positions_needed(self.model, self.prompt, num_frames)
        cache = self.model.new_cache(
            batch, num_frames, min(num_positions, len(self.prompt.ids) + _POSITIONS_PER_GROWTH)
        )
        num_lists, tables = (frames.boost.start_BK.shape[1], frames.boost.tables) if frames.boost else (0, None)
        whole = AedState.allocate(self.model, self.prompt, cache, num_positions, num_lists)
        load_batch_(self.model, self.prompt, whole, frames, tables)
        rows_R, state = torch.arange(batch, device=whole.position_1.device), whole
        num_keys = len(self.prompt.ids)
        while state.active:
            for _ in range(self._steps_per_check):
                num_keys = min(num_keys + 1, num_positions)
                if num_keys > state.cache.num_positions:
                    state = replace(
                        state, cache=state.cache.with_capacity(min(num_positions, num_keys + _POSITIONS_PER_GROWTH))
                    )
                step(self.model, self.prompt, state, num_keys, tables)
            rows_R, state = self._drop_finished(rows_R, state, whole)
        store_rows(whole, rows_R, state)
        return pack(whole, frames, len(self.prompt.ids))

    def _drop_finished(self, rows_R: torch.Tensor, state: AedState, whole: AedState) -> tuple[torch.Tensor, AedState]:
        kept_R = state.is_done_B.logical_not().nonzero()[:, 0]
        if not 0 < len(kept_R) < _SHRINK_BELOW * len(rows_R):
            return rows_R, state
        store_rows(whole, rows_R, state)
        return rows_R[kept_R], state.rows(kept_R)

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        batch = len(frames.lengths_B)
        written_BN, bits_BN = packed[batch:].reshape(2, batch, -1)
        columns = (written_BN.tolist(), bits_BN.view(np.float32).tolist(), packed[:batch].tolist())
        return [finish(self.model, self.prompt, *row) for row in zip(*columns, strict=True)]


def store_rows(whole: AedState, rows_R: torch.Tensor, state: AedState) -> None:
    """Copy the tokens of the first rows of `state` to the rows `rows_R` of `whole`."""
    if state.written_BN is not whole.written_BN:
        whole.written_BN[rows_R] = state.written_BN[: len(rows_R)]
        whole.logprobs_BN[rows_R] = state.logprobs_BN[: len(rows_R)]
