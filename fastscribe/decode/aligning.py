"""A decoder that takes its words' times from a second model: CTC forced alignment of the text that the first one wrote.

canary-1b-v2 brings such a model (the aligner), because its attention decoder writes no times. The aligner's encoder has
seen the same batch by the time the text is there (Frames.aligner); its CTC head runs here, a stretch of frames at a time,
because log-probabilities of all frames and labels would outgrow the encoder's output sixteenfold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from fastscribe.decode.decoder import Decoder
from fastscribe.decode.forced_alignment import align, frames_needed
from fastscribe.model.ctc import CtcHead
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.text.word_times import AlignmentText, spread_evenly
from fastscribe.types import Frames, Hypothesis, Int32Array


class AligningDecoder:
    """A Decoder (decoder.py): another one's tokens, with frames of the aligner's encoder.

    A text that has no alignment, because it has more tokens than there are frames, is spread evenly over its utterance
    (`Hypothesis.is_timed` is False); `say` gets one line about the first of them. NeMo gives such a text no words at all.
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
        """`head`, `blank_id` and `encoder` are the aligner's; `tokenizer` is the one of the inner decoder's tokens."""
        self.inner = inner
        self._head, self._blank_id = head, blank_id
        self._tokenizer, self._encoder = tokenizer, encoder
        self._say: Callable[[str], None] | None = say

    def submit(self, frames: Frames) -> torch.Tensor:
        return self.inner.submit(frames)

    @torch.inference_mode()
    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        """Waits for the device: the text must be here before it can be aligned.

        Raises RuntimeError where the aligner's output is not finite.
        """
        assert frames.aligner is not None
        hypotheses = self.inner.read(packed, frames)
        texts = [AlignmentText.of(hypothesis, self._tokenizer, self._encoder) for hypothesis in hypotheses]
        lengths = frames.aligner.lengths_B.tolist()
        found = align(
            partial(self._logprobs, frames.aligner.frames_BTD),
            lengths,
            [text.token_ids for text in texts],
            self._blank_id,
            frames.aligner.frames_BTD.device,
        )
        timed = []
        for hypothesis, text, spans, length in zip(hypotheses, texts, found, lengths, strict=True):
            if spans:
                timed.append(text.timed(hypothesis, spans))
            elif spans is None and frames_needed(text.token_ids) <= length:
                raise RuntimeError("the timestamps aligner's output is not finite")
            elif hypothesis.token_ids:
                self._report_unaligned()
                timed.append(spread_evenly(hypothesis, length))
            else:
                timed.append(hypothesis)
        return timed

    def _logprobs(self, frames_BTD: torch.Tensor, first: int, stop: int) -> torch.Tensor:
        return torch.log_softmax(self._head(frames_BTD[:, first:stop]), -1, dtype=torch.float32)

    def _report_unaligned(self) -> None:
        if self._say is not None:
            self._say("--timestamps: text that is too long for its audio is not aligned; its words are spread evenly")
            self._say = None

    def close(self) -> None:
        self.inner.close()
