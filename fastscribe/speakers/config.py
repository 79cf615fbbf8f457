"""Settings of models of speakers: who speaks when (Sortformer: Park et al. 2024; its streaming form: Medennikov et al. 2025),
and whose voice it is (TitaNet: Koluguri et al. 2022; ECAPA-TDNN in NeMo's form: Dawalatabad et al. 2021).

Lengths in frames are of the encoder's frames. The outputs of Nemotron 3 Diarization have the rate of mel frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastscribe.checkpoint.lazy_weights import StoredModel
from fastscribe.config import FeaturesConfig, Size, TransformerConfig
from fastscribe.families.conformer.config import EncoderConfig
from fastscribe.families.jasper.config import JasperConfig
from fastscribe.speakers.settings import STREAMING_SETTINGS

if TYPE_CHECKING:
    import torch


TURNS, VOICES = "turns", "voices"  # purposes of utterances: for the speaker model, for the voice model
Pooling = Literal["attention", "xvector", "tap"]


@dataclass(frozen=True)
class SpeakerCacheConfig:
    """What a streaming Sortformer remembers while it reads a recording chunk by chunk.

    Each chunk is seen behind the cache (the frames that tell the speakers of the whole past) and a queue of the latest frames.
    Frames that leave the queue go to the cache, which keeps the most telling ones.
    """

    cache_frames: int
    queue_frames: int
    chunk_frames: int
    update_frames: int  # least number of frames that leave a full queue together
    left_frames: int  # seen again before a chunk
    right_frames: int  # seen ahead of time after a chunk
    silent_frames: int  # of each speaker's share of the cache, filled with silence
    min_probability: float  # smaller ones count as this in scores
    latest_boost: float  # added to the scores of frames that are new in the cache
    # Silence is the mean of all frames so far whose speakers' probabilities sum to less. None: it is a learnt frame.
    silence_threshold: float | None
    strong_rate: float  # part of a speaker's share whose scores get twice log 2
    weak_rate: float  # part of a speaker's share whose scores get log 2
    min_positive_rate: float  # part of a speaker's share from which on frames with other speakers are left out
    keeps_first_probabilities: bool  # of cached frames; else the first full cache takes those of its last pass

    @property
    def seen_frames(self) -> int:
        """Frames that the model sees at once."""
        around = self.left_frames + self.right_frames
        return self.cache_frames + self.queue_frames + self.chunk_frames + around

    @property
    def streaming(self) -> list[tuple[str, int]]:
        """The settings that Options.speaker_streaming may replace, by NeMo's names."""
        return [(name, getattr(self, field)) for name, (field, _) in STREAMING_SETTINGS.items()]

    def share(self, num_speakers: int) -> int:
        """Return the frames of the cache for each speaker, without those of silence."""
        return self.cache_frames // num_speakers - self.silent_frames


