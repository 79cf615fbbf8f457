"""Forced alignment of whole recordings: the log-probabilities of their utterances and their texts become transcripts.

    utterances -> frames of the recording -> windows -> paths -> words, missing words, other speech -> Transcript

A recording of up to _MIN_WHOLE_S is one window, which the whole lattice of its text aligns. A longer one is cut at anchors
(alignment/anchors.py). Windows of all recordings that a batch completes are aligned together.

The loose lattice (loose_alignment.py) tells whether a window's words were all spoken and nothing else. Then the exact path
counts (forced_alignment.py), and the frames are NeMo's; otherwise the loose one, because the exact path would find frames for
every word and move the others.

Shapes: T frames, V labels with blank, B windows of a batch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise, starmap
from operator import ne
from typing import NamedTuple

import numpy as np
import torch

from fastscribe.alignment.anchors import MATCH_WORDS, HeardWord, Window, cuts, find_matches, have_common_run, windows
from fastscribe.alignment.cue_times import fill, place_cues
from fastscribe.alignment.forced_alignment import Span, align, frames_needed
from fastscribe.alignment.loose_alignment import MAX_CELLS, LooseAlignment, align_loosely
from fastscribe.alignment.script import Counts, Script, Speller
from fastscribe.alignment.spoken import untimed_lines, without_names
from fastscribe.audio.failures import to_failure
from fastscribe.config import ModelConfig
from fastscribe.errors import AudioError, CheckpointError, ModelOutputError
from fastscribe.pipeline import batching
from fastscribe.pipeline.batching import Budget
from fastscribe.results.formats.given_cues import LEAST_WORD_S, GivenCues, cues_of_row
from fastscribe.segmentation.seams import normalized_text
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import DecodedUtterance, group_words, segments_of, span_around
from fastscribe.types import (
    AudioInfo,
    Failure,
    Float32Array,
    Gap,
    Int64Array,
    Segment,
    Token,
    Transcript,
    Word,
)

_MIN_WHOLE_S = 120.0
_MIN_WINDOW_S = 5.0
# When a text is another recording's, and when a line is nobody's (docs/align.md has the measurements).
_MIN_WORDS, _MAX_HEARD = 30, 0.7
_ROW_WORDS, _MIN_IN_ROWS = 5, 0.5
_MAX_HEARD_OF_LINE = 1 / 3
_MIN_PROBABILITY = 1e-38  # its logarithm is finite
_BATCH_FRAMES = 50_000  # windows x longest
# Log-probabilities that a run holds for long recordings, 2 bytes a label and frame: an hour of 80 ms frames and 1,024 labels
# takes 92 MB.
MAX_HELD_BYTES = 2 << 30
_CPU = torch.device("cpu")

Recording = tuple[AudioInfo, Sequence[DecodedUtterance]]


class HeardToken(NamedTuple):
    """A token of greedy decoding."""

    id: int
    first: int  # frame
    end: int  # the frame after its last


class _Frames:
    """The frames of a recording: those of its utterances, in order, without overlaps and without silence left out.

    Where two utterances overlap, the first has the earlier half, and the second the later one.
    """

    def __init__(self, parts: Sequence[DecodedUtterance], frame_s: float) -> None:
        self._parts, self._starts_s, self._firsts = list[Float32Array](), list[float](), list[int]()
        self._frame_s, self.heard, self.num_frames = frame_s, list[HeardToken](), 0
        ordered = sorted(parts, key=lambda part: part[0].start)
        for index, (utterance, hypothesis) in enumerate(ordered):
            if hypothesis.emissions_TV is None or not len(hypothesis.emissions_TV):
                continue
            begin, end = 0, len(hypothesis.emissions_TV)
            if index:
                overlap_s = ordered[index - 1][0].end_s - utterance.start_s
                begin = min(end, max(0, round(overlap_s / 2 / frame_s)))
            if index + 1 < len(ordered):
                overlap_s = utterance.end_s - ordered[index + 1][0].start_s
                end = max(begin, min(end, end - round(overlap_s / 2 / frame_s))) if overlap_s > 0 else end
            times = zip(hypothesis.token_ids, hypothesis.token_frames, hypothesis.token_durations, strict=True)
            moved = self.num_frames - begin
            self.heard += [
                HeardToken(token_id, moved + frame, moved + min(frame + duration, end))
                for token_id, frame, duration in times
                if begin <= frame < end
            ]
            self._parts.append(hypothesis.emissions_TV[begin:end])
            self._starts_s.append(utterance.start_s + begin * frame_s)
            self._firsts.append(self.num_frames)
            self.num_frames += end - begin

    @property
    def num_labels(self) -> int:
        return int(self._parts[0].shape[1])

    def start_s(self, frame: int) -> float:
        """Return the time at which a frame begins."""
        place = max(0, bisect_right(self._firsts, frame) - 1)
        return self._starts_s[place] + (frame - self._firsts[place]) * self._frame_s

    def span_s(self, first: int, end: int) -> tuple[float, float]:
        """Return when frame `first` begins and frame `end` - 1 ends."""
        return self.start_s(first), self.start_s(end - 1) + self._frame_s

    def fill(self, target_TV: Float32Array, first: int) -> None:
        """Copy the emissions of the frames from `first` on into an array."""
        for at, part_TV in zip(self._firsts, self._parts, strict=True):
            begin, end = max(first, at), min(first + len(target_TV), at + len(part_TV))
            if begin < end:
                target_TV[begin - first : end - first] = part_TV[begin - at : end - at]

    def values(self, frames_N: Int64Array, labels_N: Int64Array) -> Float32Array:
        """Return the log-probability of a label at each of some frames, which do not decrease."""
        found_N = np.empty(len(frames_N), np.float32)
        borders = np.searchsorted(frames_N, [*self._firsts, self.num_frames]).tolist()
        for at, part_TV, own in zip(self._firsts, self._parts, starmap(slice, pairwise(borders)), strict=True):
            found_N[own] = part_TV[frames_N[own] - at, labels_N[own]]
        return found_N


@dataclass(frozen=True)
class _Job:
    """One recording on its way: the frames of its tokens, except of words that were not spoken, and speech beside the text."""

    audio: AudioInfo
    script: Script
    frames: _Frames
    windows: list[Window]
    given: GivenCues | None  # the subtitles that are the text; None: it is lines
    speakers: Sequence[str | None]  # of each line; empty if they are not known
    token_spans: dict[int, Span] = field(default_factory=dict)
    other: list[Span] = field(default_factory=list)


class TextAligner:
    """Aligns the texts of recordings (the field `text` of AudioInfo.row) with the emissions of their utterances.

    Attributes:
        counts: What was not as the texts say, so far.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, where: object) -> None:
        """Prepare the vocabulary. Raises CheckpointError, which names `where`, if the tokenizer cannot encode."""
        try:
            self._speller = Speller(tokenizer)
        except ValueError as error:
            raise CheckpointError(where, f"cannot align: {error}") from error
        self._tokenizer, self._blank_id, self._frame_s = tokenizer, config.blank_id, config.frame_s
        self._has_letters = [*tokenizer.has_letters, False]  # and the blank
        self.max_held_s = MAX_HELD_BYTES / (2 * (config.blank_id + 1)) * config.frame_s
        self.counts = Counts()

    def align(self, recordings: Sequence[Recording]) -> list[Transcript | Failure]:
        """Align recordings together. One that cannot be aligned becomes a Failure of the stage "align"."""
        started: list[_Job | Failure] = []
        for audio, parts in recordings:
            try:
                started.append(self._job(audio, parts))
            except Exception as error:  # one bad file becomes a Failure and the run goes on
                started.append(to_failure(audio, "align", error))
        self._find_paths([job for job in started if isinstance(job, _Job)])
        return [job if isinstance(job, Failure) else self._finish(job) for job in started]

    def _job(self, audio: AudioInfo, parts: Sequence[DecodedUtterance]) -> _Job:
        given = cues_of_row(audio.row)
        stated = (audio.row or {}).get("text")
        text = stated if isinstance(stated, str) else ""
        text, speakers = without_names(text) if given is None else (text, [one.speaker or None for one in given.cues])
        script = self._speller.script(text, num_lines=0 if given is None else len(given.cues))
        spoken = map(script.tokens_of, script.lines)
        num_names = len(set(filter(None, speakers)))
        if num_names == 1 and any(tokens and one is None for one, tokens in zip(speakers, spoken, strict=False)):
            speakers = []  # a heading with a colon looks like a name, too
            self.counts.unnamed.append(audio.path)
            whole = untimed_lines(stated or "")
            if given is None and sum(map(ne, whole, text.split("\n"))) == 1:  # so it is spoken
                script = self._speller.script("\n".join(whole))
        if not script.words:
            raise AudioError(audio.path, "its text is empty")
        if not script.has_letters:
            raise AudioError(audio.path, "its text has no letters or digits that the model writes")
        frames = _Frames(parts, self._frame_s)
        if not frames.num_frames:
            raise AudioError(audio.path, "there is no sound to align its text with")
        cut_at = list[tuple[int, int]]()
        needed = frames_needed(script.token_ids)
        if frames.num_frames * self._frame_s > _MIN_WHOLE_S or needed > frames.num_frames:
            heard = self._heard_words(frames.heard)
            known = [normalized_text(word) for word in script.words]
            cut_at = cuts(find_matches(known, [word.text for word in heard]), heard)
        if not cut_at and needed > frames.num_frames:
            raise AudioError(
                audio.path,
                f"too short for its text, which takes at least {needed * self._frame_s:,.1f} s: it has "
                f"{frames.num_frames * self._frame_s:,.1f} s of sound",
            )
        min_frames = math.ceil(_MIN_WINDOW_S / self._frame_s)
        found = windows(cut_at, len(script.words), frames.num_frames, min_frames)
        return _Job(audio, script, frames, found, given, speakers)

    def _heard_words(self, tokens: Sequence[HeardToken]) -> list[HeardWord]:
        words = []
        for group in group_words([token.id for token in tokens], self._tokenizer):
            text = normalized_text(self._tokenizer.text([tokens[index].id for index in group]))
            words.append(HeardWord(text, tokens[group[0]].first, tokens[group[-1]].end))
        return words

    def _find_paths(self, jobs: Sequence[_Job]) -> None:
        """Set the frames of the tokens: by the exact path, or by a loose one where words or speech have no counterpart."""
        pairs = [(job, window) for job in jobs for window in job.windows if window.num_frames]
        strict = []
        for job, window in pairs:
            if not self._align_loosely(job, window) and _fits(job.script, window):
                strict.append((job, window))
        for batch in batching.plan(strict, lambda pair: pair[1].num_frames, Budget(_BATCH_FRAMES)):
            tokens = [job.script.tokens_of(window.words) for job, window in batch]
            texts = [
                job.script.token_ids[indices.start : indices.stop]
                for (job, _), indices in zip(batch, tokens, strict=True)
            ]
            lengths = [window.num_frames for _, window in batch]
            paths = align(_LogProbs(batch), lengths, texts, self._blank_id, _CPU)
            for (job, window), indices, spans in zip(batch, tokens, paths, strict=True):
                for index, (first, end) in zip(indices, spans or ()):  # noqa: B905 - a path may have no finite score
                    job.token_spans[index] = window.first_frame + first, window.first_frame + end

    def _align_loosely(self, job: _Job, window: Window) -> bool:
        """Return True if words of a window are not spoken, or it has other speech; then set the frames of its tokens."""
        script, tokens = job.script, job.script.tokens_of(window.words)
        if window.num_frames * (2 * len(tokens) + 1) > MAX_CELLS:
            known = [normalized_text(script.words[index]) for index in window.words]
            first, end = window.first_frame, window.end_frame
            heard = [one.text for one in self._heard_words(job.frames.heard) if first <= one.first < end]
            self.counts.unsearched_s[have_common_run(known, heard)] += window.num_frames * self._frame_s
            return False
        spoken = [script.word_tokens[index] for index in window.words if script.word_tokens[index]]
        words = [range(word.start - tokens.start, word.stop - tokens.start) for word in spoken]
        logprobs_TV = np.empty((window.num_frames, job.frames.num_labels), np.float32)
        job.frames.fill(logprobs_TV, window.first_frame)
        found = align_loosely(logprobs_TV, script.token_ids[tokens.start : tokens.stop], words, self._blank_id)
        if found is None:
            return False
        other = [span for span in found.other if self._has_speech(logprobs_TV[slice(*span)])]
        if not other and not any(found.is_skipped_W):
            return False
        job.other.extend((window.first_frame + first, window.first_frame + end) for first, end in other)
        for index, span in _spans_of(found, words):
            job.token_spans[tokens.start + index] = window.first_frame + span[0], window.first_frame + span[1]
        return True

    def _has_speech(self, logprobs_TV: Float32Array) -> bool:
        """Return True if a letter or a digit is the likeliest label of a frame."""
        return any(self._has_letters[label] for label in set(logprobs_TV.argmax(1).tolist()))

    def _finish(self, job: _Job) -> Transcript | Failure:
        try:
            return self._transcript(job)
        except Exception as error:  # one bad file becomes a Failure and the run goes on
            return to_failure(job.audio, "align", error)

    def _transcript(self, job: _Job) -> Transcript:
        script = job.script
        _check_is_spoken(job.audio, script, job.token_spans)
        for token in list(self._outside_tokens(job)):
            job.token_spans.pop(token, None)
        unheard = _unheard_lines(script, job.token_spans)
        for index in (index for _, line in unheard for index in line):
            for token in script.word_tokens[index]:
                job.token_spans.pop(token, None)
        if not job.token_spans:
            raise ModelOutputError("nothing of its text was heard")
        logprobs = self._token_logprobs(job)
        words = []
        for index, text in enumerate(script.words):
            tokens = [token for token in script.word_tokens[index] if token in job.token_spans]
            if not tokens:
                words.append(Word(text, math.nan, math.nan, 0.0, missing=bool(script.word_tokens[index])))
                continue
            probabilities = {token: math.exp(logprobs[token]) for token in tokens}
            confidence = sum(probabilities.values()) / len(tokens)
            words.append(Word(text, *self._word_span_s(job, probabilities), confidence))
        words = _with_untimed(script, words)
        if job.given is None:
            words = fill(words, 0.0, job.audio.last_s)
            segments = _segments(script, words)
        else:
            words, spans = place_cues(words, script.lines, job.given.cues, job.audio.last_s)
            segments = [
                _line_segment(number, words[line.start : line.stop], span)
                for number, (line, span) in enumerate(zip(script.lines, spans, strict=True), start=1)
            ]
        if job.speakers:
            segments = [_spoken_by(job.speakers[(one.line or 0) - 1], one) for one in segments]
        self.counts.unwritten.update(script.unwritten)
        self.counts.num_untimed += script.num_untimed
        self.counts.add_words(job.audio.path, words)
        if job.given is None:
            self.counts.add_unheard([f"{job.audio.path}: {number}" for number, _ in unheard])
        return Transcript(
            job.audio,
            " ".join(script.words),
            tuple(segments),
            tuple(self._token(job, index, logprobs[index]) for index in sorted(job.token_spans)),
            tuple(Gap(*self._clipped(job, span)) for span in sorted(job.other)),
            speakers=tuple(dict.fromkeys(filter(None, job.speakers))),
        )

    def _outside_tokens(self, job: _Job) -> Iterator[int]:
        """Yield the tokens of words that come before the recording begins or after it ends.

        They have no time before the first heard row of words, or after the last one. A short word may be found there by chance.
        """
        tokens = [own for own in job.script.word_tokens if own]
        is_heard = [own.start in job.token_spans for own in tokens]
        rows = [at for at in range(len(tokens)) if is_heard[at : at + MATCH_WORDS] == [True] * MATCH_WORDS]
        if rows:
            first, last = rows[0], rows[-1] + MATCH_WORDS
            begin, end = tokens[first].start, tokens[last - 1].stop
            if self._clipped(job, job.token_spans[begin])[0] < first * LEAST_WORD_S:
                yield from range(begin)
            rest_s = job.audio.last_s - self._clipped(job, job.token_spans[end - 1])[1]
            if rest_s < (len(tokens) - last) * LEAST_WORD_S:
                yield from range(end, len(job.script.token_ids))

    def _word_span_s(self, job: _Job, probabilities: Mapping[int, float]) -> tuple[float, float]:
        """Return when a word begins and ends, by the probabilities of its tokens.

        That is where its letters do, and hardly before and after: models write a full stop anywhere in a pause.
        """
        spans_s = {token: self._clipped(job, job.token_spans[token]) for token in probabilities}
        start_s, end_s = min(start_s for start_s, _ in spans_s.values()), max(end_s for _, end_s in spans_s.values())
        letters = [token for token in probabilities if self._has_letters[job.script.token_ids[token]]]
        first_s, last_s = span_around([(*spans_s[token], probabilities[token]) for token in letters])
        return max(start_s, first_s), min(end_s, last_s)

    def _token_logprobs(self, job: _Job) -> dict[int, float]:
        """Return for each aligned token the natural log of its mean probability in its frames."""
        indices = sorted(job.token_spans)
        lengths = [job.token_spans[index][1] - job.token_spans[index][0] for index in indices]
        frames = np.concatenate([np.arange(*job.token_spans[index]) for index in indices])
        labels = np.repeat([job.script.token_ids[index] for index in indices], lengths)
        values = job.frames.values(frames, labels).astype(np.float64)
        sums = np.add.reduceat(np.exp(values), np.cumsum([0, *lengths[:-1]]))
        return dict(zip(indices, np.log(np.maximum(sums / lengths, _MIN_PROBABILITY)).tolist(), strict=True))

    def _clipped(self, job: _Job, span: Span) -> tuple[float, float]:
        start_s, end_s = job.frames.span_s(*span)
        return min(start_s, job.audio.last_s), min(end_s, job.audio.last_s)

    def _token(self, job: _Job, index: int, logprob: float) -> Token:
        token_id = job.script.token_ids[index]
        piece = self._tokenizer.pieces[token_id] if token_id < len(self._tokenizer.pieces) else ""
        return Token(token_id, piece, *self._clipped(job, job.token_spans[index]), math.exp(logprob))


