"""The word timer: a second model that times the decoder's words, on the recogniser's device in its dtype.

It is an aligner: CTC forced alignment of the first model's text gives the times. canary-1b-v2 comes with an aligner because its
attention decoder writes no times. The aligner's encoder has already processed the batch (Frames.aligner). Its CTC head runs in
the decoder here, chunk by chunk, because the log-probabilities of all frames and labels take 16 times the memory of the
encoder's output.

The words are those of the transcript; the aligner encodes each with its own tokenizer. The rules are those of NeMo 3.0
(`get_forced_aligned_timestamps_with_external_model`): a word lasts from the first frame of its first token to the last frame
of its last one, but a final punctuation mark has no duration. The hypothesis's own tokens share the word's frames evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch

from fastscribe.alignment.forced_alignment import align, frames_needed
from fastscribe.alignment.script import Speller
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import FeaturesConfig, Options
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.prompt import spread
from fastscribe.errors import CheckpointError
from fastscribe.families.blocks.ctc import CtcHead
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.model import Model
from fastscribe.pipeline.model_building import build_on_device, encoder_of
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import group_words
from fastscribe.types import Features, Frames, Hypothesis, Int32Array

Log = Callable[[str], None]


_UNWRITTEN = "a text of characters that the model that times the words does not write"


_MARKS = frozenset(",.!?")  # zero duration at the end of a word
Span = tuple[int, int]  # first frame, and the frame after the last


@dataclass(frozen=True)
class AlignmentText:
    """The text of one hypothesis, as tokens of the aligner."""

    token_ids: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]  # for each word the indices of its tokens in the hypothesis
    word_tokens: tuple[range, ...]  # for each word the indices of its tokens in `token_ids`
    is_mark: tuple[bool, ...]  # for each of `token_ids`

    @classmethod
    def of(cls, hypothesis: Hypothesis, tokenizer: Tokenizer, encoder: WordEncoder) -> AlignmentText:
        ids: list[int] = []
        texts: list[str] = []
        words = group_words(hypothesis.token_ids, tokenizer)
        word_tokens = []
        for indices in words:
            first = None
            for part in tokenizer.text([hypothesis.token_ids[token_index] for token_index in indices]).split():
                if ids:
                    ids += encoder.space_ids
                    texts += " " * len(encoder.space_ids)
                first = len(ids) if first is None else first
                encoded = encoder.at(part, is_first=not ids)
                ids += encoded.ids
                texts += encoded.texts
            word_tokens.append(range(len(ids) if first is None else first, len(ids)))
        return cls(tuple(ids), tuple(map(tuple, words)), tuple(word_tokens), tuple(text in _MARKS for text in texts))

    def word_spans(self, token_spans: Sequence[Span]) -> list[Span]:
        """Convert frames of tokens to frames of words. A word without tokens is empty, at the end of the previous one."""
        spans: list[Span] = []
        for tokens in self.word_tokens:
            if not tokens:
                end = spans[-1][1] if spans else 0
                spans.append((end, end))
                continue
            first = token_spans[tokens.start][0]
            ends = [token_spans[token_index][1] for token_index in tokens if not self.is_mark[token_index]]
            ends_in_mark = self.is_mark[tokens[-1]]
            end = token_spans[tokens[-1]][1] if not ends_in_mark else ends[-1] if ends else first
            spans.append((first, end))
        return spans

    def with_times(self, hypothesis: Hypothesis, token_spans: Sequence[Span]) -> Hypothesis:
        """Set the frames of a hypothesis. A token outside words is empty, at the end of the previous word."""
        borders: list[Span] = [(0, 0)] * len(hypothesis.token_ids)
        word_spans = self.word_spans(token_spans)
        for indices, (first, end) in zip(self.words, word_spans, strict=True):
            edges = spread(first, end, len(indices))
            for token_index, span in zip(indices, pairwise(edges), strict=True):
                borders[token_index] = span
        in_words = {token_index for indices in self.words for token_index in indices}
        end = word_spans[0][0] if word_spans else 0
        for token_index, span in enumerate(borders):
            borders[token_index] = span if token_index in in_words else (end, end)
            end = borders[token_index][1]
        return _with_frames(hypothesis, borders, is_timed=True)


def spread_evenly(hypothesis: Hypothesis, num_frames: int) -> Hypothesis:
    """Spread the tokens of a hypothesis without an alignment evenly over all frames."""
    edges = spread(0, num_frames, len(hypothesis.token_ids))
    return _with_frames(hypothesis, list(pairwise(edges)), is_timed=False)


def _with_frames(hypothesis: Hypothesis, spans: Sequence[Span], is_timed: bool) -> Hypothesis:
    frames, durations = tuple(first for first, _ in spans), tuple(end - first for first, end in spans)
    return replace(hypothesis, token_frames=frames, token_durations=durations, is_timed=is_timed)


class AligningDecoder:
    """A Decoder (decoder.py) with the inner decoder's tokens and the aligner's frames.

    A text with more tokens than frames has no alignment, and neither has one that the aligner writes nothing of, as of
    another script. Its tokens are spread evenly over the utterance (`Hypothesis.is_timed` is False), and `say` reports the
    first text of each kind. NeMo gives a text that is too long no words.
    """

    def __init__(
        self,
        inner: Decoder,
        head: CtcHead,
        blank_id: int,
        tokenizer: Tokenizer,
        encoder: WordEncoder,
        say: Callable[[str], None],
    ) -> None:
        """Wrap a decoder.

        Args:
            inner: decoder of the text.
            head: CTC head of the aligner.
            blank_id: blank of the aligner.
            tokenizer: tokenizer of the inner decoder.
            encoder: encodes words with the aligner's vocabulary.
            say: receives the warning about text without an alignment.
        """
        self.inner = inner
        self._head, self._blank_id = head, blank_id
        self._tokenizer, self._encoder = tokenizer, encoder
        self._say = say
        self._said: set[str] = set()

    def submit(self, frames: Frames) -> torch.Tensor:
        return self.inner.submit(frames)

    @torch.inference_mode()
    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        """Unpack and align a batch; waits for the device.

        Raises:
            RuntimeError: the aligner's output is not finite.
        """
        assert frames.aligner is not None
        hypotheses = list(self.inner.read(packed, frames))
        texts = [AlignmentText.of(hypothesis, self._tokenizer, self._encoder) for hypothesis in hypotheses]
        lengths = frames.aligner.lengths_B.tolist()
        alignments = align(
            partial(self._logprobs, frames.aligner.frames_BTD),
            lengths,
            [text.token_ids for text in texts],
            self._blank_id,
            frames.aligner.frames_BTD.device,
        )
        timed = []
        for hypothesis, text, spans, length in zip(hypotheses, texts, alignments, lengths, strict=True):
            if spans:
                timed.append(text.with_times(hypothesis, spans))
            elif spans is None and frames_needed(text.token_ids) <= length:
                raise RuntimeError("the aligner's output is not finite")
            elif hypothesis.token_ids:
                self._report("a text that is too long for its audio" if spans is None else _UNWRITTEN)
                timed.append(spread_evenly(hypothesis, length))
            else:
                timed.append(hypothesis)
        return timed

    def _logprobs(self, frames_BTD: torch.Tensor, first: int, stop: int) -> torch.Tensor:
        return torch.log_softmax(self._head(frames_BTD[:, first:stop]), -1, dtype=torch.float32)

    def _report(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(f"{what} is not aligned; its words are spread evenly")

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class WordTimer:
    """A second model, which times the decoder's words. `build` makes one of a checkpoint with a CTC head."""

    model: Model
    encoder: Callable[[Features], Frames]
    _log_mel: LogMel | None  # None: the recogniser's features are this model's too
    _word_encoder: WordEncoder
    _say: Log

    @classmethod
    def build(
        cls,
        checkpoint: Checkpoint,
        features: FeaturesConfig,
        device: torch.device,
        dtype: str,
        options: Options,
        say: Log,
    ) -> WordTimer:
        """Build the model.

        Args:
            checkpoint: Its checkpoint.
            features: The recogniser's.
            device: The recogniser's.
            dtype: The recogniser's.
            options: The run's; `align_with` tells whether the aligner is the checkpoint's own, for which words are spelled
                as NeMo does.
            say: Called with each line for the user.

        Raises:
            CheckpointError: The tokenizer cannot encode text.
            UsageError: The model does not have the options' attention or dtype.
            WeightsMismatch: The weights do not fit the config.
        """
        model = build_on_device(checkpoint, device, dtype, options, say)
        own = checkpoint.config.features
        log_mel = None if own == features else LogMel(own).to(device)
        encoder = encoder_of(model, device, options, say)
        try:
            words = WordEncoder.of(checkpoint.tokenizer)
            words = Speller(checkpoint.tokenizer).encoder() if options.align_with else words
        except ValueError as error:
            raise CheckpointError(checkpoint.path, f"cannot time words: {error}") from error
        return cls(model, encoder, log_mel, words, say)

    def features(self, features: Features, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return this model's features of a batch; `features` are the recogniser's."""
        if self._log_mel is None:
            return features
        own: Features = self._log_mel(samples_BS, lengths_B)
        return own

    def decoder(self, inner: Decoder, tokenizer: Tokenizer) -> AligningDecoder:
        """Wrap a decoder so that this model times its words; `tokenizer` is the decoder's."""
        assert self.model.ctc is not None
        blank_id = self.model.config.blank_id
        return AligningDecoder(inner, self.model.ctc, blank_id, tokenizer, self._word_encoder, self._say)
