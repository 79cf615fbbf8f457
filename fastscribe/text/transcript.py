"""Hypotheses to words, segments and Transcript. Pure: no files, no tensors.

Rules are NeMo 3.0's for transducers. A token starts a word when its piece carries a word mark; punctuation sticks to the
word before it and, in TDT, takes no time of its own; a segment closes after a word ending in . ! or ?. CTC tokens keep
their own frames (decode/ctc.py says why). Where utterances overlap, segmentation/seams.py says which words are kept; the
text is made from the tokens of those. Words that gap recovery adds are segments of their own, marked as such.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastscribe.segmentation import seams
from fastscribe.text.tokenizer import Role, Tokenizer
from fastscribe.types import AudioInfo, Hypothesis, Segment, Token, Transcript, Utterance, Word

_SENTENCE_ENDS = (".", "!", "?")


@dataclass(frozen=True)
class Clock:
    """Turns an utterance's frames into seconds on the recording's clock, none later than `end_s`."""

    start_s: float
    end_s: float
    frame_s: float

    def seconds(self, frames: Iterable[int]) -> list[float]:
        times = [self.start_s + frame * self.frame_s for frame in frames]
        return times if self.end_s == math.inf else [min(time_s, self.end_s) for time_s in times]


DecodedUtterance = tuple[Utterance, Hypothesis]


class _Piece(NamedTuple):
    """Tokens that stand together in the text."""

    tokens: list[Token]
    recovered: bool = False


def assemble(
    audio: AudioInfo,
    parts: Iterable[DecodedUtterance],
    tokenizer: Tokenizer,
    frame_s: float,
    zero_duration_punctuation: bool,
    recovered: Iterable[DecodedUtterance] = (),
) -> Transcript:
    """One recording's hypotheses, in any order, -> Transcript. `zero_duration_punctuation` is TDT's rule.

    `recovered` are utterances that the model decoded again because no words lay there (segmentation/gaps.py), in any order.
    They add words; the words of `parts` stay as they are.
    """
    ordered = sorted(parts, key=lambda part: part[0].start)
    timeless = tokenizer.mark_ids if zero_duration_punctuation else frozenset()
    spoken = []
    for utterance, hypothesis in ordered:
        # A last token may claim frames past the end, as in NeMo; at a seam they would run into the next part's words.
        is_last = utterance is ordered[-1][0]
        end_s = math.inf if is_last else utterance.end_s
        spoken.append(timed_tokens(hypothesis, tokenizer, Clock(utterance.start_s, end_s, frame_s), timeless))
    pieces = [_Piece(tokens) for tokens in _without_overlaps(ordered, spoken, tokenizer)]
    for utterance, hypothesis in sorted(recovered, key=lambda part: part[0].start):
        clock = Clock(utterance.start_s, utterance.end_s, frame_s)
        pieces = _insert(pieces, timed_tokens(hypothesis, tokenizer, clock, timeless), utterance, tokenizer)
    texts = [tokenizer.sentence([token.id for token in piece.tokens]) for piece in pieces]
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    return Transcript(audio, " ".join(filter(None, texts)), tuple(_segments(pieces, tokenizer)), tokens)


def _without_overlaps(
    parts: Sequence[DecodedUtterance], spoken: Sequence[list[Token]], tokenizer: Tokenizer
) -> list[list[Token]]:
    """Of each utterance's tokens those of the words that are its to give."""
    pieces = list(spoken)
    for index, ((left, heard_left), (right, heard_right)) in enumerate(itertools.pairwise(parts)):
        if right.start < left.start + left.num_samples:
            before, after = words_of(pieces[index], tokenizer), words_of(pieces[index + 1], tokenizer)
            is_timed = heard_left.is_timed and heard_right.is_timed
            timed = (right.start_s, left.end_s)
            kept, first = seams.join(before, after, *timed) if is_timed else seams.join_untimed(before, after)
            pieces[index] = _of_words(pieces[index], tokenizer, 0, kept)
            pieces[index + 1] = _of_words(pieces[index + 1], tokenizer, first, len(after))
    return pieces


def _insert(pieces: list[_Piece], tokens: list[Token], utterance: Utterance, tokenizer: Tokenizer) -> list[_Piece]:
    """The pieces with the utterance's words among them, but for those that others have heard already."""
    middle_s = (utterance.start_s + utterance.end_s) / 2
    words = [words_of(piece.tokens, tokenizer) for piece in pieces]
    before = [word for of_piece in words for word in of_piece if word.start_s < middle_s]
    after = [word for of_piece in words for word in of_piece if word.start_s >= middle_s]
    new = _of_words(tokens, tokenizer, *seams.unheard(before, words_of(tokens, tokenizer), after))
    if not new:
        return pieces
    result: list[_Piece] = []
    for piece, of_piece in zip(pieces, words, strict=True):
        earlier = sum(word.start_s < middle_s for word in of_piece)
        if 0 < earlier < len(of_piece):
            halves = (0, earlier), (earlier, len(of_piece))
            result += [_Piece(_of_words(piece.tokens, tokenizer, *half), piece.recovered) for half in halves]
        else:
            result.append(piece)
    place = next((i for i, (had, _) in enumerate(result) if had and had[0].start_s >= middle_s), len(result))
    return [*result[:place], _Piece(new, recovered=True), *result[place:]]


