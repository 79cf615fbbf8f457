"""Hypotheses to words, segments and Transcript. Pure: no files, no tensors.

The rules are those of NeMo 3.0 for transducers, but a transcript's words start with their letters. A token with a word mark
starts a word. Punctuation belongs to the previous word and has zero duration in TDT. A segment ends after a word that ends in
. ! or ?. CTC tokens keep their own frames (decode/ctc.py). Where utterances overlap, segmentation/seams.py selects the words,
and the text is made of their tokens.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fastscribe._system.text_layout import has_no_spaces, join_texts
from fastscribe.text.tokenizer import Role, Tokenizer
from fastscribe.types import Alternative, AudioInfo, Hypothesis, Segment, Token, Transcript, Utterance, Word

_SENTENCE_ENDS = (".", "!", "?")
# What a word may last beyond its letters: models write a space anywhere in the pause before them, as at the begin of a jingle.
_BESIDE_LETTERS_S = 0.08
_MAX_PAUSE_S = 2.0  # between two letters of a word


@dataclass(frozen=True)
class Clock:
    """Converts an utterance's frames to seconds in the recording, clipped to `end_s`."""

    start_s: float
    end_s: float
    frame_s: float

    def seconds(self, frames: Iterable[int]) -> list[float]:
        return [min(self.start_s + frame * self.frame_s, self.end_s) for frame in frames]


DecodedUtterance = tuple[Utterance, Hypothesis]


def assemble(
    audio: AudioInfo,
    parts: Iterable[DecodedUtterance],
    tokenizer: Tokenizer,
    frame_s: float,
    zero_duration_punctuation: bool,
) -> Transcript:
    """Return the transcript of one recording.

    Args:
        audio: the recording.
        parts: its utterances, in any order.
        tokenizer: tokenizer of the hypotheses.
        frame_s: duration of an encoder frame in seconds.
        zero_duration_punctuation: give punctuation no duration (TDT).
    """
    ordered = sorted(parts, key=lambda part: part[0].start)
    zero_duration_ids = tokenizer.punctuation_ids if zero_duration_punctuation else frozenset()
    spoken = []
    for utterance, hypothesis in ordered:
        # The last token may extend past the last utterance, as in NeMo; elsewhere it would overlap the next one.
        end_s = audio.last_s if utterance is ordered[-1][0] else min(utterance.end_s, audio.last_s)
        spoken.append(timed_tokens(hypothesis, tokenizer, Clock(utterance.start_s, end_s, frame_s), zero_duration_ids))
    pieces = _without_overlaps(ordered, spoken, tokenizer)
    texts = [tokenizer.sentence([token.id for token in piece]) for piece in pieces]
    tokens = tuple(token for piece in pieces for token in piece)
    segments = tuple(_segments(pieces, tokenizer))
    is_timed = all(hypothesis.is_timed for _, hypothesis in ordered)
    language = audio.language or _language(tokens, tokenizer)
    return Transcript(audio, join_texts(texts), segments, tokens, language=language, is_timed=is_timed)


def _language(tokens: Sequence[Token], tokenizer: Tokenizer) -> str | None:
    """Return the language that most tags name, of equals the first; without a tag, the vocabulary's."""
    counts = Counter(tokenizer.languages[token.id] for token in tokens if token.id in tokenizer.languages)
    return counts.most_common(1)[0][0] if counts else tokenizer.language


def _without_overlaps(
    parts: Sequence[DecodedUtterance], spoken: Sequence[list[Token]], tokenizer: Tokenizer
) -> list[list[Token]]:
    """Return the tokens of each utterance without the words that its neighbours contribute."""
    pieces = list(spoken)
    for index, ((left, left_hypothesis), (right, right_hypothesis)) in enumerate(itertools.pairwise(parts)):
        if right.start < left.start + left.num_samples:
            before, after = words_of(pieces[index], tokenizer), words_of(pieces[index + 1], tokenizer)
            is_timed = left_hypothesis.is_timed and right_hypothesis.is_timed
            timed = (right.start_s, left.end_s)
            from fastscribe.segmentation import seams

            kept, first = seams.join(before, after, *timed) if is_timed else seams.join_untimed(before, after)
            pieces[index] = _slice_words(pieces[index], tokenizer, 0, kept)
            pieces[index + 1] = _slice_words(pieces[index + 1], tokenizer, first, len(after))
    return pieces


