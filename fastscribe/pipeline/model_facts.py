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
        language: Tag of the one language that the run writes, by the model, its aligner or the options; None: not known.
        others: Configs of the models that rooms run beside this one, by purpose (Utterance.purpose).
        marks: Ids of the tokens of punctuation that begin no word.
        has_prompt: The decoder follows Options.language, target_language, pnc and timestamps.
        is_gpu: The device is a GPU.
        torch_version: Version of torch in the process that decodes.
        least_samples: Samples at the model's rate that a row of words has at least. A shorter utterance gets silence around it.
    """

    device_name: str
    dtype: str
    decoder_name: DecoderName
    beam: int
    attention: str
    token_frame_s: float
    zero_duration_punctuation: bool
    language: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    marks: frozenset[int] = frozenset()
    has_prompt: bool = False
    is_gpu: bool = False
    torch_version: str = ""
    least_samples: int = 0
