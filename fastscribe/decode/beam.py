"""Beam search of one utterance with a transducer: the definition of right, slow on purpose.

Alignment-length synchronous (Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer"): in each turn
every hypothesis either takes one more label or a blank, wherever in the recording it is, and the `width` likeliest of all
that come out live on. A TDT model's duration (Xu et al. 2023) is its likeliest one, and its probability counts. Hypotheses
that have reached the end wait for the others. Those that came to the same labels and frame by different ways are one, the
likeliest, with the probabilities of both. `max_symbols` holds as in greedy.py, and a width of one is greedy decoding. A
search that takes more turns than `max_turns` has no transcript.

A language model's logarithm for each label, weighted, and a bonus for each label may be added ("shallow fusion"); they count
for which hypotheses live on, and are not in the labels' log-probabilities. With them a width of one is no greedy decoding.

batched_beam.py does the same for batches and is tested against this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from fastscribe.config import LABELS_PER_FRAME_GUARD
from fastscribe.decode.greedy import ENDLESS, Size, max_labels
from fastscribe.model.transducer import Transducer
from fastscribe.text.language_model import Tables
from fastscribe.types import Hypothesis


def max_turns(num_frames: Size) -> Size:
    """Largest number of turns for a row of `num_frames`: each takes a label, or a blank for a frame."""
    return max_labels(num_frames) + num_frames


@dataclass(frozen=True)
class _Beam:
    score: float  # natural logarithm of the probability of all ways here that were followed
    frame: int
    hypothesis: Hypothesis
    state: torch.Tensor  # the predictor's, and what the joint makes of it, after the hypothesis's labels
    predicted_J: torch.Tensor
    context: int = 0  # the language model's state


@torch.inference_mode()
def beam_search(
    transducer: Transducer, frames_TD: torch.Tensor, width: int, language_model: Tables | None = None
) -> Hypothesis:
    """frames_TD [T, D], valid frames only -> the likeliest Hypothesis found."""
    encoded_TJ = transducer.joint.encoder(frames_TD)
    start = _Beam(0.0, 0, Hypothesis(), transducer.predictor.initial_state(1), torch.empty(0))
    beams = [_after(transducer, start, transducer.blank_id)]
    if language_model is not None:
        beams = [replace(beams[0], context=language_model.start)]
    turns = 0
    while any(beam.frame < len(frames_TD) for beam in beams):
        if turns == max_turns(len(frames_TD)):
            return ENDLESS
        turns += 1
        found: list[tuple[_Beam, int | None]] = []  # and the label that its predictor has not yet seen
        for beam in beams:
            if beam.frame == len(frames_TD):
                found.append((beam, None))
            else:
                found += _continued(transducer, encoded_TJ, beam, language_model)
        found.sort(key=lambda pair: -pair[0].score)
        beams = []
        for beam, label in found[:width]:
            here = (beam.hypothesis.token_ids, beam.frame)
            twin = next((n for n, other in enumerate(beams) if (other.hypothesis.token_ids, other.frame) == here), None)
            if twin is not None:
                likeliest, other = beams[twin].score, beam.score
                beams[twin] = replace(beams[twin], score=likeliest + math.log1p(math.exp(other - likeliest)))
            else:
                beams.append(beam if label is None else _after(transducer, beam, label))
    return max(beams, key=lambda beam: beam.score).hypothesis


def _continued(
    transducer: Transducer, encoded_TJ: torch.Tensor, beam: _Beam, language_model: Tables | None
) -> list[tuple[_Beam, int | None]]:
    """All that a lane may become in one turn."""
    num_tokens, end = transducer.blank_id + 1, len(encoded_TJ)
    logits_X = transducer.joint(encoded_TJ[beam.frame], beam.predicted_J).float()
    logprobs = torch.log_softmax(logits_X[:num_tokens], dim=0).tolist()
    duration, duration_logprob = 0, 0.0
    if transducer.durations:
        best, index = torch.log_softmax(logits_X[num_tokens:], dim=0).max(0)
        duration, duration_logprob = transducer.durations[int(index)], float(best)
    found: list[tuple[_Beam, int | None]] = []
    for label, logprob in enumerate(logprobs):
        score = beam.score + logprob + duration_logprob
        if label == transducer.blank_id:
            frame = min(beam.frame + max(1, duration), end)
            found.append((replace(beam, score=score, frame=frame), None))
            continue
        context = beam.context
        if language_model is not None:
            score += float(language_model.added_SV[context, label])
            context = int(language_model.next_SV[context, label])
        before = beam.hypothesis
        hypothesis = Hypothesis(
            (*before.token_ids, label),
            (*before.token_frames, beam.frame),
            (*before.token_durations, duration if transducer.durations else 1),
            (*before.logprobs, logprob),
        )
        frame = beam.frame + duration
        max_symbols = transducer.max_symbols or LABELS_PER_FRAME_GUARD
        if hypothesis.token_frames[-max_symbols:] == (frame,) * max_symbols:
            frame += 1
        frame = min(frame, end)
        found.append((replace(beam, score=score, frame=frame, hypothesis=hypothesis, context=context), label))
    return found


def _after(transducer: Transducer, beam: _Beam, label: int) -> _Beam:
    output_BH, state = transducer.predictor.step(torch.tensor([label]), beam.state)
    return replace(beam, state=state, predicted_J=transducer.joint.predictor(output_BH)[0])