def _slice_words(tokens: list[Token], tokenizer: Tokenizer, first: int, last: int) -> list[Token]:
    """Return the tokens of words `first` to `last` - 1 and those between them."""
    groups = _groups(tokens, tokenizer)
    if (first, last) == (0, len(groups)):
        return tokens
    if first >= last:
        return []
    indices = {id(token): token_index for token_index, token in enumerate(tokens)}
    return tokens[indices[id(groups[first][0])] : indices[id(groups[last - 1][-1])] + 1]


def timed_tokens(
    hypothesis: Hypothesis, tokenizer: Tokenizer, clock: Clock, zero_duration_ids: frozenset[int]
) -> list[Token]:
    """Return a Token with times in seconds for each token of a hypothesis.

    Args:
        hypothesis: tokens and frames.
        tokenizer: its tokenizer.
        clock: converts frames to seconds.
        zero_duration_ids: tokens with zero duration, which begin and end at the end of the previous token.
    """
    ids, starts, ends = hypothesis.token_ids, list(hypothesis.token_frames), []
    assert len(hypothesis.logprobs) == len(ids)
    end = 0
    for index, (token_id, frame, duration) in enumerate(zip(ids, starts, hypothesis.token_durations, strict=True)):
        if index and token_id in zero_duration_ids:
            starts[index] = end
        else:
            end = frame + duration
        ends.append(end)
    pieces = [tokenizer.pieces[token_id] for token_id in ids]
    confidences = map(math.exp, hypothesis.logprobs)
    return list(map(Token, ids, pieces, clock.seconds(starts), clock.seconds(ends), confidences))


def words_of(tokens: Sequence[Token], tokenizer: Tokenizer) -> list[Word]:
    """Group tokens into words, by NeMo's rules.

    A lone word mark makes a word without text, which no segment has. The first word starts at the first token, which may
    be a space.
    """
    return _words(_groups(tokens, tokenizer), tokens, tokenizer)


def _words(groups: Sequence[list[Token]], tokens: Sequence[Token], tokenizer: Tokenizer) -> list[Word]:
    words = [_word(group, tokenizer) for group in groups]
    return [replace(words[0], start_s=tokens[0].start_s), *words[1:]] if words else []


def spoken_words(tokens: Sequence[Token], tokenizer: Tokenizer) -> list[Word]:
    """Return the words that have a text, with the times of their letters: no word starts long before its first one."""
    groups = _groups(tokens, tokenizer)
    pairs = zip(_words(groups, tokens, tokenizer), groups, strict=True)
    return [_by_letters(word, group, tokenizer.has_letters) for word, group in pairs if word.text]