class _LogProbs:
    """The log-probabilities of a batch of windows, chunk by chunk, zero beyond a window's end."""

    def __init__(self, batch: Sequence[tuple[_Job, Window]]) -> None:
        self._batch = batch
        self._num_labels = batch[0][0].frames.num_labels

    def __call__(self, first: int, stop: int) -> torch.Tensor:
        chunk_BTV = np.zeros((len(self._batch), stop - first, self._num_labels), np.float32)
        for chunk_TV, (job, window) in zip(chunk_BTV, self._batch, strict=True):
            num_frames = min(stop, window.num_frames) - first
            if num_frames > 0:
                job.frames.fill(chunk_TV[:num_frames], window.first_frame + first)
        return torch.from_numpy(chunk_BTV)


def _spans_of(found: LooseAlignment, words: Sequence[range]) -> Iterator[tuple[int, Span]]:
    """Yield (token, frames) of the words that a path does not skip."""
    for word, is_skipped in zip(words, found.is_skipped_W, strict=True):
        for token in () if is_skipped else word:
            state = 2 * token + 1
            first, end = (int(np.searchsorted(found.path_T, state, side)) for side in ("left", "right"))
            yield token, (first, end)


def _fits(script: Script, window: Window) -> bool:
    tokens = script.tokens_of(window.words)
    return frames_needed(script.token_ids[tokens.start : tokens.stop]) <= window.num_frames


