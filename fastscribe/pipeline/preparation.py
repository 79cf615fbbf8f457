"""What becomes of an input before the model sees it: its file is probed and cut into utterances.

A thread of this process does that, or a helper process. It reads samples only if the recording may be cut or trimmed, or if its
channels are told apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastscribe.audio.failures import to_failure
from fastscribe.audio.media import is_held
from fastscribe.audio.probe import planned, probe
from fastscribe.audio.read import read
from fastscribe.audio.remote_file import RemoteFile
from fastscribe.audio.sound_file_cache import close_held
from fastscribe.config import CHANNELS, ModelConfig, Options
from fastscribe.segmentation.segment import split
from fastscribe.segmentation.silence import MIN_TRIMMED_S
from fastscribe.speakers.channels import distinct_channels
from fastscribe.speakers.config import SpeakerModelConfig
from fastscribe.speakers.dialogues import check_names
from fastscribe.speakers.rttm import RttmTurns
from fastscribe.speakers.turns import windows
from fastscribe.types import AudioInfo, Failure, File, HeldSamples, Samples, Source, Utterance

PreparedInput = tuple[Utterance, ...] | Failure  # a recording's utterances, channel by channel, or why there are none

_MAX_TRUSTED_S = 86_400.0  # without a limit for utterances, files with a longer stated duration are probed first


@dataclass(frozen=True)
class Preparation:
    """Prepares the inputs of a run. It holds nothing of them.

    Args:
        config: The model's config.
        options: The run's options, with the limit of utterances that it follows.
        by_phrase: The model learnt on short utterances: cut at every clear pause, and leave out long silence.
        speaker_model: Sees each recording too; None: there is none.
        rttm: Has the turns of each recording's speakers; None: they come from elsewhere.
        holds: Read each recording as a whole, once, because several models see it.
        trusts_manifests: A row that states its duration becomes an utterance without a look at its file, which the loader
            probes.
    """

    config: ModelConfig
    options: Options
    by_phrase: bool
    speaker_model: SpeakerModelConfig | None = None
    rttm: RttmTurns | None = None
    holds: bool = False
    trusts_manifests: bool = True

    def prepare(self, source: Source | Failure) -> PreparedInput:
        """Probe and split one input. Several threads may call this."""
        if isinstance(source, Failure):
            return source
        stage = "probe"
        try:
            if self._trusts_manifest(source):
                audio = planned(source, self.config.features.sample_rate)
                return (Utterance(audio, 0, audio.num_samples),)
            audio = probe(source)
            if self.rttm is not None:
                self.rttm.of(audio)  # a recording without turns fails before the model sees it
            if self.holds:
                stage = "load"
                audio = read_whole(audio, self.config.features.sample_rate)
                release(source.file)
            stage = "split"
            return self._split(audio)
        except BaseException as error:  # even one that would end the thread becomes this file's Failure
            release(source.file)
            return to_failure(source, stage, error)

    def _split(self, audio: AudioInfo) -> tuple[Utterance, ...]:
        options, channels = self.options, [audio]
        if options.speakers == CHANNELS:
            check_names(audio, options.speaker_names)
            channels = [replace(audio, channel=channel) for channel in distinct_channels(audio)]
        limit_s, frame_s, vad = options.max_utterance_s or 0.0, self.config.frame_s, options.vad
        words = itertools.chain.from_iterable(split(one, limit_s, frame_s, vad, self.by_phrase) for one in channels)
        return (*words, *(() if self.speaker_model is None else speaker_spans(audio, self.speaker_model)))

    def _trusts_manifest(self, source: Source) -> bool:
        """Return True if the manifest states a duration that makes the whole recording one utterance.

        Samples in memory have no header whose reading would cost anything.
        """
        if (
            source.duration_s is None
            or not self.trusts_manifests
            or self.options.speakers is not None  # the file has the number of channels
            or self.rttm is not None  # and where the row's part begins
            or isinstance(source.file, Samples)
            or (self.by_phrase and source.duration_s >= MIN_TRIMMED_S)
        ):
            return False
        return source.duration_s <= (self.options.max_utterance_s or _MAX_TRUSTED_S)


def read_whole(audio: AudioInfo, sample_rate: int) -> AudioInfo:
    """Read a recording. Return one of its samples in memory, mono at `sample_rate`. Raises AudioError."""
    samples_S = read(audio, 0, audio.num_samples, sample_rate=sample_rate)
    held = HeldSamples(samples_S[:, None], sample_rate, audio.id, audio)
    return replace(
        audio,
        sample_rate=sample_rate,
        channels=1,
        num_samples=len(samples_S),
        start=0,
        file=held,
        is_int16=held.is_int16,
        track=None,
        channel=None,
    )


def speaker_spans(audio: AudioInfo, config: SpeakerModelConfig) -> Iterator[Utterance]:
    """Yield what a speaker model sees of a recording: all, or overlapping windows as long as what it learnt from."""
    if config.cache is not None:
        yield Utterance(audio, 0, audio.num_samples, "turns")
        return
    frame_samples = round(config.frame_s * audio.sample_rate)
    num_frames = math.ceil(audio.num_samples / frame_samples)
    for begin, end in windows(num_frames, round(config.trained_s / config.frame_s)):
        start = begin * frame_samples
        num_samples = min(end * frame_samples, audio.num_samples) - start
        yield Utterance(audio, start, num_samples, "turns")


def release(file: File) -> None:
    """Free what reading a recording has left in memory."""
    if isinstance(file, RemoteFile):
        file.drop()  # the caller may keep the transcript
    elif is_held(file):
        close_held(file)