def group_words(token_ids: Sequence[int], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the indices of the tokens of each word. Some tokens belong to no word, and the end of an utterance ends one."""
    outside = tokenizer.ids_outside_words - tokenizer.utterance_end_ids
    kept = [token_index for token_index, token_id in enumerate(token_ids) if token_id not in outside]
    roles = [tokenizer.roles[token_ids[token_index]] for token_index in kept]
    groups: list[list[int]] = []
    open_group: list[int] | None = None  # None: the last group is closed
    for index, (token_index, role) in enumerate(zip(kept, roles, strict=True)):
        if token_ids[token_index] in tokenizer.utterance_end_ids:
            open_group = None
        elif role == "starts word":
            open_group = [token_index]
            groups.append(open_group)
        elif role == "space" and (tokenizer.kind == "aggregate" or not _is_before_punctuation(roles, index)):
            open_group = None
        elif role == "punctuation" and open_group is None and groups:
            groups[-1].append(token_index)
        else:
            if open_group is None:
                open_group = []
                groups.append(open_group)
            open_group.append(token_index)
    return groups


def _groups(tokens: Sequence[Token], tokenizer: Tokenizer) -> list[list[Token]]:
    groups = group_words([token.id for token in tokens], tokenizer)
    return [[tokens[token_index] for token_index in group] for group in groups]


def _is_before_punctuation(roles: Sequence[Role], index: int) -> bool:
    """Return True if the next role other than a space is punctuation."""
    return next((role for role in roles[index + 1 :] if role != "space"), None) == "punctuation"


def span_around(letters: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the earliest begin and the latest end of a word, by the begin, the end and the probability of each letter.

    Letters with a long pause between them, as with music before the first word, are not of one word: the likelier part of
    them counts.
    """
    cuts = [index for index in range(1, len(letters)) if letters[index][0] - letters[index - 1][1] > _MAX_PAUSE_S]
    parts = [letters[first:end] for first, end in itertools.pairwise([0, *cuts, len(letters)])]
    own = max(parts, key=lambda part: sum(probability for *_, probability in part))
    return (own[0][0] - _BESIDE_LETTERS_S, own[-1][1] + _BESIDE_LETTERS_S) if own else (-math.inf, math.inf)


def _by_letters(word: Word, group: list[Token], has_letters: Sequence[bool]) -> Word:
    """Return a word that starts hardly before its letters, and ends with them if another one is far behind."""
    first = next((token for token in group if has_letters[token.id]), group[0])
    if first.start_s - word.start_s <= _BESIDE_LETTERS_S and group[-1].start_s - first.end_s <= _MAX_PAUSE_S:
        return word
    letters = [(token.start_s, token.end_s, token.confidence) for token in group if has_letters[token.id]]
    start_s, end_s = span_around(letters)
    num_others = sum(not start_s < begin_s < end_s for begin_s, *_ in letters)
    if num_others > 1 or (num_others and any(map(has_no_spaces, word.text))):  # a phrase, of a script without spaces
        start_s, end_s = letters[0][0] - _BESIDE_LETTERS_S, math.inf
    is_cut = bool(letters) and end_s < letters[-1][0]
    return replace(word, start_s=max(word.start_s, start_s), end_s=end_s if is_cut else word.end_s)


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


def _segments(pieces: Sequence[Sequence[Token]], tokenizer: Tokenizer) -> list[Segment]:
    """Make segments across the tokens of utterances; the end of an utterance that the model writes ends one."""
    segments: list[Segment] = []
    pending: list[Word] = []
    for piece in pieces:
        ids = [token.id for token in piece]
        for place in tokenizer.utterances(ids):
            words = spoken_words(piece[place], tokenizer)
            is_ended = not tokenizer.utterance_end_ids.isdisjoint(ids[place])
            if is_ended:
                segments += segments_of([*pending, *words])
                pending = []
            else:
                pending += words
    return segments + segments_of(pending)


def segments_of(words: Sequence[Word]) -> list[Segment]:
    """Split words into segments after each end of a sentence."""
    segments: list[Segment] = []
    pending: list[Word] = []
    for index, word in enumerate(words):
        pending.append(word)
        if word.text.endswith(_SENTENCE_ENDS) or index == len(words) - 1:
            segments.append(make_segment(pending))
            pending = []
    return segments


def make_segment(words: Sequence[Word]) -> Segment:
    """Return the segment of consecutive words."""
    confidence = sum(word.confidence for word in words) / len(words)
    return Segment(" ".join(w.text for w in words), words[0].start_s, words[-1].end_s, confidence, tuple(words))


# The N best hypotheses of each utterance, for rescoring and for looking words up that the best one lacks. Pure.


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
            words = spoken_words(timed_tokens(hypothesis, tokenizer, clock, zero_duration_ids), tokenizer)
            yield Alternative(text, hypothesis.score, utterance.start_s, clock.end_s, tuple(words))