def _is_heard(script: Script, indices: range, token_spans: Mapping[int, Span]) -> list[bool]:
    """Return for each of some words that the model writes whether it was heard."""
    return [script.word_tokens[index].start in token_spans for index in indices if script.word_tokens[index]]


def _check_is_spoken(audio: AudioInfo, script: Script, token_spans: Mapping[int, Span]) -> None:
    """Raise AudioError if a text is another recording's: words here and there are heard, and hardly any row of them.

    A text of which a part is spoken has rows of words, and so has one that is hard to understand.
    """
    is_heard = _is_heard(script, range(len(script.words)), token_spans)
    rows = [len(list(own)) for heard, own in groupby(is_heard) if heard]
    heard = sum(rows) / max(1, len(is_heard))
    in_rows = sum(row for row in rows if row >= _ROW_WORDS) / max(1, sum(rows))
    if len(is_heard) >= _MIN_WORDS and heard <= _MAX_HEARD and in_rows < _MIN_IN_ROWS:
        num = len(is_heard) - sum(rows)
        raise AudioError(
            audio.path,
            f"its text is not what is spoken: {num:,} of {len(is_heard):,} words were not heard, all over it",
        )


def _unheard_lines(script: Script, token_spans: Mapping[int, Span]) -> list[tuple[int, range]]:
    """Return number and words of the lines of a text that were not heard, but for a word that may be of another line."""
    found = []
    for number, line in enumerate(script.lines, start=1):
        is_heard = _is_heard(script, line, token_spans)
        most = _MAX_HEARD_OF_LINE if len(is_heard) >= _ROW_WORDS else 0.0
        if is_heard and sum(is_heard) <= most * len(is_heard):
            found.append((number, line))
    return found if sum(map(bool, script.lines)) > 1 else []


