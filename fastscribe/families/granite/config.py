"""Settings of a Granite Speech encoder that its checkpoint fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

GRANITE_STACKED = 2  # mel frames that a GraniteConfig's encoder takes as one


@dataclass(frozen=True)
class GraniteConfig:
    """Conformer of Granite Speech 5.0 TurboCTC (Saon et al. 2026).

    A frame attends to its block, positions are learnt (Shaw et al. 2018), some layers halve the frames, and the frames after
    the middle layer are conditioned on their own CTC probabilities (Nozaki and Komatsu 2021).
    """

    num_mels: int
    num_layers: int
    d_model: int
    num_heads: int
    ff_hidden: int
    conv_kernel: int
    conv_width: int  # channels of the depthwise convolution
    use_bias: bool  # in the feed-forward layers
    block: int  # frames of a block, at each layer's own rate
    max_distance: int  # of two frames in the stored table of positions
    strided_layers: tuple[int, ...]  # numbers of the layers that halve the frames
    num_tokens: int  # labels and blank
    kind: str = "granite"
    family: ClassVar[str] = "granite"
    has_matrices: ClassVar[bool] = True
    separates_words: ClassVar[bool] = True
    has_loops: ClassVar[bool] = False

    @property
    def largest_matrix(self) -> tuple[int, int]:
        """See EncoderSettings."""
        return self.d_model, self.ff_hidden

    @property
    def attends(self) -> str:
        """See EncoderSettings."""
        return f"blocks:{self.block}"

    @property
    def subsampling_factor(self) -> int:
        return GRANITE_STACKED << len(self.strided_layers)

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of output frames. A halving layer drops an odd last frame."""
        return -(-mel_frames // GRANITE_STACKED) >> len(self.strided_layers)
