"""The word timer: a second model that times the decoder's words, on the recogniser's device in its dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastscribe.alignment.aligning_decoder import AligningDecoder
from fastscribe.alignment.script import Speller
from fastscribe.checkpoint.value import Checkpoint
from fastscribe.config import FeaturesConfig, Options
from fastscribe.decode.decoder import Decoder
from fastscribe.errors import CheckpointError
from fastscribe.families.blocks.features import LogMel
from fastscribe.families.model import Model
from fastscribe.pipeline.model_building import build_on_device, encoder_of
from fastscribe.text.encoder import WordEncoder
from fastscribe.text.tokenizer import Tokenizer
from fastscribe.types import Features, Frames

Log = Callable[[str], None]


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
