"""Settings of a speaker model (Sortformer: Park et al. 2024; its streaming form: Medennikov et al. 2025).

Lengths in frames are of the encoder's frames. The outputs of Nemotron 3 Diarization have the rate of mel frames.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastscribe.config import EncoderConfig, FeaturesConfig, TransformerConfig


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