def _of_words(tokens: list[Token], tokenizer: Tokenizer, first: int, last: int) -> list[Token]:
    """The tokens of so many words, with what lies between them."""
    groups = _groups(tokens, tokenizer)
    if (first, last) == (0, len(groups)):
        return tokens
    if first >= last:
        return []
    places = {id(token): place for place, token in enumerate(tokens)}
    return tokens[places[id(groups[first][0])] : places[id(groups[last - 1][-1])] + 1]


def timed_tokens(
    hypothesis: Hypothesis, tokenizer: Tokenizer, clock: Clock, timeless_ids: frozenset[int]
) -> list[Token]:
    """Tokens with their times; those in `timeless_ids` begin and end where the token before them ends."""
    ids, starts, ends = hypothesis.token_ids, list(hypothesis.token_frames), []
    assert len(hypothesis.logprobs) == len(ids)
    end = 0
    for index, (token_id, frame, duration) in enumerate(zip(ids, starts, hypothesis.token_durations, strict=True)):
        if index and token_id in timeless_ids:
            starts[index] = end
        else:
            end = frame + duration
        ends.append(end)
    pieces = [tokenizer.pieces[token_id] for token_id in ids]
    confidences = map(math.exp, hypothesis.logprobs)
    return list(map(Token, ids, pieces, clock.seconds(starts), clock.seconds(ends), confidences))


def words_of(tokens: Sequence[Token], tokenizer: Tokenizer) -> list[Word]:
    """Groups tokens into words, by NeMo's rules.

    A lone word mark makes a word without text; writers for people skip those. The first word starts with the first token,
    which may be a space.
    """
    words = [_word(group, tokenizer) for group in _groups(tokens, tokenizer)]
    return [replace(words[0], start_s=tokens[0].start_s), *words[1:]] if words else []


def group_words(token_ids: Sequence[int], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the places of the tokens of each word. Some tokens belong to none."""
    heard = [place for place, token_id in enumerate(token_ids) if token_id not in tokenizer.wordless_ids]
    roles = [tokenizer.roles[token_ids[place]] for place in heard]
    groups: list[list[int]] = []
    open_group: list[int] | None = None  # None: the last group is closed, so a letter starts another
    for index, (place, role) in enumerate(zip(heard, roles, strict=True)):
        if role == "starts word":
            open_group = [place]
            groups.append(open_group)
        elif role == "space" and (tokenizer.kind == "aggregate" or not _stands_before_punctuation(roles, index)):
            open_group = None
        elif role == "punctuation" and open_group is None and groups:
            groups[-1].append(place)
        else:
            if open_group is None:
                open_group = []
                groups.append(open_group)
            open_group.append(place)
    return groups


def _groups(tokens: Sequence[Token], tokenizer: Tokenizer) -> list[list[Token]]:
    groups = group_words([token.id for token in tokens], tokenizer)
    return [[tokens[place] for place in group] for group in groups]


def _stands_before_punctuation(roles: Sequence[Role], index: int) -> bool:
    """Other spaces between them do not count."""
    return next((role for role in roles[index + 1 :] if role != "space"), None) == "punctuation"


def _word(group: list[Token], tokenizer: Tokenizer) -> Word:
    ids = [token.id for token in group]
    if not tokenizer.dropped_in_words_ids.isdisjoint(ids):
        ids = _without_spaces_before_punctuation(ids, tokenizer)
    confidence = sum([token.confidence for token in group]) / len(group)
    return Word(tokenizer.text(ids), group[0].start_s, group[-1].end_s, confidence)


def _without_spaces_before_punctuation(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    kept: list[int] = []
    for token_id in ids:
        if kept and kept[-1] in tokenizer.dropped_in_words_ids and tokenizer.roles[token_id] == "punctuation":
            kept.pop()
        kept.append(token_id)
    return kept


def _segments(pieces: Sequence[_Piece], tokenizer: Tokenizer) -> list[Segment]:
    """Segments run across pieces, but a recovered piece has its own."""
    segments: list[Segment] = []
    pending: list[Word] = []
    for piece in pieces:
        words = words_of(piece.tokens, tokenizer)
        if piece.recovered:
            segments += segments_of(pending)
            segments += [replace(segment, recovered=True) for segment in segments_of(words)]
            pending = []
        else:
            pending += words
    return segments + segments_of(pending)


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
