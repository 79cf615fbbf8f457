"""The N best hypotheses of each utterance, for rescoring and for looking words up that the best one lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import Clock, DecodedUtterance, timed_tokens, words_of
from fastscribe.types import Alternative


def nbest(
    parts: Iterable[DecodedUtterance], count: int, tokenizer: Tokenizer, frame_s: float, zero_duration_punctuation: bool
) -> tuple[Alternative, ...]:
    """Return up to `count` hypotheses of each utterance, by start and then the best first.

    The texts of an utterance differ: of several token sequences with the same text but
    for spaces at its end, the most probable one counts. Utterances
    that overlap both have the words of the overlap; only the transcript joins them.

    Args:
        parts: The recording's utterances, in any order, with `Hypothesis.nbest`.
        count: Maximum number for each utterance.
        tokenizer: Tokenizer of the hypotheses.
        frame_s: Duration of an encoder frame in seconds.
        zero_duration_punctuation: As in transcript.assemble().
    """
    zero_duration_ids = tokenizer.punctuation_ids if zero_duration_punctuation else frozenset()
    return tuple(
        alternative
        for part in sorted(parts, key=lambda part: part[0].start)
        for alternative in _of_utterance(part, count, tokenizer, frame_s, zero_duration_ids)
    )


def _of_utterance(
    part: DecodedUtterance, count: int, tokenizer: Tokenizer, frame_s: float, zero_duration_ids: frozenset[int]
) -> Iterator[Alternative]:
    utterance, best = part
    seen: set[str] = set()
    clock = Clock(utterance.start_s, min(utterance.end_s, utterance.audio.last_s), frame_s)
    for hypothesis in best.nbest:
        text = tokenizer.sentence(hypothesis.token_ids)
        written = " ".join(text.split())
        if len(seen) < count and written not in seen:
            seen.add(written)
            words = words_of(timed_tokens(hypothesis, tokenizer, clock, zero_duration_ids), tokenizer)
            yield Alternative(text, hypothesis.score, utterance.start_s, clock.end_s, tuple(words))
