"""Reference greedy transducer decoding of one utterance, one frame at a time.

label_looping.py decodes batches and is tested against this. The rules are those of NeMo's "greedy_batch" (Graves 2012 for
RNN-T; Xu et al. 2023 for TDT):

- RNN-T: a blank advances one frame; a label is emitted, and the same frame is decoded again.
- TDT: label and duration are two arg maxes. Both blanks and labels advance by the duration, a blank by at least one frame.
- After max_symbols consecutive labels at one frame, decoding advances one frame.

- With phrases to boost, the model decides alone about blanks and durations; the boost decides between labels.
- So it is with tokens that are left out: the best of the others takes the place of such a label.

A row with more labels than `max_labels` (decoder.py) has no transcript.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from fastscribe.config import LABELS_PER_FRAME_GUARD
from fastscribe.decode.decoder import ENDLESS, max_labels
from fastscribe.families.blocks.heads import Transducer
from fastscribe.types import Hypothesis


@torch.inference_mode()
def greedy(
    transducer: Transducer,
    frames_TD: torch.Tensor,
    phrases: Any = None,
    excluded: Collection[int] = (),
) -> Hypothesis:
    """Decode one utterance.

    Args:
        transducer: predictor and joint network.
        frames_TD: encoder output, valid frames only.
        phrases: phrases to boost, with states of a text, as tests/helpers/phrase_lists.py has them.
        excluded: tokens that are left out; not all labels.

    Returns:
        The hypothesis, or ENDLESS.
    """
    num_tokens = transducer.blank_id + 1
    max_symbols = transducer.max_symbols or LABELS_PER_FRAME_GUARD
    encoded_TJ = transducer.joint.encoder(frames_TD)
    state = transducer.predictor.initial_state(1)
    output, state = transducer.predictor.step(torch.tensor([transducer.blank_id]), state)
    predicted_J = transducer.joint.predictor(output)[0]
    ids: list[int] = []
    times: list[int] = []
    durations: list[int] = []
    logprobs: list[float] = []
    states = phrases.start if phrases else ()
    t = 0
    while t < len(frames_TD):
        logits = transducer.joint(encoded_TJ[t], predicted_J).float()
        label = int(logits[:num_tokens].argmax())
        duration = transducer.durations[int(logits[num_tokens:].argmax())] if transducer.durations else 0
        if label == transducer.blank_id:
            t += max(1, duration)
            continue
        if phrases or excluded:
            boosts = [phrases.score(states, other) if phrases else 0.0 for other in range(transducer.blank_id)]
            scores = logits[: transducer.blank_id] + torch.tensor(boosts)
            label = max(set(range(transducer.blank_id)).difference(excluded), key=lambda other: (scores[other], -other))
            states = phrases.after(states, label) if phrases else states
        if len(ids) == max_labels(len(frames_TD)):
            return ENDLESS
        ids.append(label)
        times.append(t)
        durations.append(duration if transducer.durations else 1)
        logprobs.append(float(torch.log_softmax(logits[:num_tokens], dim=0)[label]))
        t += duration
        if len(times) >= max_symbols and times[-max_symbols:] == [t] * max_symbols:
            t += 1
        output, state = transducer.predictor.step(torch.tensor([label]), state)
        predicted_J = transducer.joint.predictor(output)[0]
    return Hypothesis(tuple(ids), tuple(times), tuple(durations), tuple(logprobs))
