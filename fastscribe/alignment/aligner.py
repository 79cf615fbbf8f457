"""The aligner: when each word of a known text is spoken. alignment/text_aligner.py has the method.

Shapes: B batch, T frames, V labels with blank.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fastscribe._system.standard_streams import log_to_stderr
from fastscribe.alignment.text_aligner import Recording, TextAligner
from fastscribe.alignment.texts import Texts
from fastscribe.checkpoint.reader import Checkpoint
from fastscribe.config import Options, check_load
from fastscribe.decode.ctc import CtcDecoder
from fastscribe.decode.decoder import Decoder
from fastscribe.errors import CheckpointError, OptionError, UsageError
from fastscribe.families.blocks.heads import CtcHead, split_for_logits
from fastscribe.pipeline import interfaces
from fastscribe.pipeline.batching import Budget
from fastscribe.pipeline.executor import Executor
from fastscribe.pipeline.interfaces import Additions
from fastscribe.pipeline.recognizer import Recognizer
from fastscribe.pipeline.stats import Stopwatch
from fastscribe.pipeline.thread_pool import ReplacingThreadPool
from fastscribe.text.transcript import DecodedUtterance
from fastscribe.transcriber import Transcriber
from fastscribe.types import Failure, Frames, Hypothesis, Int32Array, Transcript

if TYPE_CHECKING:
    from fastscribe.audio.given import Inputs

_DEFAULTS = Options()
_MAX_BATCH_BYTES = 128 << 20


class KnownTexts(interfaces.Texts):
    """Aligns the recordings of a run with their texts, those that a batch completes together.

    Args:
        aligner: Does it; the decoder gives it emissions.
        pool: Not used: nothing is read.
        stopwatch: Times the alignment.
    """

    def __init__(self, aligner: TextAligner, pool: ReplacingThreadPool, stopwatch: Stopwatch) -> None:
        self._aligner, self._stopwatch = aligner, stopwatch
        self._waiting: list[Recording] = []
        self._made: list[Transcript | Failure] = []

    def kept(self, result: Hypothesis) -> Hypothesis:
        """Return the hypothesis with emissions of half the size and their own memory."""
        emissions_TV = result.emissions_TV
        return result if emissions_TV is None else replace(result, emissions_TV=emissions_TV.astype(np.float16))

    def first(self, parts: Sequence[DecodedUtterance]) -> Sequence[Transcript | Failure]:
        self._waiting.append((parts[0][0].audio, parts))
        return ()

    def flush(self) -> None:
        """Align what a batch has completed."""
        recordings, self._waiting = self._waiting, []
        if recordings:
            with self._stopwatch.time("align"):
                self._made += self._aligner.align(recordings)

    def collect(self, wait: bool = False) -> Sequence[Transcript | Failure]:
        made, self._made = self._made, []
        return made


class Aligner(Transcriber):
    """A loaded model with a CTC head, which times the words of known texts.

    load() makes one, with the arguments of Transcriber.load(). Call align() any number of times, one run at a time.

    Attributes:
        texts: Where the texts of the next run are.
        text_aligner: Counts the words of all runs.
    """

    command = "align"

    def __init__(self, checkpoint: Checkpoint, executor: Executor, options: Options, load_s: float) -> None:
        """As Transcriber.__init__(). Raises CheckpointError if the tokenizer cannot encode."""
        super().__init__(checkpoint, executor, options, load_s)
        self.text_aligner = TextAligner(checkpoint.config, checkpoint.tokenizer, checkpoint.path)
        self.texts = Texts()

    def align(
        self,
        inputs: Inputs,
        text: str | os.PathLike[str] | None = None,
        *,
        ordered: bool = False,
        progress: bool = False,
    ) -> Generator[Transcript | Failure]:
        """Align recordings with their texts; yield each result as soon as it is there.

        Args:
            inputs: As Transcriber.transcribe() takes them.
            text: A UTF-8 file with the text of one recording, or its subtitles (SubRip, WebVTT, ASS); or a folder with a .txt,
                .md, .srt, .vtt, .ass or .ssa of the name of each, where a recording without one is left out (`texts.without`);
                None: the inputs are manifests, whose rows have a field `text`.
            ordered: As for Transcriber.transcribe().
            progress: As for Transcriber.transcribe().

        Yields:
            A Transcript whose words are those of the text, or a Failure. Each cue of subtitles is a segment. Words that were
            not heard are `missing`, and `gaps` is the speech that is not in the text. Times are in seconds.

        Raises:
            UsageError: The text is missing, or is one file for several recordings, or no recording has one in the folder.
            DeviceFailed: The GPU is lost.
        """
        try:
            self.texts = Texts(None if text is None else Path(os.fsdecode(text)))
        except TypeError:
            raise OptionError("text", text, "not a path: give a str or an os.PathLike") from None
        self.texts.check()
        with closing(self.transcribe(inputs, ordered=ordered, progress=progress)) as results:
            yield from results
        self.texts.check_found()

    def with_texts(self, texts: Texts) -> Aligner:
        """Set where the texts of the next run are, and return this aligner."""
        self.texts = texts
        return self

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str] = "default",
        device: str = "auto",
        dtype: str = "auto",
        options: Options = _DEFAULTS,
        say: Callable[[str], None] = log_to_stderr,
        *,
        devices: str | None = None,
    ) -> Aligner:
        """Load a model. As Transcriber.load(), on one device.

        Raises:
            CheckpointError: Also if the model has no CTC head, or a tokenizer that cannot encode text.
            UsageError: As Transcriber.load(); also if `devices` is given, or an option that no known text has.
        """
        model = check_load(model, device, dtype, options, say=say)
        if devices is not None:
            raise UsageError("texts are aligned on one device: give device instead of devices")
        if options.has_speakers:
            raise UsageError("Options.speakers is for Transcriber: a text to align does not say who speaks")
        if options.align_with is not None:
            raise UsageError("Options.align_with is for Transcriber: here `model` is the model that aligns")
        loaded = super().load(model, device, dtype, options, say)
        assert isinstance(loaded, Aligner)
        return loaded

    @classmethod
    def _recognizer_of(
        cls, checkpoint: Checkpoint, device: str, dtype: str, options: Options, say: Callable[[str], None]
    ) -> Recognizer:
        if "ctc" not in checkpoint.config.decoders:
            raise CheckpointError(
                checkpoint.path,
                f"cannot align: it has no CTC head ({checkpoint.config.family}); the model in the package has one, and so "
                "have CTC and hybrid models (fastscribe models)",
            )
        options = replace(options, decoder="ctc", beam=None, nbest=None, timestamps=False)
        recognizer = Recognizer.build(checkpoint, device, dtype, options, say, keeps_language=False)
        assert recognizer.model.ctc is not None
        return replace(recognizer, decoder=EmissionDecoder(recognizer.model.ctc, checkpoint.config.blank_id))

    def _additions(self) -> Additions:
        return replace(
            super()._additions(),
            attach=self.texts.attach,
            make_texts=partial(KnownTexts, self.text_aligner),
            max_held_s=self.text_aligner.max_held_s,
        )

    def _budget(self) -> Budget:
        """Return the budget of a batch, with at most as many frames as the host takes log-probabilities of at once."""
        budget = super()._budget()
        if math.isfinite(budget.frames):
            most_frames = max(1, _MAX_BATCH_BYTES // (4 * (self._config.blank_id + 1)))
            budget.frames = min(budget.frames, float(most_frames))
        return budget


class EmissionDecoder(Decoder):
    """A greedy CTC decoder whose hypotheses have `emissions_TV`, the log-probabilities of every frame.

    They take 4 bytes a frame and label on their way to the host, so batches are limited (_MAX_BATCH_BYTES).
    """

    def __init__(self, head: CtcHead, blank_id: int) -> None:
        self._greedy = CtcDecoder(head, blank_id)

    @torch.inference_mode()
    def submit(self, frames: Frames) -> torch.Tensor:
        """Return int32: the greedy decoder's result, then the bits of [B, T, V] float32 log-probabilities."""
        parts = [
            torch.log_softmax(self._greedy.head(part_ND), -1, dtype=torch.float32)
            for part_ND in split_for_logits(frames.frames_BTD, self._greedy.blank_id + 1)
        ]
        best = [part_NV.max(-1) for part_NV in parts]
        labels, probs = [part.indices.int() for part in best], [part.values.exp() for part in best]
        bits = [values.view(torch.int32).flatten() for values in (*probs, *parts)]
        return torch.cat([frames.lengths_B.int(), *labels, *bits])

    def read(self, packed: Int32Array, frames: Frames) -> list[Hypothesis]:
        batch, longest = frames.frames_BTD.shape[:2]
        size = batch + 2 * batch * longest
        logprobs_BTV = packed[size:].view(np.float32).reshape(batch, longest, -1)
        return [
            replace(hypothesis, emissions_TV=logprobs_TV[:length])
            for hypothesis, logprobs_TV, length in zip(
                self._greedy.read(packed[:size], frames), logprobs_BTV, packed[:batch].tolist(), strict=True
            )
        ]
