"""A decoder that takes word times from a second model, the aligner: CTC forced alignment of the first model's text.

canary-1b-v2 comes with an aligner because its attention decoder writes no times. The aligner's encoder has already
processed the batch (Frames.aligner). Its CTC head runs here, chunk by chunk, because the log-probabilities of all frames and
labels take 16 times the memory of the encoder's output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from fastscribe.alignment.forced_alignment import align, frames_needed
from fastscribe.alignment.word_times import AlignmentText, spread_evenly
from fastscribe.decode.decoder import Decoder
from fastscribe.families.blocks.ctc import CtcHead
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Frames, Hypothesis, Int32Array

_UNWRITTEN = "a text of characters that the model that times the words does not write"


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
