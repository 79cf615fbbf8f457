"""The definition of beam search with a transducer, one utterance at a time: decode/batched_beam.py is tested against it.

The rules are those in the header of batched_beam.py. A width of one is greedy decoding without a language model.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fastscribe.config import LABELS_PER_FRAME_GUARD
from fastscribe.decode.decoder import ENDLESS, max_steps
from fastscribe.families.blocks.heads import Transducer
from fastscribe.types import Hypothesis

if TYPE_CHECKING:
    from fastscribe.decode.decoder import FusedModel
    from tests.helpers.phrase_lists import PhraseLists


@dataclass(frozen=True)
class _Beam:
    score: float  # natural logarithm of the summed probability of the merged paths
    frame: int
    hypothesis: Hypothesis
    state: torch.Tensor  # predictor state after the hypothesis's labels
    predicted_J: torch.Tensor  # predictor output after the joint's projection
    context: int = 0  # language model state
    phrases: tuple[Any, ...] = ()  # states in the lists of phrases


@torch.inference_mode()
def beam_search(
    transducer: Transducer,
    frames_TD: torch.Tensor,
    width: int,
    language_model: FusedModel | None = None,
    phrases: PhraseLists | None = None,
    excluded: Collection[int] = (),
) -> Hypothesis:
    """Search one utterance.

    Args:
        transducer: predictor and joint network.
        frames_TD: encoder output, valid frames only.
        width: hypotheses kept after each step.
        language_model: tables for shallow fusion.
        phrases: phrases to boost.
        excluded: tokens that are left out.

    Returns:
        The most probable hypothesis found, with `nbest`: all of the last beam, the most probable first. Or ENDLESS.
    """
    encoded_TJ = transducer.joint.encoder(frames_TD)
    start = _Beam(0.0, 0, Hypothesis(), transducer.predictor.initial_state(1), torch.empty(0))
    beams = [_step_predictor(transducer, start, transducer.blank_id)]
    if language_model is not None:
        beams = [replace(beams[0], context=language_model.start)]
    if phrases is not None:
        beams = [replace(beams[0], phrases=phrases.start)]
    steps = 0
    while any(beam.frame < len(frames_TD) for beam in beams):
        if steps == max_steps(len(frames_TD)):
            return ENDLESS
        steps += 1
        candidates: list[tuple[_Beam, int | None]] = []  # and the label that its predictor must still process
        for beam in beams:
            if beam.frame == len(frames_TD):
                candidates.append((beam, None))
            else:
                candidates += _extend(transducer, encoded_TJ, beam, language_model, phrases, excluded)
        candidates.sort(key=lambda pair: -pair[0].score)
        beams = []
        for beam, label in candidates[:width]:
            key = (beam.hypothesis.token_ids, beam.frame)
            duplicate = next(
                (n for n, other in enumerate(beams) if (other.hypothesis.token_ids, other.frame) == key), None
            )
            if duplicate is not None:
                likeliest, other = beams[duplicate].score, beam.score
                beams[duplicate] = replace(beams[duplicate], score=likeliest + math.log1p(math.exp(other - likeliest)))
            else:
                beams.append(beam if label is None else _step_predictor(transducer, beam, label))
    if phrases is not None:
        beams = [replace(beam, score=beam.score - phrases.at_risk(beam.phrases)) for beam in beams]
    beams.sort(key=lambda beam: -beam.score)
    hypotheses = tuple(replace(beam.hypothesis, score=beam.score) for beam in beams)
    return replace(hypotheses[0], nbest=hypotheses)


def _extend(
    transducer: Transducer,
    encoded_TJ: torch.Tensor,
    beam: _Beam,
    language_model: FusedModel | None,
    phrases: PhraseLists | None,
    excluded: Collection[int],
) -> list[tuple[_Beam, int | None]]:
    """Extend a hypothesis by each label and by a blank."""
    num_tokens, end = transducer.blank_id + 1, len(encoded_TJ)
    logits_X = transducer.joint(encoded_TJ[beam.frame], beam.predicted_J).float()
    logprobs = torch.log_softmax(logits_X[:num_tokens], dim=0).tolist()
    duration, duration_logprob = 0, 0.0
    if transducer.durations:
        best, index = torch.log_softmax(logits_X[num_tokens:], dim=0).max(0)
        duration, duration_logprob = transducer.durations[int(index)], float(best)
    added, contexts = [0.0] * transducer.blank_id, [beam.context] * transducer.blank_id
    if language_model is not None:
        context_1 = torch.tensor([beam.context])
        added = language_model.scores(context_1)[0].tolist()
        labels_V = torch.arange(transducer.blank_id)
        contexts = language_model.after(context_1.expand(len(labels_V)), labels_V).tolist()
    candidates: list[tuple[_Beam, int | None]] = []
    labels = range(transducer.blank_id)
    share = math.log(
        sum(math.exp(logprobs[i]) for i in labels) / sum(math.exp(logprobs[i]) for i in labels if i not in excluded)
    )
    for label, logprob in enumerate(logprobs):
        score = beam.score + logprob + duration_logprob
        if label == transducer.blank_id:
            frame = min(beam.frame + max(1, duration), end)
            candidates.append((replace(beam, score=score, frame=frame), None))
            continue
        if label in excluded:
            continue
        score += share + added[label]
        states = beam.phrases
        if phrases is not None:
            score += phrases.score(states, label)
            states = phrases.after(states, label)
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
        extended = replace(
            beam, score=score, frame=frame, hypothesis=hypothesis, context=contexts[label], phrases=states
        )
        candidates.append((extended, label))
    return candidates


def _step_predictor(transducer: Transducer, beam: _Beam, label: int) -> _Beam:
    output_BH, state = transducer.predictor.step(torch.tensor([label]), beam.state)
    return replace(beam, state=state, predicted_J=transducer.joint.predictor(output_BH)[0])
