"""The definition of greedy decoding with attention, one utterance at a time: decode/aed.py is tested against it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastscribe.decode.aed import ending_ids, finish, row_limit
from fastscribe.decode.prompt import Prompt
from fastscribe.families.canary.attention_decoder import AttentionDecoder
from fastscribe.types import Frames, Hypothesis
from tests.helpers.phrase_lists import PhraseLists


@torch.inference_mode()
def greedy(
    model: AttentionDecoder,
    prompt: Prompt,
    frames_TD: torch.Tensor,
    phrases: PhraseLists | None = None,
    guess: Sequence[int] = (),
) -> Hypothesis:
    """Decode one utterance, and run all tokens through the model at each step.

    A guess only saves time: one pass gives the logits after each of its tokens, for the steps up to its first wrong one.

    Args:
        model: the attention decoder.
        prompt: tokens before the text.
        frames_TD: encoder output, valid and finite frames only.
        phrases: phrases to boost.
        guess: what the tokens after the prompt may be.

    Returns:
        The hypothesis.
    """
    device, num_frames = frames_TD.device, len(frames_TD)
    if num_frames == 0:
        return Hypothesis()
    frames = Frames(frames_TD[None], torch.tensor([num_frames], device=device))
    ids, logprobs, is_finished = list(prompt.ids), [], False
    states = phrases.start if phrases else ()
    guessed = [*prompt.ids, *guess][: model.config.max_tokens]  # the last token may have no position
    guessed_QV = model.logits_after_each(torch.tensor([guessed], device=device), frames)[0, :, : model.num_labels]
    while len(ids) < row_limit(model, prompt, num_frames) and not is_finished:
        if ids == guessed[: len(ids)]:
            logits_V = guessed_QV[len(ids) - 1]
        else:
            logits_V = model.logits_after_each(torch.tensor([ids], device=device), frames)[0, -1, : model.num_labels]
        logprobs_V = torch.log_softmax(logits_V.float(), 0)
        ids.append(int(logprobs_V.argmax()))
        if phrases and ids[-1] in prompt.text_ids:
            scores_V = torch.tensor([phrases.score(states, i) for i in range(len(logprobs_V))])
            is_text_V = torch.tensor([i in prompt.text_ids for i in range(len(logprobs_V))])
            ids[-1] = int(torch.where(is_text_V, logprobs_V + scores_V, -torch.inf).argmax())
            states = phrases.after(states, ids[-1])
        logprobs.append(float(logprobs_V[ids[-1]]))
        is_first = len(ids) == len(prompt.ids) + 1
        is_finished = ids[-1] in ending_ids(model, prompt) and not (is_first and model.config.beam)
    return finish(model, prompt, ids[len(prompt.ids) :], logprobs, num_frames)