def _with_untimed(script: Script, words: Sequence[Word]) -> list[Word]:
    """Return the words; one that the model writes nothing of is missing if those around it in its line are."""
    found = list(words)
    for line in script.lines:
        written = [index for index in line if script.word_tokens[index]]
        for index in (one for one in line if not script.word_tokens[one]):
            at = bisect_right(written, index)
            around = [found[one].missing for one in written[max(0, at - 1) : at + 1]]
            found[index] = replace(found[index], missing=bool(around) and all(around))
    return found


def _segments(script: Script, words: Sequence[Word]) -> list[Segment]:
    """Return a segment for each line with words; for a text of one such line, one for each sentence."""
    numbered = [(number, line) for number, line in enumerate(script.lines, start=1) if line]
    if len(numbered) == 1:
        return segments_of(words)
    lines = [(number, words[line.start : line.stop]) for number, line in numbered]
    return [_line_segment(number, own, (own[0].start_s, own[-1].end_s)) for number, own in lines]


def _spoken_by(speaker: str | None, segment: Segment) -> Segment:
    words = tuple(replace(word, speaker=speaker) for word in segment.words)
    return replace(segment, words=words, speaker=speaker)


def _line_segment(number: int, words: Sequence[Word], span_s: tuple[float, float]) -> Segment:
    """Return the segment of a line, or of a cue, which may have no words."""
    confidence = sum(word.confidence for word in words) / len(words) if words else math.nan
    return Segment(" ".join(word.text for word in words), *span_s, confidence, tuple(words), line=number)
