"""What a loaded model is, for those that have none in their process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastscribe.config import DecoderName


@dataclass(frozen=True)
class ModelFacts:
    """What runs and reports need to know of a loaded model.

    Attributes:
        device_name: Name of the GPU or the processor.
        dtype: The dtype in use.
        decoder_name: The decoder in use.
        beam: Its beam width; 1 is greedy.
        attention: Attention of the encoder, as ModelConfig.attention names it.
        token_frame_s: Length in seconds of a frame of Hypothesis.token_frames.
        zero_duration_punctuation: The decoder's timestamps give punctuation no time.
        recovers_gaps: Default of Options.recover_gaps.
        aligner_language: Tag of the one language whose outputs the aligner has (ModelConfig.language); None: it has the same
            for all, or there is no aligner.
        kept_language: Tag of the language that the run is kept to (context/language_filter.py); None: of none.
        others: Configs of the models that rooms run beside this one, by purpose (Utterance.purpose).
        marks: Ids of the tokens of punctuation that begin no word.
        has_prompt: The decoder follows Options.language, target_language, pnc and timestamps.
        torch_version: Version of torch in the process that decodes.
    """

    device_name: str
    dtype: str
    decoder_name: DecoderName
    beam: int
    attention: str
    token_frame_s: float
    zero_duration_punctuation: bool
    recovers_gaps: bool
    aligner_language: str | None = None
    kept_language: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    marks: frozenset[int] = frozenset()
    has_prompt: bool = False
    torch_version: str = ""
