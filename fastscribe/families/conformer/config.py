"""Settings of a FastConformer encoder that its checkpoint fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fastscribe._system.jit import runs_in_python
from fastscribe.config import AttentionConfigs, ChunkedAttention, ModelConfig, Size

ConvNorm = Literal["batch_norm", "layer_norm"]
Subsampling = Literal["dw_striding", "striding"]
SUBSAMPLING_FACTORS = (2, 4, 8, 16, 32)
MIN_WIDTH_OF_LOOPS = 512  # of an encoder whose layers are loops on a CPU (cpu_layers.py)


@dataclass(frozen=True)
class LanguagePromptConfig:
    """Layers after the encoder that tell it the language to write (Nemotron 3.5 ASR): a one-hot beside each frame."""

    num_prompts: int  # length of the one-hot
    hidden: int
    languages: Mapping[str, int]  # index of each language in the one-hot, by the checkpoint's names
    index: int  # of the language that the model is told


@dataclass(frozen=True)
class EncoderConfig:
    """FastConformer encoder (Rekesh et al. 2023)."""

    num_mels: int
    num_layers: int
    d_model: int
    num_heads: int
    ff_hidden: int
    conv_kernel: int
    conv_norm: ConvNorm
    use_bias: bool
    xscaling: bool
    subsampling: Subsampling
    subsampling_factor: int
    subsampling_channels: int
    attention: AttentionConfigs | None = None  # None: every frame attends to all
    contexts: tuple[ChunkedAttention, ...] = ()  # a streaming model's choices of `attention`, its default first
    causal_subsampling: bool = False  # windows end at their frame, in time and in frequency
    causal_conv: bool = False  # in the layers
    language_prompt: LanguagePromptConfig | None = None
    family: ClassVar[str] = "conformer"
    has_matrices: ClassVar[bool] = True
    separates_words: ClassVar[bool] = False
    num_tokens: ClassVar[int | None] = None

    @property
    def largest_matrix(self) -> tuple[int, int]:
        """See EncoderSettings."""
        return self.d_model, self.ff_hidden

    @property
    def attends(self) -> str:
        """See EncoderSettings."""
        return str(self.attention or "full")

    @property
    def has_loops(self) -> bool:
        """See EncoderSettings. A narrower encoder transcribes a short recording in less time than numba is loaded in.

        In Python the loops would take a thousand times as long.
        """
        return self.d_model >= MIN_WIDTH_OF_LOOPS and not runs_in_python()

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames."""
        return subsampled(mel_frames, self.subsampling_factor.bit_length() - 1, self.causal_subsampling)


def subsampled(size: Size, times: int, is_causal: bool) -> Size:
    """Return the size after `times` stride-2 convolutions with kernel 3.

    They are padded by 1 on both sides, causal ones by 2 before and 1 after.
    """
    for _ in range(times):
        size = size // 2 + 1 if is_causal else (size + 1) // 2
    return size


def language_prompt_of(config: ModelConfig) -> LanguagePromptConfig | None:
    """Return the config of the layers that tell a model the language, if it has them."""
    return config.encoder.language_prompt if isinstance(config.encoder, EncoderConfig) else None
