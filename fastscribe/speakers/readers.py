"""Which models of speakers a run's options name, and the reader of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fastscribe.checkpoint.reader import read_config_json
from fastscribe.checkpoint.value import CONFIG_NAME
from fastscribe.config import CHANNELS, ModelConfig, Options, streaming_text
from fastscribe.errors import CheckpointError, UnsupportedCheckpoint, UsageError
from fastscribe.speakers import hf_sortformer, nemo_sortformer
from fastscribe.speakers.config import TURNS, VOICES, SpeakerCheckpoint, VoiceCheckpoint
from fastscribe.speakers.nemo_voices import read_voice_model


def read_speaker_model(path: str | Path) -> SpeakerCheckpoint:
    """Read a speaker model: NeMo's Sortformer, or a Hugging Face folder of Nemotron 3 Diarization.

    Raises:
        CheckpointError: There is none, or it is damaged, unsafe, not supported, or a model of another kind.
    """
    path = Path(path)
    try:
        config = read_config_json(path) if path.is_dir() and (path / CONFIG_NAME).is_file() else {}
        if config.get("model_type") == hf_sortformer.MODEL_TYPE:
            return hf_sortformer.read(path, config)
        return nemo_sortformer.read(path)
    except MemoryError as error:
        raise CheckpointError(path, "needs more memory than there is") from error


def read_models(options: Options, config: ModelConfig) -> Mapping[str, SpeakerCheckpoint | VoiceCheckpoint]:
    """Read the speaker model and the voice model that the options name.

    Args:
        options: `speakers`, `speaker_streaming` and `voices` are used.
        config: The transcription model's, which hears the same samples.

    Returns:
        The checkpoints by purpose: "turns" and "voices".

    Raises:
        CheckpointError: A checkpoint is damaged, unsafe, not supported, or of another sample rate.
        UsageError: A setting of the speaker model cannot be used.
    """
    found: dict[str, SpeakerCheckpoint | VoiceCheckpoint] = {}
    if options.speakers not in (None, CHANNELS):
        found[TURNS] = _with_streaming(read_speaker_model(options.speakers), options)
    if options.voices is not None:
        found[VOICES] = read_voice_model(options.voices)
    rate, option_of = config.features.sample_rate, {TURNS: "--speakers", VOICES: "--voices"}
    for purpose, other in found.items():
        if (own := other.config.features.sample_rate) != rate:
            raise UnsupportedCheckpoint(other.path, f"sample rate of {option_of[purpose]}", own, f"the model's {rate}")
    return found


def _with_streaming(checkpoint: SpeakerCheckpoint, options: Options) -> SpeakerCheckpoint:
    if options.speaker_streaming is None:
        return checkpoint
    try:
        return replace(checkpoint, config=checkpoint.config.with_streaming(options.speaker_streaming))
    except ValueError as error:
        given = streaming_text(options.speaker_streaming)
        raise UsageError(f"--speaker-streaming {given}: {checkpoint.path}: {error}") from error
