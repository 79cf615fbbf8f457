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
from itertools import pairwise

import torch

from fastscribe.alignment.forced_alignment import align, frames_needed
from fastscribe.alignment.script import Speller
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import FeaturesConfig, Options
from fastscribe.decode.decoder import Decoder
from fastscribe.decode.prompt import spread
from fastscribe.errors import CheckpointError, ModelOutputError
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.model import Model
from fastscribe.pipeline.model_building import build_on_device, encoder_of
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.transcript import group_words
from fastscribe.types import Features, Frames, Hypothesis, Int32Array

Log = Callable[[str], None]
Span = tuple[int, int]  # first frame, and the frame after the last

_TOO_LONG = "a text that is too long for its audio"
_UNWRITTEN = "a text of characters that the model that times the words does not write"
_MARKS = frozenset(",.!?")  # zero duration at the end of a word


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

    def with_times(self, hypothesis: Hypothesis, token_spans: Sequence[Span]) -> Hypothesis:
        """Set the frames of a hypothesis. A word without tokens, or a token outside words, is empty, behind the word before."""
        borders: dict[int, Span] = {}
        starts, end = list[int](), 0
        for indices, tokens in zip(self.words, self.word_tokens, strict=True):
            starts.append(token_spans[tokens.start][0] if tokens else end)
            spoken = [token_index for token_index in tokens if not self.is_mark[token_index]]
            end = token_spans[spoken[-1]][1] if spoken else starts[-1]
            borders |= zip(indices, pairwise(spread(starts[-1], end, len(indices))), strict=True)
        spans, end = list[Span](), starts[0] if starts else 0
        for token_index in range(len(hypothesis.token_ids)):
            spans.append(borders.get(token_index, (end, end)))
            end = spans[-1][1]
        return _with_frames(hypothesis, spans, is_timed=True)


def _with_frames(hypothesis: Hypothesis, spans: Sequence[Span], is_timed: bool) -> Hypothesis:
    frames, durations = tuple(first for first, _ in spans), tuple(end - first for first, end in spans)
    return replace(hypothesis, token_frames=frames, token_durations=durations, is_timed=is_timed)


class AligningDecoder:
    """A Decoder (decoder.py) with the inner decoder's tokens and the aligner's frames.

    A text with more tokens than frames has no alignment, and neither has one that the aligner writes nothing of, as of
    another script. Its tokens are spread evenly over the utterance (`Hypothesis.is_timed` is False), and `say` reports the
    first text of each kind. NeMo gives a text that is too long no words.
    """

    def __init__(self, inner: Decoder, timer: WordTimer, tokenizer: Tokenizer) -> None:
        """Wrap a decoder.

        Args:
            inner: decoder of the text.
            timer: has the aligner.
            tokenizer: tokenizer of the inner decoder.
        """
        self.inner, self._timer, self._tokenizer = inner, timer, tokenizer
        self._said: set[str] = set()

    def submit(self, frames: Frames) -> torch.Tensor:
        return self.inner.submit(frames)

    @torch.inference_mode()
    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        """Unpack and align a batch; waits for the device.

        Raises:
            ModelOutputError: the aligner's output is not finite.
        """
        assert frames.aligner is not None and self._timer.model.ctc is not None
        frames_BTD, head = frames.aligner.frames_BTD, self._timer.model.ctc
        hypotheses = list(self.inner.read(packed, frames))
        texts = [AlignmentText.of(hypothesis, self._tokenizer, self._timer.words) for hypothesis in hypotheses]
        lengths = frames.aligner.lengths_B.tolist()
        alignments = align(
            lambda first, stop: torch.log_softmax(head(frames_BTD[:, first:stop]), -1, dtype=torch.float32),
            lengths,
            [text.token_ids for text in texts],
            self._timer.model.config.blank_id,
            frames_BTD.device,
        )
        timed = []
        for hypothesis, text, spans, length in zip(hypotheses, texts, alignments, lengths, strict=True):
            if spans:
                timed.append(text.with_times(hypothesis, spans))
            elif spans is None and frames_needed(text.token_ids) <= length:
                raise ModelOutputError("the aligner's output is not finite")
            elif hypothesis.token_ids:
                self._report(_TOO_LONG if spans is None else _UNWRITTEN)
                edges = spread(0, length, len(hypothesis.token_ids))
                timed.append(_with_frames(hypothesis, list(pairwise(edges)), is_timed=False))
            else:
                timed.append(hypothesis)
        return timed

    def _report(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._timer.say(f"{what} is not aligned; its words are spread evenly")

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class WordTimer:
    """A second model, which times the decoder's words. `build` makes one of a checkpoint with a CTC head.

    Attributes:
        words: Encodes words with its vocabulary.
        say: Receives the warning about text without an alignment.
    """

    model: Model
    encoder: Callable[[Features], Frames]
    words: WordEncoder
    say: Log
    _log_mel: LogMel | None  # None: the recogniser's features are this model's too

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
        return cls(model, encoder, words, say, log_mel)

    def features(self, features: Features, samples_BS: torch.Tensor, lengths_B: torch.Tensor) -> Features:
        """Return this model's features of a batch; `features` are the recogniser's."""
        if self._log_mel is None:
            return features
        own: Features = self._log_mel(samples_BS, lengths_B)
        return own

    def decoder(self, inner: Decoder, tokenizer: Tokenizer) -> AligningDecoder:
        """Wrap a decoder so that this model times its words; `tokenizer` is the decoder's."""
        return AligningDecoder(inner, self, tokenizer)
