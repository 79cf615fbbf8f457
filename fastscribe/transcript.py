"""Hypotheses to words, segments and Transcript. Pure: no files, no tensors.

Rules are NeMo 3.0's for transducers. A token starts a word when its piece carries a word mark; punctuation sticks to the
word before it and, in TDT, takes no time of its own; a segment closes after a word ending in . ! or ?. CTC tokens keep
their own frames (decode/ctc.py says why).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastscribe.tokenizer import WORD_MARK, Tokenizer
from fastscribe.types import AudioInfo, Hypothesis, Segment, Token, Transcript, Utterance, Word

_SENTENCE_ENDS = (".", "!", "?")


@dataclass(frozen=True)
class Clock:
    """Turns an utterance's frames into seconds on the recording's clock, none later than `end_s`."""

    start_s: float
    end_s: float
    frame_s: float

    def seconds(self, frame: int) -> float:
        return min(self.start_s + frame * self.frame_s, self.end_s)


def assemble(
    audio: AudioInfo,
    parts: Iterable[tuple[Utterance, Hypothesis]],
    tokenizer: Tokenizer,
    frame_s: float,
    punctuation_takes_no_time: bool,
) -> Transcript:
    """One recording's hypotheses, in any order, -> Transcript. `punctuation_takes_no_time` is TDT's rule."""
    texts: list[str] = []
    words: list[Word] = []
    tokens: list[Token] = []
    ordered = sorted(parts, key=lambda part: part[0].start)
    for utterance, hypothesis in ordered:
        # A last token may claim frames past the end, as in NeMo; at a seam they would run into the next part's words.
        is_last = utterance is ordered[-1][0]
        end_s = math.inf if is_last else utterance.start_s + utterance.duration_s
        clock = Clock(utterance.start_s, end_s, frame_s)
        spoken = timed_tokens(hypothesis, tokenizer, clock, punctuation_takes_no_time)
        texts.append(tokenizer.sentence(hypothesis.token_ids))
        words += words_of([token for token in spoken if token.id not in tokenizer.silent_ids], tokenizer)
        tokens += spoken
    segments = tuple(segments_of(words))
    return Transcript(audio, " ".join(filter(None, texts)), segments, tuple(tokens))


def timed_tokens(
    hypothesis: Hypothesis, tokenizer: Tokenizer, clock: Clock, punctuation_takes_no_time: bool
) -> list[Token]:
    tokens: list[Token] = []
    columns = (hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations, hypothesis.logprobs)
    end = 0
    for token_id, frame, duration, logprob in zip(*columns, strict=True):
        start, end_before = frame, end
        end = frame + duration
        if punctuation_takes_no_time and tokens and tokenizer.token_texts[token_id][:1] in tokenizer.punctuation:
            start = end = end_before
        tokens.append(
            Token(token_id, tokenizer.pieces[token_id], clock.seconds(start), clock.seconds(end), math.exp(logprob))
        )
    return tokens


def words_of(tokens: Sequence[Token], tokenizer: Tokenizer) -> list[Word]:
    """Groups tokens into words. A lone word mark makes a word without text, as in NeMo; writers for people skip those."""
    groups: list[list[Token]] = []
    open_group: list[Token] | None = None  # None: the last group is closed, so a letter starts another
    for index, token in enumerate(tokens):
        text = tokenizer.token_texts[token.id]
        is_punctuation = text in tokenizer.punctuation
        if is_punctuation and open_group is None and groups:
            groups[-1].append(token)
        elif is_punctuation or not _starts_word(tokens, index, tokenizer):
            if open_group is None:
                open_group = []
                groups.append(open_group)
            open_group.append(token)
        elif text == " ":
            open_group = None
        else:
            open_group = [token]
            groups.append(open_group)
    return [_word(group, tokenizer) for group in groups]


def _starts_word(tokens: Sequence[Token], index: int, tokenizer: Tokenizer) -> bool:
    text = tokenizer.token_texts[tokens[index].id]
    if text == " ":
        return _next_text(tokens, index, tokenizer) not in tokenizer.punctuation
    return tokenizer.kind == "subword" and tokens[index].piece != text


def _next_text(tokens: Sequence[Token], index: int, tokenizer: Tokenizer) -> str:
    texts = (tokenizer.token_texts[token.id] for token in tokens[index + 1 :])
    return next((text for text in texts if text != " "), "")


def _word(group: list[Token], tokenizer: Tokenizer) -> Word:
    spoken: list[Token] = []
    for token in group:
        if tokenizer.token_texts[token.id] in tokenizer.punctuation and spoken and spoken[-1].piece in (" ", WORD_MARK):
            spoken.pop()
        spoken.append(token)
    confidence = sum(token.confidence for token in group) / len(group)
    return Word(tokenizer.text(t.id for t in spoken), group[0].start_s, group[-1].end_s, confidence)


def segments_of(words: Sequence[Word]) -> list[Segment]:
    """Closes a segment after each word that ends a sentence."""
    segments: list[Segment] = []
    pending: list[Word] = []
    for index, word in enumerate(words):
        pending.append(word)
        if word.text.endswith(_SENTENCE_ENDS) or index == len(words) - 1:
            segments.append(_segment(pending))
            pending = []
    return segments


def _segment(words: Sequence[Word]) -> Segment:
    confidence = sum(word.confidence for word in words) / len(words)
    return Segment(" ".join(w.text for w in words), words[0].start_s, words[-1].end_s, confidence, tuple(words))