@dataclass(frozen=True)
class StackingConfig:
    """The encoder of Nemotron 3 Diarization: Transformer layers with rotary positions over stacked mel frames."""

    num_mels: int
    subsampling_factor: int  # mel frames that are stacked to one
    layers: TransformerConfig
    rotary_base: float  # of the wavelengths
    rotary_width: int  # channels of a head that are rotated; the others stay

    @property
    def d_model(self) -> int:
        return self.layers.hidden

    def num_frames(self, mel_frames: int) -> int:
        """Return the number of encoder frames."""
        return -(-mel_frames // self.subsampling_factor)


@dataclass(frozen=True)
class SpeakerModelConfig:
    """Everything a Sortformer's checkpoint decides.

    Attributes:
        features: Its front end.
        encoder: Its FastConformer, or a Transformer over stacked frames.
        head_hidden: Width of its heads.
        transformer: The layers of this width behind a FastConformer, which have no positions.
        num_speakers: Outputs of each frame.
        trained_s: Length of the recordings that it learnt from, in seconds.
        peak_guard: Samples are divided by the recording's largest one plus this; None: they stay as they are.
        cache: With it, recordings are read in chunks; None: at once, and in windows of `trained_s` seconds.
    """

    features: FeaturesConfig
    encoder: EncoderConfig | StackingConfig
    head_hidden: int
    transformer: TransformerConfig | None
    num_speakers: int
    trained_s: float
    peak_guard: float | None
    cache: SpeakerCacheConfig | None

    def with_streaming(self, settings: Iterable[tuple[str, int]]) -> SpeakerModelConfig:
        """Return the config with other settings of its speaker cache.

        Args:
            settings: Pairs of Options.speaker_streaming.

        Raises:
            ValueError: The model has no speaker cache, or a setting does not suit it. The message is one for users.
        """
        if self.cache is None:
            raise ValueError("this model reads recordings at once: it has no chunks and no speaker cache")
        chosen: dict[str, Any] = {STREAMING_SETTINGS[name][0]: frames for name, frames in settings}
        cache = replace(self.cache, **chosen)
        least = (1 + cache.silent_frames) * self.num_speakers
        if cache.cache_frames < least:
            raise ValueError(
                f"spkcache_len={cache.cache_frames}: this model's {self.num_speakers} speakers need {least}"
            )
        if isinstance(self.encoder, StackingConfig) and cache.right_frames >= cache.chunk_frames:
            right, chunk = cache.right_frames, cache.chunk_frames
            raise ValueError(f"chunk_right_context={right}: this model needs less than its chunk_len, which is {chunk}")
        return replace(self, cache=cache)

    @property
    def outputs_per_frame(self) -> int:
        """Output frames of an encoder frame."""
        return self.encoder.subsampling_factor if isinstance(self.encoder, StackingConfig) else 1

    @property
    def frame_s(self) -> float:
        """Seconds of audio per output frame."""
        hop = self.features.hop_length * self.encoder.subsampling_factor // self.outputs_per_frame
        return hop / self.features.sample_rate

    def num_frames(self, num_samples: int) -> int:
        """Return the number of output frames."""
        return self.num_outputs(self.features.num_frames(num_samples))

    def num_outputs(self, mel_frames: int) -> int:
        """Return the number of output frames."""
        return mel_frames if self.outputs_per_frame > 1 else self.encoder.num_frames(mel_frames)

    def num_seen(self, num_samples: int) -> int:
        """Return the most encoder frames of a recording that the model sees at once."""
        num_frames = self.encoder.num_frames(self.features.num_frames(num_samples))
        return num_frames if self.cache is None else min(num_frames, self.cache.seen_frames)


@dataclass(frozen=True)
class EcapaConfig:
    """Encoder of NeMo's ECAPA-TDNN. All blocks but the last have the same width.

    Attributes:
        num_mels: Mel bands.
        width: Channels of the first convolution and of each block.
        kernels: Frames that each convolution sees: the first one, one for each block, and the last one.
        dilations: Distances of these frames, likewise.
        groups: Of the convolution over time in a block.
        se_hidden: Width of squeeze-and-excite.
        frame_multiple: NeMo pads a recording with zeros to a multiple of this number of mel frames, and the convolutions see
            them; 0: to one frame more than the recording has.
    """

    num_mels: int
    width: int
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    se_hidden: int
    frame_multiple: int

    def seen_frames(self, mel_frames: Size) -> Size:
        """Return the frames that the convolutions see of a recording: NeMo's STFT has one more, and padding follows."""
        multiple = self.frame_multiple or 1
        return (mel_frames + multiple) // multiple * multiple

    @property
    def num_blocks(self) -> int:
        return len(self.kernels) - 2

    @property
    def d_model(self) -> int:
        return self.width * self.num_blocks

    @property
    def subsampling_factor(self) -> int:
        return 1


@dataclass(frozen=True)
class VoiceModelConfig:
    """Everything the checkpoint of a voice model decides. It makes one vector of a stretch of speech, similar for one person.

    Attributes:
        features: Its front end.
        encoder: Its encoder.
        pooling: What makes one vector of all frames: mean and standard deviation weighted by attention ("attention"), these
            without weights ("xvector"), or the mean ("tap").
        attention_channels: Width of the attention.
        sizes: Outputs of the layers behind it. The last one makes the vector.
    """

    features: FeaturesConfig
    encoder: JasperConfig | EcapaConfig
    pooling: Pooling
    attention_channels: int
    sizes: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        """Numbers in a vector."""
        return self.sizes[-1]

    @property
    def frame_s(self) -> float:
        """Seconds of audio per frame of the encoder."""
        return self.features.hop_length * self.encoder.subsampling_factor / self.features.sample_rate

    def num_frames(self, num_samples: int) -> int:
        """Return the number of the encoder's output frames."""
        return -(-self.features.num_frames(num_samples) // self.encoder.subsampling_factor)


MAX_SPEAKERS = 64  # of a speaker model


@dataclass(frozen=True)
class SpeakerCheckpoint(StoredModel):
    """A speaker model on disk. Weights have the names of Sortformer's state dict, and are lazy."""

    path: Path
    source: str  # "nemo" or "huggingface"
    config: SpeakerModelConfig
    weights: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class VoiceCheckpoint(StoredModel):
    """A voice model on disk. Weights have the names of VoiceModel's state dict, and are lazy."""

    path: Path
    config: VoiceModelConfig
    weights: Mapping[str, torch.Tensor]
